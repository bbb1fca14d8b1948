"""What is too large for rows of the database, as files beside it: a row would cost ten times the write.

``LargeFiles`` are ciphertexts of more than a megabyte. A file, and its name, are on the disk when ``write`` returns, so
that a row of the database that names it always finds it whole.

``PieceFiles`` are the sealed pieces of records that are too long for one message, a file for each record. It is named
by the SHA-256 of its record, which is sealed anew each time: so it belongs to that very record. It is on the disk
before the record is, and removed after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from odp._system.files.durability import Health, read_from_disk, replaced_file, sync_folder
from odp._system.files.state_folder import state_errors, write_atomically

#: Shorter ciphertexts are rows of the database.
LARGE_BYTES = 2**20

_NAME_BYTES = 32
#: Records with pieces are shorter than this: they have no numbers.
LONGEST_RECORD = 2**20

_LENGTH_BYTES = 4


class _Files:
    """The files below ``root``, which is made where it is missing. Thread-safe.

    Every method raises StateError where the disk is full or the folder cannot be used; ``write`` raises DiskFailed from
    the first sync on that failed.
    """

    def __init__(self, root: Path, health: Health) -> None:
        self._root, self._health = root, health
        with health, state_errors(root):
            root.mkdir(mode=0o700, exist_ok=True)
            sync_folder(root.parent)


class LargeFiles(_Files):
    """The files of all rounds, a folder for each."""

    def write(self, task_sha256: bytes, round: int, data: bytes, *, read_again: bool = True) -> bytes:
        """Stores ``data`` and gives it a name, 32 random bytes.

        What only another start reads again (``read_again`` false) does not stay in the system's memory: new memory for
        each file costs more than the write.
        """
        name = secrets.token_bytes(_NAME_BYTES)
        path = self._path(task_sha256, round, name)
        with self._health, state_errors(self._root):
            if not path.parent.is_dir():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self._root)
            write_atomically(path, data)
            if not read_again:
                read_from_disk(path)
        return name

    def read(self, task_sha256: bytes, round: int, name: bytes) -> bytes:
        """The bytes; empty if there is no such file. No enclave accepts empty bytes."""
        with state_errors(self._root):
            try:
                return self._path(task_sha256, round, name).read_bytes()
            except FileNotFoundError:
                return b""

    def erase(self, task_sha256: bytes, round: int) -> None:
        """Removes all files of a round."""
        with state_errors(self._root), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder(task_sha256, round))

    def keep_only(self, rounds: Collection[tuple[bytes, int]]) -> None:
        """Removes the files of all other rounds."""
        folders = {self._folder(*key).name for key in rounds}
        with state_errors(self._root):
            for folder in self._root.iterdir():
                if folder.name not in folders:
                    shutil.rmtree(folder)

    def _folder(self, task_sha256: bytes, round: int) -> Path:
        return self._root / f"{task_sha256.hex()}-{round}"

    def _path(self, task_sha256: bytes, round: int, name: bytes) -> Path:
        return self._folder(task_sha256, round) / name.hex()


class PieceFiles(_Files):
    """The pieces of records, a file for each record."""

    def write(self, record: bytes, pieces: Iterable[bytes]) -> None:
        """Stores the pieces of a record, all or none."""
        with self._health, state_errors(self._root), replaced_file(self._path(record)) as file:
            for piece in pieces:
                file.write(len(piece).to_bytes(_LENGTH_BYTES, "big"))
                file.write(piece)

    def read(self, record: bytes, *, first: int = 0) -> Iterator[bytes]:
        """The pieces from ``first`` on; none if there is no such file.

        A cut file ends early, which no enclave accepts.
        """
        with state_errors(self._root):
            try:
                file = self._path(record).open("rb")
            except FileNotFoundError:
                return
            with file:
                number = 0
                while head := file.read(_LENGTH_BYTES):
                    length = int.from_bytes(head, "big")
                    if number < first:
                        file.seek(length, os.SEEK_CUR)
                    else:
                        yield file.read(length)
                    number += 1

    def is_empty(self) -> bool:
        """Whether no record has pieces."""
        with state_errors(self._root):
            return next(self._root.iterdir(), None) is None

    def erase(self, records: Iterable[bytes]) -> None:
        """Removes the pieces of these records."""
        with state_errors(self._root):
            for record in records:
                self._path(record).unlink(missing_ok=True)

    def keep_only(self, records: Collection[bytes]) -> None:
        """Removes all other files, which a crash left behind."""
        folders = {self._path(record) for record in records}
        with state_errors(self._root):
            for path in self._root.iterdir():
                if path not in folders:
                    path.unlink()

    def _path(self, record: bytes) -> Path:
        return self._root / hashlib.sha256(record).hexdigest()
