"""Rows of whole numbers in machine code: each kernel finds the bits of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from odp.crypto.keyed_hash import fraction_of, splitmix64
from odp.numerics.row_squares import LANES, row_squares

pytest.importorskip("numba")

from odp.numerics import row_kernels

_SIZES = [1, 7, 8, 15, 16, 17, 24, 100, 785]


def _row(size: int) -> np.ndarray:
    generator = np.random.default_rng(size)
    return (generator.normal(size=size) * 10.0 ** generator.integers(-20, 3, size)).astype(np.float32)


@pytest.mark.parametrize("size", _SIZES)
def test_squares_of_a_scaled_row_and_two_more_numbers(size: int) -> None:
    row, lanes, scale = _row(size), np.full(LANES, 7.0), 1.0 / 3.0
    for first, second in ((0.1, 0.0), (-0.1, 0.3)):
        expected = row_squares(np.append(row.astype(np.float64) * scale, [first, second])[None])[0]
        assert row_kernels.squares(row, scale, first, second, lanes) == expected
    alone = row_squares(row.astype(np.float64)[None])[0]
    assert row_kernels.squares(row, 1.0, 0.0, 0.0, lanes) == alone


@pytest.mark.parametrize("size", _SIZES)
def test_a_row_is_rounded_by_the_hashes_of_its_places(size: int) -> None:
    row, out = _row(size), np.full(size, 9, dtype=np.int32)
    scale, factor, stream = 1.0 / 3.0, 123.4, np.uint64(2**64 - 5)
    hashes = splitmix64(np.arange(size, dtype=np.uint64))
    found = row_kernels.round_row(row, scale, factor, stream, hashes, out)
    expected = np.floor(row.astype(np.float64) * scale * factor + fraction_of(splitmix64(stream ^ hashes)))
    np.testing.assert_array_equal(out, expected)
    assert found == np.square(expected).sum()
    assert row_kernels.round_number(0.5, stream, hashes[0]) == np.floor(
        0.5 + fraction_of(splitmix64(stream ^ hashes))[0]
    )


@pytest.mark.parametrize("size", _SIZES)
def test_rows_are_cut_to_whole_numbers_and_added(size: int) -> None:
    generator = np.random.default_rng(size)
    values, total = generator.integers(-(2**20), 2**20, size, dtype=np.int32), generator.integers(0, 2**50, size) * 1.0
    for factor in (1.0, 0.999):
        expected = total + np.trunc(values * factor)
        row_kernels.add_row(values, factor, total)
        np.testing.assert_array_equal(total, expected)
