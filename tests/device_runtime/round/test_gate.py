"""The person and the conditions at every step of a participation, over real connections."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from device_runtime.network.services import Services, Traffic
from device_runtime.person.conditions import Conditions
from device_runtime.person.ledger import spent
from device_runtime.person.limits import Limits
from device_runtime.person.sensors import SimulatedSensors
from device_runtime.round.gate import FILE, Gate
from device_runtime.round.participation import Outcome
from device_runtime.store.schema import State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import open_assignment
from odp.errors import NotNow, PrivacyError, ServiceUnavailable, StateError

CHARGING = Conditions(charging=True)
STEPS = ["task", "select", "prepared"]


def take_part(world: Any, participant: Any = None) -> Outcome:
    with world.store(0) as store:
        work = open_assignment(world.server.assignment, population="people")
        return (participant or world.participant()).take_part(store, work, Traffic())


def at_step(world: Any, step: str, happen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets something happen just before the first byte, after the rows came, or after the bytes were stored."""
    if step == "task":
        happen()
        return
    place = (Services, "select") if step == "select" else (Store, "prepare")
    original = getattr(*place)

    def then(*args: Any, **keywords: Any) -> Any:
        found = original(*args, **keywords)
        happen()
        return found

    monkeypatch.setattr(*place, then)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", ["pause", "opt-out", "opt-out of all", "unplugged"])
def test_what_happens_before_a_step_keeps_the_device_from_it(
    world: Any, step: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([5])
    plugged = [True]

    def happen() -> None:
        if what == "unplugged":
            plugged[0] = False
            return
        with world.store(0) as store:
            if what == "pause":
                store.change_person(lambda person: dataclasses.replace(person, paused=1.0))
            else:
                store.change_person(lambda person: person.with_opt_out("films" if what == "opt-out" else None, 1.0))

    participant = world.participant(conditions=CHARGING, sensors=lambda path: SimulatedSensors(is_charging=plugged[0]))
    with monkeypatch.context() as patch:
        at_step(world, step, happen, patch)
        with pytest.raises(PrivacyError if what == "opt-out" else NotNow):
            take_part(world, participant)
    assert world.aggregator.submits == []
    assert len(world.distributor.sizes) == (0 if step == "task" else 1)
    with world.store(0) as store:
        ledger = store.ledger()
        assert [line.state for line in ledger] == ([State.PREPARED] if step == "prepared" else [])
        if what.startswith("opt-out"):
            assert all(line.sealed is line.report is None for line in ledger)
            assert store.local_parameters(world.task_id) is None
            return
    # Later it goes on where it was: one contribution, with the bytes that were stored.
    plugged[0] = True
    with world.store(0) as store:
        store.change_person(lambda person: dataclasses.replace(person, paused=None))
    assert take_part(world, participant) is Outcome.SENT
    assert len(world.aggregator.counted) == 1
    assert len(world.distributor.sizes) == (1 if step in ("task", "prepared") else 2)


@pytest.mark.parametrize("step", ["select", "prepared"])
def test_conditions_that_computing_moves_do_not_hold_up_what_was_begun(
    world: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is hot, busy, low or full by its own computation uploads like one that is not."""
    world.fill([5])
    sensors, now = [SimulatedSensors()], [12 * 3600.0]
    conditions = Conditions(
        idle=True, battery_at_least=0.5, free_megabytes_at_least=10, thermal_at_most="nominal", hours_between=1
    )
    participant = world.participant(conditions=conditions, sensors=lambda path: sensors[0], clock=lambda: now[0])

    def happen() -> None:
        sensors[0] = SimulatedSensors(is_idle=False, charge=0.1, free=0, heat=99.0)

    with monkeypatch.context() as patch:
        at_step(world, step, happen, patch)
        assert take_part(world, participant) is Outcome.SENT
    world.close_round()
    now[0] += 24 * 3600.0
    with pytest.raises(NotNow, match="thermal"):
        take_part(world, participant)


def test_r378_a_contribution_of_a_clock_that_was_ahead_keeps_no_device_waiting_for_that_time(world: Any) -> None:
    world.fill([5])
    day = 86_400.0
    now = [time.time()]  # by which the contribution is dated
    participant = world.participant(conditions=Conditions(hours_between=24), clock=lambda: now[0])
    assert take_part(world, participant) is Outcome.SENT
    with world.store(0) as store:
        (reading,) = participant.gate.readings(store)
        assert reading.met is False
        now[0] -= 0.5 * day
        (reading,) = participant.gate.readings(store)
        assert (reading.met, reading.read) == (False, "the last one has a time in the future: the clock went back")
        now[0] -= 400 * day
        (reading,) = participant.gate.readings(store)
        assert (reading.met, reading.read) == (True, "no contribution yet")


def test_a_cancelled_upload_is_never_sent_even_after_the_opt_out_is_taken_back(world: Any) -> None:
    world.fill([5])
    world.aggregator.script = ["unavailable"]
    with pytest.raises(ServiceUnavailable):
        take_part(world)
    with world.store(0) as store:
        store.change_person(lambda person: person.with_opt_out("films", 1.0))
        store.change_person(lambda person: person.without_opt_out("films"))
    submits = len(world.aggregator.submits)
    assert take_part(world) is Outcome.SETTLED
    assert len(world.aggregator.submits) == submits
    with world.store(0) as store:
        assert len(store.charged()) == 1  # nobody knows whether it arrived


def test_the_minimum_separation_holds_between_contributions_and_not_for_a_queued_one(world: Any) -> None:
    world.fill([5])
    now = [1_000_000.0]
    participant = world.participant(conditions=Conditions(hours_between=24), clock=lambda: now[0])
    participant = dataclasses.replace(participant, clock=lambda: now[0])
    world.aggregator.script = ["unavailable"]
    with pytest.raises(ServiceUnavailable):
        take_part(world, participant)
    assert take_part(world, participant) is Outcome.SENT
    world.close_round()
    now[0] += 23 * 3600.0
    with pytest.raises(NotNow, match=r"separation: 23\.0 h"):
        take_part(world, participant)
    now[0] += 3600.0
    assert take_part(world, participant) is Outcome.SENT


def test_a_spent_limit_stops_the_next_round_before_anything_is_asked(world: Any) -> None:
    world.fill([5])
    assert take_part(world) is Outcome.SENT
    with world.store(0) as store:
        (one,) = store.charged()
        used = spent([one], delta=1e-5).epsilon
    world.close_round()
    asked = world.distributor.enclave.asked
    tight = world.participant(limits=Limits(min_cohort=2, max_total_epsilon=1.01 * used))
    with pytest.raises(PrivacyError, match="total epsilon="):
        take_part(world, tight)
    assert (len(world.distributor.sizes), world.distributor.enclave.asked) == (1, asked)


def test_what_a_host_wrote_down_is_what_explains_its_devices(tmp_path: Path) -> None:
    gate = Gate(limits=Limits(max_epsilon=2.0, tables=("ratings",)), conditions=Conditions(windows=("01:00-02:00",)))
    (tmp_path / FILE).write_bytes(gate.to_json())
    found = Gate.load(tmp_path)
    assert (found.limits, found.conditions) == (gate.limits, gate.conditions)
    assert Gate.load(tmp_path / "none").limits == Limits()
    for damaged in (b"{}", b"x", b'{"limits": {}, "conditions": {"windows": []}}'):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(StateError, match="damaged"):
            Gate.load(tmp_path)
