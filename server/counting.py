"""Trainings that wait for a count of usable rows: which count may be named, and what its release decides."""

from __future__ import annotations

from odp.algorithms.registry import counting_for
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
      ConfigurationError: it names another task.
    """
    if not definition.HasField("count_first"):
        return
    count = _count(storage, definition)
    if not counting_for(open_task(count.signed)).counts_for(definition):
        raise ConfigurationError(
            f"Expected the count {count.name!r} of task {definition.name!r} to be of the same population, model and "
            "local data: submit the task by odp.Connection.submit, which makes the count"
        )


def count_wait(storage: Storage, definition: common_pb2.TaskDefinition, round: int) -> Wait | None:
    """What the first round waits for; None where it may open. Later rounds wait for no count.

    Raises:
      ConfigurationError: too few devices have usable rows, or the count was ended without a release.
    """
    if round or not definition.HasField("count_first"):
        return None
    count = _count(storage, definition)
    counted = storage.round(count.sha256, 0)
    if counted is None or not counted.release_bytes:
        if count.state is TaskState.ACTIVE:
            return Wait(f"its count of usable rows, task {short(count.sha256)} {count.name!r}, before the first round")
        raise ConfigurationError(
            f"its count of usable rows, task {short(count.sha256)} {count.name!r}, was ended without a release: submit "
            "the task under another name"
        )
    release = common_pb2.Release.FromString(storage.release(count.sha256, 0).release)
    answers = counting_for(open_task(count.signed)).answers(
        noisy_tensors(release).tensors, contributions=release.contributions, epsilon=release.epsilon_spent
    )
    least = definition.count_first.least_share
    if answers.usable.high < least:
        raise ConfigurationError(
            f"too few devices have usable rows, fewer than least={least:g}: {answers.told()}; the training spent "
            "nothing. Compare its data with what devices hold; submit it under another name, or with a smaller least"
        )
    return None


def _count(storage: Storage, definition: common_pb2.TaskDefinition) -> TaskRecord:
    count = storage.task(definition.count_first.task_sha256)
    if count is None:
        raise ConfigurationError(
            f"task {definition.name!r} names a count of usable rows that this server does not have: submit it by "
            "odp.Connection.submit, which submits the count first"
        )
    return count
