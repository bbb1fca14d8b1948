"""Several small symmetric matrices at once in numba kernels, one in each lane of a vector register.

Of a single matrix of some dozens of rows, most of the time goes to pivots, which wait for a square root and a division,
and to loops that are shorter than a vector register. Here every number is a vector of ``LANES`` numbers, one
of each matrix, so that all steps run at the speed of whole vectors. A lane's result does not depend on the others.

``places`` and sizes count vectors: number (row, column) of a system of ``width`` columns is the vector
``row * width + column`` of its flat array. Import needs numba; nothing imports this module at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

#: Numbers in one vector register.
LANES = 8 if binding.get_host_cpu_features().get("avx512f", False) else 4
_ROWS, _COLUMNS = 4, 2

# Below this share of the diagonal, a pivot may be rounding.
_SMALLEST = 1e-11


class LaneWriter:
    """Vector code at the place of a numba intrinsic's builder, on arrays whose numbers are vectors."""

    whole, vector = ir.IntType(64), ir.VectorType(ir.DoubleType(), LANES)

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._context, self._builder, self._signature, self._arguments = context, builder, signature, arguments
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self._fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f64")
        self._undefined = ir.Constant(self.vector, ir.Undefined)
        self._zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

    def array(self, place: int) -> Any:
        """Where the data of an argument begin."""
        argument = self._signature.args[place], self._arguments[place]
        return cgutils.create_struct_proxy(argument[0])(self._context, self._builder, argument[1]).data

    def at(self, pointer: Any, *offsets: Any) -> Any:
        """``pointer`` moved on by offsets, whole numbers or integers of the program."""
        for offset in offsets:
            step = ir.Constant(self.whole, offset) if isinstance(offset, int) else offset
            pointer = self._builder.gep(pointer, [step])
        return pointer

    def number(self, pointer: Any, *offsets: Any) -> Any:
        return self._builder.load(self.at(pointer, *offsets))

    def vectors(self, pointer: Any, count: int) -> list[Any]:
        """Pointers to ``count`` vectors in a row."""
        places = [self.at(pointer, v * LANES) for v in range(count)]
        return [self._builder.bitcast(place, self.vector.as_pointer()) for place in places]

    def loaded(self, pointers: list[Any]) -> list[Any]:
        return [self._builder.load(pointer, align=8) for pointer in pointers]

    def spread(self, number: Any) -> Any:
        """A number in all lanes."""
        alone = self._builder.insert_element(self._undefined, number, ir.Constant(ir.IntType(32), 0))
        return self._builder.shuffle_vector(alone, self._undefined, self._zeros)

    def fused(self, left: Any, right: Any, addend: Any) -> Any:
        """left * right + addend."""
        return self._builder.call(self._fused, [left, right, addend])

    def accumulate(self, cells: list[Any], steps: Any, body: Callable[[Any, list[Any]], list[Any]]) -> Any:
        """Keeps ``cells`` in registers while ``body(step, sums)`` renews them, ``steps`` >= 1 times."""
        builder = self._builder
        loaded = self.loaded(cells)
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(self.whole)
        step.add_incoming(ir.Constant(self.whole, 0), before)
        sums = [builder.phi(self.vector) for _ in cells]
        for total, value in zip(sums, loaded, strict=True):
            total.add_incoming(value, before)
        updated = body(step, sums)
        following = builder.add(step, ir.Constant(self.whole, 1))
        step.add_incoming(following, loop)
        for total, value in zip(sums, updated, strict=True):
            total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
        builder.position_at_end(after)
        for cell, value in zip(cells, updated, strict=True):
            builder.store(value, cell, align=8)
        return self._context.get_dummy_value()

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


@numba.njit(nogil=True, cache=True)
def gather(x: Any, places: Any, first: int, count: int, out: Any, to: int) -> None:
    """Copies numbers ``x[places[lane] + first + k]`` into vector ``to + k`` of ``out``, for k < ``count``.

    ``places`` int64 [LANES] says where each matrix begins in the flat float64 array ``x``.
    """
    for lane in range(LANES):
        start = places[lane] + first
        for k in range(count):
            out[(to + k) * LANES + lane] = x[start + k]


@numba.njit(nogil=True, cache=True)
def scatter(x: Any, at: int, count: int, out: Any, places: Any, first: int) -> None:
    """Copies vector ``at + k`` of ``x`` to the numbers ``out[places[lane] + first + k]``, for k < ``count``."""
    for lane in range(LANES):
        start = places[lane] + first
        for k in range(count):
            out[start + k] = x[(at + k) * LANES + lane]


@numba.njit(nogil=True, cache=True)
def scaled(x: Any, at: int, factor: Any, count: int, out: Any, to: int) -> None:
    """Vector ``to + k`` of ``out`` becomes vector ``at + k`` of ``x`` times ``factor``, for k < ``count``.

    ``factor`` float64 [LANES].
    """
    for k in range(count):
        for lane in range(LANES):
            out[(to + k) * LANES + lane] = x[(at + k) * LANES + lane] * factor[lane]


@numba.njit(nogil=True, cache=True)
def add_numbers(x: Any, first: int, count: int, out: Any, to: int) -> None:
    """Adds the plain number ``x[first + k]`` to all lanes of vector ``to + k`` of ``out``, for k < ``count``."""
    for k in range(count):
        number = x[first + k]
        for lane in range(LANES):
            out[(to + k) * LANES + lane] += number


@numba.njit(nogil=True, cache=True, fastmath={"contract"})
def add_square_sums(x: Any, at: int, width: int, steps: int, out: Any, to: int) -> None:
    """Adds ``sum_k x[at + k width + r]^2`` to vectors ``to + r`` of ``out``, k < ``steps``, r < 4."""
    for k in range(steps):
        begin = (at + k * width) * LANES
        for number in range(_ROWS * LANES):
            out[to * LANES + number] += x[begin + number] * x[begin + number]


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
