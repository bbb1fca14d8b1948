"""What each task waits for and until when; and the retries of a failed step, which are limited.

- A step that another party refused, and would refuse again, ends the task at once: it does not come here.
- If a party is unavailable, or the operator has to repair something, the step is retried after a time that doubles up
  to ``LONGEST_SECONDS``. The task fails after ``MOST_SECONDS`` of failures in a row.
- An unforeseen error mostly repeats: the task fails after ``MOST_UNFORESEEN`` of them in a row.

Trainings wait for a count of usable rows, and counts for the training that names them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from odp.algorithms.registry import counting_for, is_count
from odp.errors import ConfigurationError
from odp.signed.release import noisy_tensors
from odp.signed.task import open_task
from odp.transport.logs import short
from odp.transport.sweeping import pause_after
from odp.v1 import common_pb2
from server.storage import Storage, TaskRecord, TaskState

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
MOST_SECONDS = 7 * 24 * 3600.0
MOST_UNFORESEEN = 10


@dataclass(frozen=True)
class Wait:
    """Why a task waits, in one line; ``until`` is in seconds since the epoch, or None if it is unknown."""

    reason: str
    until: float | None = None


#: Of a task whose developer paused it.
PAUSED = Wait("paused: no further round opens until `odp task resume`")


@dataclass(frozen=True)
class Failures:
    """Failures in a row: number, of which ``unforeseen``, since when and until when, by a clock that only grows."""

    count: int
    unforeseen: int
    since: float
    due: float

    @property
    def pause(self) -> float:
        """Seconds until the next attempt, unless another party asked for more."""
        return pause_after(self.count, first=FIRST_SECONDS, longest=LONGEST_SECONDS)


class Waits:
    """The waits of all tasks of a driver. Thread-safe.

    Args:
        clock: seconds since the epoch, for people.
        monotonic: seconds that only grow, for decisions.
    """

    def __init__(self, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failures: dict[bytes, Failures] = {}
        self._waits: dict[bytes, Wait] = {}

    def of(self, task: bytes) -> Wait | None:
        """The wait of ``task``; None if it is running, or over."""
        with self._lock:
            return self._waits.get(task)

    def is_due(self, task: bytes) -> bool:
        """Whether a step of ``task`` may be tried now."""
        with self._lock:
            failures = self._failures.get(task)
            return failures is None or self._monotonic() >= failures.due

    def keep(self, tasks: Collection[bytes]) -> None:
        """Drops all other tasks."""
        with self._lock:
            self._failures = {task: entry for task, entry in self._failures.items() if task in tasks}
            self._waits = {task: entry for task, entry in self._waits.items() if task in tasks}

    def set(self, task: bytes, wait: Wait | None) -> bool:
        """Records the success of the last step of ``task``, and its next wait. True if the wait changed.

        A later ``until`` of the same reason is no other thing.
        """
        with self._lock:
            self._failures.pop(task, None)
            return self._note(task, wait)

    def failed(self, task: bytes, reason: str, *, unforeseen: bool = False, least: float = 0.0) -> Failures:
        """Records a failed step of ``task``: it is due again after a pause of at least ``least`` seconds."""
        with self._lock:
            now = self._monotonic()
            before = self._failures.get(task, Failures(0, 0, now, now))
            failures = replace(before, count=before.count + 1, unforeseen=before.unforeseen + 1 if unforeseen else 0)
            pause = max(failures.pause, min(least, LONGEST_SECONDS))
            self._failures[task] = failures = replace(failures, due=now + pause)
            self._note(task, Wait(f"{reason}; tried {failures.count} times", self._clock() + pause))
            return failures

    def _note(self, task: bytes, wait: Wait | None) -> bool:
        before = self._waits.pop(task, None)
        if wait is not None:
            self._waits[task] = wait
        return (None if before is None else before.reason) != (None if wait is None else wait.reason)


def given_up(failures: Failures) -> str:
    """Why a failed step is not retried, as the end of a sentence; empty if it is."""
    if failures.unforeseen >= MOST_UNFORESEEN:
        return f"the same {failures.unforeseen} times"
    if failures.due - failures.since >= MOST_SECONDS:
        return f"for {MOST_SECONDS / 86_400:.0f} days"
    return ""


def require_count(storage: Storage, definition: common_pb2.TaskDefinition) -> None:
    """Returns if a task names no count, or one that this server has, of the very rows that the task reads.

    Raises:
      ConfigurationError: it names another task, or one that was ended without a release.
    """
    if not definition.HasField("count_first"):
        return
    count = _count(storage, definition)
    counted = storage.round(count.sha256, 0)
    if count.state is not TaskState.ACTIVE and (counted is None or not counted.release_bytes):
        raise _ended(count)
    if not counting_for(open_task(count.signed)).counts_for(definition):
        raise ConfigurationError(
            f"Expected the count {count.name!r} of task {definition.name!r} to be of the same population, model and "
            "local data: submit the task by odp.Connection.submit, which makes the count"
        )


def count_wait(storage: Storage, task: TaskRecord, definition: common_pb2.TaskDefinition, round: int) -> Wait | None:
    """What the first round of a training or of its count waits for; None where it may open. Later rounds do not wait.

    A count without a training would spend a part of the budget for nothing. The training may be refused after its count
    was accepted, or its developer's program may die between both.

    Raises:
      ConfigurationError: too few devices have usable rows; the count was ended without a release; or every training
        that names this count was ended.
    """
    if round:
        return None
    if is_count(definition):
        return _training_wait(storage, task)
    if not definition.HasField("count_first"):
        return None
    count = _count(storage, definition)
    counted = storage.round(count.sha256, 0)
    if counted is None or not counted.release_bytes:
        if count.state is TaskState.ACTIVE:
            return Wait(f"its count of usable rows, task {short(count.sha256)} {count.name!r}, before the first round")
        raise _ended(count)
    release = common_pb2.Release.FromString(storage.release(count.sha256, 0).release)
    answers = counting_for(open_task(count.signed)).answers(
        noisy_tensors(release).tensors, contributions=release.contributions, epsilon=release.epsilon_spent
    )
    least = definition.count_first.least_share
    if answers.usable.high < least:
        raise ConfigurationError(
            f"too few devices have usable rows, fewer than least={least:g}: {answers.summary()}; the training spent "
            "nothing. Compare its data with what devices hold; submit it under another name, or with a smaller least"
        )
    return None


def unneeded_count(storage: Storage, training: TaskRecord) -> TaskRecord | None:
    """The count that no training needs once this one is ended; None where there is no such count, or it is released."""
    sha256 = _named_count(training)
    count = storage.task(sha256) if sha256 else None
    if count is None or any(other.sha256 != training.sha256 for other in _trainings(storage, count, TaskState.ACTIVE)):
        return None
    counted = storage.round(count.sha256, 0)
    return None if counted is not None and counted.release_bytes else count


def _training_wait(storage: Storage, count: TaskRecord) -> Wait | None:
    trainings = _trainings(storage, count)  # read once: another may be stored at any moment
    if any(task.state is TaskState.ACTIVE for task in trainings):
        return None
    if trainings:
        raise ConfigurationError(
            "every training that names this count of usable rows was ended: nothing was counted, and nothing spent"
        )
    return Wait(
        "the training that names this count of usable rows: submit the task, or cancel this count if it was refused"
    )


def _trainings(storage: Storage, count: TaskRecord, state: TaskState | None = None) -> list[TaskRecord]:
    """Tasks that name a count, all or those in ``state``."""
    of_population = (task for task in storage.tasks(state) if task.population == count.population)
    return [task for task in of_population if _named_count(task) == count.sha256]


def _named_count(task: TaskRecord) -> bytes:
    """The count that a task names; empty without one. Not checked again: an earlier version may have accepted it."""
    return common_pb2.TaskDefinition.FromString(task.definition).count_first.task_sha256


def _ended(count: TaskRecord) -> ConfigurationError:
    return ConfigurationError(
        f"its count of usable rows, task {short(count.sha256)} {count.name!r}, was ended without a release: submit "
        "the task under another name"
    )


def _count(storage: Storage, definition: common_pb2.TaskDefinition) -> TaskRecord:
    if (count := storage.task(definition.count_first.task_sha256)) is None:
        raise ConfigurationError(
            f"task {definition.name!r} names a count of usable rows that this server does not have: submit it by "
            "odp.Connection.submit, which submits the count first"
        )
    return count
