"""Damaged and hostile npz and gzip files: what reading one may raise, and how much it may hold."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from odp.errors import DataError

#: What ``numpy.load`` of an npz file raises, and taking an array out of it, besides OSError: numpy and zipfile pass on
#: what the readers within them raise, and a header may name any shape. RuntimeError: encrypted, or another method.
#: SystemError: text that is no Unicode.
UNREADABLE = (
    ValueError, TypeError, AttributeError, KeyError, EOFError, ArithmeticError, MemoryError, RuntimeError,
    SystemError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip

#: What data sets compress by: numbers 4 to 10 times, text with long keys 50 times. A file of zeros does 1,000 times.
MOST_GROWTH = 64
#: A file that takes no more than this may have grown by any factor.
ALWAYS_BYTES = 2**28


@contextlib.contextmanager
def arrays_of(path: str | os.PathLike[str], otherwise: str) -> Iterator[np.lib.npyio.NpzFile]:
    """The arrays of an npz file that may be compressed, none of them read yet.

    Args:
      path: of the file.
      otherwise: what the error says where the file, or an array that is taken out of it here, cannot be read.

    Raises:
      DataError: there is no such file, it cannot be read, or its arrays take more memory than ``require_growth``
        admits: then nothing was unpacked.
    """
    try:
        require_growth(path, unpacked_bytes(path))
        with np.load(path, allow_pickle=False) as file:
            yield file
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, *UNREADABLE):
        raise DataError(f"{path}: {otherwise}") from None


def require_growth(path: str | os.PathLike[str], unpacked: int) -> None:
    """Raises DataError where a file would take ``unpacked`` bytes: over 256 MiB, and over 64 times its length."""
    length = Path(path).stat().st_size
    if unpacked > max(ALWAYS_BYTES, MOST_GROWTH * length):
        raise DataError(
            f"{path}: {length:,} bytes would take {unpacked / 2**20:,.0f} MiB of memory or more, over {MOST_GROWTH} "
            "times as much, which no data set does: it is not read; write it again without compression"
        )


def unpacked_gzip(path: Path) -> bytes:
    """The content of a gzip file, as much as ``require_growth`` admits.

    Raises:
      DataError: it takes more.
      OSError, EOFError, zlib.error: it is damaged, or no gzip file.
    """
    most = max(ALWAYS_BYTES, MOST_GROWTH * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(most + 1)
    require_growth(path, len(content))
    return content


def require_gzip_growth(path: Path) -> None:
    """As ``unpacked_gzip``, for a file that another reader unpacks: one pass that keeps nothing."""
    most = max(ALWAYS_BYTES, MOST_GROWTH * path.stat().st_size)
    with gzip.open(path) as file:
        unpacked = 0
        while unpacked <= most and (piece := file.read(io.DEFAULT_BUFFER_SIZE * 16)):
            unpacked += len(piece)
    require_growth(path, unpacked)


def unpacked_bytes(archive: str | os.PathLike[str] | IO[bytes]) -> int:
    """How much the files of an archive take, as it declares; no more than that is ever unpacked.

    Raises:
      OSError, or one of ``UNREADABLE``: it is no zip archive.
    """
    with zipfile.ZipFile(archive) as opened:
        return sum(entry.file_size for entry in opened.infolist())


def require_stored(path: Path) -> None:
    """Returns if a file of ``numpy.savez`` takes no more when it is unpacked than it does on the disk.

    Raises:
      OSError, or one of ``UNREADABLE``: it was compressed, as none of ours is, or is no zip archive.
    """
    if unpacked_bytes(path) > path.stat().st_size:
        raise ValueError("unpacks to more than it is long")
