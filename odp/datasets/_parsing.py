"""Reads text tables of numbers at array speed, and names file and line when one is malformed.

The fast path checks the shape of the whole text with array operations and lets numpy read all numbers in one call.
Only when that fails are the lines walked one by one, to find the first bad one. Messages never quote the data.
"""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.identity import LARGEST
from odp.numerics.archives import unpacked_gzip

_NEWLINE = 10
_NUMBER_BYTES = b"0123456789.-"


def find(folder: Path, *names: str) -> Path | None:
    """The first of ``names``, plain or with ``.gz``, that is a file in ``folder``."""
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip (by its first two bytes).

    Raises:
      DataError: the file is missing, unreadable, or a damaged gzip file.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(2)
        if begins != b"\x1f\x8b":
            return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    try:
        return unpacked_gzip(path)
    except (OSError, EOFError, zlib.error):
        raise DataError(f"{path}: damaged or incomplete gzip file; fetch it again") from None


def table(path: Path, *, separator: bytes, form: str, columns: int) -> npt.NDArray[np.float64]:
    """All rows of a file of numbers that are no ids, float64 [rows, columns]; LF or CRLF line ends, plain or gzip.

    Args:
      path: the file.
      separator: between two fields, one byte.
      form: what a line looks like, for messages.
      columns: fields in a line.

    Raises:
      DataError: the file is empty, or a line (named, from 1) has another number of fields, or one that is no number.
    """
    text = _body(path)
    if (numbers := _fast(text, separator, columns)) is None:
        raise _first_bad_line(path, text, separator, columns, form)
    return numbers.reshape(-1, columns)


def ragged(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Lines of whole numbers, of any count >= 1, separated by spaces: (numbers [total], numbers per line [lines]).

    Raises:
      DataError: the file is empty, or a line (named, from 1) is blank or holds something that is no whole number.
    """
    text = _body(path)
    codes = np.frombuffer(text, dtype=np.uint8)
    blank = (codes == 32) | (codes == 9) | (codes == _NEWLINE)
    starts = ~blank
    starts[1:] &= blank[:-1]
    before = np.concatenate(([0], np.cumsum(starts)[codes == _NEWLINE]))
    counts = np.diff(before).astype(np.int64)
    if text.translate(None, b"0123456789 \t\n") or (counts == 0).any():
        for number, line in enumerate(text.split(b"\n")[:-1], start=1):
            if not line.split() or not all(field.isdigit() for field in line.split()):
                raise DataError(f"{path}:{number}: expected a user number and item numbers, separated by spaces")
    return np.fromstring(text.decode("ascii"), dtype=np.int64, sep=" "), counts


def whole_numbers(numbers: npt.NDArray[Any], *, what: str, where: object) -> npt.NDArray[np.int64]:
    """The same numbers as int64; those of 64 bits without a sign would become negative beyond 2**63.

    Raises:
      DataError: they are of another kind, or one is too large.
    """
    if numbers.dtype.kind not in "iu" or (numbers.dtype.kind == "u" and numbers.size and numbers.max() > LARGEST):
        raise DataError(f"{where}: expected {what} to be whole numbers below 2**63 (got {numbers.dtype})")
    return numbers.astype(np.int64)


def dense(ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(distinct ids ascending, position of every entry among them)."""
    distinct, positions = np.unique(ids, return_inverse=True)
    return distinct, positions.astype(np.int64)


def _body(path: Path) -> bytes:
    """Text with LF line ends, one at its end."""
    text = read_bytes(path)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if not (text := text.rstrip(b"\n")):
        raise DataError(f"{path}: holds no rows; it is incomplete or not the file of this data set")
    return text + b"\n"


def _fast(text: bytes, separator: bytes, columns: int) -> npt.NDArray[np.float64] | None:
    """All numbers in one pass, or None where the text is not a clean table."""
    if text.translate(None, _NUMBER_BYTES + separator + b"\n"):
        return None
    codes = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((codes == separator[0]) | (codes == _NEWLINE))
    rows = text.count(b"\n")
    if len(ends) != rows * columns or not (codes[ends[columns - 1 :: columns]] == _NEWLINE).all():
        return None
    if ends[0] == 0 or (np.diff(ends) == 1).any():  # an empty field
        return None
    spaced = text.translate(bytes.maketrans(separator, b" "))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy stops at "1-" or "." with a warning only
            numbers = np.fromstring(spaced.decode("ascii"), dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError):
        return None
    # A field such as "1.2.3" is read as two numbers, so the count alone tells it.
    return numbers if len(numbers) == rows * columns else None


def _first_bad_line(path: Path, text: bytes, separator: bytes, columns: int, form: str) -> DataError:
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        fields = line.split(separator)
        if len(fields) != columns:
            return DataError(f"{path}:{number}: {len(fields)} fields where {form} has {columns}")
        for position, field in enumerate(fields, start=1):
            if not _is_number(field):
                return DataError(f"{path}:{number}: field {position} of {form} is not a number")
    return DataError(f"{path}: not a clean table of {form}")


def _is_number(field: bytes) -> bool:
    return field.removeprefix(b"-").replace(b".", b"", 1).isdigit()
