"""A cache of whole tables on the device, keyed by their SHA-256, with least-recently-used eviction.

Tables are public, and the cache only saves traffic: a lost, full or damaged folder costs a download and nothing else.

::

    <folder>/<sha256>.f32       a table, whole and checked
             <sha256>.part      the start of one, whose download was cut
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from odp import _validate
from odp._system.files.private_files import make_folders, open_private
from odp._system.files.state_folder import write_atomically

#: Default maximum size of all tables together.
MOST_BYTES = 256 * 2**20

_WHOLE, _PART = ".f32", ".part"


class TableCache:
    """Tables under ``folder``, together at most ``most_bytes``; for one process at a time.

    Raises:
      ConfigurationError: ``most_bytes`` is negative.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        _validate.integer(low=0, high=2**50, most_bytes=most_bytes)
        self._folder, self._most_bytes = folder, most_bytes
        #: One line about a table that could not be kept, for the person; None where all were.
        self.failure: str | None = None

    def find(self, sha256: bytes) -> bytes | None:
        """The table with this hash; deletes a file that was changed on disk."""
        path = self._path(sha256, _WHOLE)
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if hashlib.sha256(data).digest() == sha256:
                os.utime(path)
                return data
            path.unlink()
        return None

    def latest(self, size: int) -> bytes | None:
        """The most recently used table of ``size`` bytes: probably another version of the wanted one."""
        for path in reversed(self._oldest_first()):
            with contextlib.suppress(OSError, ValueError):
                if path.suffix != _WHOLE or path.stat().st_size != size:
                    continue
                if (table := self.find(bytes.fromhex(path.stem))) is not None:
                    return table
        return None

    def keep(self, sha256: bytes, data: bytes) -> None:
        """Stores a whole table or nothing, and evicts others for it; does not store a table above the limit."""
        with self._noted():
            self._path(sha256, _PART).unlink(missing_ok=True)
            if len(data) <= self._most_bytes:
                self._make_room(len(data))
                make_folders(self._folder)
                write_atomically(self._path(sha256, _WHOLE), data)

    def started(self, sha256: bytes, chunk_bytes: int) -> bytes:
        """The part of this table from an interrupted download, in whole chunks; unchecked."""
        try:
            data = self._path(sha256, _PART).read_bytes()
        except OSError:
            return b""
        return data[: len(data) // chunk_bytes * chunk_bytes]

    def give_up(self, sha256: bytes) -> None:
        """Deletes the part from an interrupted download."""
        with contextlib.suppress(OSError):
            self._path(sha256, _PART).unlink(missing_ok=True)

    def noting(self, sha256: bytes, held: bytes, chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
        """Passes ``chunks`` through, and appends each to ``held`` on disk; a failure of the disk only stops the
        caching.
        """
        with contextlib.ExitStack() as stack:
            file = None
            with contextlib.suppress(OSError):
                if size <= self._most_bytes:
                    make_folders(self._folder)
                    part = self._path(sha256, _PART)
                    opened = open_private(part, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                    file = stack.enter_context(os.fdopen(opened, "ab"))
                    file.truncate(len(held))
            for chunk in chunks:
                try:
                    if file is not None:
                        file.write(chunk)
                        file.flush()
                except OSError as error:
                    file = None
                    self._note(error)
                    # What could be written goes: it may be what fills the disk.
                    self.give_up(sha256)
                yield chunk

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self.failure = (
            f"tables cannot be kept in {self._folder} ({error.strerror or 'error of the disk'}): every "
            "round downloads them again; free some space"
        )

    def _make_room(self, size: int) -> None:
        paths = self._oldest_first()
        held = sum(path.stat().st_size for path in paths)
        for path in paths:
            if held + size <= self._most_bytes:
                return
            held -= path.stat().st_size
            path.unlink()

    def _oldest_first(self) -> list[Path]:
        try:
            files = [path for path in self._folder.iterdir() if path.suffix in (_WHOLE, _PART)]
            return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))
        except OSError:
            return []

    def _path(self, sha256: bytes, suffix: str) -> Path:
        return self._folder / f"{sha256.hex()}{suffix}"
