"""The scan: the gather's rows, bit for bit, and one trace for all keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from algorithms.tracing import traced, tracing
from hypothesis import given, settings, strategies as st

from distributor import scan
from distributor.scan import ScannedTable, in_range

BLOCK = 2048
#: Columns of which as many rows as possible lie side by side in a wide row: a block has so many times BLOCK rows.
WIDE = 256
#: What float32 holds beside normal numbers: zeros of both signs, and what is below the smallest normal number.
ODD = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-39, np.finfo(np.float32).tiny, -1.0], dtype=np.float32)


def table(rows: int, width: int, *, seed: int, odd: bool) -> np.ndarray:
    """Finite float32 of every exponent; ``odd``: half of them from ``ODD``."""
    generator = np.random.default_rng(seed)
    bits = generator.integers(2**23, 2**31 - 2**23, (rows, width), dtype=np.uint32)
    bits |= generator.integers(0, 2, (rows, width), dtype=np.uint32) << np.uint32(31)
    found = bits.view(np.float32)
    if odd:
        found = np.where(generator.random((rows, width)) < 0.5, generator.choice(ODD, (rows, width)), found)
    assert np.isfinite(found).all()
    return np.ascontiguousarray(found)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    width=st.sampled_from([3, 60, 64, 128, 129, 256, 257, 560]),
    seed=st.integers(0, 2**32),
    odd=st.booleans(),
)
def test_the_rows_are_those_of_the_gather_bit_for_bit(data: st.DataObject, width: int, seed: int, odd: bool) -> None:
    block = BLOCK * 2 ** max(0, (WIDE // width).bit_length() - 1)
    rows = data.draw(
        st.integers(1, 300) | st.integers(block - 2, block + 2) | st.integers(1, 3 * BLOCK + 5), label="rows"
    )
    keys = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=20)), dtype="<u4")
    given_rows = table(rows, width, seed=seed, odd=odd)
    found = ScannedTable(given_rows).take(keys)
    assert found.dtype == np.float32
    assert found.tobytes() == given_rows[keys].tobytes()


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("count", [1, scan.MOST_KEYS, scan.MOST_KEYS + 1, 2 * scan.MOST_KEYS + 3])
def test_more_keys_than_a_pass_takes_are_read_in_several(count: int, odd: bool) -> None:
    rows = table(2 * BLOCK + 77, 140, seed=1, odd=odd)
    keys = np.random.default_rng(2).integers(0, len(rows), count).astype(np.uint32)
    assert ScannedTable(rows).take(keys).tobytes() == rows[keys].tobytes()


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 127])
def test_every_row_of_a_small_table_is_found(rows: int) -> None:
    given_rows = table(rows, 4, seed=3, odd=True)
    keys = np.arange(rows, dtype=np.uint32)[::-1].copy()
    assert ScannedTable(given_rows).take(keys).tobytes() == given_rows[keys].tobytes()


def test_the_first_and_the_last_rows_of_blocks_are_found() -> None:
    rows = table(3 * BLOCK, 150, seed=4, odd=False)
    keys = np.array([0, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, 3 * BLOCK - 1], dtype=np.uint32)
    assert ScannedTable(rows).take(keys).tobytes() == rows[keys].tobytes()


@pytest.mark.parametrize("value", [-0.0, 1e-45, -1e-39])
def test_a_single_value_that_products_do_not_keep_comes_back_as_it_is(value: float) -> None:
    rows = np.ones((100, 3), dtype=np.float32)
    rows[41, 1] = value
    keys = np.array([41, 3, 41], dtype=np.uint32)
    assert ScannedTable(rows).take(keys).tobytes() == rows[keys].tobytes()


@pytest.mark.parametrize(("keys", "rows", "within"), [([0, 4], 5, True), ([5], 5, False), ([0, 2**32 - 1], 5, False)])
def test_one_key_beyond_the_table_is_noticed(keys: list[int], rows: int, within: bool) -> None:
    assert in_range(np.array(keys, dtype=np.uint32), rows) is within


ROWS, KEYS = 2 * BLOCK + 100, 12
#: Requests that an observer would like to tell apart.
ASKED = {
    "the first row alone": np.zeros(KEYS),
    "the last row alone": np.full(KEYS, ROWS - 1),
    "one block": np.arange(KEYS),
    "all blocks": np.linspace(0, ROWS - 1, KEYS),
    "all blocks, backwards": np.linspace(ROWS - 1, 0, KEYS),
}


def trace(take: Callable[[np.ndarray, np.ndarray], object], keys: np.ndarray, *, odd: bool = False) -> list[object]:
    rows = traced(table(ROWS, 130, seed=5, odd=odd))
    with tracing(scan) as notes:
        take(rows, traced(keys.astype(np.uint32)))
    return notes


def scanned(rows: np.ndarray, keys: np.ndarray) -> object:
    assert in_range(keys, len(rows))
    return ScannedTable(rows).take(keys)


def skipping(rows: np.ndarray, keys: np.ndarray) -> object:
    """A scan that leaves out the blocks that nobody asked for."""
    blocks = [number for number in range(0, ROWS, BLOCK) if bool(((keys >= number) & (keys < number + BLOCK)).any())]
    return [rows[number : number + BLOCK].max() for number in blocks]


@pytest.mark.parametrize("odd", [False, True])
def test_all_keys_leave_one_trace(odd: bool) -> None:
    traces = [trace(scanned, keys, odd=odd) for keys in ASKED.values()]
    assert len(traces[0]) > 30
    assert all(one == traces[0] for one in traces)


@pytest.mark.parametrize("take", [lambda rows, keys: rows[keys], skipping])
def test_a_gather_and_a_scan_that_skips_blocks_leave_traces_of_their_keys(
    take: Callable[[np.ndarray, np.ndarray], object],
) -> None:
    traces = [trace(take, keys) for keys in ASKED.values()]
    assert traces[0] != traces[1]
    assert traces[2] != traces[3]
