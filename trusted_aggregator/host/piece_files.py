"""The sealed pieces of records that are too long for one message: a file for each record, beside the database.

A file is named by the SHA-256 of its record, which is sealed anew each time: so it belongs to that very record. It is
on the disk before the record is, and removed after it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from odp._system.files.durability import Health, replaced_file, sync_folder
from odp._system.files.state_folder import state_errors

#: Records with pieces are shorter than this: they have no numbers.
LONGEST_RECORD = 2**20

_LENGTH_BYTES = 4


class PieceFiles:
    """The files in the folder ``root``. Thread-safe.

    Every method raises StateError where the disk is full or the folder cannot be used; ``write`` raises DiskFailed from
    the first sync on that failed.
    """

    def __init__(self, root: Path, health: Health) -> None:
        self._root = root
        self._health = health
        with health, state_errors(root):
            root.mkdir(mode=0o700, exist_ok=True)
            sync_folder(root.parent)

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
