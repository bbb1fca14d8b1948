"""The devices of one trial as a program of their own, which dies as services do: ``python device_host.py PLAN``."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

# The tests' folders have names of packages, which come first.
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

if TYPE_CHECKING:
    from faults.disk import Machine

DEVICES = "devices"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Where the services are, what the devices have data for, and the folder of this trial that keeps them.

    ``clock`` is that of the devices, which is none of the services'.
    """

    root: str
    server_address: str
    configuration: str
    population: str
    folder: str
    clock: str

    @property
    def state(self) -> Path:
        """The host's state folder: below the folder whose disk fails, so that its own name may be lost too."""
        return Path(self.folder) / "files" / "state"


class DeviceHost:
    """A host of all devices of a trial, which starts again on its folder.

    Args:
        machine: the one whose disk has ``plan.state``.
    """

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self._plan, self._machine, self._log = plan, machine, Path(plan.folder) / "host.log"
        self._is_faulty = False
        self.start()

    @property
    def clock(self) -> Path:
        """The clock of the devices."""
        return Path(self._plan.clock)

    def start(self, **faults: str) -> None:
        """Returns when its devices have their data; with ``faults`` of the disk it may end before or later."""
        self._is_faulty = bool(faults)
        command = [sys.executable, __file__, json.dumps(dataclasses.asdict(self._plan))]
        environment = {**os.environ, **self._machine.environment, **faults}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "started\n":
            self._process.wait()
            self.keep_running()

    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process.poll() is not None

    def keep_running(self) -> None:
        """Starts it again where its disk ended it. Raises AssertionError where it ended by itself otherwise."""
        code = self._process.poll()
        if code is not None:
            assert self._is_faulty, f"the device host ended with {code}: {self._log.read_text()[-300:]}"
            self.kill()
            self.start()

    def kill(self) -> None:
        """SIGKILL to it; returns when it and what it started are gone."""
        if self._process.poll() is None:
            below = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            self._process.wait()
            _, alive = psutil.wait_procs(below, timeout=20.0)
            for process in alive:
                process.kill()
            assert not alive, f"processes outlive their device host: {alive}"
        if self._process.stdout is not None:
            self._process.stdout.close()

    def lose_power(self, draws: random.Random) -> None:
        """It ends, and what it did not sync is gone."""
        self.kill()
        self._machine.lose_power(names_survive=draws.random() < 0.5)


def main() -> None:
    """Runs the devices until it is killed."""
    plan = Plan(**json.loads(sys.argv[1]))
    from e2e import shifted_clock

    # Before anything of the devices is loaded, which takes the clock as it finds it.
    shifted_clock.install(Path(plan.clock))
    from e2e.combination_devices import Addresses, devices_of
    from faults.configurations import CONFIGURATIONS

    root, configuration = Path(plan.root), CONFIGURATIONS[plan.configuration]
    addresses = Addresses(root, plan.server_address, root / "ca" / "ca.pem", root / "reference_values.json")
    running = devices_of(
        addresses, configuration.data, population=plan.population, folder=plan.state, durable=True,
        examples=configuration.own_examples(), log=Path(plan.folder) / "devices.log",
    )  # fmt: skip
    sys.stdout.write("started\n")
    sys.stdout.flush()
    running.wait()


if __name__ == "__main__":
    main()
