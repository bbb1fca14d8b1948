"""Reads the numbers of the first sheet of an Excel 97-2003 workbook: the part of the format that rating tables use.

A workbook is a stream inside a compound file (sectors chained by an allocation table); the stream is a list of records,
and the cells with numbers are the records NUMBER, RK and MULRK.

Source: [MS-CFB] section 2 (compound file); [MS-XLS], records Number, RK, MulRk and the structure RkNumber.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp.datasets import _parsing
from odp.errors import DataError

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
        integer = (packed >> 2) - (1 << 30 if packed & 0x80000000 else 0)
        value = float(integer)
    else:
        value = struct.unpack("<d", struct.pack("<Q", (packed & 0xFFFFFFFC) << 32))[0]
    return value / 100 if packed & 1 else value
