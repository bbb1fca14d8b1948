"""From a task definition to its algorithm: the four computations of the seam, each imported when asked for."""

from __future__ import annotations

from dataclasses import dataclass

from odp.algorithms.seam import Client, DeclaredRelease, Population, Query, Server
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array
from odp.v1 import common_pb2


@dataclass(frozen=True)
class Algorithm:
    """The computations of one task; each method imports its own module alone, so a device never loads server code."""

    definition: common_pb2.TaskDefinition

    @property
    def implicit(self) -> bool:
        """Whether the data say what a user saw, and not how much the user liked it."""
        return bool(self.definition.WhichOneof("local_data") == "implicit")

    @property
    def statistics(self) -> bool:
        """Whether the task asks for statistics: it has no model, no slices and one round."""
        return bool(self.definition.WhichOneof("training") == "statistics")

    @property
    def local_tables(self) -> frozenset[str]:
        """The tables of a device's store that its contribution is made of. Raises ConfigurationError."""
        if self.statistics:
            from odp.algorithms.statistics import terms as statistics

            return statistics.Terms.of(self.definition).tables
        return frozenset({self.definition.implicit.table if self.implicit else self.definition.data.table})

    @property
    def tables(self) -> tuple[tuple[str, int, int, bool], ...]:
        """Every table of the model: name, rows, width, keyed. Raises ConfigurationError for an invalid definition."""
        if self.statistics:
            from odp.algorithms.statistics import terms as statistics

            return ((statistics.TABLE, statistics.Terms.of(self.definition).grid.size, 1, False),)
        if self.implicit:
            from odp.algorithms.implicit import terms as implicit

            own = implicit.Terms.of(self.definition)
            items = (implicit.ITEMS_TABLE, own.items, own.width, True)
            return items, (implicit.GRAMIAN_TABLE, own.rank, own.rank, False)
        from odp.algorithms.dpam.terms import GLOBALS_TABLE, GLOBALS_WIDTH, ITEMS_TABLE, Terms

        terms = Terms.of(self.definition)
        return (ITEMS_TABLE, terms.items, terms.width, True), (GLOBALS_TABLE, 1, GLOBALS_WIDTH, False)

    def check(self) -> None:
        """Raises ConfigurationError naming the first number of the definition that is missing or out of range."""
        if self.statistics:
            from odp.algorithms.statistics import terms as statistics

            statistics.Terms.of(self.definition)
            return
        if self.implicit:
            from odp.algorithms.implicit import terms as implicit

            implicit.Terms.of(self.definition)
            return
        from odp.algorithms.dpam.terms import Terms

        Terms.of(self.definition)

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        """The server's half, with the public matrix that the definition names by its hash, if it names one.

        Raises ConfigurationError for an invalid definition, or another matrix.
        """
        if self.statistics:
            from odp.algorithms.statistics.server import StatisticsServer

            return StatisticsServer(self.definition)
        if self.implicit:
            from odp.algorithms.implicit.server import ImplicitServer

            if item_features is not None:
                raise ConfigurationError("Expected no item_features: implicit feedback does not use them")
            return ImplicitServer(self.definition)
        from odp.algorithms.dpam.server import DpamServer

        return DpamServer(self.definition, item_features)

    def client(self) -> Client:
        """The device's half. Raises ConfigurationError for an invalid definition."""
        if self.statistics:
            from odp.algorithms.statistics.client import StatisticsClient

            return StatisticsClient(self.definition)
        if self.implicit:
            from odp.algorithms.implicit.client import ImplicitClient

            return ImplicitClient(self.definition)
        from odp.algorithms.dpam.client import DpamClient

        return DpamClient(self.definition)

    def query(self, round: int) -> Query:
        """The declared query of a round. Raises ConfigurationError for an invalid definition or round."""
        if self.statistics:
            from odp.algorithms.statistics import query as statistics

            return statistics.query_for(self.definition, round)
        if self.implicit:
            from odp.algorithms.implicit import query as implicit

            return implicit.query_for(self.definition, round)
        from odp.algorithms.dpam.query import query_for

        return query_for(self.definition, round)

    def planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        """The releases of every round, in order. Raises ConfigurationError for an invalid definition."""
        try:
            if self.statistics:
                from odp.algorithms.statistics import query as statistics

                return statistics.planned_releases(self.definition)
            if self.implicit:
                from odp.algorithms.implicit import query as implicit

                return implicit.planned_releases(self.definition)
            from odp.algorithms.dpam.query import planned_releases

            return planned_releases(self.definition)
        except OverflowError:
            raise ConfigurationError("Expected clips and bounds that make releases of finite numbers") from None

    def population(self) -> Population:
        """The client for many users at once. Raises ConfigurationError for an invalid definition."""
        if self.statistics:
            from odp.algorithms.statistics.population import StatisticsPopulation

            return StatisticsPopulation(self.definition)
        if self.implicit:
            from odp.algorithms.implicit.population import ImplicitPopulation

            return ImplicitPopulation(self.definition)
        from odp.algorithms.dpam.population import DpamPopulation

        return DpamPopulation(self.definition)


def algorithm_for(definition: common_pb2.TaskDefinition) -> Algorithm:
    """The algorithm that the definition's training field names.

    Raises:
      ConfigurationError: the field is missing, or of an algorithm that this version does not know.
    """
    training = definition.WhichOneof("training")
    if training not in ("dpam", "statistics"):
        raise ConfigurationError(
            f"Expected training={training!r} of task {definition.name!r} to be one of dpam, statistics"
        )
    return Algorithm(definition)
