"""Real services that a campaign kills, whose disks fail, whose clock leaps and whose machine loses its power."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from e2e import crash, shifted_clock
from e2e.killing import crashing_at, role_of
from e2e.replicated import Replicated
from faults.disk import Machine
from task_combinations import DEVICES

from benchmarks.temporary_postgresql import PostgresqlServer
from odp.errors import OdpError, ServiceError
from odp.operations.local.processes import ODP, Child, Services
from odp.operations.local.successor import adopt_successor
from odp.services.connection import Connection, connect
from odp.trust.enclave.measurement import measure
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues

SECONDS = 240.0
#: The roles whose code an upgrade changes.
_HANDED = ("aggregator", "leaf")
_VOID = ["--wait", "0", "--void-rounds"]
_PORTS = range(10_000, 32_000)
Found = TypeVar("Found")


class Stuck(Exception):
    """Something did not come in time."""


def _second_digest() -> str:
    folder = str(crash.IMAGES)
    sys.path.insert(0, folder)
    try:
        return measure(*crash.AGGREGATORS[crash.SECOND]).digest
    finally:
        sys.path.remove(folder)


def _schema(database: PostgresqlServer, root: Path) -> str:
    """A schema of the database for services of this folder alone."""
    name = root.name.replace("-", "_")
    database.execute(f"CREATE SCHEMA {name}")
    return name


@dataclasses.dataclass(frozen=True)
class _Before:
    """Where a program that has not run yet gets its control listener."""

    control_address: str


def _port() -> int:
    """A port that is free now, below those that Linux gives to connections."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise Stuck("no port is free")


class _Services(Services):
    """Services with a clock of their own, and the second image, but for those of ``handed_over``, with this code's."""

    clock: Path
    handed_over: frozenset[str] = frozenset()

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        if command is ODP:
            image = [crash.SECOND] if role_of(name) in _HANDED and name not in self.handed_over else []
            command = crashing_at(*image, f"{crash.CLOCK}{self.clock}")
        if name not in self.children:
            # A program starts again on its ports. A connection of another program must not have them meanwhile.
            self.children[name] = _Before(f"127.0.0.1:{_port()}")  # type: ignore[assignment]
            port = _port()
        return super().start_child(name, port, command=command)

    def write_reference_values(self) -> None:
        super().write_reference_values()
        values = ReferenceValues.load(self.reference_values)
        digests = {**values.image_digests, **dict.fromkeys(_HANDED, (_second_digest(),))}
        dataclasses.replace(values, image_digests=digests).save(self.reference_values)


class _ReplicatedServices(_Services, Replicated):
    """The same with two servers."""


class Deployment:
    """Services of one folder; each is one process tree, which restarts on its ports.

    Args:
        database: of two servers; one server without.
    """

    def __init__(
        self, root: Path, layer: Path, stack: contextlib.ExitStack, *, leaves: int = 0,
        database: PostgresqlServer | None = None,
    ) -> None:  # fmt: skip
        self.clock = root.with_name(f"{root.name}.clock")
        shifted_clock.create(self.clock)
        self.root, self._database = root, database
        self.machine = Machine(layer, root, root.with_name(f"{root.name}.shadow"))
        policy = EnclavePolicy(role="aggregator", minimum_cohort=DEVICES, leaves=leaves)
        options: dict[str, Any] = {"policy": policy, "aggregator_options": ["--secagg-silent", "60"]}
        if database is None:
            self.services = _Services(root, **options)
        else:
            self.services = _ReplicatedServices(root, database.url(schema=_schema(database, root)), **options)
        self.services.clock = self.clock
        with self._under():
            stack.enter_context(self.services)
        self.ports = {name: int(child.address.rpartition(":")[2]) for name, child in self.services.children.items()}
        self._controls = {name: child.control_address for name, child in self.services.children.items()}
        self.connection: Connection = stack.enter_context(connect(self.services.server_address, state=root))
        self.machine.note()
        self.tasks = 0

    @property
    def names(self) -> Sequence[str]:
        """Of its programs."""
        return tuple(self.ports)

    @contextlib.contextmanager
    def _under(self, **more: str) -> Iterator[None]:
        """What is started within has the disk, and the faults of ``more``."""
        given = {**self.machine.environment, **more}
        os.environ.update(given)
        try:
            yield
        finally:
            for name in given:
                os.environ.pop(name, None)

    @property
    def databases(self) -> Sequence[str]:
        """Of its servers, where they share one."""
        return ("database",) if self._database is not None else ()

    def crash_database(self) -> None:
        """The database ends as in a crash, and starts again."""
        assert self._database is not None
        self._database.stop()
        self._database.start()

    def has_ended(self, name: str) -> bool:
        """Whether a program ended by itself."""
        return self.services.children[name].process.poll() is not None

    def start(self, name: str, **faults: str) -> Child:
        """Starts a program on its folder and its ports."""
        with self._under(**faults):
            child = self.services.start_child(name, self.ports[name])
        child.address, child.control_address = f"127.0.0.1:{self.ports[name]}", self._controls[name]
        return child

    def kill(self, name: str, *, inside: int = 0) -> None:
        """SIGKILL to a program, or to the process ``inside`` levels below it; returns when all of them are gone."""
        child = self.services.children[name]
        tree = [psutil.Process(child.process.pid)] if child.process.poll() is None else []
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends meanwhile
                tree += process.children()
        if tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree[min(inside, len(tree) - 1)].send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(tree, timeout=20.0)
        if alive:
            raise Stuck(f"{name} did not end after its {'host' if not inside else 'inner process'} was killed")
        child.stop()

    def serving(self) -> None:
        """Returns when every program serves; starts those again that ended by themselves, as `odp up` does."""
        for name in self.names:
            for _ in range(5):
                child = self.services.children[name]
                if child.process.poll() is not None:
                    child.stop()
                    child = self.start(name)
                try:
                    child.wait_serving(self.services.ca, deadline=SECONDS)
                    break
                except ServiceError:
                    if child.process.poll() is None:
                        raise
            else:
                raise Stuck(f"{name} ends at every start: {child.last_line()}")

    def lose_power(self, draws: random.Random) -> None:
        """All programs end at once, what they did not sync is gone, and all start again."""
        for name in self.names:
            self.services.children[name].process.kill()
        for name in self.names:
            self.kill(name)
        self.machine.lose_power(names_survive=draws.random() < 0.5)
        for name in self.names:
            self.start(name)
            if name.startswith("leaf"):
                self.services.children[name].wait_serving(self.services.ca, deadline=SECONDS)

    def upgrade(self, draws: random.Random) -> str:
        """Hands the aggregator over to the enclave of this code, or back, and starts that, as an operator does.

        Its rounds close first, or are void; they are void, too, where devices are away. Mostly the command, the old
        aggregator or the server is killed meanwhile; the command is then repeated. A tree's leaves start again with the
        new one; all else runs on. Raises Stuck.
        """
        options = draws.choice((["--wait", "60"], _VOID))
        victim, moment = draws.choice(("", "command", "aggregator", "server")), draws.uniform(0.5, 6.0)
        handed = frozenset(name for name in self.names if role_of(name) in _HANDED)
        back = handed <= self.services.handed_over
        odp = crashing_at(crash.SECOND) if back else ODP
        command = [*odp, "enclave", "upgrade", "--services", str(self.root), "--json"]
        end, struck = time.monotonic() + SECONDS, not victim
        while True:
            with (
                self._under(),
                subprocess.Popen(
                    [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                ) as running,
            ):
                if not struck:
                    struck = self._strike(victim, running, moment)
                answer, error = running.communicate(timeout=2 * SECONDS)
            if not running.returncode:
                break
            if time.monotonic() > end:
                raise Stuck(f"not handed over: {error.strip()}")
            if "did not close within" in error:  # devices are away, and the command names this way out
                options = _VOID
            self.serving()
        told = json.loads(answer)
        values = ReferenceValues.load(self.services.reference_values)
        # The command names the code that it is of, and not the image that the test has it launch.
        to = _second_digest() if back else told["to"]
        both = dict.fromkeys({role_of(name) for name in handed}, (told["from"], to))
        digests = {**values.image_digests, **both}
        dataclasses.replace(values, image_digests=digests).save(self.services.reference_values)
        self.machine.note(self.services.reference_values)
        for name in handed:
            self.kill(name)
        adopt_successor(self.root / "aggregator", image=lambda: to)
        self.services.handed_over ^= handed
        for name in sorted(handed, reverse=True):
            self.start(name)
            if name != "aggregator":
                self.services.children[name].wait_serving(self.services.ca, deadline=SECONDS)
        return f"{' '.join(options)} {victim} to {to[7:19]}"

    def _strike(self, victim: str, command: subprocess.Popen[str], moment: float) -> bool:
        """Kills the command or a program ``moment`` seconds after the command began; False where it ended before."""
        try:
            command.wait(moment)
        except subprocess.TimeoutExpired:
            if victim == "command":
                command.kill()
            else:
                self.kill(victim)
                self.start(victim)
            return True
        return False

    def until(self, ask: Callable[[], Found | None], *, what: str) -> Found:
        """The first true answer; a service that is away is asked again. Raises Stuck."""
        end, last, ended = time.monotonic() + SECONDS, "", dict[str, str]()
        while time.monotonic() < end:
            try:
                if found := ask():
                    return found
            except OdpError as error:
                last = f": {error}"
            for name in self.names:
                if self.services.children[name].process.poll() is not None:
                    self.services.children[name].stop()
                    ended[name] = self.services.children[name].last_line()
                    self.start(name)
            threading.Event().wait(0.1)
        ends = "".join(f"; {name} ended: {line}" for name, line in ended.items())
        raise Stuck(f"{what} did not come in {SECONDS:.0f} s{last}{ends}")
