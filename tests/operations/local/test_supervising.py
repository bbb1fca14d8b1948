"""Programs that end by themselves: started again, later each time, and given up with their last line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from odp.errors import DiskFull, ServiceError
from odp.operations.local.processes import OPEN, Services
from odp.operations.local.supervising import MOST_RESTARTS, WITHIN_SECONDS, Supervisor
from odp.trust.enclave.reference_values import ReferenceValues


class Programs:
    """Children of one `odp up` that end when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.starts: list[tuple[str, float]] = []
        self.lines: list[str] = []
        self.failures: list[Exception] = []
        self.children: dict[str, Any] = {}
        for name in ("aggregator", "server"):
            self.restart_child(name)
        self.starts.clear()
        self.supervisor = Supervisor(self, say=self.lines.append, monotonic=lambda: self.now)  # type: ignore[arg-type]

    def restart_child(self, name: str) -> None:
        self.starts.append((name, self.now))
        if self.failures:
            raise self.failures.pop(0)
        process = SimpleNamespace(code=None)
        process.poll = lambda: process.code
        self.children[name] = SimpleNamespace(process=process, last_line=lambda: "no space left on device")

    def end(self, name: str) -> None:
        self.children[name].process.code = 1

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.supervisor.look()
            self.now += 0.5


def test_r253_a_program_that_ends_is_started_again_with_a_line_and_the_others_go_on() -> None:
    programs = Programs()
    programs.end("aggregator")
    programs.run(5.0)
    assert programs.starts == [("aggregator", 1.0)]
    assert programs.lines == [
        "aggregator ended by itself and is started again in 1 s; its last line: no space left on device"
    ]
    assert programs.children["server"].process.code is None


def test_r253_each_start_comes_later_and_one_that_ends_again_and_again_is_given_up() -> None:
    programs = Programs()

    def end_for_ever() -> None:
        for _ in range(100):
            programs.end("aggregator")
            programs.run(0.5)

    with pytest.raises(ServiceError, match=r"aggregator ended 6 times in 10 minutes, the last time with: no space"):
        end_for_ever()
    times = [at for _, at in programs.starts]
    assert len(times) == MOST_RESTARTS
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 8.0


@pytest.mark.parametrize("error", [DiskFull("state folder: disk full"), BlockingIOError("no more processes")])
def test_r253_a_start_that_fails_is_tried_again_and_the_others_go_on(error: Exception) -> None:
    programs = Programs()
    programs.failures = [error] * 2
    programs.end("aggregator")
    programs.run(10.0)
    assert [at for _, at in programs.starts] == [1.0, 3.0, 7.0]
    assert [str(error) in line for line in programs.lines] == [False, True, True]
    assert programs.children["server"].process.code is None


def test_r253_a_program_that_ran_for_long_begins_anew() -> None:
    programs = Programs()
    for _ in range(4 * MOST_RESTARTS):
        programs.end("server")
        programs.run(WITHIN_SECONDS / MOST_RESTARTS + 20.0)
    assert len(programs.starts) == 4 * MOST_RESTARTS


@pytest.fixture(scope="module")
def open_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("services") / "s", admission=OPEN) as services:
        yield services


@pytest.mark.processes
def test_services_that_admit_anybody_start_no_issuer(open_services: Services) -> None:
    assert set(open_services.children) == {"distributor", "aggregator", "server"}
    assert ReferenceValues.load(open_services.reference_values).emulated_vendor == ""
    assert not (open_services.root / "vendor").exists()


@pytest.mark.slow
def test_r253_a_killed_program_serves_again_where_it_was(open_services: Services) -> None:
    before = open_services.children["distributor"]
    before.process.kill()
    before.process.wait()
    now = [0.0]
    supervisor = Supervisor(open_services, say=lambda line: None, monotonic=lambda: now[0])
    supervisor.look()
    now[0] = 1.0
    supervisor.look()
    after = open_services.children["distributor"]
    assert after is not before
    after.wait_serving(open_services.ca)
    assert (after.address, after.control_address) == (before.address, before.control_address)
