"""Statistics as the platform sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from google.protobuf.message import Message

from odp.algorithms.seam import (
    Answers,
    Client,
    DeclaredRelease,
    Inquiry,
    LocalTable,
    ModelTable,
    Population,
    Query,
    Server,
)
from odp.algorithms.statistics.terms import RELEASE, TABLE, Terms
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array

_OWN = frozenset({"ratings", "events"})


class TaskAlgorithm(Inquiry):
    """``odp.algorithms.seam.Inquiry`` of tasks that ask for statistics."""

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        parts = Terms.of(self.definition).parts
        return tuple(LocalTable(part.name, part.table, _OWN, part.events) for part in parts)

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        return (ModelTable(TABLE, Terms.of(self.definition).grid.size, 1, False),)

    @property
    def resolved(self) -> Message:
        return cast("Message", self.definition.statistics.dense)

    def check(self) -> None:
        Terms.of(self.definition)

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        from odp.algorithms.statistics.server import StatisticsServer

        if item_features is not None:
            raise ConfigurationError("Expected no item_features: statistics do not use them")
        return StatisticsServer(self.definition)

    def client(self) -> Client:
        from odp.algorithms.statistics.client import StatisticsClient

        return StatisticsClient(self.definition)

    def query(self, round: int) -> Query:
        from odp.algorithms.statistics.query import query_for

        return query_for(self.definition, round)

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        from odp.algorithms.statistics.query import planned_releases

        return planned_releases(self.definition)

    def population(self) -> Population:
        from odp.algorithms.statistics.population import StatisticsPopulation

        return StatisticsPopulation(self.definition)

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        from odp.algorithms.statistics.results import results_of

        return results_of(self.definition, released[RELEASE], contributions=contributions, epsilon=epsilon, noisy=noisy)
