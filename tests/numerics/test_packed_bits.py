"""Numbers of few bits: packed as one long binary number, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.numerics import packed_bits
from odp.numerics.packed_bits import pack, packed_bytes, spare_bits, unpack


@settings(max_examples=200, deadline=None)
@given(width=st.integers(1, 16), count=st.integers(1, 50), rows=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_a_row_is_one_binary_number_from_the_left(width: int, count: int, rows: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**width, size=(rows, count)).astype(np.uint16)
    packed = pack(numbers, width)
    assert packed.shape == (rows, packed_bytes(count, width))
    for row, found in zip(numbers, packed, strict=True):
        binary = "".join(format(int(number), f"0{width}b") for number in row).ljust(8 * packed.shape[1], "0")
        assert found.tobytes() == int(binary, 2).to_bytes(packed.shape[1], "big")
    np.testing.assert_array_equal(unpack(packed, count, width), numbers)
    assert not spare_bits(packed, count, width).any()


@pytest.mark.parametrize("width", [3, 11, 15])
def test_long_rows_are_packed_in_passes(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(width).integers(0, 2**width, size=(2, 1003)).astype(np.uint16)
    packed = pack(numbers, width)
    monkeypatch.setattr(packed_bits, "_GROUPS", 4)
    np.testing.assert_array_equal(pack(numbers, width), packed)
    np.testing.assert_array_equal(unpack(packed, 1003, width), numbers)


def test_spare_bits_are_found_row_by_row() -> None:
    packed = pack(np.zeros((3, 3), dtype=np.uint16), 9)
    packed[1, -1] |= 1
    packed[2, -1] |= 32  # the last number's own bit
    assert spare_bits(packed, 3, 9).tolist() == [False, True, False]
    assert not spare_bits(np.full((1, 4), 255, dtype=np.uint8), 4, 8).any()
