"""The tasks and rounds in an enclave's memory: tasks with records, open or charged rounds, and ids of ended tasks.

A released or void round is not kept in memory: the population's ledger has its final state.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from odp.errors import Refusal
from odp.privacy.ledger_entry import ReleaseState
from trusted_aggregator.boundary.interface import RoundState, Status
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import SealedRecord, noise_key, release_key, round_key, task_key

#: The status of a round that is not in memory, by its state in the ledger.
_STATUS = {
    ReleaseState.CHARGED: Status.VOID,  # charged, and not held: what was charged is gone
    ReleaseState.SEALED: Status.RELEASED,
    ReleaseState.VOID: Status.VOID,
}


class Holdings:
    """Tasks and rounds by their ids. Any thread may call ``find_round``; all other calls are serialised."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[bytes, OpenedTask] = {}
        self._rounds: dict[tuple[bytes, int], Round] = {}
        self._ended: set[bytes] = set()
        #: Rounds that were charged, and that the last start could not restore.
        self.lost: list[tuple[bytes, int]] = []

    def find_round(self, task_sha256: bytes, round: int, populations: Mapping[str, Population]) -> Round | Refusal:
        """A round in memory; otherwise the refusal for a contribution to it."""
        with self._lock:
            if (held := self._rounds.get((task_sha256, round))) is not None:
                return held
            if task_sha256 in self._ended:
                return Refusal.TASK_ABANDONED
            if (task := self._tasks.get(task_sha256)) is None:
                return Refusal.WRONG_TASK
            charged = populations[task.population].find(task.id, round) is not None
            return Refusal.ROUND_CLOSED if charged else Refusal.WRONG_ROUND

    def holds(self, task_sha256: bytes, round: int) -> bool:
        """Whether a round is in memory: open, charged, or sealed and not yet in force."""
        with self._lock:
            return (task_sha256, round) in self._rounds

    def task(self, task_sha256: bytes) -> OpenedTask | None:
        """A task by its id."""
        with self._lock:
            return self._tasks.get(task_sha256)

    def tasks_of(self, population: str) -> list[OpenedTask]:
        """All tasks of a population, oldest first."""
        with self._lock:
            return [task for task in self._tasks.values() if task.population == population]

    def tasks_without_rounds(self) -> set[bytes]:
        """All tasks without a round in memory, ended ones included."""
        with self._lock:
            return {*self._tasks, *self._ended}.difference(task for task, _ in self._rounds)

    def rounds(self, tasks: Collection[bytes] | None = None) -> list[Round]:
        """Rounds in memory by task and number; only those of the given tasks, if any are given."""
        with self._lock:
            held = sorted(self._rounds.items())
        return [round for (task, _), round in held if tasks is None or task in tasks]

    def is_ended(self, task_sha256: bytes) -> bool:
        """Whether an owner ended the task."""
        with self._lock:
            return task_sha256 in self._ended

    def add_task(self, task: OpenedTask) -> None:
        """Adds a task."""
        with self._lock:
            self._tasks[task.sha256] = task

    def add_round(self, round: Round) -> None:
        """Adds a round of a known task."""
        with self._lock:
            self._rounds[round.task_sha256, round.number] = round

    def drop_round(self, round: Round) -> None:
        """Erases a round and removes it."""
        with self._lock:
            self._rounds.pop((round.task_sha256, round.number), None)
        round.erase()

    def end(self, tasks: Iterable[bytes]) -> None:
        """Records that owners ended these tasks."""
        with self._lock:
            self._ended.update(tasks)

    def drop_task(self, task_sha256: bytes, population: Population) -> tuple[SealedRecord, ...]:
        """Erases all rounds of a task and removes it; returns what the host has to erase."""
        for held in self.rounds([task_sha256]):
            self.drop_round(held)
        with self._lock:
            task = self._tasks.pop(task_sha256, None)
        if task is None:
            return ()
        keys = [task_key(task_sha256)]
        for number in range(task.planned):
            entry = population.find(task.id, number)
            if entry is None or entry.state is not ReleaseState.SEALED:
                keys += [round_key(task_sha256, number), noise_key(task_sha256, number)]
            else:
                keys.append(release_key(task_sha256, number))
        return tuple(SealedRecord(key, None) for key in keys)

    def state(self, task: OpenedTask, number: int, population: Population) -> RoundState | None:
        """The state of a round; None for one that was never opened or whose opening is lost."""
        with self._lock:
            held = self._rounds.get((task.sha256, number))
        standing = population.find(task.id, number)
        if held is not None:
            contributions = held.contributions if standing is None else standing.contributions
            return RoundState(task.sha256, number, held.status, contributions)
        if standing is None:
            return None
        return RoundState(task.sha256, number, _STATUS[standing.state], standing.contributions)
