"""What a task waits for: said with an end, tried again for a while, and never for ever."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest

from server.storage import RoundState, TaskState
from server.waits import LONGEST_SECONDS, MOST_SECONDS, MOST_UNFORESEEN
from tests.server.stepping import step_once

GOAL = 5


def fails(world: Any, definition: Any, code: grpc.StatusCode, *, times: int) -> tuple[TaskState, str]:
    """Where a task stands after the aggregator failed so often in a row, each time as soon as it is asked again."""
    sha256 = world.submit(definition)
    driver = world.driver()
    world.aggregator.failures = [code] * times
    for _ in range(times):
        world.run(driver)
        world.monotonic.now += LONGEST_SECONDS
    task = world.storage.task(sha256)
    world.storage.end_task(sha256, TaskState.FINISHED)
    return task.state, task.failure


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_an_error_that_nobody_foresaw_ends_the_task_after_ten_tries(
    world: Any, definition: Any, code: grpc.StatusCode
) -> None:
    state, _ = fails(world, definition, code, times=MOST_UNFORESEEN - 1)
    assert state is TaskState.ACTIVE
    definition.name = "books"
    state, failure = fails(world, definition, code, times=MOST_UNFORESEEN)
    assert state is TaskState.FAILED
    assert failure.endswith("told to fail; given up, since it failed the same 10 times")


def test_an_unforeseen_error_of_the_server_itself_ends_the_task_after_ten_tries(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver(algorithm=lambda given: [][1])
    for _ in range(MOST_UNFORESEEN):
        assert world.storage.task(sha256).state is TaskState.ACTIVE
        world.run(driver)
        world.monotonic.now += LONGEST_SECONDS
    assert world.storage.task(sha256).state is TaskState.FAILED
    assert "internal error; see the server's log" in world.storage.task(sha256).failure


def test_a_service_that_is_away_for_a_week_ends_the_task_and_not_before(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.aggregator.failures = [grpc.StatusCode.UNAVAILABLE] * 4
    for seconds in (MOST_SECONDS - 100.0, 50.0, 100.0):
        world.run(driver)
        assert world.storage.task(sha256).state is TaskState.ACTIVE
        world.monotonic.now += seconds
    world.run(driver)
    assert world.storage.task(sha256).state is TaskState.FAILED
    assert "given up, since it failed for 7 days" in world.storage.task(sha256).failure


def test_failures_with_a_success_between_them_are_not_in_a_row(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    for _ in range(3):
        world.aggregator.failures = [grpc.StatusCode.INTERNAL] * (MOST_UNFORESEEN - 1)
        for _ in range(MOST_UNFORESEEN):
            world.run(driver)
            world.monotonic.now += LONGEST_SECONDS
    assert not world.aggregator.failures
    assert world.storage.task(sha256).state is TaskState.ACTIVE


def test_the_end_of_a_task_is_asked_for_however_often_it_fails(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.run(driver)
    world.storage.end_task(sha256, TaskState.CANCELLING)
    world.aggregator.failures = [grpc.StatusCode.INTERNAL] * 20
    for _ in range(21):
        world.run(driver)
        world.monotonic.now += LONGEST_SECONDS
    assert world.storage.task(sha256).state is TaskState.CANCELLED


def test_a_task_says_which_service_it_waits_for_and_until_when(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    assert driver.waits_for(sha256) is None
    world.distributor.failures = [grpc.StatusCode.UNAVAILABLE] * 2
    for tries, seconds in ((1, 0.5), (2, 1.0)):
        world.run(driver)
        wait = driver.waits_for(sha256)
        assert "publish a model version to the distributor" in wait.reason
        assert wait.reason.endswith(f"tried {tries} times")
        assert wait.until == world.clock.now + seconds
        world.monotonic.now += seconds
    world.run(driver)
    assert "its minimum" in driver.waits_for(sha256).reason


def test_a_round_says_what_it_waits_for_and_until_when(world: Any, definition: Any) -> None:
    sha256 = world.submit(definition)
    driver = world.driver()
    world.run(driver)
    wait = driver.waits_for(sha256)
    assert (wait.reason, wait.until) == (
        "round 0 of 3: 3 contributions, its minimum, however long that takes", None,
    )  # fmt: skip
    world.aggregator.contributions = 4
    for clock in (world.clock, world.monotonic):
        clock.now += 10.0
    world.run(driver)
    wait = driver.waits_for(sha256)
    assert "5 contributions, its goal" in wait.reason
    assert wait.until == 1_000_000.0 + definition.cohort.round_seconds
    assert world.lines.text.count("round_waits") == 2
    world.aggregator.contributions = GOAL
    world.run(driver)
    assert world.storage.task(sha256).state is TaskState.FINISHED
    step_once(driver)
    assert driver.waits_for(sha256) is None


@pytest.fixture
def long_rounds(definition: Any) -> Any:
    definition.cohort.round_seconds = 1200
    return definition


def test_a_device_that_declines_costs_each_later_round_seconds_and_not_its_whole_time(
    world: Any, long_rounds: Any
) -> None:
    """Four of five come: the first round closes when nobody has come for 90 s, the others after 12 s."""
    sha256 = world.submit(long_rounds)
    driver = world.driver()
    world.aggregator.contributions = GOAL - 1
    for round, seconds in ((0, 90.0), (1, 12.0), (2, 12.0)):
        world.run(driver)
        assert world.storage.round(sha256, round).state is RoundState.OPEN
        assert driver.waits_for(sha256).until == world.clock.now + seconds
        for clock in (world.clock, world.monotonic):
            clock.now += seconds - 0.5
        assert not step_once(driver)
        for clock in (world.clock, world.monotonic):
            clock.now += 0.5
        assert step_once(driver)
        assert world.storage.round(sha256, round).state is RoundState.RELEASED
        assert world.storage.round(sha256, round).contributions == GOAL - 1
    world.run(driver)
    assert world.storage.task(sha256).state is TaskState.FINISHED


def test_a_round_never_closes_below_its_minimum_however_quiet_it_is(world: Any, long_rounds: Any) -> None:
    sha256 = world.submit(long_rounds)
    driver = world.driver()
    world.aggregator.contributions = long_rounds.cohort.minimum - 1
    world.run(driver)
    for clock in (world.clock, world.monotonic):
        clock.now += 1e6
    assert not step_once(driver)
    assert world.storage.round(sha256, 0).state is RoundState.OPEN


def test_time_in_which_the_aggregator_does_not_answer_closes_no_round(world: Any, long_rounds: Any) -> None:
    sha256 = world.submit(long_rounds)
    driver = world.driver()
    world.aggregator.contributions = GOAL - 1
    world.run(driver)
    world.aggregator.failures = [grpc.StatusCode.UNAVAILABLE]
    world.run(driver)
    for clock in (world.clock, world.monotonic):
        clock.now += 500.0
    world.run(driver)
    assert world.storage.round(sha256, 0).state is RoundState.OPEN
    assert driver.waits_for(sha256).until == world.clock.now + 90.0


def test_a_task_whose_service_does_not_answer_holds_up_no_other(world: Any, definition: Any) -> None:
    """The first task's publication hangs for as long as the test lasts; the second runs to its end meanwhile."""
    hangs, publish = threading.Event(), world.distributor._publish
    entered = threading.Event()
    stuck = world.submit(definition)

    def publishes(parts: Any, context: Any) -> Any:
        parts = iter(parts)
        first = next(parts)
        if first.header.task == world.storage.task(stuck).signed:
            entered.set()
            hangs.wait(60.0)
        return publish(iter([first, *parts]), context)

    world.distributor._publish = publishes
    world.aggregator.contributions = GOAL
    driver = world.driver()
    driver.start()
    try:
        assert entered.wait(30.0)
        definition.name = "books"
        other = world.submit(definition)
        driver.wake()
        assert world.lines.wait_for("task_finished")
        assert world.storage.task(other).state is TaskState.FINISHED
        assert world.storage.newest_version(stuck).published is None
    finally:
        hangs.set()
        driver.stop()
