"""Ciphertexts of more than a megabyte, as files beside the database: a row of theirs there costs ten times the write.

A file is whole before it has its name, so whoever finds it finds all of it. It survives the death of the process;
``sync`` makes all of them survive a power cut.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Collection
from pathlib import Path

from odp.transport.state_folder import state_errors

#: Shorter ciphertexts are rows of the database.
LARGE_BYTES = 2**20

_NAME_BYTES = 32


class LargeFiles:
    """The files of all rounds, a folder for each, below ``root``. Thread-safe.

    Every method raises StateError where the disk is full or the folder cannot be used.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._unsynced: set[Path] = set()
        with state_errors(root):
            root.mkdir(mode=0o700, exist_ok=True)
            # What an earlier process wrote may still wait in the kernel.
            self._unsynced.update(path for path in root.glob("*/*") if path.is_file())

    def write(self, task_sha256: bytes, round: int, data: bytes) -> bytes:
        """Stores ``data`` and gives it a name, 32 random bytes."""
        name = secrets.token_bytes(_NAME_BYTES)
        path = self._path(task_sha256, round, name)
        unnamed = path.with_suffix(".part")
        with state_errors(self._root):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            file = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
            finally:
                os.close(file)
            unnamed.rename(path)
        with self._lock:
            self._unsynced.add(path)
        return name

    def read(self, task_sha256: bytes, round: int, name: bytes) -> bytes:
        """The bytes; empty where a power cut took them, which no enclave accepts."""
        with state_errors(self._root):
            try:
                return self._path(task_sha256, round, name).read_bytes()
            except FileNotFoundError:
                return b""

    def sync(self) -> None:
        """Brings every file to the disk."""
        with self._lock:
            waiting, self._unsynced = self._unsynced, set()
        with state_errors(self._root):
            for path in [*waiting, *{path.parent for path in waiting}, self._root]:
                with contextlib.suppress(FileNotFoundError):  # of a round that was erased meanwhile
                    _sync(path)

    def erase(self, task_sha256: bytes, round: int) -> None:
        """Removes all files of a round."""
        folder = self._folder(task_sha256, round)
        with self._lock:
            self._unsynced = {path for path in self._unsynced if path.parent != folder}
        with state_errors(self._root), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def keep_only(self, rounds: Collection[tuple[bytes, int]]) -> None:
        """Removes the files of all other rounds."""
        kept = {self._folder(*key).name for key in rounds}
        with state_errors(self._root):
            for folder in self._root.iterdir():
                if folder.name not in kept:
                    shutil.rmtree(folder)

    def _folder(self, task_sha256: bytes, round: int) -> Path:
        return self._root / f"{task_sha256.hex()}-{round}"

    def _path(self, task_sha256: bytes, round: int, name: bytes) -> Path:
        return self._folder(task_sha256, round) / name.hex()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
