"""Durable writes, and the end of the program when the disk fails to store something.

A sync that failed is not tried again: Linux drops the pages that it could not write and marks them as written, so that
the next sync succeeds without them (Rebello et al. 2020, "Can applications recover from fsync failures?"). Whoever
meets ``DiskFailed`` refuses everything from then on and ends; the next start reads what is really there.

Files that a user asked for, written whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from odp.errors import ConfigurationError, DiskFailed, StateError

# Windows has neither, and text files of its own.
_OPENING = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
#: How the names of files end that are written and not in their place yet.
UNFINISHED = ".tmp"


class Health:
    """Whether the disk of one program or one object still stores its writes. Thread-safe.

    Args:
        failed: called once, with the first failure: the program has to end.
    """

    def __init__(self, failed: Callable[[StateError], None] = lambda error: None) -> None:
        self._tell = failed
        self._lock = threading.Lock()
        self._failure: DiskFailed | None = None

    def require(self) -> None:
        """Returns while no write has failed. Raises DiskFailed."""
        if self._failure is not None:
            raise DiskFailed(str(self._failure))

    def note(self, error: BaseException) -> None:
        """Records an error: after a DiskFailed, ``require`` refuses everything."""
        if not isinstance(error, DiskFailed):
            return
        with self._lock:
            first = self._failure is None
            self._failure = self._failure or error
        if first:
            self._tell(error)

    def __enter__(self) -> None:
        self.require()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.note(error)


def disk_failed(path: Path, why: str) -> DiskFailed:
    """The one-line error for a disk that did not store a write."""
    return DiskFailed(
        f"{path}: the disk did not store what was written ({why}); this program ends; check the disk, then start it "
        "again: it goes on from what is stored"
    )


def sync(descriptor: int, path: Path) -> None:
    """Syncs an open file, or the names in an open folder, to the disk; ``path`` is its name in errors.

    Raises DiskFailed where that fails: what was written since the last sync may be lost, and no later sync reports it.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise disk_failed(path, error.strerror or "input/output error") from error


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder to the disk. Raises DiskFailed, and OSError if it cannot be opened.

    Windows opens no folder, and runs no service: files that a developer asks for are durable there without it.
    """
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor, folder)
    finally:
        os.close(descriptor)


def create_file(path: Path, *, mode: int = 0o600) -> BinaryIO:
    """Opens a new file to write. Its bytes are durable after ``finish``, its name after ``sync_folder``.

    Raises OSError, also where the file exists.
    """
    return _opened(path, os.O_EXCL, mode)


def finish(file: BinaryIO, path: Path) -> None:
    """Syncs the content of ``file`` to the disk. Raises OSError, DiskFailed."""
    file.flush()
    sync(file.fileno(), path)


@contextlib.contextmanager
def replaced_file(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Replaces the file ``path`` by what the body writes, durably: it has the old bytes or the new ones, never a mix.

    A body that raises changes nothing. Raises OSError, DiskFailed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{UNFINISHED}")
    # A killed program may have left one of this name.
    file = _opened(temporary, os.O_TRUNC, mode)
    try:
        with file:
            yield file
            finish(file, path)
        put_in_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def put_in_place(finished: Path, path: Path) -> None:
    """Renames a file with durable bytes to ``path``, durably. Raises OSError, DiskFailed."""
    finished.replace(path)
    sync_folder(path.parent)


def _opened(path: Path, flag: int, mode: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | _OPENING | flag, mode), "wb")


def read_from_disk(path: Path) -> None:
    """Makes the next reads of a file come from the disk: an earlier process may have had a failed sync.

    Until then they come from memory, which still holds what that sync dropped. A missing file is none to read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        sync(descriptor, path)
        if sys.platform == "linux":
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def write_whole(path: str | Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file, and its folder where there is none; one of that name keeps its bytes until the new ones are whole.

    Raises:
      ConfigurationError: it cannot be written.
      DiskFailed: the disk did not store it.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as file:
            if sys.platform != "win32":
                os.fchmod(file.fileno(), 0o644)  # for any umask
            for piece in pieces:
                file.write(piece)
    except (OSError, ValueError) as error:  # a ValueError is a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"cannot write to {path}: {reason}; give another place") from error
