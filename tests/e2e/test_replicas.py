"""Two servers on one PostgreSQL database, as real processes: the leader is paused, and killed, in a task."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from conformance.postgresql import PostgresqlServer
from e2e.killing import DEVICE_HOST, Platform, a_task

from odp.client import connect
from odp.enclave.policy import EnclavePolicy
from odp.local.processes import ISSUER, ODP, Child, Services
from odp.transport.private_files import make_folders

pytestmark = pytest.mark.processes

SERVERS = ("server", "server-2")
#: A lease lasts 3 s. On a machine that is busy with other tests, everything takes longer than that.
SOON = 5.0
_LEADS = re.compile(r"^(\S+) .*\bleads what=(\w+) token=(\d+)", re.MULTILINE)


class Replicated(Services):
    """Services with a second server; both keep their tasks in one database."""

    def __init__(self, root: Path, url: str, *, policy: EnclavePolicy) -> None:
        super().__init__(root, policy=policy)
        self.url = url

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        if name not in SERVERS:
            return super().start_child(name, port, command=command)
        command = ["env", f"ODP_DATABASE={self.url}", *command]
        if name == "server":
            return super().start_child(name, port, command=command)
        return self._second(port, command)

    def _second(self, port: int, command: Sequence[str]) -> Child:
        """The same program on a folder of its own, with the keys of the first one."""
        state = self.root / SERVERS[1]
        if not state.exists():
            make_folders(state)
            for key in ("developer.key", "operator.token"):
                (state / key).write_bytes((self.root / "server" / key).read_bytes())
                (state / key).chmod(0o600)
        arguments = ["server", "run", "--listen", f"127.0.0.1:{port}", "--ca-folder", str(self.root / "ca")]
        for other in ("distributor", "aggregator"):
            arguments += [f"--{other}", self.children[other].address]
            arguments += [f"--{other}-control", self.children[other].control_address]
        arguments += ["--reference-values", str(self.reference_values)]
        arguments += ["--log-key", str(self.root / "log.key"), "--endorsements", str(self.root / "endorsements.json")]
        if ISSUER in self.children:
            issuer = self.children[ISSUER]
            arguments += ["--issuer", issuer.address, "--issuer-control", issuer.control_address]
            arguments += ["--issuer-key", self.issuer_key]
        log = self.root / "logs" / f"{SERVERS[1]}.log"
        child = self.children[SERVERS[1]] = Child(SERVERS[1], arguments, state=state, log=log, command=command)
        return child

    def start(self, *arguments: object, **named: object) -> Services:
        super().start(*arguments, **named)
        try:
            self.start_child(SERVERS[1], 0).wait_serving(self.ca)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def server_address(self) -> str:
        return ",".join(self.children[name].address for name in SERVERS)


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
