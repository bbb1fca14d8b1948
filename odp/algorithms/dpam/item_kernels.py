"""The server's inner loops in machine code: which item matrices are positive definite, and posteriors of item rows.

The same as the numpy forms in ``estimation.py``, one item at a time. Import needs numba; nothing imports this module at
the top. All functions release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.algorithms.dpam.tiles import LANES, add_products, add_triangular

_FUSED = {"contract", "nsz"}
# Below this share of the diagonal, a pivot may be rounding: such a matrix is left to the eigensolver.
_SMALLEST = 1e-11


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def eliminate(matrix: Any, size: int, last: Any) -> bool:
    """Rows of [M | R] become [U | U^-T R], with M = U'U positive definite; False where a pivot is not positive.

    Args:
      matrix: [size, columns]; of M, the first ``size`` columns, only the upper triangle is read.
      size: of M.
      last: int64 [size], the columns of each row that count, ascending.
    """
    for row in range(size):
        mine = matrix[row]
        step, whole = 0, mine[row]
        while step + 8 <= row:
            a, b, c, d = matrix[step], matrix[step + 1], matrix[step + 2], matrix[step + 3]
            e, f, g, h = matrix[step + 4], matrix[step + 5], matrix[step + 6], matrix[step + 7]
            fa, fb, fc, fd, fe, ff, fg, fh = a[row], b[row], c[row], d[row], e[row], f[row], g[row], h[row]
            for column in range(row, last[step + 7]):
                first = fa * a[column] + fb * b[column] + fc * c[column] + fd * d[column]
                mine[column] -= first + (fe * e[column] + ff * f[column] + fg * g[column] + fh * h[column])
            step += 8
        while step < row:
            a = matrix[step]
            fa = a[row]
            for column in range(row, last[step]):
                mine[column] -= fa * a[column]
            step += 1
        if not mine[row] > _SMALLEST * whole:
            return False
        scale = 1.0 / np.sqrt(mine[row])
        for column in range(row, last[row]):
            mine[column] *= scale
    return True


@numba.njit(nogil=True, cache=True)
def positive(matrices: Any, out: Any) -> None:
    """Whether each symmetric matrix [k, w, w] is clearly positive definite, bool [k]."""
    width = matrices.shape[1]
    scratch = np.empty((width, width))
    last = np.full(width, width, dtype=np.int64)
    for item in range(len(matrices)):
        scratch[:] = matrices[item]
        out[item] = eliminate(scratch, width, last)


@numba.njit(nogil=True, cache=True)
def unpack(packed: Any, mass: Any, common: Any, gain: Any, out: Any) -> None:
    """Fills [k, w, w] with expected + gain (packed - expected), expected = mass times the packed ``common``."""
    width = out.shape[1]
    for item in range(len(out)):
        place = 0
        for one in range(width):
            for two in range(one, width):
                expected = mass[item] * common[place]
                value = expected + gain[item] * (packed[item, place] - expected)
                out[item, one, two] = value
                out[item, two, one] = value
                place += 1


@numba.njit(nogil=True, cache=True)
def posterior(
    matrices: Any,
    right: Any,
    noise: Any,
    sampling: Any,
    first_precision: Any,
    precision: Any,
    mean: Any,
    variance: Any,
    covariance: Any,
) -> None:
    """Posterior of r ~ N(0, prior) given b = A r + error, error ~ N(0, noise I + sampling A), per item.

    In information form: precision H + prior^-1 with H = A (noise I + sampling A)^-1 A.

    Args:
      matrices: A, positive semidefinite [k, w, w].
      right: b [k, w].
      noise, sampling: > 0 [k].
      first_precision: prior precision of the first entry [k].
      precision: prior precision of the others [w - 1, w - 1].
      mean, variance: [k, w] to fill.
      covariance: [w, w], to which the upper triangles of the posterior covariances are added.
    """
    width = matrices.shape[1]
    columns = (width + 1 + LANES - 1) // LANES * LANES
    system = np.empty((width, 2 * width + 1))
    whole = np.full(width, 2 * width + 1, dtype=np.int64)
    growing = np.arange(width + 2, 2 * width + 2)  # of U^-T, row k has k + 1 entries
    halves, squares, total = np.zeros(width * columns), np.empty(columns * columns), np.zeros(columns * columns)
    for item in range(len(matrices)):
        for row in range(width):
            for column in range(width):
                value = matrices[item, row, column]
                system[row, column] = sampling[item] * value
                system[row, width + 1 + column] = value
            system[row, row] += noise[item]
            system[row, width] = right[item, row]
        eliminate(system, width, whole)
        for row in range(width):
            halves[row * columns + width] = system[row, width]
            for column in range(width):
                halves[row * columns + column] = system[row, width + 1 + column]
        squares[:] = 0.0
        add_products(halves, columns, halves, columns, squares, width, columns)
        for row in range(width):
            for column in range(row, width):
                system[row, column] = squares[row * columns + column]
                if row > 0:
                    system[row, column] += precision[row - 1, column - 1]
            system[row, width] = squares[row * columns + width]
            system[row, width + 1 :] = 0.0
            system[row, width + 1 + row] = 1.0
        system[0, 0] += first_precision[item]
        eliminate(system, width, growing)
        halves[:] = 0.0
        mean[item] = 0.0
        variance[item] = 0.0
        for row in range(width):
            for column in range(row + 1):
                value = system[row, width + 1 + column]
                halves[row * columns + column] = value
                mean[item, column] += value * system[row, width]
                variance[item, column] += value * value
        add_triangular(halves, columns, total, width)
    for row in range(width):
        for column in range(row, width):
            covariance[row, column] += total[row * columns + column]
