"""The devices of one trial as a program of their own, which can be killed: ``python device_host.py PLAN``."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import psutil

# The tests' folders have names of packages, which come first.
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Where the services are, which combination the devices have data for, and the folder that keeps them."""

    root: str
    server_address: str
    combination: tuple[str, str, str, str]
    population: str
    folder: str


class DeviceHost:
    """A host of all devices of a trial, which starts again on its folder."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._log = plan, Path(f"{plan.folder}.host.log")
        self.start()

    def start(self) -> None:
        """Returns when its devices have their data."""
        command = [sys.executable, __file__, json.dumps(dataclasses.asdict(self._plan))]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "started\n":
            self.require_alive()

    def require_alive(self) -> None:
        """Raises AssertionError where it ended by itself."""
        code = self._process.poll()
        assert code is None, f"the device host ended with {code}: {self._log.read_text()[-300:]}"

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


def main() -> None:
    """Runs the devices until it is killed."""
    from e2e.combination_devices import Addresses, devices_of
    from task_combinations import Combination

    plan = Plan(**json.loads(sys.argv[1]))
    root = Path(plan.root)
    addresses = Addresses(root, plan.server_address, root / "ca" / "ca.pem", root / "reference_values.json")
    running = devices_of(
        addresses, Combination(*plan.combination), population=plan.population, folder=Path(plan.folder)
    )
    sys.stdout.write("started\n")
    sys.stdout.flush()
    running.wait()


if __name__ == "__main__":
    main()
