"""The conditions for the opening of a round: the policy's terms, the order of rounds, both budgets, and the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odp.algorithms.release import require_sizes
from odp.errors import ConfigurationError, PopulationFull, PrivacyError
from odp.privacy.ledger_entry import ReleaseState
from odp.privacy.ledger_events import LedgerEvent
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.policy import EnclavePolicy
from trusted_aggregator.enclave.holdings import Holdings
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.state.limits import (
    MOST_DEFINITION_BYTES,
    MOST_OPEN_ROUNDS,
    MOST_STORED_BYTES,
    MOST_STREAM_USERS,
    MOST_TASKS,
)
from trusted_aggregator.state.population import Population, unfounded
from trusted_aggregator.state.records import SealedRecord, release_key

#: Everything that a release of a stream has its host read or store, in one message of at most 64 MiB.
LARGEST_STREAM_BYTES = 62 * 2**20

_RECORD_BYTES = 44  # of one user on the record of a stream


def require_may_open(
    task: OpenedTask, number: int, *, population: Population, holdings: Holdings, policy: EnclavePolicy
) -> None:
    """Returns if round ``number`` of ``task``, whose developer owns the population, may be opened now.

    Raises:
        ConfigurationError: there is no such round, or its release would be too large.
        PrivacyError: the cohort minimum is below the policy's, the policy shows who is drawn, the round before is not
            released, this one was charged already, or too many tasks were ended; BudgetExceeded where a budget cannot
            pay.
        StateError: the population was rolled back.
    """
    cohort = task.definition.cohort
    if cohort.minimum < policy.minimum_cohort:
        raise PrivacyError(
            f"Expected cohort.minimum={cohort.minimum} of {task.label} to be at least "
            f"{policy.minimum_cohort}, the minimum of this enclave's policy"
        )
    if task.definition.cohort.HasField("enclave_poisson") and policy.accumulation != "oblivious":
        raise PrivacyError(
            f"accumulation={policy.accumulation!r} of this enclave's policy reveals which "
            f"contributions count: {task.label} is sampled in secret, and needs 'oblivious'"
        )
    if number >= task.planned:
        raise ConfigurationError(f"Expected round={number} of the task to be from 0 to {task.planned - 1}")
    _require_sizes(task)
    if population.find(task.id, number) is not None:
        raise PrivacyError(f"round {number} is void: it was charged, and its state is lost; submit a new task")
    if number:
        before = population.find(task.id, number - 1)
        if before is None or before.state is not ReleaseState.SEALED or holdings.holds(task.sha256, number - 1):
            raise PrivacyError(f"round {number} cannot be opened before round {number - 1} is released")
    if holdings.task(task.sha256) is None:
        # New here, or forgotten since its last round: what it has left must not be what others under way need.
        population.require_capacity_for_ends(len(holdings.tasks_of(population.name)) + 1)
        population.require_plan(
            task_id=task.id, rounds=_left(task, population), budget=task.budget, users=cohort.goal,
            promised=_promised(task, population=population, holdings=holdings),
            what=f"{task.label} with all its {task.planned} rounds",
        )  # fmt: skip
    population.require_budget(
        task_id=task.id, events=task.charges(number), budget=task.budget,
        users=cohort.goal, what=f"round {number} of {task.label}",
    )  # fmt: skip


def require_summed(task: OpenedTask) -> None:
    """Raises PrivacyError for a task whose contributions no leaf can sum."""
    if task.rounds is not EnclaveRound:
        raise PrivacyError(
            f"{task.label} masks its contributions, and a tree of aggregators takes those that enclaves sum alone: use "
            "aggregation='enclave', or an aggregator without leaves"
        )
    if task.stream_bytes:
        raise PrivacyError(
            f"{task.label} is a stream, whose rounds depend on who was in those before, and a tree of aggregators "
            "takes none: use an aggregator without leaves"
        )


def require_may_begin(
    task: OpenedTask, populations: Mapping[str, Population], *, holdings: Holdings, identity: EnclaveIdentity
) -> None:
    """Returns if round 0 of a new task may be opened now, or once its developer founds the population.

    Raises as ``require_may_open``; PrivacyError also where the developer neither owns the population nor may found it.
    """
    population = populations.get(task.population)
    if population is not None and population.charter is not None:
        population.require_owner(task.developer_key, of=task.label)
    elif task.developer_key not in identity.policy.founder_keys:
        raise unfounded(task.population)
    if population is None:
        population = Population(identity, task.population)
    require_may_open(task, 0, population=population, holdings=holdings, policy=identity.policy)


def _left(task: OpenedTask, population: Population) -> list[Sequence[LedgerEvent]]:
    """What the rounds of a task that are not charged yet may still charge; none where one is void, which ends it."""
    entries = [population.find(task.id, number) for number in range(task.planned)]
    if any(entry is not None and entry.state is ReleaseState.VOID for entry in entries):
        return []
    return [task.charges(number) for number, one in enumerate(entries) if one is None]


def _promised(task: OpenedTask, *, population: Population, holdings: Holdings) -> list[Sequence[LedgerEvent]]:
    """The same of the other tasks under way, whose last rounds a new task must not take."""
    promised: list[Sequence[LedgerEvent]] = []
    for held in holdings.tasks_of(population.name):
        if held.sha256 != task.sha256 and not _is_lost(held, population, holdings):
            promised += _left(held, population)
    return promised


def _is_lost(task: OpenedTask, population: Population, holdings: Holdings) -> bool:
    """Whether a round was charged whose contributions or noise the host lost: the task has no further round."""
    return any(
        entry.state is ReleaseState.CHARGED and not holdings.holds(task.sha256, number)
        for number in range(task.planned)
        if (entry := population.find(task.id, number)) is not None
    )


def make_room(task: OpenedTask, number: int, *, population: Population, holdings: Holdings) -> list[SealedRecord]:
    """Records that the host erases so that a round fits the limits: finished tasks, and the last release.

    Raises PopulationFull, which names the limit, where what is under way leaves no room; nothing is erased then.
    """
    others = [held for held in holdings.tasks_of(population.name) if held.sha256 != task.sha256]
    finished = [held for held in others if _is_finished(held, population)]
    under_way = [held for held in others if held not in finished]
    finished.sort(key=lambda held: population.record.ledger.last_entry(held.id))
    rounds = len(holdings.rounds({held.sha256 for held in [task, *others]}))
    if rounds >= MOST_OPEN_ROUNDS:
        raise _full(task, f"has {rounds} rounds open, of at most {MOST_OPEN_ROUNDS}")
    fitting = [*under_way, *finished]
    dropped: list[OpenedTask] = []
    while lack := _lack([*fitting, task], holdings):
        if not finished:
            raise _full(task, lack)
        dropped.append(finished.pop(0))
        fitting.remove(dropped[-1])
    erased = [record for held in dropped for record in holdings.drop_task(held.sha256, population)]
    if number:
        # Whoever opens the next round has the model that was made of the release before.
        erased.append(SealedRecord(release_key(task.sha256, number - 1), None))
    return erased


def _require_sizes(task: OpenedTask) -> None:
    for query in task.queries:
        require_sizes(query, task.definition)
    # Noise, the host's part of a sum and what the stream keeps travel in one message.
    numbers = sum(release.coordinates for release in task.queries[0].releases)
    size = 12 * numbers + task.stream_bytes + _RECORD_BYTES * MOST_STREAM_USERS
    if task.stream_bytes and size > LARGEST_STREAM_BYTES:
        raise ConfigurationError(
            f"The stream of {task.label} would keep {task.stream_bytes} bytes of past sums between its rounds, too many"
            f" for messages of {LARGEST_STREAM_BYTES} bytes: choose fewer bands, or mechanism='blt'"
        )


def _lack(tasks: list[OpenedTask], holdings: Holdings) -> str:
    """The limit that these tasks exceed, in words; empty if there is none."""
    if len(tasks) > MOST_TASKS:
        return f"has {len(tasks) - 1} tasks under way, of at most {MOST_TASKS}"
    definitions = sum(len(held.signed.definition) for held in tasks)
    if definitions > MOST_DEFINITION_BYTES:
        return f"would have {definitions} bytes of task definitions, of at most {MOST_DEFINITION_BYTES}"
    # One release of each task, and the noise of each round that is open or about to be.
    largest = {held.sha256: held.largest for held in tasks}
    noise = sum(largest[held.task_sha256] for held in holdings.rounds(largest))
    stored = sum(largest.values()) + noise + tasks[-1].largest
    if stored > MOST_STORED_BYTES:
        return f"would have {stored} bytes of noise and releases, of at most {MOST_STORED_BYTES}"
    return ""


def _is_finished(task: OpenedTask, population: Population) -> bool:
    last = population.find(task.id, task.planned - 1)
    return last is not None and last.state is ReleaseState.SEALED


def _full(task: OpenedTask, what: str) -> PopulationFull:
    return PopulationFull(
        f"{task.label} cannot open a round: population {task.population!r} {what}; wait, or end a task of it"
    )
