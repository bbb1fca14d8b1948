"""Several small symmetric matrices at once in numba kernels, one in each lane of a vector register.

A matrix of some dozens of rows is too small for the tiles of ``tiles.py``: most of the time goes to pivots, which wait
for a square root and a division, and to the edges of its tiles. Here every number is a vector of ``LANES`` numbers, one
of each matrix, so that all steps run at the speed of whole vectors. A lane's result does not depend on the others.

``places`` and sizes count vectors: number (row, column) of a system of ``width`` columns is the vector
``row * width + column`` of its flat array. Import needs numba; nothing imports this module at the top.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from odp.numerics.tiles import LANES, Writer

_ROWS, _COLUMNS = 4, 2

# Below this share of the diagonal, a pivot may be rounding: as in ``tiles.py``.
_SMALLEST = 1e-11


class LaneWriter(Writer):
    """Vector code on arrays whose numbers are vectors."""

    def cell(self, pointer: Any, *offsets: Any) -> Any:
        """Pointer to the vector at an offset, in vectors."""
        for offset in offsets:
            step = ir.Constant(self.whole, offset) if isinstance(offset, int) else offset
            pointer = self.at(pointer, self._builder.mul(step, ir.Constant(self.whole, LANES)))
        return self.vectors(pointer, 1)[0]

    def of(self, pointer: Any, *offsets: Any) -> Any:
        """The vector itself."""
        return self.loaded([self.cell(pointer, *offsets)])[0]

    def put(self, value: Any, pointer: Any, *offsets: Any) -> None:
        self._builder.store(value, self.cell(pointer, *offsets), align=8)

    def root(self, value: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector])
        function = cgutils.get_or_insert_function(self._builder.module, kind, f"llvm.sqrt.v{LANES}f64")
        return self._builder.call(function, [value])

    def absolute(self, value: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector])
        function = cgutils.get_or_insert_function(self._builder.module, kind, f"llvm.fabs.v{LANES}f64")
        return self._builder.call(function, [value])

    def constant(self, value: float) -> Any:
        """In all lanes."""
        return self.spread(ir.Constant(ir.DoubleType(), value))


def _tile(rows: int, columns: int, *, subtract: bool = False) -> Any:
    """A numba function ``tile(a, i, lda, b, j, ldb, c, ij, ldc, steps)`` on flat float64 arrays, ``steps`` >= 1.

    Adds ``sum_k a[i + k lda + r] b[j + k ldb + s]`` to ``c[ij + r ldc + s]``, or subtracts, for r < ``rows`` and s <
    ``columns``. Bounds are not checked.
    """

    @intrinsic
    def tile(
        context: Any, a: Any, i: Any, lda: Any, b: Any, j: Any, ldb: Any, c: Any, ij: Any, ldc: Any, k: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = LaneWriter(context, builder, signature, arguments)
            _, i, lda, _, j, ldb, _, ij, ldc, steps = arguments
            left_array, right_array, target = write.array(0), write.array(3), write.array(6)
            starts = [builder.add(ij, builder.mul(ldc, ir.Constant(write.whole, r))) for r in range(rows)]

            def body(step: Any, sums: list[Any]) -> list[Any]:
                first, second = builder.add(i, builder.mul(step, lda)), builder.add(j, builder.mul(step, ldb))
                right = [write.of(right_array, second, s) for s in range(columns)]
                updated = []
                for row in range(rows):
                    left = write.of(left_array, first, row)
                    left = builder.fneg(left) if subtract else left
                    updated += [write.fused(left, right[s], sums[row * columns + s]) for s in range(columns)]
                return updated

            cells = [write.cell(target, start, s) for start in starts for s in range(columns)]
            return write.accumulate(cells, steps, body)

        return types.void(a, i, lda, b, j, ldb, c, ij, ldc, k), generate

    return tile


def _factor(rows: int) -> Any:
    """A numba function ``factor(m, place, width, factors, good)``: U of the ``rows`` x ``rows`` matrix at ``place``.

    Fills ``factors`` [rows, rows] with 1 / U[r, r] on the diagonal and -U[q, r] above it. The ``good`` vector becomes 0
    in lanes whose matrix is not clearly positive definite, where the pivots are ``factors[0]`` and ``factors[-1]``
    before any elimination (the caller puts them there).
    """

    @intrinsic
    def factor(context: Any, m: Any, place: Any, width: Any, factors: Any, good: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = LaneWriter(context, builder, signature, arguments)
            _, place, width, _, _ = arguments
            matrix, table, flags = write.array(0), write.array(3), write.array(4)
            zero, unit = write.constant(0.0), write.constant(1.0)
            pivots = [write.of(table, end) for end in (0, rows * rows - 1)]
            larger = builder.select(builder.fcmp_ordered(">", *pivots), *pivots)
            smallest = builder.fmul(larger, write.constant(_SMALLEST))
            flag = write.of(flags, 0)
            starts = [builder.add(place, builder.mul(width, ir.Constant(write.whole, r))) for r in range(rows)]
            negated: dict[tuple[int, int], Any] = {}
            for row in range(rows):
                values = {column: write.of(matrix, starts[row], column) for column in range(row, rows)}
                for other in range(row):
                    left = builder.fneg(negated[other, row])
                    for column in values:
                        values[column] = write.fused(left, negated[other, column], values[column])
                fine = builder.fcmp_ordered(">", values[row], smallest)
                flag = builder.select(fine, flag, zero)
                scale = builder.fdiv(unit, write.root(builder.select(fine, values[row], unit)))
                write.put(scale, table, row * rows + row)
                for column in range(row + 1, rows):
                    negated[row, column] = builder.fneg(builder.fmul(values[column], scale))
                    write.put(negated[row, column], table, row * rows + column)
            write.put(flag, flags, 0)
            return context.get_dummy_value()

        return types.void(m, place, width, factors, good), generate

    return factor


def _finish(rows: int) -> Any:
    """A numba function ``finish(m, place, width, factors, columns)``: forward substitution, ``columns`` >= 1.

    Row r of ``m`` becomes (row r + sum_{q < r} f[q, r] row q) f[r, r], with f as :func:`_factor` fills it.
    """

    @intrinsic
    def finish(context: Any, m: Any, place: Any, width: Any, factors: Any, columns: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = LaneWriter(context, builder, signature, arguments)
            _, place, width, _, columns = arguments
            matrix, table = write.array(0), write.array(3)
            starts = [builder.add(place, builder.mul(width, ir.Constant(write.whole, r))) for r in range(rows)]
            factors_at = {(q, r): write.of(table, q * rows + r) for r in range(rows) for q in range(r + 1)}

            def body(step: Any, _: list[Any]) -> list[Any]:
                solved: list[Any] = []
                for row in range(rows):
                    value = write.of(matrix, starts[row], step)
                    for other in range(row):
                        value = write.fused(factors_at[other, row], solved[other], value)
                    solved.append(builder.fmul(value, factors_at[row, row]))
                for row in range(rows):
                    write.put(solved[row], matrix, starts[row], step)
                return []

            return write.accumulate([], columns, body)

        return types.void(m, place, width, factors, columns), generate

    return finish


@intrinsic
def gather(context: Any, x: Any, places: Any, first: Any, count: Any, out: Any, to: Any) -> Any:
    """Copies numbers ``x[places[lane] + first + k]`` into vector ``to + k`` of ``out``, for k < ``count`` >= 1.

    ``places`` int64 [LANES] says where each matrix begins in the flat float64 array ``x``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        _, _, first, count, _, to = arguments
        source, table, target = write.array(0), write.array(1), write.array(4)
        starts = [write.at(source, write.number(table, lane), first) for lane in range(LANES)]

        def body(step: Any, _: list[Any]) -> list[Any]:
            value = ir.Constant(write.vector, ir.Undefined)
            for lane in range(LANES):
                number = write.number(starts[lane], step)
                value = builder.insert_element(value, number, ir.Constant(ir.IntType(32), lane))
            write.put(value, target, to, step)
            return []

        return write.accumulate([], count, body)

    return types.void(x, places, first, count, out, to), generate


@intrinsic
def scatter(context: Any, x: Any, at: Any, count: Any, out: Any, places: Any, first: Any) -> Any:
    """Copies vector ``at + k`` of ``x`` to the numbers ``out[places[lane] + first + k]``, for k < ``count`` >= 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        _, at, count, _, _, first = arguments
        source, target, table = write.array(0), write.array(3), write.array(4)
        starts = [write.at(target, write.number(table, lane), first) for lane in range(LANES)]

        def body(step: Any, _: list[Any]) -> list[Any]:
            value = write.of(source, at, step)
            for lane in range(LANES):
                number = builder.extract_element(value, ir.Constant(ir.IntType(32), lane))
                builder.store(number, write.at(starts[lane], step))
            return []

        return write.accumulate([], count, body)

    return types.void(x, at, count, out, places, first), generate


@intrinsic
def scaled(context: Any, x: Any, at: Any, factor: Any, count: Any, out: Any, to: Any) -> Any:
    """Vector ``to + k`` of ``out`` becomes vector ``at + k`` of ``x`` times ``factor``, for k < ``count`` >= 1.

    ``factor`` float64 [LANES].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        _, at, _, count, _, to = arguments
        source, factor, target = write.array(0), write.of(write.array(2), 0), write.array(4)

        def body(k: Any, _: list[Any]) -> list[Any]:
            write.put(builder.fmul(write.of(source, at, k), factor), target, to, k)
            return []

        return write.accumulate([], count, body)

    return types.void(x, at, factor, count, out, to), generate


@intrinsic
def add_numbers(context: Any, x: Any, first: Any, count: Any, out: Any, to: Any) -> Any:
    """Adds the plain number ``x[first + k]`` to all lanes of vector ``to + k`` of ``out``, for k < ``count`` >= 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        _, first, count, _, to = arguments
        source, target = write.at(write.array(0), first), write.array(3)

        def body(k: Any, _: list[Any]) -> list[Any]:
            total = builder.fadd(write.of(target, to, k), write.spread(write.number(source, k)))
            write.put(total, target, to, k)
            return []

        return write.accumulate([], count, body)

    return types.void(x, first, count, out, to), generate


@intrinsic
def add_square_sums(context: Any, x: Any, at: Any, width: Any, steps: Any, out: Any, to: Any) -> Any:
    """Adds ``sum_k x[at + k width + r]^2`` to vectors ``to + r`` of ``out``, k < ``steps`` >= 1, r < 4."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        _, at, width, steps, _, to = arguments
        source, target = write.array(0), write.array(4)

        def body(k: Any, sums: list[Any]) -> list[Any]:
            here = builder.add(at, builder.mul(k, width))
            values = [write.of(source, here, r) for r in range(_ROWS)]
            return [write.fused(value, value, total) for value, total in zip(values, sums, strict=True)]

        return write.accumulate([write.cell(target, to, r) for r in range(_ROWS)], steps, body)

    return types.void(x, at, width, steps, out, to), generate


_add, _add_narrow = _tile(_ROWS, _COLUMNS), _tile(_ROWS, 1)
_add_row, _add_cell = _tile(1, _COLUMNS), _tile(1, 1)
_minus, _minus_narrow = _tile(_ROWS, _COLUMNS, subtract=True), _tile(_ROWS, 1, subtract=True)
_minus_row, _minus_cell = _tile(1, _COLUMNS, subtract=True), _tile(1, 1, subtract=True)
_factor_block, _factor_row = _factor(_ROWS), _factor(1)
_finish_block, _finish_row = _finish(_ROWS), _finish(1)


@numba.njit(nogil=True, cache=True)
def add_products(
    a: Any, i: int, lda: int, b: Any, j: int, ldb: int, c: Any, ij: int, ldc: int, rows: int, columns: int, steps: int
) -> None:
    """``c[ij + r ldc + s] += sum_k a[i + k lda + r] b[j + k ldb + s]`` for r < ``rows``, s < ``columns``; vectors.

    ``steps`` >= 1.
    """
    row = 0
    while row < rows:
        block = _ROWS if row + _ROWS <= rows else 1
        column = 0
        while column < columns:
            place = ij + row * ldc + column
            if column + _COLUMNS <= columns:
                if block == _ROWS:
                    _add(a, i + row, lda, b, j + column, ldb, c, place, ldc, steps)
                else:
                    _add_row(a, i + row, lda, b, j + column, ldb, c, place, ldc, steps)
                column += _COLUMNS
            else:
                if block == _ROWS:
                    _add_narrow(a, i + row, lda, b, j + column, ldb, c, place, ldc, steps)
                else:
                    _add_cell(a, i + row, lda, b, j + column, ldb, c, place, ldc, steps)
                column += 1
        row += block


@numba.njit(nogil=True, cache=True)
def _subtract(m: Any, block: int, rows: int, width: int, first: int, last: int, start: int) -> None:
    """Takes what rows ``start`` to ``block`` say from the ``rows`` rows behind, in columns ``first`` to ``last``."""
    column, steps = first, block - start
    if steps < 1:
        return
    while column < last:
        left, right, place = start * width + block, start * width + column, block * width + column
        if column + _COLUMNS <= last:
            if rows == _ROWS:
                _minus(m, left, width, m, right, width, m, place, width, steps)
            else:
                _minus_row(m, left, width, m, right, width, m, place, width, steps)
            column += _COLUMNS
        else:
            if rows == _ROWS:
                _minus_narrow(m, left, width, m, right, width, m, place, width, steps)
            else:
                _minus_cell(m, left, width, m, right, width, m, place, width, steps)
            column += 1


@numba.njit(nogil=True, cache=True)
def eliminate(m: Any, width: int, size: int, right: int, growing: bool, factors: Any, good: Any) -> None:
    """[M | R | I] becomes [U | U^-T R | U^-T] with M = U'U, in every lane.

    Args:
      m: flat float64 [size, width, LANES]; of M, the first ``size`` columns, only the upper triangle counts.
      width: columns of a row.
      size: of M.
      right: columns of R.
      growing: whether an identity stands beside R. Row k of it is read up to the end of its block of four rows.
      factors: float64 [16 * LANES], work space.
      good: float64 [LANES] to fill: 1, or 0 where the matrix is not clearly positive definite; then the lane's rest is
        meaningless.
    """
    good[:] = 1.0
    block = 0
    while block < size:
        rows = _ROWS if block + _ROWS <= size else 1
        last = block + rows - 1
        for lane in range(LANES):
            factors[lane] = m[(block * width + block) * LANES + lane]
            factors[(rows * rows - 1) * LANES + lane] = m[(last * width + last) * LANES + lane]
        _subtract(m, block, rows, width, block, size + right, 0)
        columns = size + right - block
        if growing:
            # Column j of U^-T is zero above row j.
            for start in range(0, block, _ROWS):
                first = size + right + start
                _subtract(m, block, rows, width, first, first + _ROWS, start)
            columns += block + rows
        place = block * width + block
        if rows == _ROWS:
            _factor_block(m, place, width, factors, good)  # type: ignore[call-arg]  # numba passes the context
            _finish_block(m, place, width, factors, columns)  # type: ignore[call-arg]
        else:
            _factor_row(m, place, width, factors, good)  # type: ignore[call-arg]
            _finish_row(m, place, width, factors, columns)  # type: ignore[call-arg]
        block += rows


@intrinsic
def _back(context: Any, m: Any, place: Any, diagonal: Any, count: Any, x: Any, to: Any) -> Any:
    """x[to] = (m[place + count] - sum_k m[place + k] x[to + 1 + k]) / m[diagonal], k < ``count`` >= 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = LaneWriter(context, builder, signature, arguments)
        _, place, diagonal, count, _, to = arguments
        matrix, solution = write.array(0), write.array(4)
        after = builder.add(to, ir.Constant(write.whole, 1))

        def body(k: Any, sums: list[Any]) -> list[Any]:
            return [write.fused(builder.fneg(write.of(matrix, place, k)), write.of(solution, after, k), sums[0])]

        write.put(write.of(matrix, place, count), solution, to)
        with builder.if_then(builder.icmp_signed(">", count, ir.Constant(write.whole, 0))):
            write.accumulate([write.cell(solution, to)], count, body)
        write.put(builder.fdiv(write.of(solution, to), write.of(matrix, diagonal)), solution, to)
        return context.get_dummy_value()

    return types.void(m, place, diagonal, count, x, to), generate


@numba.njit(nogil=True, cache=True)
def substitute(m: Any, width: int, size: int, out: Any) -> None:
    """Fills ``out`` [size, LANES], flat, with U^-1 z, where ``m`` holds [U | z], as of :func:`eliminate`."""
    for row in range(size - 1, -1, -1):
        diagonal = row * width + row
        _back(m, diagonal + 1, diagonal, size - 1 - row, out, row)  # type: ignore[call-arg]


@numba.njit(nogil=True, cache=True)
def lanes_from(places: Any, first: int, last: int, stride: int) -> int:
    """Fills ``places`` int64 [LANES] with where the matrices from ``first`` on begin; the last one fills up.

    Returns how many of them are matrices of their own.
    """
    count = min(LANES, last - first)
    for lane in range(LANES):
        places[lane] = (first + min(lane, count - 1)) * stride
    return count


@numba.njit(nogil=True, cache=True)
def systems(size: int, width: int) -> Any:
    """Zeroed space for one matrix per lane, flat float64 [size * width * LANES]."""
    return np.zeros(size * width * LANES)
