"""Four real programs that tests kill and start again on the same folders and ports, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
import pytest
from e2e import crash
from e2e.world import POPULATION, small_task

import odp
from device_runtime import State, Store, store_path
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.datasets import load
from odp.errors import ServiceError
from odp.operations.local.processes import ODP, Child, Services
from odp.privacy.accounting import epsilon
from odp.services.connection import Connection, TaskHandle, connect
from odp.signed.release import noisy_tensors
from odp.signed.task import open_task
from odp.tasks.task import Task
from odp.transport.channel import connect as connect_channel
from odp.trust.enclave.measurement import measure
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogServer
from odp.v1 import common_pb2, server_pb2

#: A few more than a cohort's minimum of 20: a round has a beginning, a middle and an end in which programs die.
DEVICES = 30
SECONDS = 300.0
DEVICE_HOST = "devices"

#: Between two questions: each costs this process and the server some milliseconds of processor.
_POLL_SECONDS = 0.05
_ENDED = re.compile(r"the (enclave|platform|platform process) ended")

Found = TypeVar("Found")


def data_of(count: int) -> str:
    """Data of ``count`` devices, in the words of ``--data``."""
    return f"synthetic:n_users={count},n_items=20,ratings_per_user=8,seed=5"


DATA = data_of(DEVICES)


def crashing_at(*points: str) -> list[str]:
    """The command that runs `odp` and ends it, its enclave or its platform process at the first of ``points``."""
    for point in points:
        if not point.startswith("--"):
            _require_point(point)
    return [sys.executable, "-P", crash.__file__, *points, "--"]


def _require_point(point: str) -> None:
    """Fails where there is no such method: an enclave that cannot be armed ends as well, and at another step."""
    module, path, *_ = point.removeprefix(crash.ENCLAVE).removeprefix(crash.PLATFORM).split(":")
    owner, method = path.split(".")
    assert callable(getattr(getattr(importlib.import_module(module), owner), method)), point


def role_of(name: str) -> str:
    """The role of a program: leaves have numbers."""
    return name.partition("-")[0]


class UnattackedServices(Services):
    """Services whose guards look seldom: this machine has no attacker."""

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        return super().start_child(name, port, command=crashing_at(crash.UNATTACKED) if command is ODP else command)


class ArmedServices(UnattackedServices):
    """Services whose enclaves are the test images of crash.py, armed or not."""

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        if role_of(name) in crash.ARMED and command is ODP:
            command = crashing_at(crash.IMAGE, crash.UNATTACKED)
        return super().start_child(name, port, command=command)

    def write_reference_values(self) -> None:
        super().write_reference_values()
        folder = str(crash.IMAGES)
        sys.path.insert(0, folder)
        try:
            digests = {role: (measure(*image).digest,) for role, image in crash.ARMED.items()}
        finally:
            sys.path.remove(folder)
        values = ReferenceValues.load(self.reference_values)
        dataclasses.replace(values, image_digests=digests).save(self.reference_values)


class ClockedServices(Services):
    """Services whose programs have the clock of ``command``."""

    command: Sequence[str] = ODP

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        return super().start_child(name, port, command=self.command if command is ODP else command)


class Platform:
    """Distributor, aggregator, server and device host as processes; every release that was seen must stay as it was.

    With ``armed``, points inside the enclaves can be given as well (crash.py); with ``helper`` one more program runs.
    """

    def __init__(
        self, root: Path, stack: contextlib.ExitStack, *, armed: bool = False, helper: bool = False, leaves: int = 0,
        clock: Path | None = None,
    ) -> None:  # fmt: skip
        policy = EnclavePolicy(role="aggregator", minimum_cohort=20, leaves=leaves)
        self._armed = armed
        self._command = ODP if clock is None else crashing_at(f"{crash.CLOCK}{clock}")
        self.services = stack.enter_context(self._services(root, policy=policy, helper=helper))
        self.root = root
        self.ports = {name: int(child.address.rpartition(":")[2]) for name, child in self.services.children.items()}
        self._controls = {name: child.control_address for name, child in self.services.children.items()}
        self.connection: Connection = stack.enter_context(connect(self.services.server_address, state=root))
        self.devices: Child | None = None
        self.handle: TaskHandle | None = None
        self._released: dict[int, bytes] = {}
        self._stack = stack
        self._pause = threading.Event().wait

    def _services(self, root: Path, *, policy: EnclavePolicy, helper: bool) -> Services:
        if self._command is not ODP:
            clocked = ClockedServices(root, policy=policy, helper=helper)
            clocked.command = self._command
            return clocked
        return (ArmedServices if self._armed else UnattackedServices)(root, policy=policy, helper=helper)

    def submit(self, task: Task) -> None:
        """Submits a task as often as it takes: the same task again is the same task."""
        self.handle = self.until(lambda: self.connection.submit(task), what="the receipt of the task")

    def submit_to_dying_server(self, task: Task, points: Sequence[str]) -> None:
        """Submits to a server that dies at each of ``points``, then to one that lives long enough to answer."""
        for point in points:
            child = self.start("server", point)

            def died(child: Child = child) -> bool:
                with contextlib.suppress(ServiceError):
                    self.handle = self.connection.submit(task)
                return child.process.poll() is not None

            self.until(died, what=f"the death of the server at {point}")
            self.died(child)

    def start(self, name: str, *points: str) -> Child:
        """Starts a program (again), on its folder and its port; it ends at the first of ``points``."""
        image = [crash.IMAGE] if self._armed and role_of(name) in crash.ARMED else []
        command = crashing_at(*image, *points) if points else self._command
        if name != DEVICE_HOST:
            child = self.services.start_child(name, self.ports[name], command=command)
            # Both ports are kept over starts, of which no one may wait until the program serves.
            child.address, child.control_address = f"127.0.0.1:{self.ports[name]}", self._controls[name]
            return child
        arguments = ["device", "run", "--population", POPULATION, "--server", self.services.server_address]
        arguments += ["--services", str(self.root), "--data", DATA, "--min-cohort", "20"]
        log = self.root / "logs" / f"{DEVICE_HOST}.log"
        self.devices = Child(name, arguments, state=self.root / name, log=log, command=command)
        self._stack.callback(self.devices.stop)
        return self.devices

    def next_task(self) -> None:
        """What was seen is of the task before."""
        self.handle = None
        self._released.clear()

    def child(self, name: str) -> Child:
        found = self.devices if name == DEVICE_HOST else self.services.children[name]
        assert found is not None
        return found

    def kill(self, name: str) -> None:
        """SIGKILL, from outside; returns when the process is gone, and with it its enclave and platform process."""
        child = self.child(name)
        below = psutil.Process(child.process.pid).children(recursive=True)
        child.process.kill()
        self.died(child)
        self._all_gone(below)

    def kill_inside(self, name: str, which: str) -> None:
        """SIGKILL to the ``enclave`` or the ``platform`` process of a service; returns when all three are gone."""
        child = self.child(name)
        (platform,) = psutil.Process(child.process.pid).children()
        (enclave,) = platform.children()
        {"platform": platform, "enclave": enclave}[which].kill()
        self.ended(child)
        self._all_gone([platform, enclave])

    def _all_gone(self, processes: Sequence[psutil.Process]) -> None:
        def gone() -> bool:
            return not any(process.is_running() and process.status() != "zombie" for process in processes)

        self.until(gone, what="the end of enclave and platform process")

    def kill_and_restart(self, name: str, *points: str) -> None:
        self.kill(name)
        self.start(name, *points)

    def kill_and_restart_all(self) -> None:
        """SIGKILL to all four, then all four again."""
        names = [*self.ports, DEVICE_HOST]
        for name in names:
            self.child(name).process.kill()
        for name in names:
            self.died(self.child(name))
        for name in names:
            self.start(name)

    def died(self, child: Child) -> None:
        """Waits until a program ended by SIGKILL, and by nothing else."""

        def ended() -> bool:
            if self.handle is not None:
                with contextlib.suppress(ServiceError):
                    self._seen(self.handle.status())
            return child.process.poll() is not None

        self.until(ended, what=f"the death of {child.name}")
        assert child.process.returncode == -signal.SIGKILL, f"{child.name} ended by itself: {child.last_line()}"
        child.stop()

    def ended(self, child: Child) -> None:
        """Waits until a program ended because its enclave or its platform process did, with the line that says so."""
        self.until(lambda: child.process.poll() is not None, what=f"the end of {child.name} after its enclave")
        assert child.process.returncode == 1, f"{child.name}: {child.process.returncode}, {child.last_line()}"
        assert _ENDED.search(child.last_line()), child.last_line()
        child.stop()

    def serving(self, name: str) -> None:
        """Waits until a restarted service answers; fails with its last line where it ends instead."""
        self.services.children[name].wait_serving(self.services.ca, deadline=SECONDS)

    def crash_through(self, name: str, points: Sequence[str], *, also: str | None = None) -> None:
        """Lets a program that is dead be started again and again, each time to die at the next point.

        ``also`` is killed and started each time as well, once the other serves: it forgets the failures before.
        """
        for point in points:
            child = self.start(name, point)
            if also is not None:
                self.up_or_dead(child)
                self.kill_and_restart(also)
            (self.ended if point.startswith((crash.ENCLAVE, crash.PLATFORM)) else self.died)(child)

    def compare_ledgers(self) -> None:
        """With no device host running: the aggregator holds what devices' ledgers have as sent, and of what they have
        as prepared exactly the bytes that they would send again; nothing twice, and nothing that no ledger charges.
        """
        assert self.handle is not None
        found: dict[int, list[tuple[State, bytes | None]]] = {}
        for path in sorted((self.root / DEVICE_HOST).glob("devices/*/*.sqlite")):
            with Store.open(path) as store:
                charged = [(one.terms.task_sha256, one.round) for one in store.charged()]
                ledger = store.ledger()
            assert charged == [(line.task_sha256, line.round) for line in ledger], "each charged once"
            for line in ledger:
                found.setdefault(line.round, []).append((line.state, line.sealed))
        with contextlib.closing(sqlite3.connect(self.root / "aggregator" / "contributions.db")) as held:
            rows = held.execute("SELECT round, digest FROM contributions").fetchall()
        assert len(rows) == len(set(rows)), "each stored once"
        for round in {*found, *(round for round, _ in rows)}:
            counted = {digest for of, digest in rows if of == round}
            lines = found.get(round, [])
            sent = sum(state is State.SENT for state, _ in lines)
            unanswered = {hashlib.sha256(sealed or b"").digest() for state, sealed in lines if state is State.PREPARED}
            if counted:
                assert len(counted) == sent + len(counted & unanswered), f"round {round}"
            else:  # no contribution of it came yet, or all did and were released and erased
                assert sent == 0 or len(lines) == DEVICES, f"round {round}"

    def up_or_dead(self, child: Child) -> None:
        """Waits until a program serves, or ended before it did."""
        address = child.state / "address"
        self.until(lambda: address.exists() or child.process.poll() is not None, what=f"the start of {child.name}")

    def logged(self, name: str) -> str:
        path = self.root / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until_logged(self, name: str, event: str, *, round: int) -> None:
        """Waits until the log of a program has a line with ``event`` of a round."""
        line = re.compile(rf" {event} .*\bround={round}\b")
        self.until(lambda: line.search(self.logged(name)), what=f"{event!r} of round {round} in the log of {name}")

    def held(self, round: int) -> int:
        """How many contributions to a round the aggregator has on its disk at this moment.

        What the server says of them is up to a second old, in which all devices of a test may be done.
        """
        try:
            return self.kept(round)
        except sqlite3.OperationalError:
            return 0

    def kept(self, round: int) -> int:
        """As ``held``, of an aggregator that has its tables."""
        with contextlib.closing(sqlite3.connect(self.root / "aggregator" / "contributions.db")) as held:
            return int(held.execute("SELECT count(*) FROM contributions WHERE round = ?", (round,)).fetchone()[0])

    def contributions(self, round: int) -> int:
        """How many contributions the server says a round has; -1 before it is open."""
        found = [entry for entry in self.status().rounds if entry.round == round]
        return found[0].contributions if found else -1

    def status(self) -> server_pb2.TaskStatus:
        """The task's status; fails where a release is not what it was before."""
        assert self.handle is not None
        return self._seen(self.until(self.handle.status, what="an answer of the server"))

    def _seen(self, status: server_pb2.TaskStatus) -> server_pb2.TaskStatus:
        assert status.state != server_pb2.TaskStatus.STATE_FAILED, status.failure
        for entry in status.rounds:
            if entry.release.release:
                seen = self._released.setdefault(entry.round, entry.release.SerializeToString(deterministic=True))
                assert seen == entry.release.SerializeToString(deterministic=True), f"round {entry.round} changed"
        return status

    def finish(self) -> server_pb2.TaskStatus:
        """Waits for the end of the task."""

        def finished() -> server_pb2.TaskStatus | None:
            status = self.status()
            return status if status.state == server_pb2.TaskStatus.STATE_FINISHED else None

        return self.until(finished, what="the end of the task")

    def until(self, ask: Callable[[], Found | None], *, what: str = "an answer") -> Found:
        """The first true answer; a service that is away is asked again."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                if found := ask():
                    return found
            except ServiceError:
                pass
            self._pause(_POLL_SECONDS)
        logs = "\n".join(f"{name}: {self.logged(name)[-1500:]}" for name in (*self.ports, DEVICE_HOST))
        return pytest.fail(f"{what} did not come in {SECONDS:.0f} s\n{logs}")

    def check(self, task: Task) -> None:
        """Everything that must hold after the task, whatever was killed in between."""
        status = self.finish()
        algorithm = algorithm_for(open_task(status.task))
        rounds = algorithm.server().rounds
        assert [entry.contributions for entry in status.rounds] == [DEVICES] * rounds, "each device counted once"
        releases = [common_pb2.Release.FromString(entry.release.release) for entry in status.rounds]

        charges = [event for number in range(rounds) for event in charges_of(algorithm.query(number))]
        # What an undisturbed run spends follows from the task alone.
        assert releases[-1].epsilon_spent == pytest.approx(epsilon(charges, delta=task.privacy.delta), rel=1e-9)
        ledger = self.until(lambda: self.connection.ledger(status), what="the ledger").ledger()
        charged = [entry for entry in ledger.entries if entry.events]
        assert [entry.round for entry in charged] == list(range(rounds)), "each round charged once"
        assert [entry.contributions for entry in charged] == [DEVICES] * rounds
        assert [event for entry in charged for event in entry.events] == charges

        server = algorithm.server()
        state = server.start()
        for release in releases:
            state = server.step(state, noisy_tensors(release))
        model = self.until(self.handle.model) if self.handle is not None else pytest.fail("no task")
        for published, recomputed in zip(model.tables, server.broadcast(state).tables, strict=True):
            np.testing.assert_array_equal(published.rows, recomputed.rows, "each release applied once")

        # The log's own process still runs and may sign again: what is audited is what it shows.
        with connect_channel(self.services.server_address, self.services.ca) as channel:
            source = LogServer(channel, self.services.server_address)
            pins = ReferenceValues.load(self.services.reference_values)
            # Where several servers share a log, the one that is asked may be a tenth of a second behind.
            report = self.until(
                lambda: found if (found := audit(source, pins)).counts["model"] > rounds else None,
                what="the last model in the log",
            )
        assert report.counts["release"] == report.counts["ledger"] == rounds, "each round logged once"
        assert report.counts["model"] == rounds + 1, "each model logged once"
        assert report.counts["task"] == report.counts["evidence"] == 1
        assert report.tasks[0].epsilon == pytest.approx(releases[-1].epsilon_spent, rel=1e-9)

        assert self.devices is not None
        self.devices.stop()
        for device in range(DEVICES):
            with Store.open(store_path(self.root / DEVICE_HOST, device)) as store:
                assert sorted((n, state) for _, n, _, state in store.settled()) == [
                    (n, State.SENT) for n in range(rounds)
                ]
                assert sorted(one.round for one in store.charged()) == list(range(rounds)), "charged as counted"
        assert [self.kept(round) for round in range(rounds)] == [0] * rounds, "contributions are erased"


def a_task(*, rank: int = 0, steps: int = 1, broadcast: odp.Broadcast | None = None, count: int = DEVICES) -> Task:
    """Two rounds of ``count`` devices at rank 0; two more per step above."""
    training = odp.DPAM(steps=steps) if rank else odp.DPAM()
    return small_task(load(data_of(count)), rank=rank, training=training, broadcast=broadcast)
