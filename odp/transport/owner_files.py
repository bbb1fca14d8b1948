"""Small durable files of one owner: written atomically, unreadable for others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from odp._system.files import state_folder
from odp._system.files.private_files import open_private, private_folder
from odp.errors import StateError

PRIVATE = 0o600
PUBLIC = 0o644


def write_atomically(path: Path, data: bytes, *, mode: int) -> None:
    """Replaces ``path`` by ``data``, durably: after a crash the file is the old one or the new one.

    Raises:
        StateError: the file cannot be written; the old one is untouched.
    """
    try:
        state_folder.write_atomically(path, data, mode=mode)
    except OSError as error:
        raise _state_error("write", path, error) from error


def read_private(path: Path, *, limit: int) -> bytes | None:
    """The bytes of ``path``, or None if it does not exist.

    Raises:
        StateError: it cannot be read, is larger than ``limit`` bytes, or other users may read it.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid():
                raise StateError(f"{path} belongs to another user (number {status.st_uid}); give a folder of your own")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise StateError(f"{path} holds secrets and other users may read it: run `chmod 600 {path}`")
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _state_error("read", path, error) from error
    if len(data) > limit:
        raise StateError(f"{path} is larger than {limit} bytes, which no file of this kind is: it is corrupt")
    return data


def make_private_folder(path: Path, *, marker: str) -> None:
    """Creates ``path`` with mode 0700 if it is missing; see ``private_folder``.

    Raises:
        StateError: it cannot be created, or others may use it.
    """
    try:
        private_folder(path, marker=marker)
    except OSError as error:
        raise _state_error("create", path, error) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the exclusive lock of the file ``path`` (created if missing) while the body runs.

    Raises:
        StateError: the lock file cannot be opened.
    """
    try:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _state_error("open", path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _state_error(action: str, path: Path, error: OSError) -> StateError:
    why = (
        "disk full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or "input/output error").lower()
    )
    return StateError(f"cannot {action} {path}: {why}")
