"""Devices that rest, decline, fail or are damaged do not hold up the others, and are told of once."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import Any

import pytest
from fixed_times import impatient_times
from hosts import Host, states
from stores import pages_of

from device_runtime.host.roster import REST_SECONDS
from device_runtime.person.conditions import Conditions
from device_runtime.person.limits import Limits
from device_runtime.person.sensors import SimulatedSensors
from device_runtime.round.computations import RoundComputation
from device_runtime.store import database
from device_runtime.store.schema import State
from device_runtime.store.store import Store, store_path
from odp.errors import NotNow


def test_a_failing_device_does_not_hold_up_the_others(world: Any) -> None:
    world.fill([3] * 4)
    store_path(world.folder / "devices-state", 1).write_bytes(b"rubbish" * 300)
    host = Host(world, count=4)
    host.events = [world.close_round] * 3
    host.run()
    assert [entry["devices_in"] for entry in host.written()["rounds"]] == [3, 3, 3]
    assert "1.sqlite is damaged" in world.log_text.getvalue()


@pytest.mark.parametrize("opened_before", [True, False], ids=["while it takes part", "at the start"])
def test_r450_a_device_whose_store_another_program_holds_rests_and_takes_part_later(
    world: Any, monkeypatch: pytest.MonkeyPatch, opened_before: bool
) -> None:
    """Exporting or erasing takes as long as there are data: a device that stayed silent would tell it for ever."""
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    world.fill([3] * 2)
    host = Host(world, count=2, until_finished=False)
    holder = contextlib.ExitStack()

    def hold() -> None:
        other = holder.enter_context(world.store(1))
        other._connection.execute("BEGIN EXCLUSIVE")
        holder.callback(other._connection.execute, "ROLLBACK")

    def free() -> None:
        holder.close()
        assert states(world, 2) == [[State.SENT], []]
        host.now += REST_SECONDS

    if opened_before:
        recover = host.fleet._recover
        monkeypatch.setattr(host.fleet, "_recover", lambda: (recover(), hold()))
    else:
        hold()
    host.events = [free, lambda: None, host.stop.set]
    host.run()
    assert states(world, 2) == [[State.SENT]] * 2
    assert "locked by another program" in world.log_text.getvalue()


def test_a_device_whose_data_a_task_cannot_use_is_like_the_others_in_counts_log_and_rests(world: Any) -> None:
    world.fill([3] * 3)
    with world.store(2) as store:
        store.rate(5, 99.125)
        store.rate(10**9, math.inf)
    host = Host(world, count=3)
    host.events = [world.close_round] * 3
    host.run()
    assert [entry["devices_in"] for entry in host.written()["rounds"]] == [3, 3, 3]
    assert states(world, 3) == [[State.SENT] * 3] * 3
    text = world.log_text.getvalue()
    assert "device=2" not in text
    assert "99.125" not in text


def test_a_task_beyond_the_limits_is_declined_once_and_nothing_is_sent(world: Any) -> None:
    world.fill([3] * 4)
    host = Host(world, count=4, limits=Limits(max_epsilon=1.0, min_cohort=2), until_finished=False)
    host.events = [lambda: None, host.stop.set]
    host.run()
    assert world.distributor.enclave.asked == world.aggregator.enclave.asked == 0
    assert world.log_text.getvalue().count("task_declined") == 1
    assert host.written()["rounds"][0]["declined"] == 4
    assert len(world.server.requests) == 1 + 4 + 1


def test_a_host_whose_devices_all_rest_asks_nobody_and_says_why_once(world: Any) -> None:
    world.fill([3] * 3)
    for device, decide in enumerate(
        (
            lambda person: dataclasses.replace(person, paused=1.0),
            lambda person: person.with_opt_out(None, 1.0),
            lambda person: dataclasses.replace(person, limits=Limits(populations=("others",))),
        )
    ):
        with world.store(device) as store:
            store.change_person(decide)
    host = Host(world, count=3)
    host.events = [lambda: None] * 3 + [host.stop.set]
    host.run()
    assert world.server.requests == []
    assert host.pauses == [REST_SECONDS] * 4
    assert world.log_text.getvalue().count("device_rests") == 3


def test_a_device_that_wakes_takes_part_and_one_that_rests_does_not_hold_the_others_up(world: Any) -> None:
    world.fill([3] * 3)
    with world.store(1) as store:
        store.change_person(lambda person: dataclasses.replace(person, paused=1.0))
    host = Host(world, count=3, until_finished=False)

    def wake() -> None:
        assert states(world, 3) == [[State.SENT], [], [State.SENT]]
        with world.store(1) as store:
            store.change_person(lambda person: dataclasses.replace(person, paused=None))
        host.now += REST_SECONDS

    host.events = [lambda: None, wake, host.stop.set]
    host.run()
    assert states(world, 3) == [[State.SENT]] * 3
    text = world.log_text.getvalue()
    assert text.count("device_rests") == text.count("device_awake") == 1
    assert "odp device resume" in text


def test_unmet_conditions_are_one_line_and_no_check_in_until_they_are_met(world: Any) -> None:
    world.fill([3] * 4)
    charging = [False]
    host = Host(world, count=4, until_finished=False)
    host.fleet._participant = world.participant(
        conditions=Conditions(charging=True), sensors=lambda path: SimulatedSensors(is_charging=charging[0])
    )

    def plug() -> None:
        assert world.server.requests == []
        charging[0] = True

    host.events = [lambda: None, plug, host.stop.set]
    host.run()
    assert states(world, 4) == [[State.SENT]] * 4
    assert world.log_text.getvalue().count("device_rests") == 1
    assert "charging: on battery (wanted: on mains power)" in world.log_text.getvalue()


def test_a_host_that_is_to_end_with_its_task_does_not_wait_for_ever_for_devices_that_rest(world: Any) -> None:
    world.fill([3] * 2)
    host = Host(world, count=2)
    host.fleet._participant = world.participant(
        conditions=Conditions(charging=True), sensors=lambda path: SimulatedSensors(is_charging=False)
    )
    host.most_pauses = 200
    with pytest.raises(NotNow, match=r"not finished after 36\d\d s: all devices rest: charging: on battery"):
        host.run()
    assert world.server.requests == []


def test_a_damaged_store_is_rebuilt_with_its_ledger_and_takes_part_after_the_next_start(world: Any) -> None:
    world.fill([3, 500])
    host = Host(world, count=2, until_finished=False)
    host.events = [host.stop.set]
    host.run()
    path = store_path(world.folder / "devices-state", 1)
    with Store.open(path) as store:
        ledger = store.ledger()
    content = bytearray(path.read_bytes())
    content[1024 * (pages_of(path, "ratings")[2] - 1) + 100] ^= 1
    path.write_bytes(content)
    world.close_round()
    host = Host(world, count=2, until_finished=False)
    host.events = [host.stop.set]
    host.run()
    assert "device_rebuilt device=1" in world.log_text.getvalue()
    assert path.with_name("1.sqlite.damaged").read_bytes() == bytes(content)
    with Store.open(path) as store:
        assert store.ledger() == ledger
        assert 300 < store.ratings().items.size < 500
    host = Host(world, count=2, until_finished=False)
    host.events = [host.stop.set]
    host.run()
    with Store.open(path) as store:
        assert [line.round for line in store.ledger()] == [0, 1]


def test_a_computation_that_took_too_long_ends_in_the_empty_contribution(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([3])
    monkeypatch.setattr(RoundComputation, "compute", lambda *_: time.sleep(0.05))
    host = Host(world, count=1)
    fixed_times = impatient_times(wait=lambda seconds, finished: None)
    host.fleet._participant = dataclasses.replace(host.fleet._participant, fixed_times=fixed_times)
    host.events = [world.close_round] * 3
    host.run()
    assert states(world, 1) == [[State.SENT] * 3]
    with world.store(0) as store:
        assert store.empty_contributions() == 3
        assert len(store.charged()) == 3
        assert store.local_parameters(world.task_id) is None
