"""When a host checks in next, over restarts, power cuts and jumps of the clock."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from device_runtime.host.pacing import JUMP_SECONDS, CheckInPlan
from odp.errors import DiskFull, StateError

START = 1_700_000_000.0
#: What the versions before wrote: the job under way, and a second one.
BEFORE = """
CREATE TABLE jobs (
    name TEXT PRIMARY KEY, due REAL NOT NULL, every REAL, retry_low REAL NOT NULL, retry_high REAL NOT NULL,
    deadline REAL, failures INTEGER NOT NULL, started REAL) WITHOUT ROWID;
CREATE INDEX jobs_due ON jobs (due, name);
CREATE TABLE clock (one INTEGER PRIMARY KEY CHECK (one = 1), seen REAL NOT NULL);
PRAGMA user_version=1;
INSERT INTO jobs VALUES ('check-in people', 1700000040.0, NULL, 0.1, 2.0, NULL, 3, 1699999990.0);
INSERT INTO jobs VALUES ('check-in others', 1700000900.0, NULL, 0.1, 2.0, NULL, 1, NULL);
INSERT INTO clock VALUES (1, 1699999990.0);
"""


class Machine:
    """The clocks of a machine, and what a plan on it reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now, self.steady = START, 0.0
        self.reports: list[tuple[str, float]] = []

    def open(self, population: str = "people") -> CheckInPlan:
        return CheckInPlan(
            self.path,
            population,
            clock=lambda: self.now,
            monotonic=lambda: self.steady,
            report=lambda event, seconds: self.reports.append((event, round(seconds))),
        )

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds

    def restarts(self) -> None:
        self.steady = 5.0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "jobs.sqlite")


def test_a_host_without_a_plan_does_not_wait(machine: Machine) -> None:
    with machine.open() as plan:
        assert plan.wait() == 0.0


def test_after_a_power_loss_the_rest_of_the_window_is_waited_for_and_each_population_has_its_own(
    machine: Machine,
) -> None:
    plan = machine.open()
    plan.store(9.0)
    plan.store(500.0)
    # The power goes: nothing is closed.
    machine.restarts()
    machine.now += 100.0
    with machine.open() as after, machine.open("others") as others:
        assert (after.wait(), others.wait()) == (400.0, 0.0)
        machine.passes(500.0)
        assert after.wait() == 0.0
    assert machine.reports == []
    plan.close()


def test_the_file_of_a_version_before_is_read_and_written(machine: Machine) -> None:
    with sqlite3.connect(machine.path) as connection:
        connection.executescript(BEFORE)
    connection.close()
    with machine.open() as plan:
        assert plan.wait() == 40.0
        plan.store(7.0)
        assert plan.wait() == 7.0
    with machine.open("others") as plan:
        assert plan.wait() == 900.0


def test_a_clock_that_goes_back_while_a_host_waits_is_reported(machine: Machine) -> None:
    with machine.open() as plan:
        plan.store(30.0)
        machine.now -= 1e6
        machine.passes(30.0)
        plan.store(30.0)
        assert plan.wait() == 30.0
    assert machine.reports == [("clock_went_back", 1_000_000)]


def test_a_clock_that_went_back_while_the_host_was_off_takes_the_check_in_along(machine: Machine) -> None:
    with machine.open() as plan:
        plan.store(30.0)
    machine.restarts()
    machine.now -= 3600.0
    with machine.open() as plan:
        assert plan.wait() == 30.0
    machine.restarts()
    machine.now += 10.0
    with machine.open() as plan:
        assert plan.wait() == 20.0
    assert machine.reports == [("clock_went_back", 3600)]


def test_a_clock_that_jumps_ahead_is_reported(machine: Machine) -> None:
    with machine.open() as plan:
        plan.store(30.0)
        machine.now += 2 * 86400.0
        machine.passes(30.0)
        plan.store(30.0)
        assert plan.wait() == 30.0
    assert machine.reports == [("clock_jumped_ahead", 2 * 86400)]


def test_small_corrections_of_the_clock_are_no_jumps(machine: Machine) -> None:
    with machine.open() as plan:
        for change in (JUMP_SECONDS - 1, -(JUMP_SECONDS - 1)):
            machine.now += change
            plan.store(30.0)
            assert plan.wait() == 30.0
    assert machine.reports == []


@settings(max_examples=30, deadline=None)
@given(jumps=st.lists(st.tuples(st.floats(-1e7, 1e7), st.floats(0.0, 100.0)), max_size=8))
def test_whatever_the_clock_does_no_host_waits_longer_than_it_planned(jumps: list[tuple[float, float]]) -> None:
    """A correction that is no jump may add its seconds, and each restart may see another one."""
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder) / "jobs")
        with machine.open() as plan:
            plan.store(1000.0)
        for jump, passed in jumps:
            machine.now += jump
            machine.restarts()
            with machine.open() as plan:
                assert plan.wait() <= 1000.0 + len(jumps) * JUMP_SECONDS
            machine.passes(passed)


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "jobs"
    damaged.write_bytes(b"\x01" * 5000)
    with pytest.raises(StateError, match=r"jobs cannot be used .*remove the file"):
        CheckInPlan(damaged, "people")
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=9")
    connection.close()
    with pytest.raises(StateError, match="have version 9"):
        CheckInPlan(newer, "people")


def test_a_full_disk_is_named_and_the_plan_before_holds(machine: Machine) -> None:
    with machine.open() as plan:
        plan.store(30.0)
        (pages,) = plan._connection.execute("PRAGMA page_count").fetchone()
        plan._connection.execute(f"PRAGMA max_page_count={pages}")
        plan._name = "check-in " + "x" * 10_000
        with pytest.raises(DiskFull, match="free some space; nothing was lost"):
            plan.store(5.0)
    with machine.open() as plan:
        assert plan.wait() == 30.0


def test_a_clock_that_goes_back_moves_the_check_ins_of_all_populations(machine: Machine) -> None:
    machine.passes(5 * 365 * 86_400.0)
    with machine.open("others") as others:
        others.store(40.0)
    machine.now = START
    machine.restarts()
    with machine.open("people") as people:
        assert people.wait() == 0.0
        people.store(10.0)
    with machine.open("others") as others:
        assert others.wait() == pytest.approx(40.0)
    with machine.open("people") as people:
        machine.passes(100.0)
        people.store(200.0)
        machine.now -= 10 * 86_400.0
        people.store(20.0)
    with machine.open("others") as others:
        assert others.wait() == 0.0, "it was due before"
    assert [event for event, _ in machine.reports] == ["clock_went_back"] * 2
