"""Jester 1: real-valued ratings of 100 jokes, -10..+10.

Forms: ``jester1.npz`` (``rating_x100`` int16 [users, jokes], 9900 = not rated); the published workbook
``jester-data-1.xls``; and the same table as ``jester-data-1.csv``. In the last two the first column counts the
user's ratings and 99 means "not rated". There are no times, so ``order`` is None.

Source: K. Goldberg, T. Roeder, D. Gupta, C. Perkins, "Eigentaste", Information Retrieval 4(2), 2001.

Reads the numbers of the first sheet of an Excel 97-2003 workbook: the part of the format that rating tables use.

A workbook is a stream inside a compound file (sectors chained by an allocation table); the stream is a list of records,
and the cells with numbers are the records NUMBER, RK and MULRK.

Source: [MS-CFB] section 2 (compound file); [MS-XLS], records Number, RK, MulRk and the structure RkNumber.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp.datasets import _parsing
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.numerics.archives import arrays_of

_NAMES = ("jester1.npz", "jester-data-1.csv", "jester-data-1.xls")
_UNRATED = 99.0
_LOW, _HIGH = -10.0, 10.0


def load_jester(path: str | os.PathLike[str], *, whole_catalogue: bool = False) -> Ratings:
    """Reads Jester from a folder that holds one of the forms, or from such a file.

    Jokes are numbered from 0 in their original order; a joke that nobody rated is left out, unless ``whole_catalogue``.

    Raises:
      DataError: no form is recognised, a count disagrees with its row, or a rating is out of [-10, 10].
    """
    source = Path(path)
    file = _parsing.find(source, *_NAMES) if source.is_dir() else source
    if file is None:
        raise DataError(f"{source}: no Jester file here; expected one of {', '.join(_NAMES)}")
    if file.suffix == ".npz":
        table = _read_npz(file)
    elif file.suffix == ".xls":
        table = _checked_counts(file, read_numbers(file))
    else:
        columns = _parsing.read_bytes(file).partition(b"\n")[0].count(b",") + 1
        table = _checked_counts(file, _parsing.table(file, separator=b",", form="count,rating,...", columns=columns))
    user, joke = np.nonzero(table != _UNRATED)
    values = table[user, joke]
    bad = np.flatnonzero(~(np.abs(values) <= _HIGH))
    if bad.size:
        raise DataError(
            f"{file}:{user[bad[0]] + 1}: rating outside [-10, 10], as are {bad.size} of {len(values)}; "
            "the file is damaged or of another format"
        )
    item_ids, item = (np.arange(table.shape[1]), joke) if whole_catalogue else _parsing.dense(joke)
    return Ratings.from_triples(
        "jester",
        user,
        item,
        values,
        low=_LOW,
        high=_HIGH,
        n_users=len(table),
        n_items=len(item_ids),
        inferred=() if whole_catalogue else ("items",),
        item_ids=item_ids + 1,
        user_ids=np.arange(1, len(table) + 1),
    )


def _read_npz(path: Path) -> npt.NDArray[np.float64]:
    with arrays_of(path, "expected an npz file with the array rating_x100") as file:
        table = file["rating_x100"]
    if table.ndim != 2:
        raise DataError(f"{path}: expected rating_x100 to be [users, jokes] (got {list(table.shape)})")
    hundredths: npt.NDArray[np.float64] = table.astype(np.float64)
    return hundredths / 100.0


def _checked_counts(path: Path, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if rows.shape[1] < 2:
        raise DataError(f"{path}:1: expected a count and at least one rating, separated by ','")
    table = rows[:, 1:]
    wrong = np.flatnonzero((table != _UNRATED).sum(axis=1) != rows[:, 0])
    if wrong.size:
        raise DataError(
            f"{path}:{wrong[0] + 1}: the first column does not count the ratings of its row, as in {wrong.size} of "
            f"{len(rows)}; expected the count first and 99 for 'not rated'"
        )
    return table


_SIGNATURE = bytes.fromhex("d0cf11e0a1b11ae1")
_LAST_SECTOR = 0xFFFFFFFA  # larger numbers are marks, not sectors
_NUMBER, _RK, _MULRK, _EOF, _BOF = 0x0203, 0x027E, 0x00BD, 0x000A, 0x0809
_WORKSHEET = 0x0010
_MOST_COLUMNS = 256


def read_numbers(path: Path) -> npt.NDArray[np.float64]:
    """The cells of the first worksheet, float64 [rows, columns].

    Raises:
      DataError: the file is no such workbook, or a cell of the table holds no number.
    """
    try:
        return _cells(path, _workbook_stream(path, _parsing.read_bytes(path)))
    except (struct.error, IndexError):
        raise DataError(f"{path}: damaged workbook; save its sheet as CSV, or fetch it again") from None


def _workbook_stream(path: Path, content: bytes) -> bytes:
    if content[:8] != _SIGNATURE:
        raise DataError(f"{path}: not an Excel 97-2003 workbook; save its sheet as CSV")
    sector_size = 1 << min(struct.unpack_from("<H", content, 30)[0], 16)
    n_tables, directory = struct.unpack_from("<II", content, 44)
    next_list, n_lists = struct.unpack_from("<II", content, 68)
    table_sectors = list(struct.unpack_from("<109I", content, 76))

    def sector(number: int) -> bytes:
        start = (number + 1) * sector_size
        if number >= _LAST_SECTOR or start + sector_size > len(content) + sector_size:
            raise IndexError
        return content[start : start + sector_size]

    if sector_size not in (512, 4096) or n_lists > len(content) // sector_size:
        raise IndexError
    per_sector = sector_size // 4
    for _ in range(n_lists):
        entries = struct.unpack(f"<{per_sector}I", sector(next_list))
        table_sectors += entries[:-1]
        next_list = entries[-1]
    following = np.frombuffer(b"".join(sector(number) for number in table_sectors[:n_tables]), dtype="<u4").tolist()

    def chain(number: int) -> bytes:
        parts: list[bytes] = []
        while number < _LAST_SECTOR:
            if len(parts) > len(following):  # a loop in a damaged table
                raise IndexError
            parts.append(sector(number))
            number = following[number]
        return b"".join(parts)

    entries_of_directory = chain(directory)
    smallest = struct.unpack_from("<I", content, 56)[0]
    for start in range(0, len(entries_of_directory), 128):
        entry = entries_of_directory[start : start + 128]
        name = entry[: max(0, struct.unpack_from("<H", entry, 64)[0] - 2)].decode("utf-16-le", "replace")
        if name in ("Workbook", "Book"):
            first, size = struct.unpack_from("<II", entry, 116)
            if size < smallest:
                raise DataError(f"{path}: the workbook is too small to hold a rating table; save its sheet as CSV")
            return chain(first)[:size]
    raise DataError(f"{path}: not an Excel 97-2003 workbook; save its sheet as CSV")


def _cells(path: Path, stream: bytes) -> npt.NDArray[np.float64]:
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    in_sheet = False
    position = 0
    while position + 4 <= len(stream):
        kind, length = struct.unpack_from("<HH", stream, position)
        body = position + 4
        position = body + length
        if kind == _BOF:
            in_sheet = struct.unpack_from("<H", stream, body + 2)[0] == _WORKSHEET
        elif not in_sheet:
            continue
        elif kind == _EOF:
            break
        elif kind == _NUMBER:
            row, column, _, value = struct.unpack_from("<HHHd", stream, body)
            rows.append(row)
            columns.append(column)
            values.append(value)
        elif kind == _RK:
            row, column, _, packed = struct.unpack_from("<HHHI", stream, body)
            rows.append(row)
            columns.append(column)
            values.append(_unpacked(packed))
        elif kind == _MULRK:
            row, column = struct.unpack_from("<HH", stream, body)
            cells = (length - 6) // 6
            rows += [row] * cells
            columns += range(column, column + cells)
            values += [_unpacked(struct.unpack_from("<I", stream, body + 6 + 6 * cell)[0]) for cell in range(cells)]
    if not values:
        raise DataError(f"{path}: the first sheet holds no numbers")
    if max(columns) >= _MOST_COLUMNS:
        raise IndexError
    table = np.full((max(rows) + 1, max(columns) + 1), np.nan)
    table[rows, columns] = values
    missing = np.flatnonzero(np.isnan(table).any(axis=1))
    if missing.size:
        raise DataError(f"{path}:{missing[0] + 1}: a cell holds no number, as in {missing.size} of {len(table)} rows")
    return table


def _unpacked(packed: int) -> float:
    """RkNumber: bit 0 divides by 100; bit 1 says a signed 30-bit integer, else the upper 30 bits of a float64."""
    if packed & 2:
        value = float((packed >> 2) - (1 << 30 if packed & 0x80000000 else 0))
    else:
        value = struct.unpack("<d", struct.pack("<Q", (packed & 0xFFFFFFFC) << 32))[0]
    return value / 100 if packed & 1 else value
