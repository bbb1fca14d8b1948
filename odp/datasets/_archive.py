"""Unpacks a downloaded zip archive without trust in its directory."""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from odp.errors import DataError

UNPACKED_LIMIT = 1 << 30
"""Bytes that an archive may unpack to in all, by its own directory; zipfile refuses members that exceed their entry."""


def unzip(archive: Path, target: Path) -> None:
    """Unpacks ``archive`` into ``target``, refusing members that leave it, links, and more than UNPACKED_LIMIT bytes.

    Raises:
      DataError: the archive is damaged, or holds such a member; nothing is written in the latter case.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            if any(_leaves(member) for member in members):
                raise DataError(f"{archive.name}: refused, a member would be written outside its folder")
            if sum(member.file_size for member in members) > UNPACKED_LIMIT:
                raise DataError(f"{archive.name}: refused, it unpacks to more than {UNPACKED_LIMIT} bytes")
            file.extractall(target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        raise DataError(f"{archive.name}: not a readable zip file; fetch it again") from None


def without_wrapper(folder: Path) -> Path:
    """The single folder that an archive wraps its files in, or ``folder`` itself."""
    children = [child for child in folder.iterdir() if child.name != "__MACOSX"]
    return children[0] if len(children) == 1 and children[0].is_dir() else folder


def _leaves(member: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(member.filename.replace("\\", "/"))
    return (
        path.is_absolute() or ".." in path.parts or ":" in member.filename or stat.S_ISLNK(member.external_attr >> 16)
    )
