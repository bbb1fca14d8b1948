"""First attempts of the exact sampler in machine code: the same numbers as ``rounded_gaussian._first_tries``.

Whatever needs an exponential stays in numpy, so that no rounding differs. Import needs numba; nothing imports this
module at the top.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

_ZERO, _ONE, _COIN = np.uint64(0), np.uint64(1), np.uint64(11)


def first_tries(table: Any, words: NDArray[np.uint64], out: NDArray[np.int64]) -> tuple[NDArray[np.generic], ...]:
    """As ``rounded_gaussian._first_tries``; the arrays of its result, in order."""
    size = len(out)
    position, index, step = (np.empty(size, dtype=np.int64) for _ in range(3))
    coin, tied = np.empty(size, dtype=np.uint64), np.empty(size, dtype=np.bool_)
    bits = np.uint64(64 - (len(table.guide) - 1).bit_length() + 1)
    tables = words, table.words, table.high, table.guide, bits, table.cell, table.lowest, table.surely
    count = _first_tries(*tables, out, position, index, step, coin, tied)
    return position[:count], index[:count], step[:count], coin[:count], tied[:count]


@numba.njit(nogil=True, cache=True)
def _first_tries(
    words: Any,
    per_number: int,
    high: Any,
    guide: Any,
    shift: Any,
    cell: int,
    lowest: int,
    surely: Any,
    out: Any,
    position_out: Any,
    index_out: Any,
    step_out: Any,
    coin_out: Any,
    tied_out: Any,
) -> int:
    count, unsure = len(out), 0
    mask = np.uint64(cell) - _ONE
    last = (per_number - 1) * count
    for place in range(count):
        upper = words[place]
        bucket = np.int64(upper >> shift)
        first, end = np.int64(guide[bucket]), np.int64(guide[bucket + 1])
        while first < end:
            middle = (first + end) >> 1
            if high[middle] <= upper:
                first = middle + 1
            else:
                end = middle
        tied = first > 0 and high[first - 1] == upper
        step, coin, sure = np.int64(0), _ZERO, True
        if cell == 1:
            out[place] = first + lowest
        else:
            step = np.int64(words[count + place] & mask)
            coin = words[last + place] >> _COIN
            sure = coin < surely[first]
            # Below zero, -((-number - 1) cell + step + 1): the complement of what it is above, without a branch.
            number = first + lowest
            sign = number >> np.int64(63)
            out[place] = ((number ^ sign) * cell + step) ^ sign
        if tied or not sure:
            position_out[unsure], index_out[unsure], step_out[unsure] = place, first, step
            coin_out[unsure], tied_out[unsure] = coin, tied
            unsure += 1
    return unsure


@numba.njit(nogil=True, cache=True)
def add_to_columns(integers: Any, values: Any, width: int, columns: Any, start: int, numbers: Any, step: float) -> None:
    """Turns sums at hand into what is released: (sum + number) * step, in the same memory.

    Args:
      integers, values: the same memory as flat int64 and float64, rows of ``width``.
      columns: int64 [k] that the numbers are for, row by row.
      start: of the first of ``numbers``, among all that are for these columns.
      step: of the grid.
    """
    count, done = len(columns), 0
    row, column = start // count, start % count
    while done < len(numbers):
        size = min(count - column, len(numbers) - done)
        base = row * width
        for k in range(size):
            place = base + columns[column + k]
            values[place] = (integers[place] + numbers[done + k]) * step
        done, row, column = done + size, row + 1, 0
