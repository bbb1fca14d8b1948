"""A lock on a folder: one process at a time replaces files in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from odp._system.files.state_folder import state_errors
from odp._system.posix import fcntl


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds the folder's exclusive lock; the kernel frees it when the process dies. Raises StateError."""
    with state_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with state_errors(folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
