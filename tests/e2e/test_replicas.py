"""Two servers on one PostgreSQL database, as real processes: the leader is paused, and killed, in a task."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conformance.postgresql import PostgresqlServer
from e2e.killing import DEVICE_HOST, Platform, a_task
from e2e.replicated import SERVERS, Replicated

from odp.operations.local.processes import Services
from odp.services.connection import connect
from odp.trust.enclave.policy import EnclavePolicy

pytestmark = pytest.mark.processes

#: A lease lasts 3 s. On a machine that is busy with other tests, everything takes longer than that.
SOON = 5.0
_LEADS = re.compile(r"^(\S+) .*\bleads what=(\w+) token=(\d+)", re.MULTILINE)


class ReplicatedPlatform(Platform):
    """``Platform`` whose devices and developer know both servers."""

    def __init__(self, root: Path, url: str, stack: contextlib.ExitStack) -> None:
        self._url = url
        super().__init__(root, stack)

    def _services(self, root: Path, *, policy: EnclavePolicy, helper: bool) -> Services:
        return Replicated(root, self._url, policy=policy)

    def leader(self, task: bytes) -> str:
        """Who took the lease of a task last: the largest token, as the logs say."""
        return max(self.tokens(task))[1]

    def tokens(self, task: bytes) -> list[tuple[int, str]]:
        """(token, server) of every lease of a task that was taken."""
        found = []
        for name in SERVERS:
            for _, what, token in _LEADS.findall(self.logged(name)):
                if task.hex().startswith(what):
                    found.append((int(token), name))
        return found

    def until_led_by_another(self, task: bytes, leader: str) -> float:
        """Waits until another server leads; the seconds that took."""
        began = time.monotonic()
        self.until(lambda: self.leader(task) != leader, what="another leader")
        return time.monotonic() - began


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresqlServer]:
    with PostgresqlServer.started() as server:
        yield server


@pytest.fixture
def platform(tmp_path: Path, postgresql: PostgresqlServer) -> Iterator[ReplicatedPlatform]:
    before = set(psutil.Process().children(recursive=True))
    schema = f"replicas_{abs(hash(tmp_path))}"
    postgresql.execute(f"CREATE SCHEMA {schema}")
    with contextlib.ExitStack() as stack:
        yield ReplicatedPlatform(tmp_path, postgresql.url(schema=schema), stack)
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not left, f"left running: {left}"


@pytest.mark.slow
def test_a_task_goes_on_where_its_leader_is_paused_and_then_another_one_killed(platform: ReplicatedPlatform) -> None:
    """Nothing is ordered twice, no device notices, and the model is that of the releases applied once."""
    task = a_task(rank=2)
    platform.submit(task)
    sha256 = platform.handle.task_sha256
    platform.until(lambda: platform.tokens(sha256), what="a leader")
    first = platform.leader(sha256)
    platform.start(DEVICE_HOST)
    platform.until(lambda: platform.held(0) > 5, what="contributions to round 0")

    paused = platform.child(first).process
    paused.send_signal(signal.SIGSTOP)
    took = platform.until_led_by_another(sha256, first)
    second = platform.leader(sha256)
    paused.send_signal(signal.SIGCONT)
    platform.until(lambda: "deposed" in platform.logged(first), what="the end of the old leader's lease")
    platform.until_logged(second, "round_applied", round=0)
    assert platform.leader(sha256) == second

    platform.child(second).process.kill()
    took_again = platform.until_led_by_another(sha256, second)
    assert platform.leader(sha256) == first
    platform.died(platform.child(second))
    platform.start(second)
    platform.check(task)
    assert max(took, took_again) < 4 * SOON
    tokens = [token for token, _ in platform.tokens(sha256)]
    assert len(set(tokens)) == len(tokens), "no token was given twice"
    with connect(platform.services.server_address, state=platform.root) as both:
        assert len(both.tasks()) == 1
