from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.host.scheduler import JUMP_SECONDS, Job, Scheduler
from odp.errors import ConfigurationError, StateError

START = 1_700_000_000.0


class Desk:
    """A scheduler's clocks, its randomness and what it told."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.now, self.steady, self.share = START, 0.0, 1.0
        self.told: list[tuple[str, float]] = []

    def open(self) -> Scheduler:
        return Scheduler(
            self.path,
            clock=lambda: self.now,
            monotonic=lambda: self.steady,
            uniform=lambda low, high: low + self.share * (high - low),
            told=lambda what, seconds: self.told.append((what, round(seconds))),
        )

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds

    def restarts(self) -> None:
        self.steady = 5.0


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "jobs.sqlite")


def test_jobs_come_in_the_order_in_which_they_are_due(desk: Desk) -> None:
    with desk.open() as jobs:
        for name, due in (("late", 50.0), ("soon", 5.0), ("also soon", 5.0)):
            jobs.add(Job(name=name, due=START + due))
        assert [job.name for job in jobs.jobs()] == ["also soon", "soon", "late"]
        found = jobs.next()
        assert found is not None
        assert (found.name, jobs.wait(found)) == ("also soon", 5.0)
        desk.passes(60.0)
        assert jobs.wait(found) == 0.0


def test_a_job_done_once_is_gone_and_a_recurrent_one_comes_again(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="once", due=START))
        jobs.add(Job(name="daily", due=START, every=86400.0))
        assert jobs.succeeded("once") is None
        desk.passes(10.0)
        again = jobs.succeeded("daily")
        assert again is not None
        assert again.due == START + 10.0 + 86400.0
        assert [job.name for job in jobs.jobs()] == ["daily"]


def test_failures_wait_in_windows_that_double_and_success_begins_anew(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="a", due=START, every=100.0, retry=(1.0, 10.0)))
        pauses = []
        for share in (0.0, 1.0, 0.0, 1.0):
            desk.share = share
            planned = jobs.failed("a")
            assert planned is not None
            pauses.append(planned.due - START)
        assert pauses == [1.0, 20.0, 4.0, 80.0]
        jobs.succeeded("a")
        planned = jobs.failed("a")
        assert planned is not None
        assert planned.due - START == 10.0


def test_a_window_that_somebody_asked_for_is_kept_as_it_is(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="a", due=START))
        for _ in range(3):
            planned = jobs.failed("a", retry=(30.0, 40.0))
            assert planned is not None
            assert planned.due == START + 40.0


def test_past_its_deadline_a_job_is_given_up_and_a_recurrent_one_waits_for_its_next_turn(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="once", due=START, deadline=START + 5.0, retry=(6.0, 6.0)))
        jobs.add(Job(name="daily", due=START, every=100.0, deadline=START + 5.0, retry=(6.0, 6.0)))
        assert jobs.failed("once") is None
        following = jobs.failed("daily")
        assert following is not None
        assert (following.due, following.deadline, following.failures) == (START + 100.0, START + 105.0, 0)
        assert jobs.get("once") is None


def test_after_a_power_loss_jobs_are_where_they_were_and_those_under_way_are_due_again(desk: Desk) -> None:
    jobs = desk.open()
    jobs.add(Job(name="a", due=START + 1.0, retry=(2.0, 3.0)))
    jobs.add(Job(name="b", due=START + 500.0))
    desk.passes(2.0)
    jobs.begin("a")
    assert [job.name for job in (jobs.next(),) if job] == ["b"], "what is under way is not begun a second time"
    # The power goes: nothing is closed.
    desk.restarts()
    desk.now += 100.0
    with desk.open() as after:
        assert after.interrupted == ("a",)
        found = after.next()
        assert found is not None
        assert (found.name, after.wait(found), found.retry) == ("a", 0.0, (2.0, 3.0))
    with desk.open() as later:
        assert later.interrupted == ()
    assert desk.told == []


def test_a_job_that_is_there_stays_as_it_is_unless_it_is_replaced(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="a", due=START + 9.0))
        assert jobs.add(Job(name="a", due=START)).due == START + 9.0
        assert jobs.add(Job(name="a", due=START), replace=True).due == START


def test_a_clock_that_goes_back_takes_the_jobs_along(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="a", due=START + 30.0, deadline=START + 90.0))
        desk.now -= 1e6
        found = jobs.next()
        assert found is not None
        assert jobs.wait(found) == 30.0
        assert found.deadline == START + 90.0 - 1e6
    assert desk.told == [("clock_went_back", 1_000_000)]


def test_a_clock_that_went_back_while_the_host_was_off_is_seen_at_its_start(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="a", due=START + 30.0))
    desk.restarts()
    desk.now -= 3600.0
    with desk.open() as jobs:
        found = jobs.next()
        assert found is not None
        assert jobs.wait(found) == 30.0
    assert desk.told == [("clock_went_back", 3600)]


def test_jobs_that_a_jump_made_due_do_not_start_all_at_once(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="overdue", due=START - 5.0))
        for number in range(3):
            jobs.add(Job(name=f"tomorrow {number}", due=START + 86400.0, retry=(1.0, 300.0 + number)))
        desk.now += 2 * 86400.0
        jobs.look_at_the_clock()
        assert [jobs.wait(job) for job in jobs.jobs()] == [0.0, 300.0, 301.0, 302.0]
    assert desk.told == [("clock_jumped_ahead", 2 * 86400)]


def test_small_corrections_of_the_clock_are_no_jumps(desk: Desk) -> None:
    with desk.open() as jobs:
        jobs.add(Job(name="a", due=START + 30.0))
        for change in (JUMP_SECONDS - 1, -(JUMP_SECONDS - 1)):
            desk.now += change
            jobs.look_at_the_clock()
        assert [job.due for job in jobs.jobs()] == [START + 30.0]
    assert desk.told == []


@settings(max_examples=60, deadline=None)
@given(jumps=st.lists(st.tuples(st.floats(-1e7, 1e7), st.floats(0.0, 100.0)), max_size=8))
def test_whatever_the_clock_does_no_job_waits_longer_than_it_was_to(jumps: list[tuple[float, float]]) -> None:
    """Each jump may add one retry window to a job that it made due, and nothing else."""
    desk = Desk(None)
    with desk.open() as jobs:
        jobs.add(Job(name="a", due=START + 1000.0, retry=(1.0, 60.0)))
        for jump, passed in jumps:
            desk.now += jump
            jobs.look_at_the_clock()
            desk.passes(passed)
            found = jobs.next()
            assert found is not None
            assert jobs.wait(found) <= 1000.0 + len(jumps) * (JUMP_SECONDS + 60.0)


@pytest.mark.parametrize(
    "values",
    [
        {"name": ""}, {"name": "x" * 201}, {"due": float("nan")}, {"retry": (5.0, 1.0)}, {"retry": (-1.0, 1.0)},
        {"every": 0.0}, {"deadline": float("inf")},
    ],
)  # fmt: skip
def test_a_job_that_makes_no_sense_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Job(**{"name": "a", "due": START, **values})  # type: ignore[arg-type]


def test_a_file_that_is_no_schedule_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "jobs"
    damaged.write_bytes(b"\x01" * 5000)
    with pytest.raises(StateError, match=r"jobs cannot be used .*remove the file"):
        Scheduler(damaged)
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=9")
    connection.close()
    with pytest.raises(StateError, match="have version 9"):
        Scheduler(newer)


def test_a_job_that_nobody_added_is_named(desk: Desk) -> None:
    with desk.open() as jobs, pytest.raises(StateError, match="no job 'a'"):
        jobs.begin("a")
