"""What the queries of ``odp.Statistics`` become where nobody is trusted, and the reports of other trusts."""

from __future__ import annotations

from odp import _validate
from odp.algorithms.choices import without_rounds
from odp.algorithms.local_statistics.layout import best_levels
from odp.algorithms.statistics.terms import kind_of
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON, SMALLEST_EPSILON
from odp.v1 import common_pb2, local_statistics_pb2, statistics_pb2


def write(definition: common_pb2.TaskDefinition, queries: list[statistics_pb2.StatisticsQuery]) -> None:
    """Writes the queries into a definition that has its privacy and cohort; ``goal`` bounds its reports.

    Raises:
      ConfigurationError: epsilon is beyond what randomised response takes.
    """
    reports = resolve(queries, report_epsilon=definition.privacy.epsilon)
    asking = local_statistics_pb2.LocalStatistics(reports=reports, most_reports=definition.cohort.goal)
    definition.local_statistics.CopyFrom(asking)
    without_rounds(definition)


def resolve(
    queries: list[statistics_pb2.StatisticsQuery], *, report_epsilon: float
) -> local_statistics_pb2.ReportTerms:
    """Every number of the reports to ``queries``, whose shares need not sum to 1 yet.

    Raises:
      ConfigurationError: ``report_epsilon`` is beyond what randomised response takes.
    """
    _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, report_epsilon=report_epsilon)
    total = sum(query.share for query in queries)
    for query in queries:
        query.share /= total
    levels = [best_levels(kind_of(query)[1], report_epsilon) for query in queries]
    return local_statistics_pb2.ReportTerms(queries=queries, report_epsilon=report_epsilon, levels=levels)
