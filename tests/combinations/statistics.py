"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.statistics.task import Histogram, Mean, Statistics
from odp.protocol.aggregation import DEFAULT
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2, statistics_pb2

_BINS = 6


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave.

    ``aggregations`` has the fewest contributions of each; contributions of ``large`` numbers are sealed in segments.
    """
    ways = (_definition(_BINS, aggregation=name, clients=fewest) for name, fewest in aggregations.items())
    return (_definition(large), *ways)


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    terms = statistics_pb2.DenseTerms(clip=1.0, grid_bits=6, noise_std=1.0, maximum=2)
    users = statistics_pb2.HistogramQuery.COUNTING_USERS
    query = statistics_pb2.StatisticsQuery(
        name="items",
        table="ratings",
        column=statistics_pb2.StatisticsQuery.COLUMN_ITEM,
        share=1.0,
        histogram=statistics_pb2.HistogramQuery(bins=_BINS, counting=users, clip=1.0),
    )
    definition = common_pb2.TaskDefinition(
        name="recorded",
        population="recorded",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=256),
        statistics=statistics_pb2.Statistics(queries=[query], dense=terms),
    )
    return (definition,)


def _definition(bins: int, *, aggregation: str = DEFAULT, clients: int = 1) -> common_pb2.TaskDefinition:
    return Statistics(
        name="recorded",
        queries={
            "items": Histogram(bins=bins),
            "values": Histogram(low=0, high=2, bins=2, counts="records", clip=2.0),
            "shares": Histogram(edges=(0.0, 1.0, 2.0), counts="shares"),
            "mean": Mean(low=0, high=2),
        },
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6),
        cohort=Cohort(minimum=clients, goal=clients, aggregation=aggregation),
    ).definition()
