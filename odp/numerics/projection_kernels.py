"""Projection onto the positive semidefinite matrices in machine code, for matrices with few negative eigenvalues.

A matrix is made tridiagonal, its negative eigenvalues are bracketed by bisection (eight at a time, one per lane) and
refined with their vectors by Rayleigh quotient steps on twisted factors; what they stand for is taken away. Every
result is checked (residuals, orthogonality); where the check fails, the caller takes a full eigendecomposition.
Sources: Wilkinson 1965 (Householder, Sturm counts); Parlett and Dhillon 1997 (twisted factors). Import needs numba;
nothing imports this module at the top.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from odp.numerics.tiles import LANES, Writer

_BISECTIONS = 20
_REFINEMENTS = 3
_ROUNDING = 1e-12  # of the norm: residual of an eigenpair
_NOTHING = 1e-14  # of the norm: smaller negative eigenvalues are rounding
_SKEW = 1e-8  # cosine between two eigenvectors
_SUMMED = {"contract", "nsz", "reassoc"}


@intrinsic
def _pivots(context: Any, d: Any, squares: Any, shift: Any, out: Any, state: Any, steps: Any) -> Any:
    """Pivots of LDL' of a tridiagonal matrix minus ``shift``, per lane.

    out[j] = d[j] - shift - squares[j] / out[j - 1]; ``state`` float64 [2, LANES] holds out[-1], and then how many are
    negative.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = Writer(context, builder, signature, arguments)
        diagonal, couplings, found = write.array(0), write.array(1), write.array(3)
        shifts = write.loaded(write.vectors(write.array(2), 1))[0]
        zero, one = (write.spread(ir.Constant(ir.DoubleType(), value)) for value in (0.0, 1.0))

        def body(step: Any, sums: list[Any]) -> list[Any]:
            before, count = sums
            middle = builder.fsub(write.spread(write.number(diagonal, step)), shifts)
            pivot = builder.fsub(middle, builder.fdiv(write.spread(write.number(couplings, step)), before))
            place = write.at(found, builder.mul(step, ir.Constant(write.whole, LANES)))
            builder.store(pivot, write.vectors(place, 1)[0], align=8)
            below = builder.select(builder.fcmp_ordered("<", pivot, zero), one, zero)
            return [pivot, builder.fadd(count, below)]

        return write.accumulate(write.vectors(write.array(4), 2), arguments[5], body)

    return types.void(d, squares, shift, out, state, steps), generate


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED, inline="always")
def _product(one: Any, two: Any) -> float:
    total = 0.0
    for place in range(len(one)):
        total += one[place] * two[place]
    return total


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED)
def _tridiagonal(m: Any, d: Any, e: Any, reflectors: Any, p: Any) -> None:
    """Q'MQ tridiagonal, of diagonal ``d`` [n] and ``e`` [n - 1].

    Q is the product of I - v v' over the rows v of ``reflectors``. ``m`` is overwritten; ``p`` [n] is work space.
    """
    size = len(d)
    for k in range(size - 2):
        d[k] = m[k, k]
        v = reflectors[k, k + 1 : size]
        row = m[k, k + 1 : size]
        v[:] = row
        norm = np.sqrt(_product(v, v))
        e[k] = norm
        if norm == 0.0:
            continue  # v is zero: no reflection
        e[k] = -norm if v[0] > 0 else norm
        # v - e has the squared length 2 (norm^2 + |v[0]| norm); scaled so that I - v v' reflects.
        scale = 1.0 / np.sqrt(norm * (norm + abs(v[0])))
        v[0] -= e[k]
        for place in range(len(v)):
            v[place] *= scale
        some = p[: len(v)]
        for one in range(len(v)):
            some[one] = _product(m[k + 1 + one, k + 1 : size], v)
        half = 0.5 * _product(some, v)
        for place in range(len(v)):
            some[place] -= half * v[place]
        for one in range(len(v)):
            mine, left, right = m[k + 1 + one, k + 1 : size], v[one], some[one]
            for place in range(len(v)):
                mine[place] -= left * some[place] + right * v[place]
    if size > 1:
        d[size - 2], e[size - 2] = m[size - 2, size - 2], m[size - 2, size - 1]
    d[size - 1] = m[size - 1, size - 1]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _count(d: Any, squares: Any, shift: Any, pivots: Any, state: Any) -> None:
    """How many eigenvalues are below each lane's ``shift``: ``state[LANES:]``."""
    state[:LANES] = 1.0
    state[LANES:] = 0.0
    _pivots(d, squares, shift, pivots, state, len(d))  # type: ignore[call-arg]  # numba passes the context


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _refined(
    d: Any, e: Any, forward: Any, backward: Any, value: Any, down: Any, up: Any, z: Any, residual: Any
) -> None:
    """One Rayleigh quotient step per lane: moves ``value``, fills unit vectors ``z`` [n, LANES] and their ``residual``.

    ``forward`` and ``backward`` are (diagonal, squares, state) of the matrix and of its mirror image.
    """
    size = len(d)
    for side, pivots in ((forward, down), (backward, up)):
        side[2][:LANES] = 1.0
        _pivots(side[0], side[1], value, pivots, side[2], size)  # type: ignore[call-arg]
    for lane in range(LANES):
        best, twist, shift = np.inf, 0, value[lane]
        for place in range(size):
            gamma = down[place * LANES + lane] + up[(size - 1 - place) * LANES + lane] - (d[place] - shift)
            if abs(gamma) < abs(best):
                best, twist = gamma, place
        norm, last = 1.0, 1.0
        z[twist, lane] = 1.0
        for place in range(twist - 1, -1, -1):
            last *= -e[place] / down[place * LANES + lane]
            z[place, lane] = last
            norm += last * last
        last = 1.0
        for place in range(twist + 1, size):
            last *= -e[place - 1] / up[(size - 1 - place) * LANES + lane]
            z[place, lane] = last
            norm += last * last
        scale = 1.0 / np.sqrt(norm)
        for place in range(size):
            z[place, lane] *= scale
        value[lane] = shift + best / norm
        residual[lane] = abs(best) * scale


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED)
def _returned(vector: Any, reflectors: Any) -> None:
    """Q times a vector."""
    size = len(vector)
    for k in range(size - 3, -1, -1):
        v, part = reflectors[k, k + 1 : size], vector[k + 1 :]
        length = _product(v, part)
        for place in range(len(v)):
            part[place] -= length * v[place]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def project(packed: Any, size: int, sure: Any) -> None:
    """Takes their negative eigenvalues from symmetric matrices, in place; only from those that are not ``sure``.

    Args:
      packed: upper triangles [k, p].
      size: of the matrices.
      sure: bool [k]; True where the matrix is positive semidefinite now, False where nothing was changed.
    """
    m, reflectors = np.empty((size, size)), np.zeros((size, size))
    d, e, p = np.empty(size), np.empty(max(size - 1, 1)), np.empty(size)
    squares, mirrored, mirrored_squares = np.zeros(size), np.empty(size), np.zeros(size)
    state, other = np.empty(2 * LANES), np.empty(2 * LANES)
    down, up = np.empty(size * LANES), np.empty(size * LANES)
    far, near, value, residual = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    z, vectors = np.empty((size, LANES)), np.empty((size, size))
    values = np.empty(size)
    for item in range(len(packed)):
        if sure[item]:
            continue
        matrix, place = packed[item], 0
        for row in range(size):
            for column in range(row, size):
                m[row, column] = matrix[place + column - row]
                m[column, row] = m[row, column]
            place += size - row
        _tridiagonal(m, d, e, reflectors, p)
        bound = 0.0
        for row in range(size):
            left, right = (e[row - 1] if row > 0 else 0.0), (e[row] if row < size - 1 else 0.0)
            bound = max(bound, abs(d[row]) + abs(left) + abs(right))
            squares[row] = left * left
            mirrored[size - 1 - row], mirrored_squares[size - 1 - row] = d[row], right * right
        value[:] = -_NOTHING * bound
        _count(d, squares, value, down, state)
        negative = int(state[LANES])
        good = bound < np.inf and negative <= size // 2
        for first in range(0, negative if good else 0, LANES):
            far[:], near[:] = bound, _NOTHING * bound
            for step in range(_BISECTIONS + 1):
                for lane in range(LANES):
                    value[lane] = -np.sqrt(far[lane] * near[lane])  # eigenvalues may be of very different sizes
                if step == _BISECTIONS:
                    break
                _count(d, squares, value, down, state)
                for lane in range(LANES):
                    if state[LANES + lane] > min(first + lane, negative - 1):
                        near[lane] = -value[lane]
                    else:
                        far[lane] = -value[lane]
            for _ in range(_REFINEMENTS):
                forward, backward = (d, squares, state), (mirrored, mirrored_squares, other)
                _refined(d, e, forward, backward, value, down, up, z, residual)
            for lane in range(min(LANES, negative - first)):
                good = good and residual[lane] <= _ROUNDING * bound
                values[first + lane] = value[lane]
                vectors[first + lane] = z[:, lane]
        for one in range(negative if good else 0):
            for two in range(one):
                good = good and abs(_product(vectors[one], vectors[two])) < _SKEW
        sure[item] = good
        for one in range(negative if good else 0):
            vector = vectors[one]
            _returned(vector, reflectors)
            place = 0
            for row in range(size):
                factor = -values[one] * vector[row]
                for column in range(row, size):
                    matrix[place + column - row] += factor * vector[column]
                place += size - row
