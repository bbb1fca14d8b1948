"""Federated training as the platform sees it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from odp.algorithms.capabilities import Answers, Diagnosed
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.dense.rotated import RotatedGrid
from odp.algorithms.federated.reading import examples_table
from odp.algorithms.federated.terms import CLIP, PARAMETERS, Terms
from odp.algorithms.release import require_sizes
from odp.algorithms.seam import (
    Client,
    LocalTable,
    ModelTable,
    NoisyTensors,
    Population,
    Query,
    Server,
)
from odp.errors import ConfigurationError
from odp.models.computing_cost import ROTATED_SECONDS, ROUNDED_SECONDS, VECTOR_BYTES, ComputingCost, Product
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import ModelVersion


class TaskAlgorithm(Diagnosed):
    """``odp.algorithms.seam.Algorithm`` of tasks that train a model by clipped updates."""

    dense = True
    schedules_cohorts = True

    def terms(self) -> Terms:
        """The definition, read and checked."""
        return self._terms

    @functools.cached_property
    def _terms(self) -> Terms:
        # Once, and not for each of up to 10,000 rounds.
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        terms = self.terms()
        return (examples_table(terms.examples, most_rows=terms.local.most_rows),)

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        terms = self.terms()
        parameters = ModelTable(PARAMETERS, terms.model.size, 1, False)
        return (parameters,) if terms.adaptive is None else (parameters, ModelTable(CLIP, 1, 1, False))

    @property
    def computing_cost(self) -> ComputingCost:
        terms = self.terms()
        rotated = any(isinstance(block.grid, RotatedGrid) for block in terms.blocks)
        numbers = terms.blocks[0].grid.size
        return reading_cost(self.local_data, most_examples=terms.local.most_examples).plus(
            *terms.model.training_cost(terms.local),
            Product((ROTATED_SECONDS if rotated else ROUNDED_SECONDS) * numbers),
            memory=(Product(VECTOR_BYTES * numbers + terms.model.program_bytes),),
            caps=terms.local.caps,
        )

    def check_for_devices(self) -> None:
        self.check()
        require_sizes(self.query(0), self.definition)

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        from odp.algorithms.federated.server import FederatedServer

        return FederatedServer(self.terms(), item_features)

    def client(self) -> Client:
        from odp.algorithms.federated.client import FederatedClient

        return FederatedClient(self.terms())

    def query(self, round: int) -> Query:
        from odp.algorithms.federated.query import update_query

        return update_query(self.terms().upload(round))

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        from odp.algorithms.dense.uploads import upload_of
        from odp.algorithms.federated.query import update_query

        planned: list[tuple[DeclaredRelease, ...]] = []
        for block in self.terms().blocks:
            planned += [update_query(upload_of(block.grid, len(planned))).releases] * block.rounds
        return planned

    def population(self) -> Population[Any]:
        from odp.algorithms.federated.population import FederatedPopulation

        return FederatedPopulation(self.terms())

    @property
    def figure_names(self) -> tuple[str, ...]:
        from odp.algorithms.federated.diagnostics import figure_names

        return figure_names(self.terms())

    def figures(self, broadcast: ModelVersion, released: NoisyTensors, *, noisy: bool) -> dict[str, float]:
        """As ``odp.algorithms.capabilities.Diagnosed``; none where the task releases none."""
        from odp.algorithms.federated.diagnostics import figures_of, plain

        terms = self.terms()
        if not terms.spread:
            return {}
        return plain(figures_of(terms, released, clip=terms.clip_of(broadcast.dense), noisy=noisy))

    def diagnosed(self, releases: Sequence[NoisyTensors], *, epsilon: float) -> Answers:
        from odp.algorithms.federated.diagnostics import diagnosed

        terms = self.terms()
        if not terms.spread:
            raise ConfigurationError(
                f"task {self.definition.name!r} trains a model; it has results to show with diagnostics=True alone"
            )
        return diagnosed(
            terms, releases, task=self.definition.name, epsilon=epsilon, delta=self.definition.privacy.delta
        )
