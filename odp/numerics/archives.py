"""Damaged and hostile npz files: what reading one may raise, and how much it may hold."""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

#: What ``numpy.load`` of an npz file raises, and taking an array out of it, besides OSError: numpy and zipfile pass on
#: what the readers within them raise, and a header may name any shape. RuntimeError: encrypted, or another method.
#: SystemError: text that is no Unicode.
UNREADABLE = (
    ValueError, TypeError, AttributeError, KeyError, EOFError, ArithmeticError, MemoryError, RuntimeError,
    SystemError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


def unpacked_bytes(archive: str | os.PathLike[str] | IO[bytes]) -> int:
    """How much the files of an archive take, as it declares; no more than that is ever unpacked.

    Raises:
      OSError, or one of ``UNREADABLE``: it is no zip archive.
    """
    with zipfile.ZipFile(archive) as opened:
        return sum(one.file_size for one in opened.infolist())


def require_stored(path: Path) -> None:
    """Returns if a file of ``numpy.savez`` takes no more when it is unpacked than it does on the disk.

    Raises:
      OSError, or one of ``UNREADABLE``: it was compressed, as none of ours is, or is no zip archive.
    """
    if unpacked_bytes(path) > path.stat().st_size:
        raise ValueError("unpacks to more than it is long")
