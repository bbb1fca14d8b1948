"""The server's inner loops in machine code: shrinkage and projection of item matrices, posteriors of item rows.

The same as the numpy forms in ``estimation.py`` and ``posteriors.py``, one item at a time; symmetric matrices are
packed upper triangles [p]. Import needs numba; nothing imports this module at the top. All functions release the
interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.numerics.projection_kernels import project
from odp.numerics.tiles import LANES, TILE_ROWS, add_outer, add_triangular, eliminate

_SUMMED = {"contract", "nsz", "reassoc"}


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


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED)
def squared_distances(packed: Any, scale: Any, mass: Any, shape: Any, out: Any) -> None:
    """Sum over the columns of (packed * scale - mass * shape)^2 per item [k]."""
    for item in range(len(packed)):
        row, expected = packed[item], mass[item]
        total = 0.0
        for column in range(len(shape)):
            off = row[column] * scale[column] - expected * shape[column]
            total += off * off
        out[item] = total


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
def shrink(packed: Any, scale: Any, mass: Any, gain: Any, shape: Any, size: int, out: Any, sure: Any) -> None:
    """Moves packed * scale toward mass * shape, then takes negative eigenvalues away.

    Args:
      packed: [k, p].
      scale, shape: [p].
      mass, gain: [k]; a gain of 1 moves nothing.
      size: of the matrices.
      out: [k, p] to fill.
      sure: bool [k] to fill: whether the matrix is positive semidefinite now. If not, nothing was taken away.
    """
    width = (size + LANES - 1) // LANES * LANES
    flat = np.zeros((size + TILE_ROWS) * width)
    system = flat.reshape(size + TILE_ROWS, width)
    last = np.full(size, width, dtype=np.int64)
    for item in range(len(packed)):
        given, found, kept = packed[item], out[item], gain[item]
        expected = (1.0 - kept) * mass[item]
        for column in range(len(shape)):
            found[column] = expected * shape[column] + kept * (given[column] * scale[column])
        place = 0
        for row in range(size):
            for column in range(row, size):
                system[row, column] = found[place + column - row]
            place += size - row
        sure[item] = eliminate(flat, width, size, last)
    project(out, size, sure)


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED)
def products(packed: Any, vectors: Any, out: Any) -> None:
    """Adds each packed symmetric matrix [k, p] times its vector [k, w] to ``out`` [k, w]."""
    size = vectors.shape[1]
    for item in range(len(packed)):
        matrix, given, found, place = packed[item], vectors[item], out[item], 0
        for row in range(size):
            total, here = matrix[place] * given[row], given[row]
            for column in range(row + 1, size):
                value = matrix[place + column - row]
                total += value * given[column]
                found[column] += value * here
            found[row] += total
            place += size - row


@numba.njit(nogil=True, cache=True)
def evidence(packed: Any, right: Any, noise: Any, sampling: Any, told: Any, told_right: Any) -> None:
    """H = A (noise I + sampling A)^-1 A and A (noise I + sampling A)^-1 b, per item.

    Args:
      packed: A, positive semidefinite [k, p].
      right: b [k, w].
      noise, sampling: > 0 [k].
      told: H packed [k, p], to fill.
      told_right: [k, w] to fill.
    """
    size = right.shape[1]
    columns = (size + 1 + LANES - 1) // LANES * LANES  # of M; what stands beside it begins at a whole vector
    width = 2 * columns
    flat = np.zeros((size + TILE_ROWS) * width)
    system = flat.reshape(size + TILE_ROWS, width)
    whole = np.full(size, width, dtype=np.int64)
    halves, ones = np.arange(size) * width + columns, np.ones(size)
    sums = np.empty(columns * columns)
    for item in range(len(packed)):
        matrix, place = packed[item], 0
        for row in range(size):
            for column in range(row, size):
                value = matrix[place + column - row]
                system[row, column] = sampling[item] * value
                system[row, columns + column] = value
            for column in range(row + 1, size):
                system[column, columns + row] = matrix[place + column - row]
            place += size - row
            system[row, row] += noise[item]
            system[row, columns + size] = right[item, row]
        eliminate(flat, width, size, whole)
        sums[:] = 0.0
        add_outer(flat, halves, ones, columns, sums, columns, size)
        found, place = told[item], 0
        for row in range(size):
            for column in range(row, size):
                found[place + column - row] = sums[row * columns + column]
            place += size - row
            told_right[item, row] = sums[row * columns + size]


@numba.njit(nogil=True, cache=True)
def posterior(
    told: Any, told_right: Any, first_precision: Any, precision: Any, mean: Any, variance: Any, covariance: Any
) -> None:
    """Means and variances of the rows of posterior precision H + prior precision, per item.

    Args:
      told, told_right: as filled by :func:`evidence`.
      first_precision: prior precision of the first entry [k].
      precision: prior precision of the others [w - 1, w - 1].
      mean, variance: [k, w] to fill.
      covariance: [w, w], to which the upper triangles of the posterior covariances are added.
    """
    size = told_right.shape[1]
    columns = (size + 1 + LANES - 1) // LANES * LANES
    width = 2 * columns
    flat = np.zeros((size + TILE_ROWS) * width)
    system = flat.reshape(size + TILE_ROWS, width)
    growing = columns + (np.arange(size) // LANES + 1) * LANES  # row k of U^-T has k + 1 entries
    total = np.zeros(columns * columns)
    for item in range(len(told)):
        matrix, place = told[item], 0
        for row in range(size):
            for column in range(row, size):
                system[row, column] = matrix[place + column - row]
            if row > 0:
                for column in range(row, size):
                    system[row, column] += precision[row - 1, column - 1]
            place += size - row
            system[row, size] = told_right[item, row]
            system[row, columns:] = 0.0
            system[row, columns + row] = 1.0
        system[0, 0] += first_precision[item]
        eliminate(flat, width, size, growing)
        means, variances = mean[item], variance[item]
        means[:] = 0.0
        variances[:] = 0.0
        for row in range(size):
            last = system[row, size]
            half = system[row, columns : columns + row + 1]
            for column in range(row + 1):
                means[column] += half[column] * last
                variances[column] += half[column] * half[column]
        add_triangular(flat, columns, width, columns, total, size)
    for row in range(size):
        for column in range(row, size):
            covariance[row, column] += total[row * columns + column]
