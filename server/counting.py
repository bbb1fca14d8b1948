"""Trainings that wait for a count of usable rows, and counts that wait for the training that names them."""

from __future__ import annotations

from odp.algorithms.registry import counting_for, is_count
from odp.errors import ConfigurationError
from odp.signed.release import noisy_tensors
from odp.signed.task import open_task
from odp.transport.logs import short
from odp.v1 import common_pb2
from server.storage import Storage, TaskRecord, TaskState
from server.waits import Wait


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
    definition = common_pb2.TaskDefinition.FromString(task.definition)
    return definition.count_first.task_sha256


def _ended(count: TaskRecord) -> ConfigurationError:
    return ConfigurationError(
        f"its count of usable rows, task {short(count.sha256)} {count.name!r}, was ended without a release: submit "
        "the task under another name"
    )


def _count(storage: Storage, definition: common_pb2.TaskDefinition) -> TaskRecord:
    count = storage.task(definition.count_first.task_sha256)
    if count is None:
        raise ConfigurationError(
            f"task {definition.name!r} names a count of usable rows that this server does not have: submit it by "
            "odp.Connection.submit, which submits the count first"
        )
    return count
