"""The periods of a token-gated task of local trust, under a clock that is wrong for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trust.enrolment.world import Developer, World as IssuerWorld

from odp.errors import EnrolmentError
from server.local.admission import Admission
from server.token_keys import TokenKeys

DAY = 86_400.0
PERIOD = 7 * DAY


class Gate:
    """A server with its issuer on one host, whose clock is set; each restart makes a new admission of one task."""

    def __init__(self, world: Any, folder: Path, definition: Any) -> None:
        self.world = world
        self.issuer = IssuerWorld(folder, clock=world.clock)
        self.issuer.developer = Developer(world.key)
        # Only one thing goes on where the clock is set.
        self.steady = 0.0
        self.issuer.monotonic = lambda: self.steady
        self.issuer.restart()
        sha256 = world.submit(definition)
        (task,) = [task for task in world.storage.tasks() if task.sha256 == sha256]
        self.task, self.began = task.signed, world.storage.history(sha256)[0].at
        self.populations = world.populations(issuer_key=self.issuer.key.public)
        self.populations.require_owned("viewers")
        self.restart()

    def restart(self) -> None:
        tokens = TokenKeys(
            self.world.storage, populations=self.populations, key=self.world.key, log=self.world.log,
            issuer=Asking(self.issuer), clock=self.world.clock,
        )  # fmt: skip
        admission = Admission.of(
            self.task, tokens, population="viewers", began=self.began, period_seconds=PERIOD,
            monotonic=lambda: self.steady,
        )  # fmt: skip
        assert admission is not None
        self.admission = admission

    def passes(self, seconds: float) -> None:
        """Time goes on, and the server looks at the task as often as it does."""
        for _ in range(4):
            self.steady += seconds / 4
            self.world.clock.now += seconds / 4
            self.admission.renew()

    def leap(self, seconds: float, *, lasts: float = 20.0) -> None:
        """The clock is ahead or behind for a moment."""
        self.world.clock.now += seconds
        self.passes(lasts)
        self.world.clock.now -= seconds

    def gives(self, device: int) -> bool:
        """Whether a device gets a token of the current period."""
        key = self.issuer.token_key(self.task, self.admission.period)
        try:
            self.issuer.token(self.issuer.device(device), key)
        except EnrolmentError:
            return False
        return True


class Asking:
    def __init__(self, issuer: IssuerWorld) -> None:
        self.issuer = issuer

    def token_key(self, task: Any, order: bytes, signature: bytes) -> Any:
        return self.issuer.issuer.token_key(task, order, signature)


@pytest.fixture
def gate(world: Any, tmp_path: Path, definition: Any) -> Iterator[Gate]:
    made = Gate(world, tmp_path / "issuer", definition)
    yield made
    made.issuer.storage.close()


@pytest.mark.parametrize("leap", [400 * DAY, -400 * DAY], ids=["ahead", "back"])
@pytest.mark.parametrize("restarts", ["no restart", "restart in the leap", "restart after it"])
@pytest.mark.slow
def test_r378_a_leap_of_the_clock_skips_no_period_of_a_token_gated_task(gate: Gate, leap: float, restarts: str) -> None:
    gate.passes(PERIOD / 2)
    assert gate.admission.period == 0
    gate.world.clock.now += leap
    if restarts == "restart in the leap":
        gate.restart()
    gate.passes(20.0)
    gate.world.clock.now -= leap
    if restarts == "restart after it":
        gate.restart()
    before = gate.admission.period
    assert before <= 1
    for week in range(1, 5):
        gate.passes(PERIOD)
        assert gate.admission.period == before + week
        assert gate.gives(week), "an enrolled device reports in each period"


def test_r378_a_program_that_starts_again_and_again_in_a_leap_begins_one_period_at_most_each_time(gate: Gate) -> None:
    gate.world.clock.now += 400 * DAY
    for _ in range(3):
        gate.restart()
    gate.world.clock.now -= 400 * DAY
    assert gate.admission.period <= 3
    ahead = gate.admission.period
    gate.passes(PERIOD + 1.0)
    assert gate.admission.period == ahead + 1


def test_a_period_goes_on_over_a_restart_and_one_that_ended_meanwhile_is_followed_by_the_next(gate: Gate) -> None:
    gate.passes(PERIOD / 2)
    gate.restart()
    gate.passes(PERIOD / 4)
    assert gate.admission.period == 0
    gate.world.clock.now += 10 * PERIOD  # the server was away
    gate.restart()
    assert gate.admission.period == 1


def test_another_server_of_the_database_follows_to_the_newest_period(gate: Gate) -> None:
    first = gate.admission
    gate.restart()
    second = gate.admission
    gate.passes(PERIOD)
    assert second.period == 1
    assert first.renew()
    assert first.period == 1
    assert not first.renew()


def test_a_key_that_ended_ends_its_period_once_that_was_so_for_an_hour(gate: Gate) -> None:
    gate.admission._seconds = 0.0  # a task of one report
    gate.world.clock.now += 31 * DAY
    assert not gate.admission.renew()
    gate.passes(1800.0)
    assert gate.admission.period == 0
    gate.passes(3600.0)
    assert gate.admission.period == 1
