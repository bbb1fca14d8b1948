"""Schedules that a developer writes, and the blocks of equal rounds that they make together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odp import _validate
from odp.algorithms.cohorts import MOST_BLOCKS
from odp.algorithms.federated.terms import MOST_ROUNDS
from odp.errors import ConfigurationError
from odp.privacy.composition import truncation_cap
from odp.privacy.events import Sampling
from odp.v1 import common_pb2

#: The most rounds of a training: the cap of a draw is loose enough for all of them (rule P14).
_CAP_ROUNDS = MOST_ROUNDS


@dataclass(frozen=True)
class PlannedRounds:
    """Equal rounds; ``noise`` is relative to that of other blocks, ``goal`` None without a schedule of cohorts."""

    rounds: int
    noise: float
    goal: int | None


def checked_schedule(
    schedule: Sequence[Sequence[float]], *, name: str, second: str, rounds: int
) -> tuple[tuple[int, float], ...]:
    """The pairs of a schedule, whose numbers of rounds sum to ``rounds``; ``second`` says what the others are.

    Raises:
      ConfigurationError: other than pairs, too many or none of them, or another sum.
    """
    _validate.integer(low=1, high=MOST_BLOCKS, **{name: len(schedule)})
    pairs = []
    for pair in schedule:
        if len(pair) != 2:
            raise ConfigurationError(f"Expected {name}={pair!r} to be pairs (rounds, {second})")
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=pair[0])  # type: ignore[arg-type]
        pairs.append((int(pair[0]), pair[1]))
    total = sum(length for length, _ in pairs)
    if total != rounds:
        raise ConfigurationError(f"Expected the {total} rounds of {name} to be rounds={rounds}")
    return tuple(pairs)


def planned_blocks(
    noises: Sequence[tuple[int, float]], goals: Sequence[tuple[int, int | None]]
) -> tuple[PlannedRounds, ...]:
    """The fewest blocks of rounds that are equal in both schedules, which have as many rounds.

    >>> planned_blocks([(2, 2.0), (3, 1.0)], [(4, 10), (1, 20)])[1]
    PlannedRounds(rounds=2, noise=1.0, goal=10)
    """
    blocks, left, right = [], list(noises), list(goals)
    while left and right:
        (of_noise, noise), (of_goal, goal) = left.pop(0), right.pop(0)
        rounds = min(of_noise, of_goal)
        blocks.append(PlannedRounds(rounds, noise, goal))
        if of_noise > rounds:
            left.insert(0, (of_noise - rounds, noise))
        if of_goal > rounds:
            right.insert(0, (of_goal - rounds, goal))
    return tuple(blocks)


def write_cohorts(definition: common_pb2.TaskDefinition, schedule: Sequence[tuple[int, int]]) -> None:
    """Writes the cohort of each round. With sampling, ``goal`` contributions count, of those of the cohort's goal.

    Raises:
      ConfigurationError: a goal is below the cohort's minimum or above its goal; with sampling, not below it, or the
        cohort has a probability of its own.
    """
    cohort = definition.cohort
    sampled = cohort.HasField("enclave_poisson")
    if sampled and cohort.enclave_poisson.probability:
        raise ConfigurationError(
            f"Expected no sampling_probability={cohort.enclave_poisson.probability:g} with cohort_schedule: that of a "
            "round is its goal over the cohort's goal"
        )
    del cohort.schedule[:]
    for rounds, goal in schedule:
        if not cohort.minimum <= goal <= cohort.goal:
            raise ConfigurationError(
                f"Expected every goal of cohort_schedule (got {goal}) to be from minimum={cohort.minimum} to "
                f"goal={cohort.goal} of the cohort"
            )
        if sampled and goal == cohort.goal:
            raise ConfigurationError(
                f"Expected every goal of cohort_schedule (got {goal}) to be below goal={cohort.goal} of the cohort "
                "with sampling: that many devices contribute, and a part of them counts"
            )
        if not sampled:
            cohort.schedule.add(rounds=rounds, goal=goal)
            continue
        probability = goal / cohort.goal
        cap = truncation_cap(
            probability=probability, population_bound=cohort.enclave_poisson.most_contributions, rounds=_CAP_ROUNDS,
            delta=definition.privacy.delta,
        )  # fmt: skip
        Sampling(probability, cohort.enclave_poisson.most_contributions, cap)
        cohort.schedule.add(rounds=rounds, goal=cohort.goal, probability=probability, cap=cap)
    if sampled:
        # Whoever reads of one draw, such as a policy, reads of the largest.
        largest = max(cohort.schedule, key=lambda block: block.probability)
        cohort.enclave_poisson.probability = largest.probability
        cohort.enclave_poisson.cap = largest.cap
