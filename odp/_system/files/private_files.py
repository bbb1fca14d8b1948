"""Folders and files that only their user can access, for any umask: 0700 and 0600, no links, no other owner.

What lies in a state folder decides what leaves a device (limits, keys) or what a service remembers. Whoever may write
there could replace it. So a state folder is made for its user alone, and one that others may use is tightened or
refused. Files by which others check or reach a service are public and have mode 0644: ``ca.pem``, reference values,
endorsements and rosters.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from odp._system.files.durability import sync_folder
from odp.errors import StateError

_OTHERS = 0o077
_FOLDER, _FILE = 0o700, 0o600


def private_folder(path: Path, *, marker: str) -> None:
    """Creates a state folder with missing parents, or checks an existing one.

    One that others may use is tightened where it is empty, or a program made it: there is a file or folder ``marker``.

    Raises:
        StateError: it is a link, no folder, or another user's; or others may use it and it holds something else.
        OSError: it cannot be made.
    """
    make_folders(path)
    if path.is_symlink():
        raise StateError(f"state folder {path} is a link; give the folder itself")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _require_own(os.fstat(descriptor), path)
        if _is_open_to_others(descriptor):
            inside = {entry.name for entry in os.scandir(descriptor)}
            if not inside or marker in inside:
                os.fchmod(descriptor, _FOLDER)
            if _is_open_to_others(descriptor):
                raise StateError(f"other users may use the state folder {path}; run `chmod 700 {path}` or give another")
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Creates a folder and its missing parents, each for this user alone, and durably.

    Raises OSError; DiskFailed where a new name could not be synced.
    """
    for folder in [*reversed(path.parents), path]:
        try:
            folder.mkdir(mode=_FOLDER)
            sync_folder(folder.parent)
        except FileExistsError:
            continue
        except OSError:
            # A folder above may be there and not be writable.
            if not folder.is_dir():
                raise


def open_private(path: Path, flags: int) -> int:
    """``os.open`` of a file that only this user can access; restricts its permissions if needed.

    Raises:
        StateError: it is no file, or another user's.
        OSError: as ``os.open``; a link is refused with ELOOP.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, _FILE)
    try:
        status = os.fstat(descriptor)
        _require_file(status, path)
        if status.st_mode & _OTHERS:
            os.fchmod(descriptor, _FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: Path) -> None:
    """Creates an empty file, or checks an existing one as ``open_private`` does.

    That one is not opened: to close it would free the locks that other threads of this process hold on it.

    Raises:
        StateError: it is no file, or another user's.
        OSError: it cannot be made; a link is refused with ELOOP.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))
        return
    _require_file(status, path)
    if status.st_mode & _OTHERS:
        path.chmod(_FILE)


def read_private(path: Path, *, most: int = -1) -> bytes:
    """At most ``most`` bytes of a file of this user, by default all.

    Raises:
        StateError: it is no file, or another user's.
        OSError: it cannot be read; FileNotFoundError where it is not there.
    """
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def _require_file(status: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise StateError(f"{path} is not a file; remove it, or give another state folder")
    _require_own(status, path)


def _require_own(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise StateError(f"{path} belongs to another user (number {status.st_uid}); give a path of your own")


def _is_open_to_others(descriptor: int) -> bool:
    return bool(os.fstat(descriptor).st_mode & _OTHERS)
