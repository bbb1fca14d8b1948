"""Records the state of every program in the middle of a task, as one version of ODP leaves it.

Run it with the Python of that version; of ODP it uses the command alone::

    OLD/bin/python tests/upgrades/record.py tests/upgrades/VERSION.tar.xz

Twenty devices contribute to a round, which is released; all but one contribute to one that stays open. What is
recorded: the state folders of all services with the emulated chip, the stores of two devices, and what was charged.
All keys in it were made for the recording.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ODP = Path(sys.executable).with_name("odp")
DEVICES, DATA = 20, "synthetic:n_users=20,n_items=20,ratings_per_user=5"
#: One that contributed to every round, and the one that did not contribute to the last.
RECORDED = (0, DEVICES - 1)
TASK = f"""
name = "films"
population = "films"
[model]
kind = "matrix_factorization"
items = 20
rank = 2
[data]
low = 1.0
high = 5.0
[privacy]
epsilon = 8.0
delta = 1e-6
[training]
kind = "dpam"
steps = 18
[cohort]
minimum = {DEVICES}
goal = {DEVICES}
round_seconds = 86400
"""
_SECONDS = 180.0


class Deployment:
    """All services in a folder, and hosts of devices."""

    def __init__(self, folder: Path, odp: Path = ODP) -> None:
        self.folder, self.odp = folder, odp
        self.port = _free_port()
        self.programs: dict[str, subprocess.Popen[str]] = {}
        self.task = ""

    def run(self, *arguments: str, odp: Path | None = None) -> str:
        """What a command prints."""
        done = subprocess.run(
            [odp or self.odp, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"odp {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def start(self, name: str, *arguments: str) -> None:
        """A program whose output goes to a file of its name."""
        with (self.folder / f"{name}.out").open("a") as out:
            self.programs[name] = subprocess.Popen(
                [self.odp, *arguments], cwd=self.folder, stdout=out, stderr=out, text=True, start_new_session=True
            )

    def stop(self, name: str) -> None:
        """Ends it as Ctrl-C does."""
        program = self.programs.pop(name)
        program.send_signal(signal.SIGINT)
        try:
            program.wait(60.0)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()

    def up(self) -> None:
        """Starts the services."""
        self.start(
            "services", "up", "--state", "odp-state", "--listen", f"127.0.0.1:{self.port}",
            "--minimum-cohort", str(DEVICES),
        )  # fmt: skip
        until(lambda: "ready at" in (self.folder / "services.out").read_text())

    def devices(self, name: str, first: int, number: int) -> None:
        """Starts a host of devices."""
        self.start(
            name, "device", "run", "--population", "films", "--services", "odp-state", "--no-keyring",
            "--server", f"127.0.0.1:{self.port}", "--state", name, "--data", DATA, "--min-cohort", str(DEVICES),
            "--first", str(first), "--devices", str(number),
        )  # fmt: skip

    def submit(self) -> None:
        """Submits the task."""
        (self.folder / "films.toml").write_text(TASK)
        told = json.loads(self.run("task", "submit", "films.toml", *self._server(), "--json"))
        self.task = next(str(told[name]) for name in ("task", "task_sha256", "id") if name in told)

    def status(self) -> dict[str, Any]:
        """The status of the task."""
        status: dict[str, Any] = json.loads(self.run("task", "status", self.task, *self._server()))
        return status

    def digest(self) -> str:
        """Of the aggregator's code."""
        return str(json.loads(self.run("enclave", "digest", "--json"))["aggregator"]["digest"])

    def _server(self) -> tuple[str, ...]:
        return "--state", "odp-state", "--server", f"127.0.0.1:{self.port}"


def until(condition: Callable[[], object]) -> None:
    """Returns once the condition holds."""
    end = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("it did not happen in time")
        time.sleep(0.1)


def half_way(deployment: Deployment) -> None:
    """Runs the task until a round is released and another one lacks one contribution; services and devices go on."""
    deployment.up()
    deployment.submit()
    deployment.devices("devices", 0, DEVICES - 1)
    deployment.devices("last", DEVICES - 1, 1)
    until(lambda: "settled=1" in (deployment.folder / "last.out").read_text())
    deployment.stop("last")
    until(lambda: deployment.status()["contributions"] == DEVICES - 1)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def main() -> None:
    """Records into the file that the command line names."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deployment = Deployment(folder)
        try:
            half_way(deployment)
            recorded = {"status": deployment.status(), "digest": deployment.digest()}
        finally:
            for program in list(deployment.programs):
                deployment.stop(program)
        (folder / "recorded.json").write_text(json.dumps(recorded, indent=1))
        with tarfile.open(sys.argv[1], "w:xz", preset=9) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file() and _is_recorded(path)):
                archive.add(path, path.relative_to(folder))


def _is_recorded(path: Path) -> bool:
    if path.suffix == ".sqlite" and path.stem.isdigit():
        return int(path.stem) in RECORDED
    return path.suffix not in (".out", ".log")


if __name__ == "__main__":
    main()
