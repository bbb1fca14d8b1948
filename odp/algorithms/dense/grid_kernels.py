"""``odp.algorithms.dense.grid.quantise_rows`` of clipped differences, added up, in machine code.

Import needs numba; nothing imports this module at the top. No operation is fused or reordered: the numbers are those of
numpy, to the bit.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.numerics.hash_kernels import splitmix64
from odp.numerics.row_kernels import add_row, round_number, round_row, squares
from odp.numerics.row_squares import LANES


@numba.njit(nogil=True, cache=True)
def add_rounded(
    moved: Any, clip: float, trained: Any, half: float, spread: float, bound: float, step: float, units: float,
    limit: float, seeds: Any, round: int, hashes: Any, total: Any,
) -> bool:  # fmt: skip
    """Adds to ``total`` float64 [numbers] what users send of ``moved`` float32 [users, size]; False where not finite.

    Args:
      clip: the clip norm.
      trained: bool [users], of a usable example.
      half: of the number after the difference, which says whether a norm is within the clip norm; 0 for none.
      spread: of the last number, times the squared norm of what is sent; 0 for none.
      bound, step, units, limit: of the grid.
      seeds: uint64 [users].
      hashes: uint64 [numbers], of the places.
    """
    size, numbers = moved.shape[1], len(total)
    values, lanes, extra = np.zeros(numbers, dtype=np.int32), np.zeros(LANES), np.zeros(2)
    for user in range(len(moved)):
        row = moved[user]
        stream = splitmix64(splitmix64(seeds[user]) ^ np.uint64(round))
        length = np.sqrt(squares(row, 1.0, 0.0, 0.0, lanes))
        if not np.isfinite(length):
            return False
        divisor = max(length, clip)
        scale = 1.0 / divisor
        ratio = length / divisor
        square = spread * (ratio * ratio)
        bit = 0.0 if not trained[user] else half if length <= clip else -half
        extra[0], extra[1] = (bit, square) if half > 0.0 else (square, 0.0)
        longer = np.sqrt(squares(row, scale, extra[0], extra[1], lanes))
        factor = min(1.0, bound / max(longer, bound)) / step
        total_squares = round_row(row, scale, factor, stream, hashes, values)
        for place in range(size, numbers):
            rounded = round_number(extra[place - size] * factor, stream, hashes[place])
            values[place] = np.int32(rounded)
            total_squares += rounded * rounded
        add_row(values, units / np.sqrt(total_squares) if total_squares > limit else 1.0, total)
    return True
