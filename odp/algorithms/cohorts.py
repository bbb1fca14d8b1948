"""The cohort of each round: how many contributions close it, where the rounds of a task differ in that."""

from __future__ import annotations

from odp import _validate
from odp.errors import ConfigurationError
from odp.privacy.events import Sampling
from odp.v1 import common_pb2

#: Blocks of equal rounds that a schedule has at most.
MOST_BLOCKS = 256
#: Different rounds of a task with sampling: a tenth of a second of a processor goes into the epsilon of each.
MOST_SAMPLED_BLOCKS = 12


def goal_of(cohort: common_pb2.CohortTerms, round: int) -> int:
    """Number of contributions at which a round closes. Raises ConfigurationError where a schedule has no such round."""
    return cohort.goal if not cohort.schedule else _rounds_of(cohort, round).goal


def draw_of(cohort: common_pb2.CohortTerms, round: int) -> Sampling | None:
    """How the enclave draws the contributions of a round; None where every one counts.

    Raises:
      ConfigurationError: a number of the draw is missing or out of range, or a schedule has no such round.
    """
    if not cohort.HasField("enclave_poisson"):
        return None
    terms = cohort.enclave_poisson
    if not cohort.schedule:
        if not terms.probability:
            raise ConfigurationError(
                "Expected sampling_probability to be given with sampling='enclave_poisson', or a training with "
                "cohort_schedule, which gives one to each round"
            )
        return Sampling(terms.probability, terms.most_contributions, terms.cap)
    return _draw_of(cohort, _rounds_of(cohort, round))


def draws_of(cohort: common_pb2.CohortTerms, *, rounds: int) -> list[Sampling | None]:
    """``draw_of`` of each round of a task with so many. Raises as ``draw_of``, also where a schedule has others."""
    if not cohort.schedule:
        return [draw_of(cohort, 0)] * rounds
    check_schedule(cohort, rounds=rounds)
    return [draw for block in cohort.schedule for draw in [_draw_of(cohort, block)] * block.rounds]


def check_schedule(cohort: common_pb2.CohortTerms, *, rounds: int) -> None:
    """Returns if the cohort has no schedule, or one of as many ``rounds`` within its limits.

    Raises:
      ConfigurationError: a number is out of range.
    """
    if not cohort.schedule:
        return
    _validate.integer(low=1, high=MOST_BLOCKS, blocks_of_cohorts=len(cohort.schedule))
    sampled, first = cohort.HasField("enclave_poisson"), 0
    for block in cohort.schedule:
        _validate.integer(low=1, high=rounds, rounds_of_cohort=block.rounds)
        _validate.integer(low=cohort.minimum, high=cohort.goal, goal_of_cohort=block.goal)
        if not sampled and (block.probability or block.cap):
            raise ConfigurationError("Expected no probability and no cap in a schedule of cohorts without sampling")
        _draw_of(cohort, block)
        first += block.rounds
    if first != rounds:
        raise ConfigurationError(f"Expected the {first} rounds of the schedule of cohorts to be all {rounds} rounds")


def _draw_of(cohort: common_pb2.CohortTerms, block: common_pb2.CohortRounds) -> Sampling | None:
    if not cohort.HasField("enclave_poisson"):
        return None
    return Sampling(block.probability, cohort.enclave_poisson.most_contributions, block.cap)


def _rounds_of(cohort: common_pb2.CohortTerms, round: int) -> common_pb2.CohortRounds:
    left = round
    for block in cohort.schedule:
        if 0 <= left < block.rounds:
            return block
        left -= block.rounds
    raise ConfigurationError(f"Expected round={round} to be one of the schedule of cohorts")
