"""The server's inner loops in machine code: which item matrices are positive definite, and posteriors of item rows.

The same as the numpy forms in ``estimation.py``, one item at a time. Import needs numba; nothing imports this module at
the top. All functions release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.algorithms.dpam.tiles import LANES, TILE_ROWS, add_products, add_triangular, eliminate


@numba.njit(nogil=True, cache=True)
def positive(matrices: Any, out: Any) -> None:
    """Whether each symmetric matrix [k, w, w] is clearly positive definite, bool [k]."""
    size = matrices.shape[1]
    width = (size + LANES - 1) // LANES * LANES
    flat = np.zeros((size + TILE_ROWS) * width)
    system = flat.reshape(size + TILE_ROWS, width)
    last = np.full(size, width, dtype=np.int64)
    for item in range(len(matrices)):
        system[:size, :size] = matrices[item]
        out[item] = eliminate(flat, width, size, last)


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
    size = matrices.shape[1]
    columns = (size + 1 + LANES - 1) // LANES * LANES  # of [M | b]; what stands beside it begins at a whole vector
    width = 2 * columns
    flat = np.zeros((size + TILE_ROWS) * width)
    system = flat.reshape(size + TILE_ROWS, width)
    whole = np.full(size, width, dtype=np.int64)
    growing = columns + (np.arange(size) // LANES + 1) * LANES  # row k of U^-T has k + 1 entries
    halves, squares, total = np.zeros(size * columns), np.empty(columns * columns), np.zeros(columns * columns)
    for item in range(len(matrices)):
        for row in range(size):
            for column in range(size):
                value = matrices[item, row, column]
                system[row, column] = sampling[item] * value
                system[row, columns + column] = value
            system[row, row] += noise[item]
            system[row, size] = right[item, row]
        eliminate(flat, width, size, whole)
        for row in range(size):
            halves[row * columns + size] = system[row, size]
            for column in range(size):
                halves[row * columns + column] = system[row, columns + column]
        squares[:] = 0.0
        add_products(halves, columns, halves, columns, squares, size, columns)
        for row in range(size):
            for column in range(row, size):
                system[row, column] = squares[row * columns + column]
            if row > 0:
                for column in range(row, size):
                    system[row, column] += precision[row - 1, column - 1]
            system[row, size] = squares[row * columns + size]
            system[row, columns:] = 0.0
            system[row, columns + row] = 1.0
        system[0, 0] += first_precision[item]
        eliminate(flat, width, size, growing)
        halves[:] = 0.0
        mean[item] = 0.0
        variance[item] = 0.0
        for row in range(size):
            for column in range(row + 1):
                value = system[row, columns + column]
                halves[row * columns + column] = value
                mean[item, column] += value * system[row, size]
                variance[item, column] += value * value
        add_triangular(halves, columns, total, size)
    for row in range(size):
        for column in range(row, size):
            covariance[row, column] += total[row * columns + column]
