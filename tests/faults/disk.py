"""A disk whose power fails and whose syncs fail, under a real process: ``disk.c``, compiled and preloaded.

A test runs a scenario in a process of its own (``run``). In it, ``Disk`` makes the folder that a power cut would leave
now, and says which sync or write is to fail. SQLite, SQLCipher and Python's own files are under it alike.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("disk.c")
_SECONDS = 300


def library(folder: Path) -> Path:
    """The compiled layer; skips the test where a machine has no C compiler, and fails it in CI."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        if os.environ.get("CI") == "true":
            pytest.fail("CI has to have a C compiler: .ci/run installs one")
        pytest.skip("the disk of these tests needs Linux and a C compiler")
    built = folder / "disk.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(built), str(_SOURCE), "-ldl"], check=True)
    return built


def run(layer: Path, scenario: str, folder: Path, *arguments: str) -> str:
    """Runs ``faults.scenarios.<scenario>(disk, folder, *arguments)`` on a failing disk; what it printed."""
    files, shadow = folder / "files", folder / "shadow"
    for made in (files, shadow):
        made.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(layer),
        "FAULTS_ROOT": str(files.resolve()),
        "FAULTS_SHADOW": str(shadow.resolve()),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "faults.scenarios", scenario, str(files.resolve()), *arguments],
        capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Disk:
    """The layer, as the process under it reaches it."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is what power cuts leave a copy of."""
        self._layer = ctypes.CDLL(None)
        self._root = folder
        self._shadow = Path(os.environ["FAULTS_SHADOW"])
        self._layer.faults_syncs.restype = self._layer.faults_writes.restype = ctypes.c_long

    @property
    def syncs(self) -> int:
        """How many files and folders were synced, or failed to be."""
        return int(self._layer.faults_syncs())

    @property
    def writes(self) -> int:
        """How many writes there were."""
        return int(self._layer.faults_writes())

    def fail_sync(self, after: int) -> None:
        """The sync that follows ``after`` more fails with EIO; those behind it succeed, without what it dropped."""
        self._layer.faults_fail_sync(self.syncs + after + 1)

    def fail_write(self, after: int, code: int) -> None:
        """The write that follows ``after`` more is short, and the next one fails with the errno ``code``."""
        self._layer.faults_fail_write(self.writes + after + 1, code)

    def heal(self) -> None:
        """Nothing fails any more."""
        self._layer.faults_fail_sync(0)
        self._layer.faults_fail_write(0, 0)

    def cut(self, into: Path, *, names_survive: bool = False) -> Path:
        """What a power cut leaves now, in the new folder ``into``.

        Of a file that is what its last sync brought to the disk. A name survives where its folder was synced, or all do
        (``names_survive``): file systems differ in that.
        """
        into.mkdir(mode=0o700)
        for path in self._root.iterdir():
            self._restore("d" if path.is_dir() else "f", self._number(path), path, into / path.name, names_survive)
        return into

    def _restore(self, kind: str, number: str, real: Path, target: Path, names_survive: bool) -> None:
        kept = self._shadow / number
        if kind == "f":
            target.write_bytes(kept.read_bytes() if kept.exists() else b"")
            target.chmod(0o600)
            return
        target.mkdir(mode=0o700)
        if names_survive:
            for path in real.iterdir():
                self._restore(
                    "d" if path.is_dir() else "f", self._number(path), path, target / path.name, names_survive
                )
        elif kept.exists():
            for line in kept.read_text().splitlines():
                kind, number, name = line.split(" ", 2)
                self._restore(kind, number, real / name, target / name, names_survive)

    def _number(self, path: Path) -> str:
        """The name of a file in the shadow: its inode, and when it was made, since inodes are used again."""
        number = ctypes.create_string_buffer(64)
        if self._layer.faults_number(os.fsencode(path), number):
            raise FileNotFoundError(path)
        return number.value.decode()


class Machine(Disk):
    """The disk of programs under ``environment``, and what a power cut leaves of their files below ``root``.

    ``shadow`` keeps what they synced.
    """

    def __init__(self, layer: Path, root: Path, shadow: Path) -> None:
        self._layer = ctypes.CDLL(str(layer))
        shadow.mkdir()
        self._root, self._shadow = root.resolve(), shadow.resolve()
        self.environment: dict[str, str] = {
            "LD_PRELOAD": str(layer), "FAULTS_ROOT": str(self._root), "FAULTS_SHADOW": str(self._shadow),
        }  # fmt: skip

    def lose_power(self, *, names_survive: bool) -> None:
        """Puts what a power cut leaves in the place of the folder; every program on it is dead.

        Logs stay, for whoever looks for the cause of a trial that is broken.
        """
        left = self.cut(self._root.with_name(f"{self._root.name}.cut"), names_survive=names_survive)
        if (self._root / "logs").exists():
            shutil.copytree(self._root / "logs", left / "logs", dirs_exist_ok=True)
        shutil.rmtree(self._root)
        left.rename(self._root)
        self.note()

    def note(self, *files: Path) -> None:
        """Takes ``files``, or all that is there, for stored where no program synced it: the campaign put it there."""
        for path in files or [self._root, *self._root.rglob("*")]:
            target = self._shadow / self._number(path)
            if target.exists():
                continue
            if path.is_dir():
                lines = [f"{'d' if one.is_dir() else 'f'} {self._number(one)} {one.name}\n" for one in path.iterdir()]
                target.write_text("".join(lines))
            else:
                target.write_bytes(path.read_bytes())
