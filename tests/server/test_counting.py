"""A training that waits for its count of usable rows: it opens no round before, and none where too few can train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import odp
from odp.errors import ConfigurationError
from odp.signed.task import open_task
from odp.v1 import common_pb2
from server.storage import RoundState, TaskRecord, TaskState
from server.storage.sqlite import open_sqlite
from server.waits import count_wait, require_count, unneeded_count
from tests.server.stepping import step_once

DEVICES = 100
#: Devices by place: no rows, none usable, some, all.
MOST_UNUSABLE, MOST_USABLE = (5, 93, 1, 1), (5, 15, 30, 50)


def counted_task(*, least: float = 0.1, population: str = "readers") -> odp.Task:
    return odp.Task(
        name="clicks", population=population, model=odp.Glm("logistic", features=3), training=odp.DPFedAvg(rounds=2),
        data=odp.Examples({"x": odp.Tensor((3,), low=-1, high=1)}, label="clicked"),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5), cohort=odp.Cohort(minimum=20, goal=DEVICES),
        count_usable=odp.CountUsable(share=0.25, least=least),
    )  # fmt: skip


def submit(world: Any, task: odp.Task) -> tuple[bytes, bytes]:
    """The ids of the count and of the training, as a connection submits them."""
    question = task.usable_question()
    assert question is not None
    assert task.count_usable is not None
    count = world.submit(question.definition())
    training = task.definition()
    training.count_first.task_sha256, training.count_first.least_share = count, task.count_usable.least
    require_count(world.storage, training)
    return count, world.submit(training)


def votes(devices: tuple[int, ...]) -> Callable[[common_pb2.Release], None]:
    """Puts these numbers of devices into the release of a count."""

    def put(release: common_pb2.Release) -> None:
        (tensor,) = release.tensors
        if tensor.name == "devices":
            tensor.integers = np.round(np.array(devices) / tensor.step).astype("<i8").tobytes()

    return put


def rounds_of(world: Any, task: bytes) -> list[RoundState]:
    return [entry.state for entry in world.storage.rounds(task)]


def test_r432_no_round_of_a_training_opens_before_its_count_is_released(world: Any) -> None:
    count, training = submit(world, counted_task())
    waiting = world.driver()
    world.run(waiting)
    assert rounds_of(world, count) == [RoundState.OPEN]
    assert rounds_of(world, training) == []
    assert "its count of usable rows, task " + count[:6].hex() in waiting.waits_for(training).reason
    assert (training, 0) not in world.aggregator.opened, "nobody was told of a round"

    world.aggregator.contributions, world.aggregator.tamper = DEVICES, votes(MOST_USABLE)
    again = world.driver(storage=open_sqlite(world.path, clock=world.clock))  # as after a restart
    world.run(again)
    assert world.storage.task(count).state is TaskState.FINISHED
    assert world.storage.task(training).state is TaskState.FINISHED
    assert rounds_of(world, training) == [RoundState.APPLIED] * 2
    assert world.aggregator.drawn == [(count, 0), (training, 0), (training, 1)]


def test_r432_a_training_that_nearly_nobody_can_take_part_in_spends_nothing(world: Any) -> None:
    count, training = submit(world, counted_task())
    world.aggregator.contributions, world.aggregator.tamper = DEVICES, votes(MOST_UNUSABLE)
    world.run(world.driver())
    task = world.storage.task(training)
    assert task.state is TaskState.FAILED
    assert "too few devices have usable rows, fewer than least=0.1: of 100 devices, 0.0 %" in task.failure
    assert "93 % have rows of which none is usable" in task.failure
    assert "spent nothing" in task.failure
    assert rounds_of(world, training) == []
    assert world.aggregator.drawn == [(count, 0)]


@pytest.mark.parametrize("least", [0.0, 0.01])
def test_a_developer_may_train_whatever_the_count_says(world: Any, least: float) -> None:
    """With 0, always; with less than the upper end of the interval, since that many devices may have usable rows."""
    _, training = submit(world, counted_task(least=least))
    world.aggregator.contributions, world.aggregator.tamper = DEVICES, votes(MOST_UNUSABLE)
    world.run(world.driver())
    assert world.storage.task(training).state is TaskState.FINISHED


@pytest.mark.parametrize("state", [TaskState.CANCELLED, TaskState.FAILED])
def test_a_count_that_was_ended_ends_its_training_by_name(world: Any, state: TaskState) -> None:
    count, training = submit(world, counted_task())
    world.run(world.driver())
    world.storage.end_task(count, state)
    world.run(world.driver())
    task = world.storage.task(training)
    assert task.state is TaskState.FAILED
    assert "was ended without a release: submit the task under another name" in task.failure


def test_a_count_that_is_released_and_not_yet_applied_is_enough(world: Any) -> None:
    """A server that dies between release and end of the count's task."""
    count, training = submit(world, counted_task())
    world.run(world.driver())
    world.aggregator.contributions, world.aggregator.tamper = DEVICES, votes(MOST_USABLE)
    driver = world.driver()
    while not world.storage.round(count, 0).release_bytes:
        assert step_once(driver)
    assert world.storage.task(count).state is TaskState.ACTIVE
    world.run(world.driver())
    assert world.storage.task(training).state is TaskState.FINISHED


def test_r437_a_count_whose_training_was_refused_opens_no_round(world: Any) -> None:
    """The training is refused, or its developer's program dies, after the count was accepted."""
    task = counted_task()
    question = task.usable_question()
    assert question is not None
    count = world.submit(question.definition())
    driver = world.driver()
    world.run(driver)
    assert rounds_of(world, count) == []
    assert world.storage.task(count).state is TaskState.ACTIVE
    assert "the training that names this count of usable rows" in driver.waits_for(count).reason
    submit(world, task)
    world.run(world.driver())
    assert rounds_of(world, count) == [RoundState.OPEN], "the same task again goes on"


def test_r437_a_count_whose_training_was_ended_before_spends_nothing(world: Any) -> None:
    count, training = submit(world, counted_task())
    world.storage.end_task(training, TaskState.CANCELLED)
    world.run(world.driver())
    assert rounds_of(world, count) == []
    assert world.storage.task(count).state is TaskState.FAILED
    assert "every training that names this count of usable rows was ended" in world.storage.task(count).failure
    assert world.aggregator.drawn == []


def test_r437_a_training_that_is_stored_while_its_count_is_looked_at_ends_no_count(world: Any) -> None:
    task = counted_task()
    question = task.usable_question()
    assert question is not None
    count = world.submit(question.definition())
    definition = open_task(world.storage.task(count).signed)

    class Meanwhile:
        """The storage, to which another connection adds the training after the first look at its tasks."""

        def __getattr__(self, name: str) -> Any:
            return getattr(world.storage, name)

        def tasks(self, state: TaskState | None = None) -> list[TaskRecord]:
            before = world.storage.tasks(state)
            if len(world.storage.tasks()) == 1:
                submit(world, task)
            return before

    storage: Any = Meanwhile()
    record = world.storage.task(count)
    assert count_wait(storage, record, definition, 0) is not None
    assert count_wait(storage, record, definition, 0) is None


def test_r437_a_task_that_this_version_would_refuse_holds_up_no_count(world: Any) -> None:
    count, training = submit(world, counted_task())
    record = world.storage.task(training)
    older = replace(record, sha256=bytes(32), name="older", definition=record.definition + b"\xf8\xff\xff\xff\x0f\x01")
    with pytest.raises(ConfigurationError):
        open_task(older.signed)

    class Older:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.storage, name)

        def tasks(self, state: TaskState | None = None) -> list[TaskRecord]:
            return [older, *world.storage.tasks(state)]

    storage: Any = Older()
    assert count_wait(storage, world.storage.task(count), open_task(world.storage.task(count).signed), 0) is None
    assert unneeded_count(storage, record) is None, "the older task names it, too"


def test_a_training_is_refused_whose_count_was_ended(world: Any) -> None:
    count, _ = submit(world, counted_task())
    world.storage.end_task(count, TaskState.CANCELLED)
    training = counted_task().definition()
    training.count_first.task_sha256 = count
    with pytest.raises(ConfigurationError, match="was ended without a release: submit the task under another name"):
        require_count(world.storage, training)


def test_r437_a_count_is_unneeded_once_its_last_training_is_cancelled(world: Any) -> None:
    count, training = submit(world, counted_task())
    other = counted_task().definition()
    other.name, other.count_first.task_sha256 = "others", count
    second = world.submit(other)
    records = [world.storage.task(one) for one in (training, second)]
    assert unneeded_count(world.storage, records[0]) is None, "the other training waits for it"
    world.storage.end_task(second, TaskState.CANCELLED)
    unneeded = unneeded_count(world.storage, records[0])
    assert unneeded is not None
    assert unneeded.sha256 == count
    world.aggregator.contributions, world.aggregator.tamper = DEVICES, votes(MOST_USABLE)
    world.run(world.driver())
    assert unneeded_count(world.storage, records[0]) is None, "its release is spent, and stays"


def test_a_paused_training_stays_paused_whatever_its_count_says(world: Any) -> None:
    _, training = submit(world, counted_task())
    world.storage.set_paused(training, True)
    world.aggregator.contributions, world.aggregator.tamper = DEVICES, votes(MOST_USABLE)
    world.run(world.driver())
    assert rounds_of(world, training) == []


def test_r432_a_training_names_a_count_of_its_own_rows(world: Any, definition: Any) -> None:
    training = counted_task().definition()
    training.count_first.least_share = 0.1
    training.count_first.task_sha256 = bytes(32)
    with pytest.raises(ConfigurationError, match="that this server does not have"):
        require_count(world.storage, training)
    training.count_first.task_sha256 = world.submit(definition)
    with pytest.raises(ConfigurationError, match="counts no usable rows"):
        require_count(world.storage, training)
    others = counted_task(population="others").usable_question()
    assert others is not None
    training.count_first.task_sha256 = world.submit(others.definition())
    with pytest.raises(ConfigurationError, match="same population, model and local data"):
        require_count(world.storage, training)
    require_count(world.storage, definition)


def test_what_the_server_stores_is_what_was_signed(world: Any) -> None:
    count, training = submit(world, counted_task())
    stored = open_task(world.storage.task(training).signed)
    assert stored.count_first == common_pb2.CountFirst(task_sha256=count, least_share=0.1)
    assert stored.privacy.epsilon + open_task(world.storage.task(count).signed).privacy.epsilon == 8.0
