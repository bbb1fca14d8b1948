"""The server's inner loops in machine code: shrinkage and projection of item matrices, posteriors of item rows.

The same as the numpy forms in ``estimation.py`` and ``features.py``, one item at a time; symmetric matrices are
packed upper triangles [p]. Import needs numba; nothing imports this module at the top. All functions release the
interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.numerics import lane_tiles
from odp.numerics.lane_tiles import LANES
from odp.numerics.projection_kernels import project

_SUMMED = {"contract", "nsz", "reassoc"}
_ROWS = 4


@numba.njit(nogil=True, cache=True)
def positive(matrices: Any, out: Any) -> None:
    """Whether each symmetric matrix [k, w, w] is clearly positive definite, bool [k]."""
    size = matrices.shape[1]
    flat, places = matrices.reshape(-1), np.empty(LANES, np.int64)
    system, factors, good = lane_tiles.systems(size, size), np.empty(16 * LANES), np.empty(LANES)
    for first in range(0, len(matrices), LANES):
        count = lane_tiles.lanes_from(places, first, len(matrices), size * size)
        for row in range(size):
            place = row * size + row
            lane_tiles.gather(flat, places, place, size - row, system, place)
        lane_tiles.eliminate(system, size, size, 0, False, factors, good)
        for lane in range(count):
            out[first + lane] = good[lane] != 0


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
    pairs, flat, places = len(shape), out.reshape(-1), np.empty(LANES, np.int64)
    system, factors, good = lane_tiles.systems(size, size), np.empty(16 * LANES), np.empty(LANES)
    for first in range(0, len(packed), LANES):
        count = lane_tiles.lanes_from(places, first, len(packed), pairs)
        for item in range(first, first + count):
            measured, shrunk, item_gain = packed[item], out[item], gain[item]
            expected = (1.0 - item_gain) * mass[item]
            for column in range(pairs):
                shrunk[column] = expected * shape[column] + item_gain * (measured[column] * scale[column])
        place = 0
        for row in range(size):
            lane_tiles.gather(flat, places, place, size - row, system, row * size + row)
            place += size - row
        lane_tiles.eliminate(system, size, size, 0, False, factors, good)
        for lane in range(count):
            sure[first + lane] = good[lane] != 0
    project(out, size, sure)


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED)
def products(packed: Any, vectors: Any, out: Any) -> None:
    """Adds each packed symmetric matrix [k, p] times its vector [k, w] to ``out`` [k, w]."""
    size = vectors.shape[1]
    for item in range(len(packed)):
        matrix, vector, product, place = packed[item], vectors[item], out[item], 0
        for row in range(size):
            total, here = matrix[place] * vector[row], vector[row]
            for column in range(row + 1, size):
                value = matrix[place + column - row]
                total += value * vector[column]
                product[column] += value * here
            product[row] += total
            place += size - row


@numba.njit(nogil=True, cache=True)
def evidence(packed: Any, right: Any, noise: Any, sampling: Any, information: Any, information_right: Any) -> None:
    """H = A (noise I + sampling A)^-1 A and A (noise I + sampling A)^-1 b, per item.

    Args:
      packed: A, positive semidefinite [k, p].
      right: b [k, w].
      noise, sampling: > 0 [k].
      information: H packed [k, p], to fill.
      information_right: [k, w] to fill.
    """
    size, pairs = right.shape[1], packed.shape[1]
    padded = (size + _ROWS - 1) // _ROWS * _ROWS
    width = size + 1 + padded  # T = noise I + sampling A, the vector, and an identity
    matrices, vectors = packed.reshape(-1), right.reshape(-1)
    matrices_out, vectors_out = information.reshape(-1), information_right.reshape(-1)
    places, vector_places = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    system, sums = lane_tiles.systems(padded, width), lane_tiles.systems(size, size + 1)
    factors, good = np.empty(16 * LANES), np.empty(LANES)
    slope, above, below = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for first in range(0, len(packed), LANES):
        lane_tiles.lanes_from(places, first, len(packed), pairs)
        count = lane_tiles.lanes_from(vector_places, first, len(packed), size)
        for lane in range(LANES):
            item = first + min(lane, count - 1)
            slope[lane], above[lane], below[lane] = sampling[item], 1 / sampling[item], -noise[item] / sampling[item]
        place = 0
        for row in range(size):
            here, rest = row * width + row, size - row
            lane_tiles.gather(matrices, places, place, rest, system, here)
            lane_tiles.scaled(system, here, slope, rest, system, here)
            lane_tiles.gather(vectors, vector_places, row, 1, system, row * width + size)
            for lane in range(LANES):
                system[here * LANES + lane] += noise[first + min(lane, count - 1)]
            place += rest
        _identity_beside(system, width, size, LANES)
        lane_tiles.eliminate(system, width, size, 1, True, factors, good)
        # T = U'U, so U^-T A = (U - noise U^-T) / sampling: less work than a substitution for A, and about as exact as
        # the noise leaves it. It replaces U^-T.
        for row in range(size):
            here, right_side = row * width + row, row * width + size + 1
            lane_tiles.scaled(system, right_side, below, row + 1, system, right_side)
            for lane in range(LANES):
                system[(right_side + row) * LANES + lane] += system[here * LANES + lane] * above[lane]
            if row + 1 < size:
                lane_tiles.scaled(
                    system,
                    here + 1,
                    above,
                    size - row - 1,
                    system,
                    right_side + row + 1,
                )
        sums[:] = 0.0
        for row in range(0, size, _ROWS):
            rows, at, to = min(_ROWS, size - row), size + 1 + row, row * (size + 1)
            lane_tiles.add_products(
                system, at, width, system, at, width, sums, to + row, size + 1, rows, size - row, size
            )
            lane_tiles.add_products(system, at, width, system, size, width, sums, to + size, size + 1, rows, 1, size)
        place = 0
        for row in range(size):
            here, rest = row * (size + 1) + row, size - row
            lane_tiles.scatter(sums, here, rest, matrices_out, places, place)
            lane_tiles.scatter(sums, here + rest, 1, vectors_out, vector_places, row)
            place += rest


@numba.njit(nogil=True, cache=True)
def _identity_beside(system: Any, width: int, size: int, lanes: int) -> None:
    """Puts an identity beside the first ``size`` + 1 columns, as ``lane_tiles.eliminate`` wants it; zeros in lanes from
    ``lanes`` on.
    """
    for row in range(size):
        start = (row * width + size + 1) * LANES
        system[start : start + (row // _ROWS + 1) * _ROWS * LANES] = 0.0
        for lane in range(LANES):
            system[start + row * LANES + lane] = 1.0 if lane < lanes else 0.0


@numba.njit(nogil=True, cache=True)
def posterior(
    information: Any,
    information_right: Any,
    first_precision: Any,
    precision: Any,
    mean: Any,
    variance: Any,
    covariance: Any,
    summed: bool,
) -> None:
    """Means and variances of the rows of posterior precision H + prior precision, per item.

    Args:
      told, information_right: as filled by :func:`evidence`.
      first_precision: prior precision of the first entry [k].
      precision: prior precision of the others [w - 1, w - 1].
      mean, variance: [k, w] to fill.
      covariance: [w, w], to which the posterior covariances are added.
      summed: whether they are.
    """
    size, pairs = information_right.shape[1], information.shape[1]
    padded = (size + _ROWS - 1) // _ROWS * _ROWS
    width = size + 1 + padded  # precision, right-hand side and identity
    inverse_column = size + 1
    matrices, vectors, common = information.reshape(-1), information_right.reshape(-1), precision.reshape(-1)
    means, variances = mean.reshape(-1), variance.reshape(-1)
    places, vector_places = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    system, total = lane_tiles.systems(padded, width), lane_tiles.systems(padded, padded)
    both = lane_tiles.systems(2, padded)
    factors, good = np.empty(16 * LANES), np.empty(LANES)
    for first in range(0, len(information), LANES):
        lane_tiles.lanes_from(places, first, len(information), pairs)
        count = lane_tiles.lanes_from(vector_places, first, len(information), size)
        place = 0
        for row in range(size):
            here, rest = row * width + row, size - row
            lane_tiles.gather(matrices, places, place, rest, system, here)
            if row > 0:
                start = (row - 1) * (size - 1) + row - 1
                lane_tiles.add_numbers(common, start, rest, system, here)
            lane_tiles.gather(vectors, vector_places, row, 1, system, row * width + size)
            place += rest
        _identity_beside(system, width, size, count)  # a lane that only fills up adds nothing to the sum
        for lane in range(LANES):
            system[lane] += first_precision[first + min(lane, count - 1)]
        lane_tiles.eliminate(system, width, size, 1, True, factors, good)
        both[:] = 0.0
        for column in range(0, size, _ROWS):
            # Column j of Z = U^-T begins at row j.
            at, steps = column * width + inverse_column + column, size - column
            y = column * width + size
            lane_tiles.add_products(system, at, width, system, y, width, both, column, 1, _ROWS, 1, steps)
            lane_tiles.add_square_sums(system, at, width, steps, both, padded + column)
            if summed:
                for row in range(0, column + 1, _ROWS):
                    left = column * width + inverse_column + row
                    lane_tiles.add_products(
                        system,
                        left,
                        width,
                        system,
                        at,
                        width,
                        total,
                        row * padded + column,
                        padded,
                        _ROWS,
                        _ROWS,
                        steps,
                    )
        for lane in range(count):
            for column in range(size):
                means[vector_places[lane] + column] = both[column * LANES + lane]
                variances[vector_places[lane] + column] = both[(padded + column) * LANES + lane]
    if summed:
        for row in range(size):
            for column in range(row, size):
                over_lanes = 0.0
                for lane in range(LANES):
                    over_lanes += total[(row * padded + column) * LANES + lane]
                covariance[row, column] += over_lanes
                if column > row:
                    covariance[column, row] += over_lanes
