"""The task of a simulated fleet, and what its devices can do to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from odp.algorithms.choices import Question
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Algorithm
from odp.crypto.segments import is_large
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.aggregation import DEFAULT
from odp.protocol.terms import FULL, Cohort, UserLevelDP
from odp.research.simulation.fleet.device_data import DeviceData
from odp.research.simulation.fleet.plan import Plan
from odp.research.simulation.fleet.scenario import Scenario
from odp.tasks.file import AnyTask, load_task
from odp.tasks.task import Task

POPULATION = "fleet"
_ROUND_SECONDS = 10**6
#: Of payloads of one byte again and again, those that are tried to break a task's bounds.
_BYTES = (0x01, 0xFF, 0x7F, 0x80, 0x02, 0xAA)


@dataclass(frozen=True, kw_only=True)
class FleetTask:
    """A task whose rounds close when the last honest device of a plan is counted.

    Attributes:
      task: as it is submitted.
      plan: who does what.
      local: whether devices report to the server alone: a "round" is then one report of each device.
      behaviours: the lies that an honest service can tell from the truth.
      left_out: those of the scenario that it cannot.
      bad_byte: a byte of which payloads are made that break the bounds.
      day: seconds from the beginning of one round to the next one's.
    """

    task: AnyTask
    plan: Plan
    local: bool
    behaviours: tuple[str, ...]
    left_out: tuple[str, ...]
    bad_byte: int
    day: float


def fleet_task(
    scenario: Scenario, data: DeviceData, *, folder: Path, devices: int, seed: int, population: str = POPULATION
) -> FleetTask:
    """The task of a scenario for that number of devices; paths start at ``folder``.

    Raises:
      ConfigurationError: the task cannot be run by a fleet, or its rounds would have too few contributions.
    """
    task = dataclasses.replace(_task(scenario, data, folder), population=population)
    algorithm = algorithm_for(task.definition())
    local = isinstance(algorithm, LocalReporter)
    rounds = algorithm.local_charge.most if isinstance(algorithm, LocalReporter) else _rounds(task, algorithm)
    behaviours, bad_byte = _behaviours(scenario.faults.behaviours, algorithm, rounds)
    if scenario.faults.malicious and not behaviours:
        raise ConfigurationError(
            f"Expected behaviours that a service can refuse; of a task like {task.name!r} it refuses none of "
            f"{', '.join(scenario.faults.behaviours)}"
        )
    minimum = scenario.task.minimum_cohort if scenario.task.file is None else _minimum(task)
    plan = Plan(scenario, devices=devices, rounds=rounds, seed=seed, minimum=minimum, behaviours=behaviours)
    submitted = _with_goal(task, plan.goal)
    if isinstance(algorithm, LocalReporter):
        most = algorithm_for(submitted.definition())
        if isinstance(most, LocalReporter) and most.most_updates < plan.goal * rounds:
            raise ConfigurationError(
                f"Expected the task to take {plan.goal * rounds} reports or more (got {most.most_updates}); raise its "
                "limit or take fewer --devices"
            )
    return FleetTask(
        task=submitted,
        plan=plan,
        local=local,
        behaviours=behaviours,
        left_out=tuple(behaviour for behaviour in scenario.faults.behaviours if behaviour not in behaviours),
        bad_byte=bad_byte,
        day=float(algorithm.seconds_between) if isinstance(algorithm, LocalReporter) else 0.0,
    )


def _task(scenario: Scenario, data: DeviceData, folder: Path) -> AnyTask:
    wanted = scenario.task
    if wanted.file is not None:
        return load_task(folder / wanted.file)
    if (ratings := data.ratings) is None:
        raise ConfigurationError("Expected [task] file = .. beside data that are no ratings: a DPAM task has no others")
    return Task(
        name=POPULATION,
        model=MatrixFactorization(items=ratings.n_items, rank=wanted.rank if wanted.steps else 0),
        data=RatingsData(low=ratings.low, high=ratings.high),
        privacy=UserLevelDP(
            epsilon=wanted.epsilon, delta=wanted.delta,
            max_items_per_user=min(wanted.max_items_per_user, ratings.n_items),
        ),
        training=DPAM(steps=wanted.steps) if wanted.steps else DPAM(),
        cohort=Cohort(minimum=wanted.minimum_cohort, goal=wanted.minimum_cohort),
    )  # fmt: skip


def _rounds(task: AnyTask, algorithm: Algorithm) -> int:
    cohort: Cohort = task.cohort  # type: ignore[union-attr]  # tasks with rounds have one
    if isinstance(task, Task) and task.count_usable is not None:
        raise ConfigurationError("Expected count_usable=None: a fleet takes part in the rounds of one task")
    if cohort.aggregation != DEFAULT or cohort.sampling != FULL:
        raise ConfigurationError(
            f"Expected a cohort with aggregation {DEFAULT!r} and sampling {FULL!r} (got {cohort.aggregation!r} and "
            f"{cohort.sampling!r}): a fleet has to know before the run how many contributions close a round"
        )
    rounds = len(algorithm.planned_releases())
    if any(is_large(algorithm.query(number).payload_bytes) for number in range(rounds)):
        raise ConfigurationError("Expected contributions that travel whole; take a smaller model or fewer items")
    return rounds


def _minimum(task: AnyTask) -> int:
    cohort = getattr(task, "cohort", None)
    return 1 if cohort is None else int(cohort.minimum)


def _with_goal(task: AnyTask, goal: int) -> AnyTask:
    if not isinstance(task, Task | Question):
        return task
    cohort = dataclasses.replace(task.cohort, minimum=goal, goal=goal, round_seconds=_ROUND_SECONDS)
    return dataclasses.replace(task, cohort=cohort)


def _behaviours(wanted: Sequence[str], algorithm: Algorithm, rounds: int) -> tuple[tuple[str, ...], int]:
    """(the lies of ``wanted`` that are refused, the byte of payloads that break the bounds)."""
    checks: list[tuple[Callable[[bytes], None], int]]
    refused = set(wanted)
    if isinstance(algorithm, LocalReporter):
        refused.discard("wrong_round")  # there are none
        checks = [(algorithm.judge(algorithm.first_rows()).check, algorithm.report_bytes)]
    else:
        queries = [algorithm.query(number) for number in range(rounds)]
        checks = [(query.check, query.payload_bytes) for query in queries]
    bad = next(
        (candidate for candidate in _BYTES if all(_breaks(check, bytes([candidate]) * size) for check, size in checks)),
        None,
    )
    if bad is None:
        refused.discard("out_of_bounds")
    return tuple(behaviour for behaviour in wanted if behaviour in refused), bad or 0


def _breaks(check: Callable[[bytes], None], payload: bytes) -> bool:
    try:
        check(payload)
    except ContributionRefused as refused:
        return refused.refusal is Refusal.OUT_OF_BOUNDS
    return False
