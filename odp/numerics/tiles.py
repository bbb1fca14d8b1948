"""Register-blocked sums of outer products for numba kernels: ``C[i, j] += sum_k A[k, i] B[k, j]``.

One tile of C stays in vector registers while k runs, so that the speed is that of a matrix product although C is small
(one user's or one item's matrix) and only its upper triangle is wanted. Numba's own loops store C once per step of k,
which halves the speed. Import needs numba; nothing imports this module at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

#: Rows of a tile, and numbers in one vector register: an operand's width is a multiple of both.
TILE_ROWS = 4
LANES = 8 if binding.get_host_cpu_features().get("avx512f", False) else 4
_VECTORS = 2

#: Steps of k per call: an operand's chunk stays in the first-level cache.
CHUNK = 64


def padded(width: int) -> int:
    """The smallest multiple of the vector length that is at least ``width``."""
    return -(-width // LANES) * LANES


class Writer:
    """Vector code at the place of a numba intrinsic's builder."""

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


def _minus_tile(vectors: int) -> Any:
    """A numba function ``tile(a, i, lda, b, j, ldb, c, ij, ldc, steps)`` on flat float64 arrays, ``steps`` >= 1.

    Subtracts from the ``TILE_ROWS`` x (``vectors`` * ``LANES``) numbers of ``c`` from offset ``ij``; bounds are not
    checked.
    """

    @intrinsic
    def tile(
        context: Any, a: Any, i: Any, lda: Any, b: Any, j: Any, ldb: Any, c: Any, ij: Any, ldc: Any, k: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = Writer(context, builder, signature, arguments)
            _, i, lda, _, j, ldb, _, ij, ldc, steps = arguments
            first, second, target = write.at(write.array(0), i), write.at(write.array(3), j), write.array(6)
            rows = [write.at(target, ij, builder.mul(ldc, ir.Constant(write.whole, r))) for r in range(TILE_ROWS)]

            def body(step: Any, sums: list[Any]) -> list[Any]:
                here = write.at(first, builder.mul(step, lda))
                right = write.loaded(write.vectors(write.at(second, builder.mul(step, ldb)), vectors))
                updated = []
                for row in range(TILE_ROWS):
                    left = write.spread(builder.fneg(write.number(here, row)))
                    updated += [write.fused(left, right[v], sums[row * vectors + v]) for v in range(vectors)]
                return updated

            return write.accumulate([cell for row in rows for cell in write.vectors(row, vectors)], steps, body)

        return types.void(a, i, lda, b, j, ldb, c, ij, ldc, k), generate

    return tile


def _outer_tile(vectors: int) -> Any:
    """A numba function ``tile(x, places, i, j, w, c, ij, ldc, steps)`` on flat arrays, ``steps`` >= 1.

    Adds ``sum_k w[k] x_k[i + r] x_k[j + s]`` to the ``LANES`` x (``vectors`` * ``LANES``) numbers of ``c`` from offset
    ``ij``, where x_k begins at ``x[places[k]]``: rows are read where they lie, and scaled in registers. Bounds are not
    checked.
    """

    @intrinsic
    def tile(context: Any, x: Any, places: Any, i: Any, j: Any, w: Any, c: Any, ij: Any, ldc: Any, k: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = Writer(context, builder, signature, arguments)
            _, _, i, j, _, _, ij, ldc, steps = arguments
            points, places, scales, target = write.array(0), write.array(1), write.array(4), write.array(5)
            rows = [write.at(target, ij, builder.mul(ldc, ir.Constant(write.whole, r))) for r in range(LANES)]

            def body(step: Any, sums: list[Any]) -> list[Any]:
                point = write.at(points, write.number(places, step))
                scale = write.spread(write.number(scales, step))
                right = [
                    builder.fmul(vector, scale) for vector in write.loaded(write.vectors(write.at(point, j), vectors))
                ]
                updated = []
                for row in range(LANES):
                    left = write.spread(write.number(point, i, row))
                    updated += [write.fused(left, right[v], sums[row * vectors + v]) for v in range(vectors)]
                return updated

            return write.accumulate([cell for row in rows for cell in write.vectors(row, vectors)], steps, body)

        return types.void(x, places, i, j, w, c, ij, ldc, k), generate

    return tile


def _pair_tile(vectors: int) -> Any:
    """A numba function ``tile(x, places, j, a, c, ldc, steps)``: adds ``sum_k a[2 k + r] x_k[j + s]`` to ``c``.

    r is 0 and 1, s is below ``vectors`` * ``LANES``; the rest is as of ``_outer_tile``.
    """

    @intrinsic
    def tile(context: Any, x: Any, places: Any, j: Any, a: Any, c: Any, ldc: Any, k: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = Writer(context, builder, signature, arguments)
            _, _, j, _, _, ldc, steps = arguments
            points, places, coefficients, target = write.array(0), write.array(1), write.array(3), write.array(4)
            cells = [*write.vectors(write.at(target, j), vectors), *write.vectors(write.at(target, j, ldc), vectors)]

            def body(step: Any, sums: list[Any]) -> list[Any]:
                right = write.loaded(write.vectors(write.at(points, write.number(places, step), j), vectors))
                pair = write.at(coefficients, step, step)
                both = [write.spread(write.number(pair, row)) for row in range(2)]
                terms = [(row, vector) for row in both for vector in right]
                return [write.fused(row, vector, total) for (row, vector), total in zip(terms, sums, strict=True)]

            return write.accumulate(cells, steps, body)

        return types.void(x, places, j, a, c, ldc, k), generate

    return tile


@intrinsic
def _prefetch(context: Any, x: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = Writer(context, builder, signature, arguments)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        reading, soon, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(hint, [builder.bitcast(write.at(write.array(0), arguments[1]), byte), reading, soon, data])
        return context.get_dummy_value()

    return types.void(x, place), generate


@numba.njit(nogil=True, cache=True, inline="always")
def fetch_ahead(x: Any, place: Any, size: int, line: int) -> None:
    """Asks for the numbers from ``place`` on of a flat array, ``line`` to a cache line, without waiting for them."""
    for start in range(place, place + size, line):
        _prefetch(x, start)  # type: ignore[call-arg]  # numba passes the context


@intrinsic
def _finish(context: Any, m: Any, start: Any, ldm: Any, factors: Any, vectors: Any) -> Any:
    """Forward substitution of ``TILE_ROWS`` rows of ``m`` from offset ``start``, ``vectors`` >= 1 vectors wide.

    Row r becomes (row r - sum_{q < r} f[q, r] row q) f[r, r] with f flat [TILE_ROWS, TILE_ROWS].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = Writer(context, builder, signature, arguments)
        _, start, ldm, _, vectors = arguments
        target, places = write.at(write.array(0), start), range(TILE_ROWS)
        rows = [write.at(target, builder.mul(ldm, ir.Constant(write.whole, row))) for row in places]
        table = write.array(3)
        factors = {(q, r): write.spread(write.number(table, q * TILE_ROWS + r)) for r in places for q in range(r + 1)}

        def body(step: Any, _: list[Any]) -> list[Any]:
            moved = builder.mul(step, ir.Constant(write.whole, LANES))
            cells = [write.vectors(write.at(row, moved), 1)[0] for row in rows]
            solved: list[Any] = []
            for row, value in enumerate(write.loaded(cells)):
                for other in range(row):
                    value = write.fused(factors[other, row], solved[other], value)
                solved.append(builder.fmul(value, factors[row, row]))
            for cell, value in zip(cells, solved, strict=True):
                builder.store(value, cell, align=8)
            return []

        return write.accumulate([], vectors, body)

    return types.void(m, start, ldm, factors, vectors), generate


_wide_minus, _narrow_minus = _minus_tile(_VECTORS), _minus_tile(1)
_outer_wide, _outer_narrow = _outer_tile(_VECTORS), _outer_tile(1)
_pair_wide, _pair_narrow = _pair_tile(2 * _VECTORS), _pair_tile(1)

# Below this share of the diagonal, a pivot may be rounding.
_SMALLEST = 1e-11


@numba.njit(nogil=True, cache=True)
def add_outer(x: Any, places: Any, weights: Any, width: int, c: Any, c_width: int, steps: int) -> None:
    """``c[i, j] += sum_k w[k] x_k[i] x_k[j]`` for k < ``steps``; only the upper triangle of ``c`` is complete.

    Args:
      x: flat float64; the vector x_k begins at ``places[k]``, int64.
      weights: float64, at least ``steps``.
      width: of the vectors, a multiple of ``LANES``.
      c: flat float64 [width, c_width].
      c_width: at least ``width``.
    """
    if steps < 1:
        return
    for row in range(0, width, LANES):
        column = row
        while column + _VECTORS * LANES <= width:
            _outer_wide(x, places, row, column, weights, c, row * c_width + column, c_width, steps)
            column += _VECTORS * LANES
        if column < width:
            _outer_narrow(x, places, row, column, weights, c, row * c_width + column, c_width, steps)


@numba.njit(nogil=True, cache=True)
def add_pairs(x: Any, places: Any, coefficients: Any, width: int, c: Any, steps: int) -> None:
    """``c[r, j] += sum_k a[k, r] x_k[j]`` for k < ``steps``, r of 0 and 1; the rest is as of :func:`add_outer`.

    Args:
      coefficients: a, flat float64 [steps, 2].
      c: flat float64 [2, width].
    """
    if steps < 1:
        return
    column = 0
    while column + 2 * _VECTORS * LANES <= width:
        _pair_wide(x, places, column, coefficients, c, width, steps)
        column += 2 * _VECTORS * LANES
    while column < width:
        _pair_narrow(x, places, column, coefficients, c, width, steps)
        column += LANES


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def _product(left: Any, right: Any) -> float:
    total = 0.0
    for place in range(len(left)):
        total += left[place] * right[place]
    return total


@numba.njit(nogil=True, cache=True)
def substitute(m: Any, width: int, size: int, out: Any) -> None:
    """Fills ``out`` [size] with U^-1 z, where ``m`` holds [U | z], as of :func:`eliminate`."""
    for index in range(size - 1, -1, -1):
        row = m[index * width : index * width + size + 1]
        out[index] = (row[size] - _product(row[index + 1 : size], out[index + 1 : size])) / row[index]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
def eliminate(m: Any, width: int, size: int, last: Any) -> bool:
    """[M | R] becomes [U | U^-T R] with M = U'U; False, and then half done, where M is not clearly positive definite.

    Args:
      m: flat float64 [rows, width]; rows are ``size``, rounded up to a multiple of ``TILE_ROWS``. Of M, the first
        ``size`` columns, only the upper triangle counts; what is below becomes anything.
      width: a multiple of ``LANES``.
      size: of M.
      last: int64 [size], ascending multiples of ``LANES``: row k has zeros from column ``last[k]`` on.
    """
    factors = np.zeros(TILE_ROWS * TILE_ROWS)
    for block in range(0, size, TILE_ROWS):
        end = min(block + TILE_ROWS, size)
        limit = last[end - 1]
        pivots = m[block * width + block], m[(end - 1) * width + end - 1]
        smallest = _SMALLEST * max(pivots[0], pivots[1])
        begin = block // LANES * LANES
        if block > 0:
            column = begin
            while column + _VECTORS * LANES <= limit:
                _wide_minus(m, block, width, m, column, width, m, block * width + column, width, block)
                column += _VECTORS * LANES
            while column < limit:
                _narrow_minus(m, block, width, m, column, width, m, block * width + column, width, block)
                column += LANES
        for row in range(block, end):
            here = (row - block) * TILE_ROWS + row - block
            pivot = m[row * width + row]
            for step in range(row - block):
                pivot -= factors[step * TILE_ROWS + row - block] * factors[step * TILE_ROWS + row - block]
            if not pivot > smallest:
                return False
            scale = 1.0 / np.sqrt(pivot)
            for column in range(row + 1, end):
                value = m[row * width + column]
                for step in range(row - block):
                    factor = factors[step * TILE_ROWS + column - block]
                    value -= factors[step * TILE_ROWS + row - block] * factor
                factors[here + column - row] = value * scale
            factors[here] = scale
        for place in range(TILE_ROWS):
            for other in range(place + 1, TILE_ROWS):
                factors[place * TILE_ROWS + other] *= -1.0
            if block + place >= end:
                factors[place * TILE_ROWS + place] = 0.0
        _finish(m, block * width + begin, width, factors, (limit - begin) // LANES)  # type: ignore[call-arg]
    return True
