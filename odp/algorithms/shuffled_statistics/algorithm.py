"""Shuffled reports as the platform sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.capabilities import Answers, RandomizedInquiry
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.dense.records import check_round
from odp.algorithms.seam import Client, LocalTable, ModelTable, Population, Query, Server
from odp.algorithms.shuffled_statistics.terms import RELEASE, Terms
from odp.errors import ConfigurationError
from odp.models.computing_cost import SORTED_SECONDS, ComputingCost
from odp.numerics.arrays import Float32Array, Float64Array
from odp.privacy import accounting
from odp.privacy.events import Event
from odp.privacy.local_charge import LocalCharge

if TYPE_CHECKING:
    from odp.algorithms.declared import DeclaredRelease
    from odp.datasets.ratings import Ratings
    from odp.models.left_out import LeftOut


class TaskAlgorithm(RandomizedInquiry):
    """``odp.algorithms.capabilities.RandomizedInquiry`` of tasks whose reports the enclave makes anonymous."""

    simulates = "ratings"

    def terms(self) -> Terms:
        """The definition, read and checked."""
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return self.terms().reports.local_data

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        return (ModelTable(RELEASE, self.terms().reports.cells, 1, False),)

    @property
    def local_charge(self) -> LocalCharge:
        return self.terms().local_charge

    @property
    def fewest_users(self) -> int:
        return self.definition.cohort.minimum

    @property
    def most_users(self) -> int:
        return self.terms().maximum

    @property
    def computing_cost(self) -> ComputingCost:
        return reading_cost(self.local_data, row_seconds=SORTED_SECONDS)

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        from odp.algorithms.dense.server import VectorServer

        if item_features is not None:
            raise ConfigurationError("Expected no item_features: a question does not use them")
        return VectorServer(RELEASE, self.terms().reports.cells)

    def client(self) -> Client:
        from odp.algorithms.shuffled_statistics.client import ReportsClient

        return ReportsClient(self.terms())

    def query(self, round: int) -> Query:
        from odp.algorithms.shuffled_statistics.query import ReportsQuery

        check_round(round)
        return ReportsQuery(self.terms())

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return [self.query(0).releases]

    def population(self) -> Population[Ratings]:
        from odp.algorithms.shuffled_statistics.population import ReportsPopulation

        return ReportsPopulation(self.terms())

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        from odp.algorithms.local_statistics.results import answers_of

        counts = released[RELEASE]
        if counts.sum() != contributions:
            raise ConfigurationError(
                f"Expected the numbers of reports to sum to {contributions} (got {counts.sum():g})"
            )
        delta = self.definition.privacy.delta
        return answers_of(self.terms().reports, counts.astype(np.int64), epsilon=epsilon, delta=delta)

    def left_out(self, users: Ratings) -> dict[str, LeftOut]:
        from odp.algorithms.statistics.bins import rows_left_out

        return rows_left_out(self.terms().reports.parts, users)

    def exact(self, users: Ratings) -> Answers:
        from odp.algorithms.local_statistics.results import exact_answers

        return exact_answers(self.terms().reports, users, delta=self.definition.privacy.delta)

    def simulated(self, users: Ratings, *, seeds: npt.NDArray[np.uint64]) -> tuple[Answers, tuple[Event, ...]]:
        from odp.algorithms.local_statistics.population import counts_of
        from odp.algorithms.local_statistics.results import answers_of

        terms, delta = self.terms(), self.definition.privacy.delta
        counts = counts_of(terms.reports, users, seeds=seeds)
        epsilon = accounting.epsilon([terms.charge], delta=delta)
        return answers_of(terms.reports, counts, epsilon=epsilon, delta=delta), (terms.charge,)
