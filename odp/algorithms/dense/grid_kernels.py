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
    moved: Any, clip: float, half: float, bound: float, step: float, units: float, limit: float, seeds: Any, round: int,
    hashes: Any, total: Any,
) -> bool:  # fmt: skip
    """Adds to ``total`` float64 [numbers] what users send of ``moved`` float32 [users, size]; False where not finite.

    Args:
      clip: the clip norm.
      half: of the last number, which says whether a norm is within the clip norm; there is none where ``numbers`` is
        ``size``.
      bound, step, units, limit: of the grid.
      seeds: uint64 [users].
      hashes: uint64 [numbers], of the places.
    """
    size, numbers = moved.shape[1], len(total)
    values, lanes = np.zeros(numbers, dtype=np.int32), np.zeros(LANES)
    for user in range(len(moved)):
        row, last = moved[user], 0.0
        stream = splitmix64(splitmix64(seeds[user]) ^ np.uint64(round))
        length = np.sqrt(squares(row, 1.0, 0.0, lanes))
        if not np.isfinite(length):
            return False
        scale = 1.0 / max(length, clip)
        if numbers > size:
            last = 0.0 if length <= 0.0 else half if length <= clip else -half
        longer = np.sqrt(squares(row, scale, last, lanes))
        factor = min(1.0, bound / max(longer, bound)) / step
        total_squares = round_row(row, scale, factor, stream, hashes, values, lanes)
        if numbers > size:
            rounded = round_number(last * factor, stream, hashes[size])
            values[size] = np.int32(rounded)
            total_squares += rounded * rounded
        add_row(values, units / np.sqrt(total_squares) if total_squares > limit else 1.0, total)
    return True
