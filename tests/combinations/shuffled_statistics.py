"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.statistics.task import Histogram, Mean, Statistics
from odp.protocol.aggregation import DEFAULT
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2, local_statistics_pb2, statistics_pb2

_BINS = 6


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task of several questions, and one whose reports are randomised response alone."""
    fewest = aggregations[DEFAULT]
    return _definition({"items": Histogram(bins=_BINS), "mean": Mean(low=0, high=2)}, fewest), _definition(
        {"shares": Histogram(low=0, high=2, bins=2, counts="shares")}, fewest
    )


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    query = statistics_pb2.StatisticsQuery(
        name="items",
        table="ratings",
        column=statistics_pb2.StatisticsQuery.COLUMN_ITEM,
        share=1.0,
        histogram=statistics_pb2.HistogramQuery(
            bins=_BINS, counting=statistics_pb2.HistogramQuery.COUNTING_USERS, clip=1.0
        ),
    )
    reports = local_statistics_pb2.ReportTerms(queries=[query], report_epsilon=1.0, levels=[1])
    definition = common_pb2.TaskDefinition(
        name="recorded",
        population="recorded",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=256),
        shuffled_statistics=local_statistics_pb2.ShuffledStatistics(reports=reports, honest=1, maximum=2),
    )
    return (definition,)


def _definition(queries: Mapping[str, Histogram | Mean], clients: int) -> common_pb2.TaskDefinition:
    return Statistics(
        name="recorded",
        queries=queries,
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6),
        cohort=Cohort(minimum=clients, goal=clients),
        trust="shuffle",
    ).definition()
