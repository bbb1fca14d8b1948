"""Real services that a campaign kills, whose disks fail, whose clock leaps and whose machine loses its power."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
from e2e import crash, shifted_clock
from e2e.killing import ArmedServices, ClockedServices, crashing_at, role_of
from faults.disk import Disk
from task_combinations import DEVICES

from odp.client import Connection, connect
from odp.enclave.policy import EnclavePolicy
from odp.enclave.reference_values import ReferenceValues
from odp.errors import OdpError, ServiceError
from odp.local.processes import ODP, Child
from odp.local.successor import adopt_successor

SECONDS = 150.0
Found = TypeVar("Found")


class Stuck(Exception):
    """Something did not come in time."""


class Machine(Disk):
    """What a power cut leaves of the files below ``root``, whose programs run under the layer of disk.c."""

    def __init__(self, layer: Path, root: Path, shadow: Path) -> None:
        self._layer = ctypes.CDLL(str(layer))
        self._root, self._shadow = root, shadow

    def lose_power(self, *, names_survive: bool) -> None:
        """Puts what a power cut leaves in the place of the folder; every program on it is dead."""
        left = self.cut(self._root.with_name(f"{self._root.name}.cut"), names_survive=names_survive)
        shutil.rmtree(self._root)
        left.rename(self._root)
        self.note()

    def note(self) -> None:
        """Takes what is there, and no program synced under this number, for stored: the campaign put it there."""
        for path in [self._root, *self._root.rglob("*")]:
            target = self._shadow / self._number(path)
            if target.exists():
                continue
            if path.is_dir():
                lines = [f"{'d' if one.is_dir() else 'f'} {self._number(one)} {one.name}\n" for one in path.iterdir()]
                target.write_text("".join(lines))
            else:
                target.write_bytes(path.read_bytes())


class Deployment:
    """Services of one folder; each is one process tree, which restarts on its ports.

    ``upgradable``: their enclaves are of another image than this code, which ``upgrade`` hands over to; such a
    deployment has the real time alone.
    """

    def __init__(
        self, root: Path, layer: Path, stack: contextlib.ExitStack, *, leaves: int, upgradable: bool = False
    ) -> None:
        shadow, self.clock = root.with_name(f"{root.name}.shadow"), root.with_name(f"{root.name}.clock")
        shadow.mkdir()
        shifted_clock.create(self.clock)
        self.root, self._layer = root, layer
        self._environment = {
            "LD_PRELOAD": str(layer), "FAULTS_ROOT": str(root.resolve()), "FAULTS_SHADOW": str(shadow.resolve()),
        }  # fmt: skip
        policy = EnclavePolicy(role="aggregator", minimum_cohort=DEVICES, leaves=leaves)
        kind = ArmedServices if upgradable else ClockedServices
        self.services = kind(root, policy=policy, aggregator_options=["--secagg-silent", "60"])
        if isinstance(self.services, ClockedServices):
            self.services.command = crashing_at(f"{crash.CLOCK}{self.clock}")
        self._upgraded: set[str] = set()
        with self._under():
            stack.enter_context(self.services)
        self.ports = {name: int(child.address.rpartition(":")[2]) for name, child in self.services.children.items()}
        self._controls = {name: child.control_address for name, child in self.services.children.items()}
        self.connection: Connection = stack.enter_context(connect(self.services.server_address, state=root))
        self.machine = Machine(layer, root.resolve(), shadow)
        self.machine.note()
        self.tasks = 0

    @property
    def names(self) -> Sequence[str]:
        """Of its programs."""
        return tuple(self.ports)

    @contextlib.contextmanager
    def _under(self, **more: str) -> Iterator[None]:
        """What is started within has the disk, and the faults of ``more``."""
        given = {**self._environment, **more}
        os.environ.update(given)
        try:
            yield
        finally:
            for name in given:
                os.environ.pop(name, None)

    def start(self, name: str, **faults: str) -> Child:
        """Starts a program on its folder and its ports."""
        with self._under(**faults):
            # A copy is another command than the one that the services replace.
            command = list(ODP) if name in self._upgraded else ODP
            child = self.services.start_child(name, self.ports[name], command=command)
        child.address, child.control_address = f"127.0.0.1:{self.ports[name]}", self._controls[name]
        return child

    def kill(self, name: str, *, inside: int = 0) -> None:
        """SIGKILL to a program, or to the process ``inside`` levels below it; returns when all of them are gone."""
        child = self.services.children[name]
        tree = [psutil.Process(child.process.pid)] if child.process.poll() is None else []
        for process in tree:
            tree += process.children()
        if tree:
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
        """Hands the aggregator over to the enclave of this code, and starts that, as an operator does.

        Its rounds close first, or are void. Mostly the command, the old aggregator or the server is killed meanwhile;
        the command is then repeated. A tree's leaves start again as the new code; all else runs on. Raises Stuck.
        """
        options = draws.choice((["--wait", "60"], ["--wait", "0", "--void-rounds"]))
        victim, moment = draws.choice(("", "command", "aggregator", "server")), draws.uniform(0.5, 6.0)
        command = [*ODP, "enclave", "upgrade", "--services", str(self.root), "--json", *options]
        end, struck = time.monotonic() + SECONDS, not victim
        while True:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
                if not struck:
                    struck = self._strike(victim, running, moment)
                answer, error = running.communicate(timeout=2 * SECONDS)
            if not running.returncode:
                break
            if time.monotonic() > end:
                raise Stuck(f"not handed over: {error.strip()}")
            self.serving()
        told = json.loads(answer)
        handed = [name for name in self.names if name == "aggregator" or name.startswith("leaf")]
        values = ReferenceValues.load(self.services.reference_values)
        both = dict.fromkeys({role_of(name) for name in handed}, (told["from"], told["to"]))
        digests = {**values.image_digests, **both}
        dataclasses.replace(values, image_digests=digests).save(self.services.reference_values)
        for name in handed:
            self.kill(name)
        adopt_successor(self.root / "aggregator", image=lambda: told["to"])
        self._upgraded.update(handed)
        for name in sorted(handed, reverse=True):
            self.start(name)
            if name != "aggregator":
                self.services.children[name].wait_serving(self.services.ca, deadline=SECONDS)
        return f"{' '.join(options)} {victim} to {told['to'][7:19]}"

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

    def leap(self, seconds: float, *, lasts: float) -> None:
        """The clock of all programs is off for a moment."""
        shifted_clock.advance(self.clock, seconds)
        threading.Event().wait(lasts)
        shifted_clock.advance(self.clock, -seconds)

    def until(self, ask: Callable[[], Found | None], *, what: str) -> Found:
        """The first true answer; a service that is away is asked again. Raises Stuck."""
        end, last = time.monotonic() + SECONDS, ""
        while time.monotonic() < end:
            try:
                if found := ask():
                    return found
            except OdpError as error:
                last = f": {error}"
            for name in self.names:
                if self.services.children[name].process.poll() is not None:
                    self.services.children[name].stop()
                    self.start(name)
            threading.Event().wait(0.1)
        raise Stuck(f"{what} did not come in {SECONDS:.0f} s{last}")
