"""Weighted sums of outer products, ``C[i, j] += sum_k w[k] x_i[k] x_j[k]``, and the elimination of one small matrix.

A user's or an item's matrix is small, and only its upper triangle is wanted. Vectors stand in columns, so that a sum
runs along a row: numba turns it into vector code, and keeps the sums of four cells in registers meanwhile. Import
needs numba; nothing imports this module at the top.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

#: Vectors per call of :func:`add_outer`: a chunk of them stays in the processor's cache.
CHUNK = 128


@numba.njit(nogil=True, cache=True)
def even(width: int) -> int:
    """``width``, or the next even number: :func:`add_outer` takes rows two by two."""
    return width + (width & 1)


@numba.njit(nogil=True, cache=True)
def columns_of(width: int) -> Any:
    """Space for ``CHUNK`` vectors of ``width`` numbers, as :func:`add_outer` takes them.

    Rows are a bit longer, so that the numbers of one vector do not compete for the same places of the cache.
    """
    return np.zeros((even(width), CHUNK + 8))


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def add_outer(x: Any, weights: Any, c: Any, steps: int) -> None:
    """``c[i, j] += sum_k w[k] x[i, k] x[j, k]`` for k < ``steps``; only the upper triangle of ``c`` is complete.

    Exact for whole numbers as long as no sum of absolute values reaches 2^53.

    Args:
      x: float64 [n or more, at least ``steps``].
      weights: float64, at least ``steps``.
      c: float64 [n, n], n even.
    """
    left, other_left = np.empty(steps), np.empty(steps)
    for row in range(0, len(c), 2):
        for k in range(steps):
            left[k], other_left[k] = weights[k] * x[row, k], weights[k] * x[row + 1, k]
        for column in range(row, len(c), 2):
            right, other_right = x[column], x[column + 1]
            total, upper, lower, diagonal = 0.0, 0.0, 0.0, 0.0
            for k in range(steps):
                total += left[k] * right[k]
                upper += left[k] * other_right[k]
                lower += other_left[k] * right[k]
                diagonal += other_left[k] * other_right[k]
            c[row, column] += total
            c[row, column + 1] += upper
            c[row + 1, column] += lower
            c[row + 1, column + 1] += diagonal


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
def _eliminate(m: Any, row: int, last: int) -> None:
    """Takes the multiples of all rows above from ``m[row, row:last]``, which is read and written for four at once."""
    target, fours = m[row], row // 4 * 4
    for above in range(0, fours, 4):
        a, b, c, d = m[above], m[above + 1], m[above + 2], m[above + 3]
        first, second, third, fourth = a[row], b[row], c[row], d[row]
        for column in range(row, last):
            value = target[column] - first * a[column]
            value -= second * b[column]
            value -= third * c[column]
            target[column] = value - fourth * d[column]
    for above in range(fours, row):
        source, factor = m[above], m[above, row]
        for column in range(row, last):
            target[column] -= factor * source[column]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def solve(m: Any, size: int, out: Any) -> None:
    """Fills ``out`` [size] with M^-1 b, where ``m`` float64 [size or more, size + 1 or more] holds [M | b].

    M is positive definite, and only its upper triangle counts; ``m`` becomes [U | U^-T b] with M = U'U.
    """
    for row in range(size):
        _eliminate(m, row, size + 1)
        target = m[row]
        scale = 1.0 / np.sqrt(target[row])
        for column in range(row, size + 1):
            target[column] *= scale
    for row in range(size - 1, -1, -1):
        total = m[row, size]
        for column in range(row + 1, size):
            total -= m[row, column] * out[column]
        out[row] = total / m[row, row]
