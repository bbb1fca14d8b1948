"""Projection onto the positive semidefinite matrices in machine code, for matrices with few negative eigenvalues.

Four or eight matrices are made tridiagonal at once, one in each lane of a vector register. Their negative eigenvalues
are bracketed by bisection, and refined with their vectors by Rayleigh quotient steps on twisted factors; what they
stand for is taken away. Every result is checked (residuals, orthogonality); where the check fails, the caller takes a
full eigendecomposition.
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

from odp.numerics.lane_tiles import LANES, LaneWriter, add_products, gather, systems

_BISECTIONS = 20
_REFINEMENTS = 3
_ROUNDING = 1e-12  # of the norm: residual of an eigenpair
_NOTHING = 1e-14  # of the norm: smaller negative eigenvalues are rounding
_SKEW = 1e-8  # cosine between two eigenvectors
_GROUP = 4  # eigenvalues of a matrix that are found at once: their divisions do not wait for each other


@intrinsic
def _update(context: Any, m: Any, place: Any, row: Any, count: Any, v: Any, p: Any, w: Any, y: Any) -> Any:
    """Takes v p' + p v' from the symmetric M and adds what row ``row`` of it gives to y = M w, in every lane.

    ``place`` is where M[row, row] stands; ``count`` >= 0 columns follow it. Vectors are flat, [n, LANES].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        _, place, row, count, *_ = arguments
        matrix, vs, ps, ws, ys = (write.array(number) for number in (0, 4, 5, 6, 7))
        v, p, w = (write.of(vector, row) for vector in (vs, ps, ws))
        less_v, less_p = builder.fneg(v), builder.fneg(p)

        def body(step: Any, sums: list[Any]) -> list[Any]:
            here = builder.add(row, step)
            value = write.of(matrix, place, step)
            value = write.fused(less_v, write.of(ps, here), value)
            value = write.fused(less_p, write.of(vs, here), value)
            write.put(value, matrix, place, step)
            write.put(write.fused(value, w, write.of(ys, here)), ys, here)
            return [write.fused(value, write.of(ws, here), sums[0])]

        diagonal = write.fused(less_v, p, write.fused(less_p, v, write.of(matrix, place)))
        write.put(diagonal, matrix, place)
        total = write.fused(diagonal, w, write.of(ys, row))
        write.put(total, ys, row)
        unit = ir.Constant(write.whole, 1)
        with builder.if_then(builder.icmp_signed(">", count, ir.Constant(write.whole, 0))):
            place, row = builder.add(place, unit), builder.add(row, unit)
            write.accumulate([write.cell(ys, arguments[2])], count, body)
        return context.get_dummy_value()

    return types.void(m, place, row, count, v, p, w, y), generate


@intrinsic
def _counts(context: Any, d: Any, squares: Any, shift: Any, state: Any, steps: Any) -> Any:
    """How many eigenvalues of a tridiagonal matrix are below each of ``_GROUP`` shifts, per lane.

    They are the negative pivots q[j] = d[j] - shift - squares[j] / q[j - 1]. ``state`` [2 _GROUP, LANES] holds ones and
    zeros, and then the last pivots and the counts.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        diagonal, couplings, table, sums = (write.array(number) for number in range(4))
        shifts = [write.of(table, vector) for vector in range(_GROUP)]
        zero, unit = write.constant(0.0), write.constant(1.0)

        def body(step: Any, sums: list[Any]) -> list[Any]:
            middle, square = write.of(diagonal, step), write.of(couplings, step)
            pivots, counts = [], []
            for number in range(_GROUP):
                pivot = builder.fsub(builder.fsub(middle, shifts[number]), builder.fdiv(square, sums[number]))
                below = builder.select(builder.fcmp_ordered("<", pivot, zero), unit, zero)
                pivots.append(pivot)
                counts.append(builder.fadd(sums[_GROUP + number], below))
            return pivots + counts

        return write.accumulate([write.cell(sums, number) for number in range(2 * _GROUP)], arguments[4], body)

    return types.void(d, squares, shift, state, steps), generate


@intrinsic
def _refine(
    context: Any, d: Any, e: Any, squares: Any, shift: Any, place: Any, down: Any, up: Any, z: Any, state: Any, n: Any
) -> Any:
    """One Rayleigh quotient step per lane: moves vector ``place`` of ``shift``, fills the unit vector z.

    ``down`` and ``up`` [n, LANES] are work space for the pivots from either end. ``state`` [4, LANES]: the first vector
    becomes the residual.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        diagonal, edges, couplings, shifts = (write.array(number) for number in range(4))
        downs, ups, vector, states = (write.array(number) for number in (5, 6, 7, 8))
        place, size = arguments[4], arguments[9]
        value = write.of(shifts, place)
        zero, unit, first = write.constant(0.0), write.constant(1.0), ir.Constant(write.whole, 1)
        last = builder.sub(size, first)

        def spread(number: Any) -> Any:
            return write.spread(builder.sitofp(number, ir.DoubleType()))

        def pivots(step: Any, sums: list[Any]) -> list[Any]:
            mirror = builder.sub(last, step)
            forward = builder.fsub(write.of(diagonal, step), value)
            forward = builder.fsub(forward, builder.fdiv(write.of(couplings, step), sums[0]))
            backward = builder.fsub(write.of(diagonal, mirror), value)
            backward = builder.fsub(backward, builder.fdiv(write.of(couplings, builder.add(mirror, first)), sums[1]))
            write.put(forward, downs, step)
            write.put(backward, ups, mirror)
            return [forward, backward]

        def twist(step: Any, sums: list[Any]) -> list[Any]:
            middle = builder.fsub(write.of(diagonal, step), value)
            gamma = builder.fsub(builder.fadd(write.of(downs, step), write.of(ups, step)), middle)
            better = builder.fcmp_ordered("<", write.absolute(gamma), write.absolute(sums[0]))
            return [builder.select(better, gamma, sums[0]), builder.select(better, spread(step), sums[1])]

        def grown(index: Any, edge: Any, pivot: Any, before: Any, relation: str) -> tuple[Any, Any]:
            here = spread(index)
            ratio = builder.fneg(builder.fdiv(write.of(edges, edge), pivot))
            beyond = builder.fcmp_ordered(relation, here, where)
            start = builder.select(builder.fcmp_ordered("==", here, where), unit, zero)
            return beyond, builder.select(beyond, builder.fmul(before, ratio), start)

        def upward(step: Any, sums: list[Any]) -> list[Any]:
            index = builder.sub(last, step)
            _, component = grown(index, index, write.of(downs, index), sums[0], "<")
            write.put(component, vector, index)
            return [component]

        def downward(step: Any, sums: list[Any]) -> list[Any]:
            edge = builder.select(builder.icmp_signed(">", step, ir.Constant(write.whole, 0)), step, first)
            beyond, component = grown(step, builder.sub(edge, first), write.of(ups, step), sums[0], ">")
            whole = builder.select(beyond, component, write.of(vector, step))
            write.put(whole, vector, step)
            return [component, write.fused(whole, whole, sums[1])]

        def normed(step: Any, _: list[Any]) -> list[Any]:
            write.put(builder.fmul(write.of(vector, step), scale), vector, step)
            return []

        cells = [write.cell(states, number) for number in range(2)]
        for cell in cells:
            builder.store(unit, cell, align=8)
        write.accumulate(cells, size, pivots)
        write.put(write.constant(float("inf")), states, 0)
        write.put(zero, states, 1)
        write.accumulate(cells, size, twist)
        best, where = write.loaded(cells)
        write.put(zero, states, 2)
        write.accumulate([write.cell(states, 2)], size, upward)
        write.put(zero, states, 2)
        write.put(zero, states, 3)
        write.accumulate([write.cell(states, 2), write.cell(states, 3)], size, downward)
        norm = write.of(states, 3)
        scale = builder.fdiv(unit, write.root(norm))
        write.accumulate([], size, normed)
        write.put(builder.fadd(value, builder.fdiv(best, norm)), shifts, place)
        write.put(builder.fmul(write.absolute(best), scale), states, 0)
        return context.get_dummy_value()

    return types.void(d, e, squares, shift, place, down, up, z, state, n), generate


@intrinsic
def _reflect(context: Any, v: Any, place: Any, count: Any, z: Any, start: Any, state: Any) -> Any:
    """Takes v (v . z) from each of ``_GROUP`` vectors z: (row, number) of them is ``start + row _GROUP + number``.

    v are the ``count`` >= 1 vectors from ``place`` on. ``state`` [_GROUP, LANES] is work space.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        reflector, vectors, states = (write.array(number) for number in (0, 3, 5))
        _, place, count, _, start, _ = arguments
        width = ir.Constant(write.whole, _GROUP)

        def dots(step: Any, sums: list[Any]) -> list[Any]:
            here, row = write.of(reflector, place, step), builder.add(start, builder.mul(step, width))
            return [write.fused(here, write.of(vectors, row, vector), total) for vector, total in enumerate(sums)]

        def taken(step: Any, _: list[Any]) -> list[Any]:
            here, row = write.of(reflector, place, step), builder.add(start, builder.mul(step, width))
            for vector, length in enumerate(lengths):
                write.put(write.fused(here, length, write.of(vectors, row, vector)), vectors, row, vector)
            return []

        for index in range(_GROUP):
            write.put(write.constant(0.0), states, index)
        cells = [write.cell(states, number) for number in range(_GROUP)]
        write.accumulate(cells, count, dots)
        lengths = [builder.fneg(length) for length in write.loaded(cells)]
        write.accumulate([], count, taken)
        return context.get_dummy_value()

    return types.void(v, place, count, z, start, state), generate


@intrinsic
def _reflector(context: Any, m: Any, place: Any, count: Any, v: Any, edge: Any) -> Any:
    """Reflector v of the ``count`` >= 1 vectors from ``place`` on, to the same place: I - v v' leaves ``edge`` of them.

    A lane of zeros has the reflector zero.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        matrix, reflectors, edges = (write.array(number) for number in (0, 3, 4))
        _, place, count, *_ = arguments
        zero, unit = write.constant(0.0), write.constant(1.0)

        def square(step: Any, sums: list[Any]) -> list[Any]:
            value = write.of(matrix, place, step)
            return [write.fused(value, value, sums[0])]

        def scaled(step: Any, _: list[Any]) -> list[Any]:
            write.put(builder.fmul(write.of(matrix, place, step), scale), reflectors, place, step)
            return []

        write.put(zero, edges, 0)
        write.accumulate([write.cell(edges, 0)], count, square)
        norm, first = write.root(write.of(edges, 0)), write.of(matrix, place)
        edge = builder.select(builder.fcmp_ordered(">", first, zero), builder.fneg(norm), norm)
        # v - e has the squared length 2 (norm^2 + |v[0]| norm); scaled so that I - v v' reflects.
        length = builder.fmul(norm, builder.fadd(norm, write.absolute(first)))
        positive = builder.fcmp_ordered(">", length, zero)
        scale = builder.fdiv(unit, write.root(builder.select(positive, length, unit)))
        scale = builder.select(positive, scale, zero)
        write.accumulate([], count, scaled)
        write.put(builder.fmul(builder.fsub(first, edge), scale), reflectors, place)
        write.put(edge, edges, 0)
        return context.get_dummy_value()

    return types.void(m, place, count, v, edge), generate


@intrinsic
def _combine(context: Any, y: Any, w: Any, first: Any, count: Any, p: Any, half: Any) -> Any:
    """p = y - (y . w) w / 2, in the ``count`` >= 1 vectors from ``first`` on; ``half`` [LANES] is work space."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        ys, ws, ps, halves = (write.array(number) for number in (0, 1, 4, 5))
        _, _, first, count, *_ = arguments

        def dot(step: Any, sums: list[Any]) -> list[Any]:
            return [write.fused(write.of(ys, first, step), write.of(ws, first, step), sums[0])]

        def combined(step: Any, _: list[Any]) -> list[Any]:
            write.put(write.fused(factor, write.of(ws, first, step), write.of(ys, first, step)), ps, first, step)
            return []

        write.put(write.constant(0.0), halves, 0)
        write.accumulate([write.cell(halves, 0)], count, dot)
        factor = builder.fmul(write.of(halves, 0), write.constant(-0.5))
        write.accumulate([], count, combined)
        return context.get_dummy_value()

    return types.void(y, w, first, count, p, half), generate


@numba.njit(nogil=True, cache=True)
def _tridiagonal(m: Any, size: int, d: Any, e: Any, reflectors: Any, work: Any) -> None:
    """Q'MQ tridiagonal, of diagonal ``d`` and ``e`` beside it, [n, LANES] each.

    Q is the product of I - v v' over the rows v of ``reflectors``, from one right of the diagonal on. ``m`` flat
    [n, n, LANES] is overwritten, its upper triangle counts. The change of one reflection and the product for the next
    one are made in one pass. ``work`` [5, n + 1, LANES].
    """
    v, p, w, y, edge = work[0], work[1], work[2], work[3], work[4][:LANES]
    v[:] = 0.0
    p[:] = 0.0
    for k in range(size):
        row = k * size + k
        y[:] = 0.0
        w[:] = 0.0
        # M's row k is due for the change of the reflection before.
        _update(m, row, k, size - 1 - k, v, p, w, y)  # type: ignore[call-arg]  # numba passes the context
        d[k * LANES : (k + 1) * LANES] = m[row * LANES : (row + 1) * LANES]
        if k == size - 1:
            break
        if k == size - 2:
            e[k * LANES : (k + 1) * LANES] = m[(row + 1) * LANES : (row + 2) * LANES]
            continue
        count = size - 1 - k
        _reflector(m, row + 1, count, reflectors, edge)  # type: ignore[call-arg]
        e[k * LANES : (k + 1) * LANES] = edge
        w[(k + 1) * LANES : size * LANES] = reflectors[(row + 1) * LANES : (row + 1 + count) * LANES]
        y[:] = 0.0
        for column in range(k + 1, size):
            _update(m, column * size + column, column, size - 1 - column, v, p, w, y)  # type: ignore[call-arg]
        v[:] = w
        p[:] = 0.0
        _combine(y, w, k + 1, count, p, edge)  # type: ignore[call-arg]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _bracket(d: Any, squares: Any, size: int, bound: Any, negative: Any, first: int, work: Any, shift: Any) -> None:
    """Moves ``shift`` [_GROUP, LANES] near the eigenvalues number ``first`` on from below, of the negative ones."""
    far, near, state = work[0], work[1], work[2]
    for vector in range(_GROUP):
        for lane in range(LANES):
            far[vector * LANES + lane], near[vector * LANES + lane] = bound[lane], _NOTHING * bound[lane]
    for step in range(_BISECTIONS + 1):
        for place in range(_GROUP * LANES):
            shift[place] = -np.sqrt(far[place] * near[place])  # eigenvalues may be of very different sizes
        if step == _BISECTIONS:
            break
        state[: _GROUP * LANES] = 1.0
        state[_GROUP * LANES :] = 0.0
        _counts(d, squares, shift, state, size)  # type: ignore[call-arg]
        for vector in range(_GROUP):
            for lane in range(LANES):
                place = vector * LANES + lane
                if state[_GROUP * LANES + place] > min(first + vector, negative[lane] - 1):
                    near[place] = -shift[place]
                else:
                    far[place] = -shift[place]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _project_lanes(
    flat: Any, places: Any, size: int, count: int, m: Any, reflectors: Any, vectors: Any, opposite: Any, good: Any
) -> None:
    """Projects the ``count`` matrices at ``places`` in ``flat``; ``good`` bool [LANES] to fill, others stay.

    ``vectors`` and ``opposite`` [size // 2 + _GROUP, size, LANES] are work space: eigenvectors, and these times minus
    their eigenvalue.
    """
    d, e, squares = np.zeros(size * LANES), np.zeros(size * LANES), np.zeros((size + 1) * LANES)
    down, up, z = np.empty(size * LANES), np.empty(size * LANES), np.empty(size * LANES)
    work, brackets = np.empty((5, (size + 1) * LANES)), np.empty((3, 2 * _GROUP * LANES))
    shift, state = np.empty(_GROUP * LANES), np.empty(max(2 * _GROUP, 4) * LANES)
    group, bound, negative = np.empty(size * _GROUP * LANES), np.zeros(LANES), np.zeros(LANES)
    place = 0
    for row in range(size):
        gather(flat, places, place, size - row, m, row * size + row)
        place += size - row
    _tridiagonal(m, size, d, e, reflectors, work)
    for row in range(size):
        for lane in range(LANES):
            left = e[(row - 1) * LANES + lane] if row > 0 else 0.0
            right = e[row * LANES + lane] if row < size - 1 else 0.0
            bound[lane] = max(bound[lane], abs(d[row * LANES + lane]) + abs(left) + abs(right))
            squares[row * LANES + lane] = left * left
    for lane in range(LANES):
        shift[lane::LANES] = -_NOTHING * bound[lane]
    state[: _GROUP * LANES] = 1.0
    state[_GROUP * LANES :] = 0.0
    _counts(d, squares, shift, state, size)  # type: ignore[call-arg]
    most = 0
    for lane in range(LANES):
        negative[lane] = state[_GROUP * LANES + lane]
        good[lane] = bound[lane] < np.inf and negative[lane] <= size // 2
        if good[lane]:
            most = max(most, int(negative[lane]))
    for first in range(0, most, _GROUP):
        _bracket(d, squares, size, bound, negative, first, brackets, shift)
        for vector in range(_GROUP):
            for _ in range(_REFINEMENTS):
                _refine(d, e, squares, shift, vector, down, up, z, state, size)  # type: ignore[call-arg]
            for lane in range(LANES):
                if first + vector < negative[lane]:
                    good[lane] = good[lane] and state[lane] <= _ROUNDING * bound[lane]
            for row in range(size):
                here, there = (row * _GROUP + vector) * LANES, row * LANES
                group[here : here + LANES] = z[there : there + LANES]
        for k in range(size - 3, -1, -1):
            _reflect(reflectors, k * size + k + 1, size - 1 - k, group, (k + 1) * _GROUP, state)  # type: ignore[call-arg]
        for vector in range(_GROUP):
            for row in range(size):
                for lane in range(LANES):
                    # A lane that has no such eigenvalue, or failed, takes nothing away.
                    used = first + vector < negative[lane] and good[lane]
                    value = group[(row * _GROUP + vector) * LANES + lane] if used else 0.0
                    vectors[((first + vector) * size + row) * LANES + lane] = value
                    opposite[((first + vector) * size + row) * LANES + lane] = (
                        -shift[vector * LANES + lane] * value if used else 0.0
                    )
    if not most:
        return
    for vector in range(most):
        for other in range(vector):
            for lane in range(LANES):
                cosine = 0.0
                for row in range(size):
                    cosine += (
                        vectors[(vector * size + row) * LANES + lane] * vectors[(other * size + row) * LANES + lane]
                    )
                good[lane] = good[lane] and abs(cosine) < _SKEW
    place = 0
    for row in range(size):
        gather(flat, places, place, size - row, m, row * size + row)
        place += size - row
    for row in range(0, size, 4):
        rows = min(4, size - row)
        here = row * size + row
        add_products(opposite, row, size, vectors, row, size, m, here, size, rows, size - row, most)
    place = 0
    for row in range(size):
        here = (row * size + row) * LANES
        for lane in range(count):
            if good[lane]:
                for column in range(size - row):
                    flat[places[lane] + place + column] = m[here + column * LANES + lane]
        place += size - row


@numba.njit(nogil=True, cache=True, error_model="numpy")
def project(packed: Any, size: int, sure: Any) -> None:
    """Takes their negative eigenvalues from symmetric matrices, in place; only from those that are not ``sure``.

    Args:
      packed: upper triangles [k, p], contiguous.
      size: of the matrices.
      sure: bool [k]; True where the matrix is positive semidefinite now, False where nothing was changed.
    """
    flat, pairs = packed.reshape(-1), packed.shape[1]
    open_, places, good = np.flatnonzero(~sure), np.empty(LANES, np.int64), np.zeros(LANES, np.bool_)
    m, reflectors = systems(size, size), systems(size, size)
    vectors, opposite = systems(size // 2 + _GROUP, size), systems(size // 2 + _GROUP, size)
    for first in range(0, len(open_), LANES):
        count = min(LANES, len(open_) - first)
        for lane in range(LANES):
            places[lane] = open_[first + min(lane, count - 1)] * pairs
        _project_lanes(flat, places, size, count, m, reflectors, vectors, opposite, good)
        for lane in range(count):
            sure[open_[first + lane]] = good[lane]
