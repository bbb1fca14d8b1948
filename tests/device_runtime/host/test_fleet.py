"""A host takes its devices through the rounds of a task; a restart repeats nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, states

from device_runtime.store.schema import State
from device_runtime.store.store import Store
from odp.errors import DiskFull, NotNow, StateError


def test_a_fleet_works_through_all_rounds_of_a_task_and_ends(world: Any) -> None:
    counts = [20, 1, 0, 500, 60]
    world.fill(counts)
    host = Host(world, count=5)
    seen = []

    def close() -> None:
        seen.append(len(world.aggregator.counted))
        world.close_round()

    host.events = [close, close, close]
    host.run()
    assert seen == [5, 5, 5]
    assert states(world, 5) == [[State.SENT] * 3] * 5
    written = host.written()
    assert written["finished"] is True
    counters = ("round", "devices_in", "refused", "failed")
    found = [tuple(entry[name] for name in counters) for entry in written["rounds"]]
    assert found == [(round, 5, 0, 0) for round in range(3)]
    assert all(entry["bytes_up"] > 5 * 200 and entry["bytes_down"] > 5 * 1000 for entry in written["rounds"])


def test_a_host_that_is_to_end_with_its_task_waits_for_the_last_release(world: Any) -> None:
    """Who exports the model as soon as the host has ended gets that of the last round."""
    world.fill([3, 5])
    host = Host(world, count=2)
    seen = []

    def close() -> None:
        world.close_round()
        world.server.releases = world.server.assignment is None

    def asked_again() -> None:
        seen.append(states(world, 2))

    def release() -> None:
        world.server.releases = False

    host.events = [close, close, close, asked_again, asked_again, release]
    host.run()
    assert seen == [[[State.SENT] * 3] * 2] * 2
    assert host.events == [], "it asked until nothing was under way"


def test_the_log_holds_nothing_of_a_device(world: Any) -> None:
    world.fill([7])
    with world.store(0) as store:
        identity = store.identity()
    host = Host(world, count=1)
    host.events = [world.close_round] * 3
    host.run()
    text = world.log_text.getvalue()
    for private in (identity.secret.hex(), identity.device_id.hex(), str(identity.seed), str(identity.secret)):
        assert private not in text
    fields = set(re.findall(r" ([a-z_]+)=", text))
    public = {"devices", "population", "task", "round", "reason", "minimum", "goal", "seconds"}
    assert fields <= public | {"pending", "settled", "failed"}
    assert 0 < len(text.splitlines()) < 20
    assert all(len(line) < 300 for line in text.splitlines())


def test_a_round_that_closes_in_the_middle_ends_the_sweep(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_runtime.host.fleet._SIDE_BY_SIDE", 3)
    world.fill([3] * 8)
    host = Host(world, count=8, until_finished=False)

    def close_after_three() -> None:
        if len(world.aggregator.counted) >= 3:
            world.server.assignment = None

    world.server.before = close_after_three
    host.events = [host.stop.set]
    host.run()
    assert 3 <= len(world.aggregator.counted) < 8
    assert len(world.server.requests) < 12


def test_devices_whose_model_was_replaced_meanwhile_check_in_again_and_nothing_is_reported(world: Any) -> None:
    world.fill([3] * 4)
    world.distributor.gone = 2
    host = Host(world, count=4, until_finished=False)
    host.events = [lambda: None] * 3 + [host.stop.set]
    host.run()
    assert states(world, 4) == [[State.SENT]] * 4
    assert world.distributor.gone == 0
    assert [(entry["devices_in"], entry["failed"]) for entry in host.written()["rounds"]] == [(4, 0)]
    assert not any(word in world.log_text.getvalue() for word in ("outage", "device_failed"))


def test_a_restarted_host_resends_what_was_prepared_and_nothing_else(world: Any) -> None:
    world.fill([3] * 5)
    world.aggregator.script = ["answer", "answer"] + ["unavailable"] * 20
    host = Host(world, count=5, until_finished=False)
    host.events = [host.stop.set]
    host.run()
    assert len(world.aggregator.counted) == 2
    world.aggregator.script.clear()
    before = len(world.distributor.sizes)
    again = Host(world, count=5, until_finished=False)
    again.events = [again.stop.set]
    again.run()
    assert len(world.aggregator.counted) == 5
    assert states(world, 5) == [[State.SENT]] * 5
    assert len(world.distributor.sizes) == 5 or before < 5
    (entry,) = again.written()["rounds"]
    assert entry["devices_in"] == 5
    submits = len(world.aggregator.submits)
    third = Host(world, count=5, until_finished=False)
    third.events = [third.stop.set]
    third.run()
    assert len(world.aggregator.submits) == submits


def test_devices_without_a_store_are_named_before_anything_starts(world: Any) -> None:
    world.fill([3] * 2)
    host = Host(world, count=5)
    with pytest.raises(StateError, match="3 of the devices 0 to 4 have no store"):
        host.run()
    assert world.server.requests == []


def test_a_host_that_missed_the_last_round_ends_after_a_quiet_time(world: Any) -> None:
    world.fill([3])
    host = Host(world, count=1)

    def end() -> None:
        world.open_round(world.model_server.rounds)
        world.server.assignment = None

    host.events = [end]
    host.run()
    assert "devices_finished" in world.log_text.getvalue()
    assert sum(host.pauses) > 120
    assert "no_open_round" in world.log_text.getvalue()
    assert world.log_text.getvalue().count("no_round_open") == 1, "said once, however often it asks"


@pytest.mark.parametrize("others", [False, True])
def test_a_host_whose_task_ends_before_its_last_round_did_not_finish(world: Any, others: bool) -> None:
    """It was cancelled or failed; the server may have the model of another task of the population."""
    world.fill([3])
    host = Host(world, count=1)

    def end() -> None:
        world.server.assignment = None
        if others:
            world.server.newest.task.signature = bytes(64)

    host.events = [end]
    with pytest.raises(NotNow, match=r"not finished: round 0 of 3 of task '.*' was the last that was open") as told:
        host.run()
    assert "\n" not in str(told.value)
    assert "devices_finished" not in world.log_text.getvalue()


def test_a_host_says_once_in_a_round_that_it_waits_for_other_devices(world: Any) -> None:
    world.fill([3])
    host = Host(world, count=1, until_finished=False)
    host.events = [lambda: None] * 4 + [world.close_round] + [lambda: None] * 4 + [host.stop.set]
    host.run()
    said = [line for line in world.log_text.getvalue().splitlines() if " round_waits " in line]
    assert len(said) == 2
    assert "for other devices" in said[0]
    assert f"minimum={world.definition.cohort.minimum}" in said[0]


def test_a_host_that_is_to_end_with_its_task_and_finds_none_says_so(world: Any) -> None:
    world.fill([3])
    world.server.assignment = None
    host = Host(world, count=1)
    with pytest.raises(NotNow, match=r"not finished: no round of population '.*' was open for") as told:
        host.run()
    assert "\n" not in str(told.value)
    assert "devices_finished" not in world.log_text.getvalue()
    assert 120 < sum(host.pauses) < 300


def test_a_store_is_opened_by_one_worker_at_a_time(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill([3] * 6)
    opened: list[Path] = []
    original = Store.open.__func__  # type: ignore[attr-defined]

    def counting(cls: type[Store], path: Path, *, durable: bool = True) -> Store:
        opened.append(path)
        return original(cls, path, durable=durable)

    host = Host(world, count=6, until_finished=False)
    host.events = [host.stop.set]
    monkeypatch.setattr(Store, "open", classmethod(counting))
    host.run()
    assert len(opened) == 12  # once to recover, once to take part
    assert len(set(opened)) == 6


@pytest.mark.parametrize(("error", "devices", "lines"), [(DiskFull, 2, 2), (StateError, 40, 3)])
def test_a_disk_that_fails_under_the_stores_ends_the_host_with_one_line(
    world: Any, monkeypatch: pytest.MonkeyPatch, error: type[StateError], devices: int, lines: int
) -> None:
    """A full disk at once, however few devices are left; what may be one store's damage once it is that of many."""
    world.fill([3] * devices)

    def failing(self: Store, *_: object, **__: object) -> None:
        raise error(f"device store {self.path}: no room")

    monkeypatch.setattr(Store, "prepare", failing)
    host = Host(world, count=devices)
    with pytest.raises(error, match="no room"):
        host.run()
    assert world.aggregator.submits == []
    assert 1 <= world.log_text.getvalue().count("device_failed") <= lines


def test_an_unforeseen_error_of_one_device_is_logged_without_its_message(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([3] * 3)
    original = Store.identity

    def broken(self: Store) -> Any:
        if self.path.name == "1.sqlite":
            raise RuntimeError("private 4.5")
        return original(self)

    monkeypatch.setattr(Store, "identity", broken)
    host = Host(world, count=3)
    host.events = [world.close_round] * 3
    host.run()
    assert [entry["devices_in"] for entry in host.written()["rounds"]] == [2, 2, 2]
    assert world.log_text.getvalue().count("device_crashed") == 1
    assert "private" not in world.log_text.getvalue()


def test_a_host_ends_when_its_time_is_over_as_an_error_only_where_it_was_to_finish(world: Any) -> None:
    world.fill([3])
    world.server.assignment = None
    for until_finished in (False, True):
        host = Host(world, count=1, until_finished=until_finished, end_after=60.0)
        if until_finished:
            with pytest.raises(NotNow, match="not finished after 6"):
                host.run()
        else:
            host.run()
        assert 60.0 <= host.now <= 70.0
