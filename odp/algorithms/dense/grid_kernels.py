"""``odp.algorithms.dense.grid.quantise_rows`` of clipped differences, added up, in machine code.

Import needs numba; nothing imports this module at the top. No operation is fused or reordered: the numbers are those of
numpy, to the bit.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.numerics.hash_kernels import splitmix64
from odp.numerics.row_squares import LANES

_S11 = np.uint64(11)
_UNIT = 2.0**-53


@numba.njit(nogil=True, cache=True)
def _squares(values: Any, lanes: Any) -> Any:
    """``odp.numerics.row_squares.row_squares`` of one row."""
    for lane in range(LANES):
        lanes[lane] = 0.0
    whole = len(values) // LANES * LANES
    for start in range(0, whole, LANES):
        part = values[start : start + LANES]
        for lane in range(LANES):
            value = np.float64(part[lane])
            lanes[lane] += value * value
    for place in range(whole, len(values)):
        value = np.float64(values[place])
        lanes[place - whole] += value * value
    total = lanes[0]
    for lane in range(1, LANES):
        total += lanes[lane]
    return total


@numba.njit(nogil=True, cache=True)
def add_rounded(
    moved: Any, clip: float, trained: Any, half: float, spread: float, bound: float, step: float, units: float,
    limit: float, streams: Any, hashes: Any, total: Any,
) -> bool:  # fmt: skip
    """Adds to ``total`` float64 [numbers] what users send of ``moved`` float32 [users, size]; False where not finite.

    Args:
      clip: the clip norm.
      trained: bool [users], of a usable example.
      half: of the number after the difference, which says whether a norm is within the clip norm; 0 for none.
      spread: of the last number, times the squared norm of what is sent; 0 for none.
      bound, step, units, limit: of the grid.
      streams: uint64 [users], of user and round.
      hashes: uint64 [numbers], of the places.
    """
    size, numbers = moved.shape[1], len(total)
    values, lanes = np.zeros(numbers), np.zeros(LANES)
    for user in range(len(moved)):
        row, stream = moved[user], streams[user]
        length = np.sqrt(_squares(row, lanes))
        if not np.isfinite(length):
            return False
        divisor = max(length, clip)
        for place in range(size):
            values[place] = np.float64(row[place]) / divisor
        if half > 0.0:
            values[size] = 0.0 if not trained[user] else half if length <= clip else -half
        if spread > 0.0:
            ratio = length / divisor
            values[numbers - 1] = spread * (ratio * ratio)
        longer = np.sqrt(_squares(values, lanes))
        factor = min(1.0, bound / max(longer, bound)) / step
        for place in range(numbers):
            hashed = splitmix64(stream ^ hashes[place]) >> _S11
            values[place] = np.floor(values[place] * factor + np.float64(np.int64(hashed)) * _UNIT)
        squares = _squares(values, lanes)
        if squares > limit:
            shorter = units / np.sqrt(squares)
            for place in range(numbers):
                values[place] = np.trunc(values[place] * shorter)
        for place in range(numbers):
            total[place] += values[place]
    return True
