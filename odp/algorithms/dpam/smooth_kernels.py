"""``userside.predictions`` for many users at once, in machine code.

Import needs numba; releases the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.algorithms.dpam.userside import JITTER, LENGTH, MOST_CENTRES, ROW_SHARE, SAME, SQUARINGS
from odp.numerics.tiles import CHUNK, LANES, TILE_ROWS, add_outer, add_pairs, eliminate, substitute

_FUSED = {"contract", "nsz"}


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def predict(
    offsets: Any,
    items: Any,
    values: Any,
    wanted_offsets: Any,
    wanted: Any,
    factors: Any,
    rank: int,
    base: Any,
    trust: Any,
    row_ridge: float,
    bias_ridge: float,
    variance: float,
    out: Any,
) -> None:
    """Fills ``out`` float64 [len(wanted)] with predictions.

    Args:
      offsets: int64 [n + 1], from the first of ``items``; ``wanted_offsets`` the same of ``wanted``.
      items, values: own entries of the users, a user's in ascending order of the items.
      wanted: items to predict.
      factors: float64 [m, C], C >= ``rank``.
      base, trust: of the items, float64 [m].
      row_ridge, bias_ridge, variance: as in ``userside.predictions``.
    """
    most = rank + MOST_CENTRES
    widest = _padded(most)
    system = np.empty((max(most + 1, widest) + TILE_ROWS) * _padded(most + 2))
    points, places = np.empty(CHUNK * widest), np.empty(CHUNK, np.int64)
    weights, pairs, sums = np.empty(CHUNK), np.empty(2 * CHUNK), np.empty(2 * widest)
    centre_kernel, solution = np.empty((MOST_CENTRES, MOST_CENTRES)), np.empty(most + 1)
    for user in range(len(offsets) - 1):
        first, last = offsets[user], offsets[user + 1]
        begin, end = wanted_offsets[user], wanted_offsets[user + 1]
        if begin == end:
            continue
        step = max(1, (last - first + MOST_CENTRES - 1) // MOST_CENTRES)
        middle, scale = _centres(items[first:last:step], factors, rank)
        count = middle.shape[1]
        size = rank + count
        columns, width = _padded(size), _padded(size + 2)
        flat = system[: (max(size + 1, columns) + TILE_ROWS) * width]
        table = points[: CHUNK * columns].reshape(CHUNK, columns)
        flat[:] = 0.0
        sums[:] = 0.0
        table[:] = 0.0
        weight_sum, target_sum = 0.0, 0.0
        filled = 0
        for entry in range(first, last):
            item = items[entry]
            weight = trust[item]
            target = weight * (values[entry] - base[item])
            weight_sum += weight
            target_sum += target
            _fill(factors[item], rank, middle, scale, table[filled])
            if count and (entry - first) % step == 0:
                centre_kernel[(entry - first) // step, :count] = table[filled, rank:size]
            places[filled] = filled * columns
            weights[filled] = weight
            pairs[2 * filled], pairs[2 * filled + 1] = weight, target
            filled += 1
            if filled == CHUNK:
                add_outer(points, places, weights, columns, flat, width, filled)
                add_pairs(points, places, pairs, columns, sums, filled)
                filled = 0
        add_outer(points, places, weights, columns, flat, width, filled)
        add_pairs(points, places, pairs, columns, sums, filled)
        rows = flat.reshape(-1, width)
        for row in range(size):
            if row < rank:
                rows[row, row] += row_ridge / ROW_SHARE
            else:
                rows[row, row] += JITTER / variance
                for column in range(row, size):
                    rows[row, column] += centre_kernel[row - rank, column - rank] / variance
            rows[row, size] = sums[row]
            rows[row, size + 1] = sums[columns + row]
        rows[size, size] = weight_sum + bias_ridge
        rows[size, size + 1] = target_sum
        eliminate(flat, width, size + 1, np.full(size + 1, width, dtype=np.int64))
        substitute(flat, width, size + 1, solution)
        for place in range(begin, end):
            _fill(factors[wanted[place]], rank, middle, scale, table[0])
            total = base[wanted[place]] + solution[size]
            for column in range(size):
                total += table[0, column] * solution[column]
            out[place] = total


@numba.njit(nogil=True, cache=True)
def _padded(size: int) -> int:
    return (size + LANES - 1) // LANES * LANES


@numba.njit(nogil=True, cache=True)
def _centres(items: Any, factors: Any, rank: int) -> Any:
    """(rows of ``items`` [rank, count], what distances are multiplied by); none where all rows are the same."""
    middle = np.empty((rank, len(items)))
    spread, squares = 0.0, 0.0
    for column in range(rank):
        mean = 0.0
        for centre, item in enumerate(items):
            middle[column, centre] = factors[item, column]
            mean += middle[column, centre]
            squares += middle[column, centre] ** 2
        mean /= max(len(items), 1)
        for centre in range(len(items)):
            spread += (middle[column, centre] - mean) ** 2
    if spread > SAME * squares:
        return middle, 0.5 / (2**SQUARINGS * LENGTH * spread / (len(items) - 1))
    return np.empty((rank, 0)), 0.0


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _fill(row: Any, rank: int, middle: Any, scale: float, out: Any) -> None:
    out[:rank] = row[:rank]
    kernels = out[rank : rank + middle.shape[1]]
    kernels[:] = 0.0
    for column in range(rank):
        for centre in range(len(kernels)):
            off = row[column] - middle[column, centre]
            kernels[centre] += off * off
    for centre in range(len(kernels)):
        kernel = 1.0 / (1.0 + scale * kernels[centre])
        for _ in range(SQUARINGS):
            kernel *= kernel
        kernels[centre] = kernel
