"""The bytes of text tables: plain or gzip, UTF-8 or UTF-16 with its mark, in blocks of whole lines of UTF-8."""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from odp.errors import DataError

_CHUNK = 2**24
_HEAD = 2**16
_ONE_BYTE = b"\x1f"
LINE_END = re.compile(r"\r\n|\r|\n")
UTF8, UTF16 = "utf8", "utf-16"


def opened(path: Path) -> BinaryIO:
    """The file, unpacked where its name ends in .gz or its first bytes are those of gzip."""
    return cast("BinaryIO", gzip.open(path) if _named_gzip(path) or _is_gzip(path) else path.open("rb"))


def _named_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


@dataclass(frozen=True)
class TextSource:
    """A text table on disk.

    Attributes:
      path: the file.
      encoding: "utf8", or "utf-16" where the file begins with its mark.
      separator: between two fields, where that is not a single byte: the blocks have the byte 31 in its place.
    """

    path: Path
    encoding: str = UTF8
    separator: bytes | None = None

    @classmethod
    def at(cls, path: Path, separator: bytes | None = None) -> TextSource:
        """Recognises the encoding.

        Raises:
          DataError: it is UTF-32.
          OSError, EOFError, zlib.error: the file is unreadable.
        """
        with closing(opened(path)) as file:
            mark = file.read(4)
        if mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
            raise DataError(f"{path}: UTF-32 text; save the file as UTF-8")
        utf16 = mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return cls(path, UTF16 if utf16 else UTF8, separator if separator and len(separator) > 1 else None)

    @property
    def delimiter(self) -> str | None:
        """What stands in the blocks for a separator of several bytes."""
        return None if self.separator is None else _ONE_BYTE.decode()

    def head(self) -> str:
        """The first line that is not blank.

        Raises:
          DataError: it is not text, or beyond the first 16 MiB, or there is none.
        """
        with closing(opened(self.path)) as file:
            first = file.read(_HEAD)
            # A header may have a million columns; a line ends the same way in UTF-16.
            while len(first) < _CHUNK and not re.search(rb"[^\s\x00][\x00]?[\r\n]", first):
                more = file.read(len(first))
                first += more
                if not more:
                    break
        if self.encoding == UTF8 and b"\x00" in first:
            raise DataError(
                f"{self.path}: not a text table (it holds zero bytes); expected CSV with a header line, in UTF-8 or in "
                "UTF-16 with its mark"
            )
        decoder = codecs.getincrementaldecoder("utf-8-sig" if self.encoding == UTF8 else self.encoding)
        try:
            text = decoder().decode(first)
        except UnicodeDecodeError as error:
            raise self._undecodable(1 + first[: error.start].count(b"\n")) from None
        line, *rest = [line for line in LINE_END.split(text) if line.strip()] or [""]
        if not rest and len(first) >= _CHUNK:
            raise DataError(f"{self.path}:1: the first line has more than {_CHUNK} bytes; expected a header line")
        if not line:
            raise DataError(f"{self.path}: holds no rows; expected a header line and rows")
        return line

    def blocks(self) -> Iterator[bytes]:
        """The text, checked, in blocks of whole lines, each with its end.

        Raises:
          DataError: it is not text of its encoding; the message has the line.
        """
        for number, block in enumerate(self._blocks()):
            zero, error = block.find(b"\x00"), None
            if zero < 0 and not block.isascii():
                error = _error_of(block)
            if zero >= 0 or error is not None:
                # Lines are counted where somebody has to know them alone.
                before = sum(block.count(b"\n") for block in itertools.islice(self._blocks(), number))
                line = 1 + before + block[: zero if error is None else error].count(b"\n")
                raise (
                    self._undecodable(line)
                    if zero < 0
                    else DataError(f"{self.path}:{line}: not a text table (it holds a zero byte)")
                )
            yield block if self.separator is None else block.replace(self.separator, _ONE_BYTE)

    def _blocks(self) -> Iterator[bytes]:
        carried, first = b"", True
        decoder = codecs.getincrementaldecoder(self.encoding)()
        with closing(opened(self.path)) as file:
            while True:
                chunk = file.read(_CHUNK)
                if self.encoding == UTF16:
                    try:
                        text = decoder.decode(chunk, final=not chunk).encode()
                    except UnicodeError:
                        raise self._undecodable(None) from None
                else:
                    text = chunk
                block = carried + text if carried else text
                if first and block.startswith(codecs.BOM_UTF8):
                    block = block[len(codecs.BOM_UTF8) :]
                first = False
                end = _last_line_end(block) if chunk else len(block)
                block, carried = block[:end], block[end:]
                if not chunk and block and block[-1:] not in (b"\n", b"\r"):
                    block += b"\n"
                if block:
                    yield block
                if not chunk:
                    return

    def _undecodable(self, line: int | None) -> DataError:
        if self.encoding == UTF16:
            return DataError(f"{self.path}: not UTF-16 text, or cut short; save the file as UTF-8")
        return DataError(
            f"{self.path}:{line}: not UTF-8 text; convert the file, for example with "
            f"`iconv -f latin1 -t utf-8 {self.path.name} > utf8.csv`"
        )

    def for_arrow(self) -> Any:
        """What Arrow reads: the path, or the blocks where they are not the bytes of the file."""
        if self.encoding == UTF8 and self.separator is None and _named_gzip(self.path) == _is_gzip(self.path):
            return str(self.path)
        return io.BufferedReader(_Blocks(self.blocks()), _HEAD)


class _Blocks(io.RawIOBase):
    """Blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _error_of(block: bytes) -> int | None:
    """Where a block stops to be UTF-8."""
    try:
        codecs.utf_8_decode(block, "strict", True)
    except UnicodeDecodeError as error:
        return error.start
    return None


def _last_line_end(block: bytes) -> int:
    """Where the last whole line of a block ends; 0 where there is none."""
    end = block.rfind(b"\n") + 1
    # The byte after a carriage return says whether it ends a line alone.
    return end or block.rfind(b"\r", 0, max(len(block) - 1, 0)) + 1
