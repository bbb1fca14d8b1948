"""From a budget to the epsilon of one report: the largest whose anonymous reports together keep the budget."""

from __future__ import annotations

import functools
import math

from odp import _validate
from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS
from odp.algorithms.local_statistics.config import resolve
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON
from odp.privacy.shuffling import amplified_epsilon, amplified_epsilon_k_rr
from odp.v1 import common_pb2, local_statistics_pb2, statistics_pb2

#: A report's epsilon is found to this part of itself, never above what the budget allows.
_TOLERANCE = 1e-4
# Reports that the round takes, over its goal: those that arrive before it closes are not refused.
_ROOM = 2
_CORRUPT_FRACTION = 0.1


def write(
    definition: common_pb2.TaskDefinition,
    queries: list[statistics_pb2.StatisticsQuery],
    *,
    corrupt_fraction: float | None,
) -> None:
    """Writes the queries into a definition that has its privacy and cohort.

    Raises:
      ConfigurationError: a number is out of range.
    """
    corrupt = _CORRUPT_FRACTION if corrupt_fraction is None else corrupt_fraction
    shuffled = resolve_shuffled(
        queries, epsilon=definition.privacy.epsilon, delta=definition.privacy.delta, goal=definition.cohort.goal,
        honest=honest_reports(definition.cohort.minimum, corrupt),
    )  # fmt: skip
    definition.shuffled_statistics.CopyFrom(shuffled)


def honest_reports(minimum: int, corrupt_fraction: float) -> int:
    """Reports of honest devices among ``minimum``, at least 1.

    Raises:
      ConfigurationError: ``corrupt_fraction`` is not from 0 to below 1.
    """
    _validate.within(low=0.0, high=0.99, corrupt_fraction=corrupt_fraction)
    return max(1, minimum - math.floor(corrupt_fraction * minimum))


def resolve_shuffled(
    queries: list[statistics_pb2.StatisticsQuery], *, epsilon: float, delta: float, honest: int, goal: int
) -> local_statistics_pb2.ShuffledStatistics:
    """Every number of a task whose shuffled reports together are (epsilon, delta)-DP.

    Raises:
      ConfigurationError: a number is out of range.
    """
    general = report_epsilon_for(epsilon, delta, honest, 0)
    report_terms = resolve(queries, report_epsilon=general)
    choices = ReportTerms.of(report_terms).choices
    if choices:
        # A report that is randomised response alone is hidden better; the grid of values stays.
        report_terms.report_epsilon = max(general, report_epsilon_for(epsilon, delta, honest, choices))
    return local_statistics_pb2.ShuffledStatistics(
        reports=report_terms, honest=honest, maximum=min(_ROOM * goal, MAX_CONTRIBUTIONS)
    )


@functools.lru_cache(maxsize=256)
def report_epsilon_for(epsilon: float, delta: float, honest: int, choices: int) -> float:
    """The largest epsilon of one report so that ``honest`` anonymous ones are (epsilon, delta)-DP; at least epsilon.

    ``choices`` are of k-ary randomised response, 0 for any randomiser.
    """

    def amplified(report: float) -> float:
        if choices:
            return amplified_epsilon_k_rr(report, honest, delta, choices)
        return amplified_epsilon(report, honest, delta)

    low, high = min(epsilon, LARGEST_EPSILON), LARGEST_EPSILON
    if amplified(high) <= epsilon:
        return high
    while high - low > _TOLERANCE * low:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if amplified(middle) > epsilon else (middle, high)
    return low
