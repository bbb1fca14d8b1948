"""Counts of usable rows as the platform sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odp.algorithms.capabilities import CountsUsable
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.dense.inquiry import DenseInquiry
from odp.algorithms.seam import Client, LocalTable, Population
from odp.algorithms.usable_count.terms import RELEASE, Terms
from odp.errors import ConfigurationError
from odp.models.computing_cost import SEALED_SECONDS, VECTOR_BYTES, ComputingCost, Product
from odp.numerics.arrays import Float32Array, Float64Array

if TYPE_CHECKING:
    from odp.algorithms.usable_count.results import UsableDevices
    from odp.v1 import common_pb2


# Finding out whether one row is usable, once it is read.
_JUDGED_SECONDS = 1e-7


class TaskAlgorithm(DenseInquiry, CountsUsable):
    """``odp.algorithms.capabilities.CountsUsable`` of tasks that count devices with usable rows."""

    release = RELEASE

    def terms(self) -> Terms:
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return (self.terms().reads.table,)

    @property
    def computing_cost(self) -> ComputingCost:
        terms = self.terms()
        return reading_cost(self.local_data, row_seconds=_JUDGED_SECONDS, most_examples=terms.most_examples).plus(
            Product(SEALED_SECONDS * terms.grid.size), memory=(Product(VECTOR_BYTES * terms.grid.size),)
        )

    def public_matrix_from(self, data: bytes) -> Float32Array | None:
        if data:
            raise ConfigurationError("Expected no public matrix: a count of usable rows trains nothing")
        return None

    def client(self) -> Client:
        from odp.algorithms.usable_count.client import VotingClient

        return VotingClient(self.terms())

    def population(self) -> Population[Any]:
        from odp.algorithms.usable_count.population import VotingPopulation

        return VotingPopulation(self.terms())

    def counts_for(self, training: common_pb2.TaskDefinition) -> bool:
        from odp.algorithms.usable_count.task import read_part

        return read_part(training) == read_part(self.definition)

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> UsableDevices:
        from odp.algorithms.usable_count.results import UsableDevices

        grid = self.terms().grid
        return UsableDevices(
            counts=released[RELEASE], std=grid.std_of(contributions) if noisy else 0.0, contributions=contributions,
            epsilon=epsilon, delta=self.definition.privacy.delta,
        )  # fmt: skip
