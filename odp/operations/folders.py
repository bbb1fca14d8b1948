"""Examines the state folder of a program on this machine: who may read it, its disk, and whether it is whole."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from odp.operations.findings import Finding
from odp.transport.statuses import one_line

_FULL = 16 * 2**20
_LEAST_FREE = 2**30
_ROLE = "format"


def examine_folder(folder: Path) -> Iterator[Finding]:
    """The findings of a state folder."""
    subject = f"folder {folder}"
    try:
        mode = folder.stat().st_mode
        role = (folder / _ROLE).read_text(encoding="utf-8", errors="replace")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding(
            subject, "state", "failure", f"it cannot be read: {error.strerror or error}",
            "give the --state folder of a program, and run this as its account",
        )  # fmt: skip
        return
    yield Finding(subject, "state", "ok", one_line(role.strip()))
    if stat.S_IMODE(mode) & 0o077:
        yield Finding(
            subject, "permissions", "failure", f"others may enter it (mode {stat.S_IMODE(mode):o})",
            f"chmod 700 {folder}; if others did read it, replace its keys",
        )  # fmt: skip
    else:
        yield Finding(subject, "permissions", "ok", "its owner alone")
    if free < _LEAST_FREE:
        yield Finding(
            subject, "disk", "failure" if free < _FULL else "warning", f"{free / 2**20:,.0f} MiB free",
            "free some space: below 16 MiB nothing starts",
        )  # fmt: skip
    else:
        yield Finding(subject, "disk", "ok", f"{free / 2**30:,.1f} GiB free")
