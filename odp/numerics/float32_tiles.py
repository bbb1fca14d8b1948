"""Register-blocked products of float32 matrices whose rows lie anywhere: many dot products, and sums of outer products.

Both keep a tile of results in vector registers, so that a step costs as many additions as the processor can start.
Written for matrices of a few rows and many columns, where a call of a BLAS costs more than the product. Import needs
numba; nothing imports this module at the top.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from odp.numerics.tiles import Writer

_WIDE = binding.get_host_cpu_features().get("avx512f", False)
#: Numbers in one vector register: rows are multiples of it.
LANES = 16 if _WIDE else 8
# Rows of a tile on either side, and vectors of a row that are updated at once: with them, registers are full.
_ROWS, _VECTORS = (5, 4) if _WIDE else (3, 3)


class _Writer(Writer):
    """``Writer`` for vectors of float32."""

    vector = ir.VectorType(ir.FloatType(), LANES)

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        super().__init__(context, builder, signature, arguments)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self._fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        self._undefined = ir.Constant(self.vector, ir.Undefined)
        self._zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        number = ir.FloatType()
        kind = ir.FunctionType(number, [number, self.vector])
        self._reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")

    def vectors(self, pointer: Any, count: int) -> list[Any]:
        """Pointers to that number of vectors in a row."""
        places = [self.at(pointer, v * LANES) for v in range(count)]
        return [self._builder.bitcast(place, self.vector.as_pointer()) for place in places]

    def total(self, lanes: Any) -> Any:
        """The sum of all lanes."""
        zero = ir.Constant(ir.FloatType(), 0.0)
        return self._builder.call(self._reduce, [zero, lanes], fastmath=("reassoc",))

    def summed(self, count: int, steps: Any, body: Any) -> list[Any]:
        """``count`` vectors that begin as zeros and that ``body(step, sums)`` renews ``steps`` >= 1 times."""
        builder, zero = self._builder, ir.Constant(self.vector, [0.0] * LANES)
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(self.whole)
        step.add_incoming(ir.Constant(self.whole, 0), before)
        sums = [builder.phi(self.vector) for _ in range(count)]
        updated = body(step, sums)
        following = builder.add(step, ir.Constant(self.whole, 1))
        step.add_incoming(following, loop)
        for value, renewed in zip(sums, updated, strict=True):
            value.add_incoming(zero, before)
            value.add_incoming(renewed, loop)
        builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
        builder.position_at_end(after)
        return list(updated)


def _dots_tile(left: int, right: int) -> Any:
    """A numba function ``tile(x, places, e, w, o, width, z, ez, ldz, steps)`` on flat arrays, ``steps`` >= 1.

    Sets ``z[ez + r ldz + s]`` to the dot product of ``LANES * steps`` numbers of x from ``places[e + r]`` on and of w
    from ``o + s width`` on, for r < ``left`` and s < ``right``. Bounds are not checked.
    """

    @intrinsic
    def tile(
        context: Any, x: Any, places: Any, e: Any, w: Any, o: Any, width: Any, z: Any, ez: Any, ldz: Any, k: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = _Writer(context, builder, signature, arguments)
            _, _, e, _, o, width, _, ez, ldz, steps = arguments

            def times(row: int, size: Any) -> Any:
                return builder.mul(size, ir.Constant(write.whole, row))

            points = [write.at(write.array(0), write.number(write.array(1), e, row)) for row in range(left)]
            weights = [write.at(write.array(3), o, times(row, width)) for row in range(right)]

            def body(step: Any, sums: list[Any]) -> list[Any]:
                moved = builder.mul(step, ir.Constant(write.whole, LANES))
                ours = [write.loaded(write.vectors(write.at(point, moved), 1))[0] for point in points]
                theirs = [write.loaded(write.vectors(write.at(weight, moved), 1))[0] for weight in weights]
                return [write.fused(ours[r], theirs[s], sums[r * right + s]) for r in range(left) for s in range(right)]

            sums = write.summed(left * right, steps, body)
            target = write.array(6)
            for r in range(left):
                for s in range(right):
                    builder.store(write.total(sums[r * right + s]), write.at(target, ez, times(r, ldz), s))
            return context.get_dummy_value()

        return types.void(x, places, e, w, o, width, z, ez, ldz, k), generate

    return tile


def _outer_tile(rows: int, vectors: int) -> Any:
    """A numba function ``tile(x, places, j, a, i, lda, c, ij, ldc, steps)`` on flat arrays, ``steps`` >= 1.

    Adds ``sum_k a[i + k lda + r] x[places[k] + j + s]`` to ``c[ij + r ldc + s]`` for r < ``rows`` and s < ``vectors *
    LANES``. Bounds are not checked.
    """

    @intrinsic
    def tile(
        context: Any, x: Any, places: Any, j: Any, a: Any, i: Any, lda: Any, c: Any, ij: Any, ldc: Any, k: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write = _Writer(context, builder, signature, arguments)
            _, _, j, _, i, lda, _, ij, ldc, steps = arguments
            points, places, factors, target = write.array(0), write.array(1), write.array(3), write.array(6)
            starts = [write.at(target, ij, builder.mul(ldc, ir.Constant(write.whole, r))) for r in range(rows)]

            def body(step: Any, sums: list[Any]) -> list[Any]:
                right = write.loaded(write.vectors(write.at(points, write.number(places, step), j), vectors))
                here = write.at(factors, i, builder.mul(step, lda))
                updated = []
                for row in range(rows):
                    left = write.spread(write.number(here, row))
                    updated += [write.fused(left, right[v], sums[row * vectors + v]) for v in range(vectors)]
                return updated

            return write.accumulate([cell for row in starts for cell in write.vectors(row, vectors)], steps, body)

        return types.void(x, places, j, a, i, lda, c, ij, ldc, k), generate

    return tile


_dots, _dots_left, _dots_right, _dot = (
    _dots_tile(_ROWS, _ROWS),
    _dots_tile(_ROWS, 1),
    _dots_tile(1, _ROWS),
    _dots_tile(1, 1),
)
_outer, _outer_row = _outer_tile(_ROWS, _VECTORS), _outer_tile(1, _VECTORS)
_outer_narrow, _outer_cell = _outer_tile(_ROWS, 1), _outer_tile(1, 1)


@numba.njit(nogil=True, cache=True)
def set_dots(x: Any, places: Any, count: int, w: Any, rows: int, width: int, z: Any) -> None:
    """``z[e, o] = sum_j x_e[j] w[o, j]`` for e < ``count``, o < ``rows``.

    Args:
      x: flat float32; the vector x_e begins at ``places[e]``, int64, a multiple of 4.
      w: flat float32 [rows, width].
      width: of the vectors, a positive multiple of ``LANES``.
      z: flat float32 [count, rows].
    """
    steps = width // LANES
    e = 0
    while e < count:
        whole = e + _ROWS <= count
        o = 0
        while o < rows:
            if o + _ROWS <= rows:
                if whole:
                    _dots(x, places, e, w, o * width, width, z, e * rows + o, rows, steps)
                else:
                    _dots_right(x, places, e, w, o * width, width, z, e * rows + o, rows, steps)
                o += _ROWS
            else:
                if whole:
                    _dots_left(x, places, e, w, o * width, width, z, e * rows + o, rows, steps)
                else:
                    _dot(x, places, e, w, o * width, width, z, e * rows + o, rows, steps)
                o += 1
        e += _ROWS if whole else 1


@numba.njit(nogil=True, cache=True)
def add_outer(x: Any, places: Any, count: int, a: Any, rows: int, width: int, c: Any) -> None:
    """``c[r, j] += sum_e a[e, r] x_e[j]`` for e < ``count`` >= 1.

    Args:
      x, places, width: as of :func:`set_dots`.
      a: flat float32 [count, rows].
      c: flat float32 [rows, width].
    """
    j = 0
    while j < width:
        wide = j + _VECTORS * LANES <= width
        r = 0
        while r < rows:
            if r + _ROWS <= rows:
                if wide:
                    _outer(x, places, j, a, r, rows, c, r * width + j, width, count)
                else:
                    _outer_narrow(x, places, j, a, r, rows, c, r * width + j, width, count)
                r += _ROWS
            else:
                if wide:
                    _outer_row(x, places, j, a, r, rows, c, r * width + j, width, count)
                else:
                    _outer_cell(x, places, j, a, r, rows, c, r * width + j, width, count)
                r += 1
        j += _VECTORS * LANES if wide else LANES
