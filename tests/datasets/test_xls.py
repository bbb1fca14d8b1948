"""The workbook reader, against a workbook that this test writes record by record from the published structure."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest

from odp.datasets.jester import load_jester, read_numbers
from odp.errors import DataError

SECTOR = 512
END, FREE, TABLE = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD


def record(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<HH", kind, len(body)) + body


def number(row: int, column: int, value: float) -> bytes:
    return record(0x0203, struct.pack("<HHHd", row, column, 0, value))


def integer(value: int, *, hundredths: bool) -> int:
    return ((value << 2) & 0xFFFFFFFC) | 2 | int(hundredths)


def rk(row: int, column: int, packed: int) -> bytes:
    return record(0x027E, struct.pack("<HHHI", row, column, 0, packed))


def mulrk(row: int, column: int, packed: list[int]) -> bytes:
    cells = b"".join(struct.pack("<HI", 0, value) for value in packed)
    return record(0x00BD, struct.pack("<HH", row, column) + cells + struct.pack("<H", column + len(packed) - 1))


def workbook(cells: bytes) -> bytes:
    """A compound file of one stream: globals with a number that is no cell, then one worksheet."""
    stream = record(0x0809, struct.pack("<HH", 0x0600, 0x0005)) + number(9, 9, 9.0) + record(0x000A)
    stream += record(0x0809, struct.pack("<HH", 0x0600, 0x0010)) + cells + record(0x000A)
    size = max(len(stream), 4096)
    sectors = -(-size // SECTOR)
    # Sector 0 is the allocation table, 1 the directory; the stream runs backwards to prove that its chain is followed.
    places = list(range(2, 2 + sectors))[::-1]
    table = [FREE] * 128
    table[0], table[1] = TABLE, END
    for here, after in zip(places, [*places[1:], END], strict=True):
        table[here] = after
    content = [b""] * (2 + sectors)
    content[0] = struct.pack("<128I", *table)
    content[1] = entry("Root Entry", 5, END, 0) + entry("Workbook", 2, places[0], size) + bytes(256)
    padded = stream.ljust(sectors * SECTOR, b"\0")
    for index, place in enumerate(places):
        content[place] = padded[index * SECTOR : (index + 1) * SECTOR]
    header = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16) + struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(10)
    header += struct.pack("<IIIIIIIII", 1, 1, 0, 4096, END, 0, END, 0, 0) + struct.pack("<108I", *[FREE] * 108)
    return header + b"".join(content)


def entry(name: str, kind: int, start: int, size: int) -> bytes:
    encoded = name.encode("utf-16-le") + b"\0\0"
    return (
        encoded.ljust(64, b"\0")
        + struct.pack("<HB", len(encoded), kind)
        + bytes(49)
        + struct.pack("<IIQ", start, size, 0)[:12]
    )


def test_every_kind_of_number_cell_is_read(tmp_path: Path) -> None:
    float_bits = struct.unpack("<Q", struct.pack("<d", 1.5))[0] >> 32
    cells = number(0, 0, -7.82) + rk(0, 1, integer(99, hundredths=False)) + rk(0, 2, integer(-982, hundredths=True))
    cells += mulrk(1, 0, [int(float_bits), integer(-3, hundredths=False), integer(816, hundredths=True)])
    (tmp_path / "a.xls").write_bytes(workbook(cells))
    assert read_numbers(tmp_path / "a.xls").tolist() == [[-7.82, 99.0, -9.82], [1.5, -3.0, 8.16]]


def test_jester_is_read_from_its_workbook(tmp_path: Path) -> None:
    cells = (
        number(0, 0, 1) + number(0, 1, 4.25) + number(0, 2, 99) + number(1, 0, 2) + number(1, 1, -1) + number(1, 2, 0)
    )
    (tmp_path / "jester-data-1.xls").write_bytes(workbook(cells))
    ratings = load_jester(tmp_path)
    assert ratings.values.tolist() == [4.25, -1, 0]
    assert ratings.offsets.tolist() == [0, 1, 3]


def test_a_missing_cell_is_named_by_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.xls").write_bytes(workbook(number(0, 0, 1) + number(0, 1, 1) + number(1, 1, 2)))
    with pytest.raises(DataError, match=r"a\.xls:2: a cell holds no number, as in 1 of 2 rows"):
        read_numbers(tmp_path / "a.xls")


def test_damaged_workbooks_are_refused_and_never_loop(tmp_path: Path) -> None:
    whole = workbook(number(0, 0, 1))
    looped = bytearray(whole)
    struct.pack_into("<I", looped, SECTOR + 4, 1)  # the directory's sector follows itself
    cases = [whole[:40], whole[:700], bytes(looped), whole.replace("Workbook".encode("utf-16-le"), bytes(16)), b"text"]
    rng = np.random.default_rng(3)
    for _ in range(200):
        changed = bytearray(whole)
        changed[int(rng.integers(8, len(whole)))] ^= int(rng.integers(1, 256))
        cases.append(bytes(changed))
    for index, content in enumerate(cases):
        (tmp_path / "a.xls").write_bytes(content)
        if index < 5:
            with pytest.raises(DataError, match=r"a\.xls"):
                read_numbers(tmp_path / "a.xls")
        else:
            with contextlib.suppress(DataError):  # a changed byte may be harmless; any other exception fails the test
                read_numbers(tmp_path / "a.xls")
