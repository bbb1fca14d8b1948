"""Register-blocked sums of outer products for numba kernels: ``C[i, j] += sum_k A[k, i] B[k, j]``.

One tile of C stays in vector registers while k runs, so that the speed is that of a matrix product although C is small
(one user's or one item's matrix) and only its upper triangle is wanted. Numba's own loops store C once per step of k,
which halves the speed. Import needs numba; nothing imports this module at the top.
"""

from __future__ import annotations

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
CHUNK = 32


def padded(width: int) -> int:
    """The smallest multiple of the vector length that is at least ``width``."""
    return -(-width // LANES) * LANES


def _tile(vectors: int, *, subtract: bool = False) -> Any:
    """A numba function ``tile(a, i, lda, b, j, ldb, c, ij, ldc, steps)`` on flat float64 arrays, ``steps`` >= 1.

    Adds to the ``TILE_ROWS`` x (``vectors`` * ``LANES``) numbers of ``c`` from offset ``ij``, or subtracts; bounds are
    not checked.
    """

    @intrinsic
    def tile(
        context: Any, a: Any, i: Any, lda: Any, b: Any, j: Any, ldb: Any, c: Any, ij: Any, ldc: Any, k: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            whole, vector = ir.IntType(64), ir.VectorType(ir.DoubleType(), LANES)

            def start(place: int) -> Any:
                array = cgutils.create_struct_proxy(signature.args[place])(context, builder, arguments[place])
                return builder.gep(array.data, [arguments[place + 1]])

            def vectors_at(pointer: Any) -> list[Any]:
                places = [builder.gep(pointer, [ir.Constant(whole, v * LANES)]) for v in range(vectors)]
                return [builder.bitcast(place, vector.as_pointer()) for place in places]

            first, second, target = start(0), start(3), start(6)
            stride_a, stride_b, stride_c, steps = arguments[2], arguments[5], arguments[8], arguments[9]
            rows = [builder.gep(target, [builder.mul(stride_c, ir.Constant(whole, r))]) for r in range(TILE_ROWS)]
            places = [place for row in rows for place in vectors_at(row)]
            loaded = [builder.load(place, align=8) for place in places]
            fused = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f64"
            )
            before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(whole)
            step.add_incoming(ir.Constant(whole, 0), before)
            sums = [builder.phi(vector) for _ in places]
            for total, value in zip(sums, loaded, strict=True):
                total.add_incoming(value, before)
            here = builder.gep(first, [builder.mul(step, stride_a)])
            right = [builder.load(p, align=8) for p in vectors_at(builder.gep(second, [builder.mul(step, stride_b)]))]
            undefined = ir.Constant(vector, ir.Undefined)
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            updated = []
            for row in range(TILE_ROWS):
                left = builder.load(builder.gep(here, [ir.Constant(whole, row)]))
                left = builder.fneg(left) if subtract else left
                left = builder.insert_element(undefined, left, ir.Constant(ir.IntType(32), 0))
                left = builder.shuffle_vector(left, undefined, zeros)
                for v in range(vectors):
                    updated.append(builder.call(fused, [left, right[v], sums[row * vectors + v]]))
            following = builder.add(step, ir.Constant(whole, 1))
            step.add_incoming(following, loop)
            for total, value in zip(sums, updated, strict=True):
                total.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
            builder.position_at_end(after)
            for place, value in zip(places, updated, strict=True):
                builder.store(value, place, align=8)
            return context.get_dummy_value()

        return types.void(a, i, lda, b, j, ldb, c, ij, ldc, k), generate

    return tile


_wide, _narrow = _tile(_VECTORS), _tile(1)
_wide_minus, _narrow_minus = _tile(_VECTORS, subtract=True), _tile(1, subtract=True)

# Below this share of the diagonal, a pivot may be rounding.
_SMALLEST = 1e-11


@numba.njit(nogil=True, cache=True)
def add_products(a: Any, a_width: int, b: Any, b_width: int, c: Any, steps: int, symmetric: int) -> None:
    """``c[i, j] += sum_k a[k, i] b[k, j]`` for k < ``steps``; of the first ``symmetric`` rows, only j >= i is needed.

    Args:
      a: flat float64, [steps, a_width]; ``a_width`` is a multiple of ``TILE_ROWS``.
      b: flat float64, [steps, b_width]; ``b_width`` is a multiple of ``LANES``.
      c: flat float64, [a_width, b_width].
    """
    if steps < 1:
        return
    for row in range(0, a_width, TILE_ROWS):
        column = row // LANES * LANES if row < symmetric else 0
        while column + _VECTORS * LANES <= b_width:
            _wide(a, row, a_width, b, column, b_width, c, row * b_width + column, b_width, steps)
            column += _VECTORS * LANES
        while column < b_width:
            _narrow(a, row, a_width, b, column, b_width, c, row * b_width + column, b_width, steps)
            column += LANES


@numba.njit(nogil=True, cache=True)
def add_triangular(z: Any, width: int, c: Any, steps: int) -> None:
    """``c += Z'Z`` for a lower triangular Z, flat float64 [steps, width] with ``width`` a multiple of ``LANES``.

    Only the upper triangle of ``c`` [width, width] is complete: column j of Z begins at row j.
    """
    for row in range(0, width, TILE_ROWS):
        column = row // LANES * LANES
        while column < steps:
            rest = steps - column
            if column + _VECTORS * LANES <= width:
                start = column * width
                _wide(z, start + row, width, z, start + column, width, c, row * width + column, width, rest)
                column += _VECTORS * LANES
            else:
                start = column * width
                _narrow(z, start + row, width, z, start + column, width, c, row * width + column, width, rest)
                column += LANES


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
    for block in range(0, size, TILE_ROWS):
        end = min(block + TILE_ROWS, size)
        limit = last[end - 1]
        pivots = m[block * width + block], m[(end - 1) * width + end - 1]
        smallest = _SMALLEST * max(pivots[0], pivots[1])
        if block > 0:
            column = block // LANES * LANES
            while column + _VECTORS * LANES <= limit:
                _wide_minus(m, block, width, m, column, width, m, block * width + column, width, block)
                column += _VECTORS * LANES
            while column < limit:
                _narrow_minus(m, block, width, m, column, width, m, block * width + column, width, block)
                column += LANES
        for row in range(block, end):
            mine = m[row * width : row * width + limit]
            for step in range(block, row):
                other = m[step * width : step * width + limit]
                factor = other[row]
                for column in range(row, limit):
                    mine[column] -= factor * other[column]
            if not mine[row] > smallest:
                return False
            scale = 1.0 / np.sqrt(mine[row])
            for column in range(row, limit):
                mine[column] *= scale
    return True
