"""A program's state folder: one program at a time, private to its user, written atomically.

Everything that a program must not lose lies here. ``StateFolder.open`` takes an exclusive lock for as long as the
process lives (the kernel frees it on kill -9), so that two programs never share one folder.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from odp._system.closing import Closing
from odp._system.files.durability import UNFINISHED, Health, replaced_file
from odp._system.files.private_files import make_folders, open_private, private_folder, read_private
from odp._system.posix import fcntl
from odp.errors import DiskFull, StateError

_FORMAT = "1"
_LOCK = "lock"
_ROLE = "format"
_MIN_FREE_BYTES = 16 * 2**20
_KEPT = "kept-"
_LARGEST_KEY_FILE = 16 * 1024


class StateFolder(Closing):
    """A locked folder of one program; use as a context manager or call ``close``.

    ``health`` is that of its disk: whoever keeps something here notes there that a sync failed.
    """

    def __init__(self, path: Path, role: str, lock: int, health: Health) -> None:
        self.root = path
        self.role = role
        self.health = health
        self._lock: int | None = lock

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], role: str, *, failed: Callable[[StateError], None] = lambda error: None
    ) -> StateFolder:
        """Creates (mode 0700) or reopens the folder of a program of kind ``role``.

        ``failed`` is called once where the disk does not store what it was given: the program has to end.

        Raises StateError when another program holds the folder, when it belongs to another kind of program or
        another format version, when others may use it (``private_folder``) or it cannot be written, and when the disk
        has less than 16 MiB left.
        """
        root = Path(path)
        with state_errors(root):
            private_folder(root, marker=_ROLE)
            lock = open_private(root / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            with state_errors(root):
                _take(lock, root)
                remove_unfinished(root)
                free = shutil.disk_usage(root).free
            if free < _MIN_FREE_BYTES:
                raise DiskFull(
                    f"state folder {root}: disk full ({free // 2**20} MiB free, 16 MiB needed); free some space"
                )
            folder = cls(root, role, lock, Health(failed))
            folder._check_format()
        except BaseException:
            os.close(lock)
            raise
        return folder

    def _check_format(self) -> None:
        expected = f"odp {self.role} {_FORMAT}\n"
        if (stored := self.read(_ROLE)) is None:
            self.write_atomically(_ROLE, expected.encode())
        elif stored.decode(errors="replace") != expected:
            raise StateError(
                f"state folder {self.root} belongs to {stored.decode(errors='replace').strip()!r}, "
                f"not to {expected.strip()!r}; give another --state folder"
            )

    def path(self, name: str) -> Path:
        """The path of a file or folder inside."""
        return self.root / name

    def read(self, name: str) -> bytes | None:
        """The bytes of a file, or None where it does not exist. Raises StateError when it cannot be read."""
        with state_errors(self.root):
            try:
                return read_private(self.path(name))
            except FileNotFoundError:
                return None

    def require_not_lost(self, name: str, *, beside: str) -> None:
        """Raises StateError if the file ``name`` is missing although ``beside``, which is created after it, exists."""
        if self.path(beside).exists() and not self.path(name).exists():
            raise StateError(
                f"{self.path(name)} is gone, and {beside} is not: restore the file from a backup; "
                "without it, the stored data cannot be trusted"
            )

    def require_kept(self, name: str) -> None:
        """Raises StateError if ``note_kept`` recorded the file ``name`` and it is now missing or empty."""
        path, note = self.path(name), self.path(f"{_KEPT}{name}")
        if note.exists() and not (path.exists() and path.stat().st_size):
            raise StateError(
                f"{path} is gone or empty: restore it from a backup; to start without its content, "
                f"remove {note.name} too"
            )

    def note_kept(self, name: str) -> None:
        """Records, durably, that the file ``name`` has content: its absence then does not mean a first start."""
        if not self.path(f"{_KEPT}{name}").exists():
            self.write_atomically(f"{_KEPT}{name}", b"")

    def write_atomically(self, name: str, data: bytes) -> None:
        """Replaces a file, durably: after a crash it holds the old bytes or the new ones, never a mix (mode 0600).

        Raises StateError where it could not be written; DiskFailed also where anything here could not be synced before.
        """
        with self.health, state_errors(self.root):
            write_atomically(self.path(name), data)

    def close(self) -> None:
        """Releases the folder. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replaces a file as ``replaced_file`` does. Raises OSError, DiskFailed."""
    with replaced_file(path, mode=mode) as file:
        file.write(data)


def keep_out_of_git(folder: Path) -> None:
    """Writes a ``.gitignore`` into a state folder that holds none: keys and private data belong into no repository.

    Raises StateError.
    """
    file = folder / ".gitignore"
    with state_errors(folder):
        if not file.exists():
            write_atomically(file, b"# Made by odp: keys and private data.\n*\n")


def free_name(folder: Path, ending: str) -> Path:
    """The first path of ``<folder>.<ending>-0``, ``-1`` and so on that does not exist; some may have been removed."""
    names = (folder.with_name(f"{folder.name}.{ending}-{number}") for number in itertools.count())
    return next(path for path in names if not path.exists())


def made_once(path: Path, make: Callable[[], bytes], *, mode: int = 0o600) -> bytes:
    """The bytes of ``path``; if it does not exist, those of ``make`` are written first. For keys and similar files.

    Its folder is made too, private to its user. Of programs that start at once on one folder, one makes the file.
    Raises StateError where it cannot be read or written.
    """
    with state_errors(path.parent):
        make_folders(path.parent)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not path.exists():
                write_atomically(path, make(), mode=mode)
        finally:
            os.close(folder)
        with path.open("rb") as file:
            return file.read(_LARGEST_KEY_FILE)


@contextlib.contextmanager
def state_errors(where: Path) -> Iterator[None]:
    """Turns an OSError about ``where`` into a one-line StateError with advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"state folder {where}: disk full; free some space and start again; nothing was lost"
            ) from error
        raise StateError(
            f"state folder {where}: {error.strerror or error}; check the path and its permissions"
        ) from error


def _take(lock: int, root: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        raise StateError(
            f"state folder {root} is in use by another program (process {holder}); "
            "stop it or give another --state folder"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def remove_unfinished(root: Path) -> None:
    """Removes unfinished files of a killed program; only for the holder of the folder's lock. Raises OSError."""
    for path in root.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)
