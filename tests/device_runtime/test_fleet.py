from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import pages_of

from device_runtime import program
from device_runtime.conditions import Conditions
from device_runtime.fleet import REST_SECONDS, Fleet
from device_runtime.limits import Limits
from device_runtime.scheduler import Scheduler
from device_runtime.schema import State
from device_runtime.sensors import SimulatedSensors
from device_runtime.store import Store, store_path
from odp.errors import AttestationError, ConfigurationError, DiskFull, NotNow, ServiceUnavailable, StateError
from odp.transport.state_folder import StateFolder


class Host:
    """A fleet under a clock that only its own pauses move; ``events`` are called one per pause."""

    def __init__(
        self,
        world: Any,
        *,
        count: int,
        limits: Limits | None = None,
        until_finished: bool = True,
        keep_running: bool = False,
        jobs: Scheduler | None = None,
        end_after: float | None = None,
    ) -> None:
        self.world = world
        self.now = 0.0
        self.most_pauses = 100
        self.pauses: list[float] = []
        self.events: list[Callable[[], None]] = []
        self.stop = threading.Event()
        self.state = StateFolder.open(world.folder / "devices-state", "devices")
        self.fleet = Fleet(
            state=self.state, population="people", participant=world.participant(limits=limits), first=0, count=count,
            stop=self.stop, log=world.log, until_finished=until_finished, keep_running=keep_running,
            jobs=jobs, end_after=end_after,
            clock=lambda: self.now, wait=self.pause, uniform=lambda low, high: (low + high) / 2,
        )  # fmt: skip

    def pause(self, seconds: float) -> bool:
        assert len(self.pauses) < self.most_pauses, "the host never ends"
        self.pauses.append(seconds)
        self.now += seconds
        if self.events:
            self.events.pop(0)()
        return self.stop.is_set()

    def run(self) -> None:
        try:
            self.fleet.run()
        finally:
            self.state.close()

    def written(self) -> dict[str, Any]:
        return json.loads((self.world.folder / "devices-state" / "stats.json").read_text())


def states(world: Any, count: int) -> list[list[State]]:
    found = []
    for device in range(count):
        with world.store(device) as store:
            found.append([line.state for line in store.ledger()])
    return found


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
    assert fields <= {"devices", "population", "task", "round", "pending", "settled", "failed"}
    assert 0 < len(text.splitlines()) < 20
    assert all(len(line) < 300 for line in text.splitlines())


def test_a_host_with_nothing_to_do_asks_once_per_pause_and_not_once_per_device(world: Any) -> None:
    world.fill([3] * 6)
    host = Host(world, count=6, until_finished=False)
    host.events = [lambda: None] * 9 + [host.stop.set]
    host.run()
    # Per device one check-in, and one of the host before the sweep and after each pause.
    assert len(world.server.requests) == 6 + 1 + 10
    assert host.pauses == sorted(host.pauses)
    assert set(world.server.requests) == {b"\x0a\x06people"}


def test_the_servers_retry_window_is_honoured(world: Any) -> None:
    world.fill([3])
    world.server.assignment = None
    host = Host(world, count=1, until_finished=False)
    host.events = [lambda: None] * 3 + [host.stop.set]
    host.run()
    assert host.pauses == [5.0] * 4
    assert len(world.server.requests) == 4
    assert host.written()["waiting"]["bytes_up"] == 4 * 8


def test_a_round_that_closes_in_the_middle_ends_the_sweep(world: Any) -> None:
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


def test_an_outage_is_one_line_and_growing_pauses_whatever_the_number_of_devices(world: Any) -> None:
    world.fill([3] * 10)
    world.aggregator.script = ["unavailable"] * 12
    host = Host(world, count=10)
    host.events = [lambda: None] * 3 + [lambda: world.aggregator.script.clear()] + [world.close_round] * 3
    host.run()
    lines = world.log_text.getvalue().splitlines()
    assert sum(" outage " in line for line in lines) == 1
    assert sum(" outage_over" in line for line in lines) == 1
    assert host.pauses[:4] == sorted(host.pauses[:4])
    assert host.pauses[3] >= 8.0
    assert host.written()["outages"] == 1
    assert host.written()["rounds"][0]["devices_in"] == 10
    assert states(world, 10) == [[State.SENT] * 3] * 10


def test_evidence_that_is_refused_stops_the_whole_host_from_sending(world: Any) -> None:
    world.fill([3] * 10)
    world.aggregator.enclave.image = "sha384:" + "0" * 96
    host = Host(world, count=10, until_finished=False)
    host.events = [lambda: None, host.stop.set]
    host.run()
    assert world.aggregator.submits == []
    assert world.distributor.sizes == []
    assert "aggregator at 127.0.0.1" in world.log_text.getvalue()
    assert world.aggregator.enclave.asked <= 6


def test_evidence_that_stays_refused_ends_the_host_unless_it_is_to_keep_running(world: Any) -> None:
    world.fill([3] * 4)
    world.aggregator.enclave.image = "sha384:" + "0" * 96
    host = Host(world, count=4, until_finished=False)
    host.events = [lambda: None] * 5
    with pytest.raises(AttestationError, match="wrong_image"):
        host.run()
    assert len(host.pauses) == 2
    assert host.written()["outages"] == 1
    patient = Host(world, count=4, until_finished=False, keep_running=True)
    patient.events = [lambda: None] * 5 + [patient.stop.set]
    patient.run()
    assert len(patient.pauses) == 6
    assert world.aggregator.submits == []


def test_a_failing_device_does_not_hold_up_the_others(world: Any) -> None:
    world.fill([3] * 4)
    store_path(world.folder / "devices-state", 1).write_bytes(b"rubbish" * 300)
    with world.store(2) as store:
        store.rate(5, 99.125)
    host = Host(world, count=4)
    host.events = [world.close_round] * 3
    host.run()
    assert [entry["devices_in"] for entry in host.written()["rounds"]] == [2, 2, 2]
    text = world.log_text.getvalue()
    assert "1.sqlite is damaged" in text
    assert "device=2" in text
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
    assert "charging: on battery (asked: on mains power)" in world.log_text.getvalue()


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
        world.server.assignment = None

    host.events = [end]
    host.run()
    assert sum(host.pauses) > 120
    assert "no_open_round" in world.log_text.getvalue()


@pytest.fixture
def config(world: Any) -> program.Config:
    ca, values = world.folder / "ca.pem", world.folder / "reference.json"
    ca.write_bytes(world.identity.ca_pem)
    world.reference_values().save(values)
    return program.Config(
        state=world.folder / "devices-state", server=world.address, ca=ca, reference_values=values, population="people",
        limits=Limits(min_cohort=2), until_finished=True, durable=False,
    )  # fmt: skip


def test_the_program_fills_its_devices_and_stops_when_told(world: Any, config: program.Config) -> None:
    ratings = world.fill([3] * 4)
    with pytest.raises(StateError, match="in use"), StateFolder.open(config.state, "devices"):
        program.start(config, ratings=ratings, log=world.log)
    config = dataclasses.replace(config, state=world.folder / "fresh")
    running = program.start(config, ratings=ratings, log=world.log)
    while [entry.devices_in for entry in running.statistics()] != [4]:
        assert not running.join(0.01)
    running.stop()
    assert running.join(0)
    assert len(world.aggregator.counted) == 4
    with StateFolder.open(config.state, "devices"):
        pass  # the folder was given back


def test_a_configuration_that_cannot_work_is_refused_at_once(world: Any, config: program.Config) -> None:
    with pytest.raises(ConfigurationError, match="count"):
        program.start(config, log=world.log)
    with pytest.raises(ConfigurationError, match="at most 2"):
        program.start(dataclasses.replace(config, count=3), ratings=world.fill([1, 2]), log=world.log)
    with pytest.raises(ConfigurationError, match=r"nowhere\.json"):
        program.start(dataclasses.replace(config, count=2, reference_values=Path("nowhere.json")), log=world.log)
    for wrong in ({"server": "nowhere"}, {"threads": 0}, {"population": "A b"}, {"first": -1}):
        with pytest.raises(ConfigurationError):
            dataclasses.replace(config, **wrong)


def test_importing_a_device_loads_no_heavy_library() -> None:
    import subprocess
    import sys

    code = (
        "import sys, device_runtime\n"
        "heavy = {'scipy', 'dp_accounting', 'sqlalchemy', 'tensorflow', 'mpmath', 'matplotlib', 'numba', 'rich'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}),"
        " [name for name in sys.modules if name.startswith('odp.') and 'server' in name"
        " and not name.startswith(('odp.v1.', 'odp.crypto.pir.'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] []"


def test_an_unreachable_server_is_an_outage_and_not_a_crash(world: Any) -> None:
    world.fill([3])
    host = Host(world, count=1, until_finished=False)

    def unavailable(*_: object) -> None:
        raise ServiceUnavailable("could not check in with the server: nobody answers at 127.0.0.1:1; check the address")

    object.__setattr__(host.fleet._participant, "services", type("Gone", (), {"check_in": staticmethod(unavailable)})())
    host.events = [lambda: None] * 5 + [host.stop.set]
    host.run()
    assert host.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert world.log_text.getvalue().count(" outage ") == 1


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
    original = Store.ratings

    def broken(self: Store) -> Any:
        if self.path.name == "1.sqlite":
            raise RuntimeError("private 4.5")
        return original(self)

    monkeypatch.setattr(Store, "ratings", broken)
    host = Host(world, count=3)
    host.events = [world.close_round] * 3
    host.run()
    assert [entry["devices_in"] for entry in host.written()["rounds"]] == [2, 2, 2]
    assert world.log_text.getvalue().count("device_crashed") == 1
    assert "private" not in world.log_text.getvalue()


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


def test_a_window_that_the_server_asked_for_holds_over_a_restart(world: Any, tmp_path: Path) -> None:
    world.fill([3])
    world.server.assignment = None
    now = [1000.0]

    def jobs() -> Scheduler:
        clock = lambda: now[0]  # noqa: E731
        return Scheduler(tmp_path / "jobs", clock=clock, monotonic=clock, uniform=lambda low, high: high)

    with jobs() as first:
        host = Host(world, count=1, until_finished=False, jobs=first)
        host.events = [host.stop.set]
        host.run()
    assert host.pauses == [7.0]
    now[0] += 3.0
    with jobs() as second:
        host = Host(world, count=1, until_finished=False, jobs=second)
        host.stop.clear()
        host.events = [host.stop.set]
        host.run()
    assert host.pauses == [4.0]
    assert len(world.server.requests) == 1, "the restarted host asked nobody before its time"


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


def test_a_computation_that_took_too_long_sends_nothing_and_is_not_repeated_at_once(world: Any) -> None:
    world.fill([3])
    host = Host(world, count=1, until_finished=False, end_after=3600.0)
    ticks = iter(range(0, 10**6, 601))
    host.fleet._participant = dataclasses.replace(host.fleet._participant, monotonic=lambda: float(next(ticks)))
    host.most_pauses = 300
    host.run()
    assert world.aggregator.submits == []
    assert next(ticks) == 2 * 601, "computed once"
    assert "compute: took 601 s (asked: at most 600 s)" in world.log_text.getvalue()
    with world.store(0) as store:
        assert store.ledger() == ()
