"""How long a host waits: what the server asks for, and outages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, states

from device_runtime.host.pacing import CheckInPlan
from device_runtime.store.schema import State
from odp.crypto.hpke import HpkeKey
from odp.crypto.log_reasons import LogReason
from odp.errors import AttestationError, ServiceUnavailable, TransparencyError
from odp.trust.enclave.evidence import Reason
from odp.v1 import common_pb2


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


def test_an_outage_is_one_line_and_growing_pauses_whatever_the_number_of_devices(world: Any) -> None:
    world.fill([3] * 10)
    world.aggregator.script = ["unavailable"] * 100
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


@pytest.mark.parametrize(
    "error",
    [
        TransparencyError(LogReason.NOT_YET_VALID, "signed 34559995 s in the future; check the clock"),
        TransparencyError(LogReason.NOT_ENDORSED, "no endorsement in the log covers it at this time", passes=True),
        TransparencyError(LogReason.STALE, "no signature states when the checkpoint was the newest"),
        AttestationError(Reason.EXPIRED, "expired 34559995 s ago; ask for fresh evidence"),
        AttestationError(Reason.CHAIN_EXPIRED, "a certificate of the platform is not valid at this time"),
    ],
)
def test_r439_a_clock_that_leaps_for_a_while_ends_no_host(world: Any, error: Exception) -> None:
    world.fill([3])
    host = Host(world, count=1, until_finished=False)

    def leaped(*_: object) -> None:
        raise error

    object.__setattr__(host.fleet._participant, "services", type("Leaped", (), {"check_in": staticmethod(leaped)})())
    host.events = [lambda: None] * 5 + [host.stop.set]
    host.run()
    assert host.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert world.log_text.getvalue().count(" outage ") == 1


def test_r443_a_server_that_offers_a_round_of_before_an_upgrade_ends_no_host(world: Any) -> None:
    world.fill([3] * 4)
    offered = world.server.assignment.round_key
    before = common_pb2.SignedRoundKey.FromString(offered.SerializeToString())
    before.hpke_key = HpkeKey.generate().public
    right = common_pb2.SignedRoundKey.FromString(offered.SerializeToString())
    offered.CopyFrom(before)
    host = Host(world, count=4)
    host.events = [lambda: None] * 5 + [lambda: offered.CopyFrom(right)] + [world.close_round] * 3
    host.run()
    assert host.pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert world.log_text.getvalue().count(" outage ") == 1
    assert states(world, 4) == [[State.SENT] * 3] * 4


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


def test_a_window_that_the_server_asked_for_holds_over_a_restart(world: Any, tmp_path: Path) -> None:
    world.fill([3])
    world.server.assignment = None
    now = [1000.0]

    def plan() -> CheckInPlan:
        clock = lambda: now[0]  # noqa: E731
        return CheckInPlan(tmp_path / "jobs", "people", clock=clock, monotonic=clock)

    with plan() as first:
        host = Host(world, count=1, until_finished=False, plan=first)
        host.events = [host.stop.set]
        host.run()
    assert host.pauses == [5.0]
    now[0] += 3.0
    with plan() as second:
        host = Host(world, count=1, until_finished=False, plan=second)
        host.stop.clear()
        host.events = [host.stop.set]
        host.run()
    assert host.pauses == [2.0]
    assert len(world.server.requests) == 1, "the restarted host asked nobody before its time"


def test_r422_forgetting_rows_moves_neither_the_next_call_nor_the_end_of_a_host(world: Any) -> None:
    """It takes as long as the data make it: three seconds here, in pauses of five."""

    class Slow:
        steps = 0

        def step(self, *, seconds: float) -> None:
            assert seconds == 4.0, "a second before the end of the pause"
            self.steps += 1
            host.now += 3.0

    world.fill([3])
    world.server.assignment = None
    slow = Slow()
    host = Host(world, count=1, until_finished=False, end_after=10.0, housekeeping=slow)
    times: list[float] = []
    host.events = [lambda: times.append(host.now)] * 9
    host.run()
    assert times == [5.0, 10.0]
    assert host.pauses == [2.0, 2.0]
    assert slow.steps == 2


def test_a_disk_that_does_not_store_the_plan_is_named_and_the_plan_of_before_holds(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; it holds for the journal, which no full disk message names."""
    path = tmp_path / "jobs.sqlite"
    with CheckInPlan(path, "people", clock=lambda: 1000.0) as plan:
        plan.store(50.0)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from device_runtime.host.pacing import CheckInPlan; from odp.errors import DiskFailed\n"
        "plan = CheckInPlan(Path(sys.argv[1]), 'people', clock=lambda: 1000.0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "try: plan.store(70.0)\n"
        "except DiskFailed as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert f"{path}: the disk did not store what was written (SQLITE_IOERR" in done.stdout
    assert done.stdout.strip().endswith("it goes on from what is stored")
    with CheckInPlan(path, "people", clock=lambda: 1000.0) as plan:
        assert plan.wait() == 50.0
