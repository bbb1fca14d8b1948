"""Rows of float32 as whole numbers: squares, rounding at random, and sums.

The operations are those of numpy in their order, nothing is fused, and a sum of squares has the 16 lanes of
``odp.numerics.row_squares``: the numbers are those of numpy, to the bit. Import needs numba; nothing imports this
module at the top.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.numerics.hash_kernels import splitmix64
from odp.numerics.row_squares import LANES

_UNUSED, _UNIT = np.uint64(11), 2.0**-53  # bits of a hash beyond the digits of a float64, and its last digit


@numba.njit(nogil=True, cache=True)
def squares(row: Any, scale: float, first: float, second: float, lanes: Any) -> Any:
    """``row_squares`` of one row: of ``row`` float32 times ``scale``, and of two numbers after it.

    ``lanes`` float64 [16] is overwritten.
    """
    size = len(row)
    whole = size // LANES * LANES
    lanes[:] = 0.0
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            value = np.float64(row[start + lane]) * scale
            lanes[lane] += value * value
    for place in range(whole, size):
        value = np.float64(row[place]) * scale
        lanes[place - whole] += value * value
    lanes[size % LANES] += first * first
    lanes[(size + 1) % LANES] += second * second
    total = lanes[0]
    for lane in range(1, LANES):
        total += lanes[lane]
    return total


@numba.njit(nogil=True, cache=True)
def round_row(row: Any, scale: float, factor: float, stream: Any, hashes: Any, out: Any) -> Any:
    """Fills ``out`` int32 with ``row`` float32 times ``scale`` times ``factor``, rounded at random; the sum of squares.

    Args:
      stream: uint64, of user and round.
      hashes: uint64, of the places.
    """
    total = np.int64(0)
    for place in range(len(row)):
        rounded = np.int32(round_number(np.float64(row[place]) * scale * factor, stream, hashes[place]))
        out[place] = rounded
        total += np.int64(rounded) * np.int64(rounded)
    return np.float64(total)


@numba.njit(nogil=True, cache=True, inline="always")
def round_number(value: float, stream: Any, place: Any) -> Any:
    """``value`` rounded up or down, without bias, by the hash of a stream and the hash of a place."""
    return np.floor(value + np.float64(np.int64(splitmix64(stream ^ place) >> _UNUSED)) * _UNIT)


@numba.njit(nogil=True, cache=True)
def add_row(values: Any, factor: float, total: Any) -> None:
    """Adds ``values`` int32 times ``factor``, cut to whole numbers, to ``total`` float64."""
    for place in range(len(values)):
        total[place] += np.trunc(np.float64(values[place]) * factor)
