"""Exact sums of weighted outer products of small integers, on the 16-bit multiply-add of x86: ``sum_k w_k x_k x_k'``.

A product of two 16-bit numbers takes a quarter of what a float64 takes, and pairs of them are added into 32 bits at
once. Weighted rows do not fit into 16 bits, so each number p = w x is split into p = 2^11 high + low with
-2^10 <= low < 2^10. For ``|x| <= 2^11`` and ``0 <= w <= 2^10``, |high| <= 2^10 too: a product is at most 2^21, and the
sum of up to ``MOST`` entries below 2^31. So it is exact, as the sums in float64 of ``tiles.py`` are.

Import needs numba; nothing imports this module at the top. ``AVAILABLE`` tells whether the processor has the
instruction; without it the sums are the same, and slower than in float64.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

AVAILABLE: bool = bool(binding.get_host_cpu_features().get("avx2", False))

#: Columns of a tile: a row's width is a multiple of them.
COLUMNS = 8
#: Entries that one pair of accumulators takes.
MOST = 512
#: Entries per call of :func:`add_weighted`, even.
CHUNK = 64
_PAIRS = CHUNK // 2

_ROWS = 4
_SHIFT, _HALF = 11, 1 << 10
_WHOLE, _NUMBER = ir.IntType(64), ir.IntType(32)
_SHORTS, _NUMBERS = ir.VectorType(ir.IntType(16), 2 * COLUMNS), ir.VectorType(_NUMBER, COLUMNS)


def _tile(rows: int, *, instruction: bool = AVAILABLE) -> Any:
    """A numba function ``tile(x, i, p, j, high, low, ij, ldc, pairs)`` on flat arrays, ``pairs`` >= 1.

    ``x`` int32 holds two 16-bit numbers each, of an even entry and the next one. Adds ``sum_k x[i + 4 k + r] .
    p[j + 16 k + s]`` to ``high[ij + r ldc + s]``, and the same of ``p[j + 16 k + 8 + s]`` to ``low``, for r < ``rows``
    and s < ``COLUMNS``. Bounds are not checked. Without ``instruction``, any processor can run it.
    """

    @intrinsic
    def tile(context: Any, x: Any, i: Any, p: Any, j: Any, high: Any, low: Any, ij: Any, ldc: Any, k: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def array(place: int) -> Any:
                argument = signature.args[place], arguments[place]
                return cgutils.create_struct_proxy(argument[0])(context, builder, argument[1]).data

            def at(pointer: Any, offset: Any) -> Any:
                return builder.gep(pointer, [offset])

            def vector(pointer: Any, kind: Any) -> Any:
                return builder.bitcast(pointer, kind.as_pointer())

            _, i, _, j, _, _, ij, ldc, steps = arguments
            points, pieces, targets = array(0), array(2), (array(4), array(5))
            half = ir.Constant(_WHOLE, COLUMNS)

            def multiplied(left: Any, right: Any) -> Any:
                """Products of 16-bit numbers, each with its neighbour's added, in 32 bits."""
                if instruction:
                    kind = ir.FunctionType(_NUMBERS, [_SHORTS, _SHORTS])
                    multiply_add = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
                    return builder.call(multiply_add, [left, right])
                wide = ir.VectorType(_NUMBER, 2 * COLUMNS)
                products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
                halves = [
                    builder.shuffle_vector(
                        products,
                        ir.Constant(wide, ir.Undefined),
                        ir.Constant(_NUMBERS, [2 * place + side for place in range(COLUMNS)]),
                    )
                    for side in range(2)
                ]
                return builder.add(*halves)

            undefined, zeros = ir.Constant(_NUMBERS, ir.Undefined), ir.Constant(_NUMBERS, [0] * COLUMNS)
            cells = []
            for r in range(rows):
                start = builder.add(ij, builder.mul(ldc, ir.Constant(_WHOLE, r)))
                cells += [vector(at(target, start), _NUMBERS) for target in targets]
            loaded = [builder.load(cell, align=4) for cell in cells]
            before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(_WHOLE)
            step.add_incoming(ir.Constant(_WHOLE, 0), before)
            sums = [builder.phi(_NUMBERS) for _ in cells]
            here = at(pieces, builder.add(j, builder.mul(step, ir.Constant(_WHOLE, 2 * COLUMNS))))
            both = [builder.load(vector(place, _SHORTS), align=4) for place in (here, at(here, half))]
            point = at(points, builder.add(i, builder.mul(step, ir.Constant(_WHOLE, _ROWS))))
            updated = []
            for r in range(rows):
                number = builder.load(at(point, ir.Constant(_WHOLE, r)))
                spread = builder.insert_element(undefined, number, ir.Constant(_NUMBER, 0))
                spread = builder.bitcast(builder.shuffle_vector(spread, undefined, zeros), _SHORTS)
                for place, piece in enumerate(both):
                    updated.append(builder.add(sums[2 * r + place], multiplied(spread, piece)))
            following = builder.add(step, ir.Constant(_WHOLE, 1))
            step.add_incoming(following, loop)
            for total, first, last in zip(sums, loaded, updated, strict=True):
                total.add_incoming(first, before)
                total.add_incoming(last, loop)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
            builder.position_at_end(after)
            for cell, last in zip(cells, updated, strict=True):
                builder.store(last, cell, align=4)
            return context.get_dummy_value()

        return types.void(x, i, p, j, high, low, ij, ldc, k), generate

    return tile


_four, _two = _tile(_ROWS), _tile(2)


@intrinsic
def _pack_groups(
    context: Any, rows: Any, first: Any, second: Any, weights: Any, entry: Any, groups: Any, points: Any, pieces: Any
) -> Any:
    """The first ``COLUMNS`` * ``groups`` >= 1 columns of :func:`pack_pair`: rows begin at ``first`` and ``second``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def array(place: int) -> Any:
            argument = signature.args[place], arguments[place]
            return cgutils.create_struct_proxy(argument[0])(context, builder, argument[1]).data

        def constant(value: int) -> Any:
            return ir.Constant(_NUMBERS, [value] * COLUMNS)

        def word(low: Any, high: Any) -> Any:
            """Two 16-bit numbers in each 32-bit one."""
            return builder.or_(builder.and_(low, constant(0xFFFF)), builder.shl(high, constant(16)))

        def times(value: Any, factor: int) -> Any:
            return builder.mul(value, ir.Constant(_WHOLE, factor))

        def store(value: Any, pointer: Any, offset: Any) -> None:
            builder.store(value, builder.bitcast(builder.gep(pointer, [offset]), value.type.as_pointer()), align=4)

        undefined, zeros = ir.Constant(_NUMBERS, ir.Undefined), ir.Constant(_NUMBERS, [0] * COLUMNS)
        row_numbers, factors, points, pieces = (array(place) for place in (0, 3, 6, 7))
        _, first, second, _, entry, groups, _, _ = arguments
        pair = builder.lshr(entry, ir.Constant(_WHOLE, 1))
        spread = []
        for side in range(2):
            number = builder.load(builder.gep(factors, [builder.add(entry, ir.Constant(_WHOLE, side))]))
            single = builder.insert_element(undefined, number, ir.Constant(_NUMBER, 0))
            spread.append(builder.shuffle_vector(single, undefined, zeros))
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_WHOLE)
        step.add_incoming(ir.Constant(_WHOLE, 0), before)
        column = builder.mul(step, ir.Constant(_WHOLE, COLUMNS))
        values, highs, lows = [], [], []
        short = ir.VectorType(ir.IntType(16), COLUMNS).as_pointer()
        for start, factor in zip((first, second), spread, strict=True):
            pointer = builder.bitcast(builder.gep(row_numbers, [builder.add(start, column)]), short)
            value = builder.sext(builder.load(pointer, align=2), _NUMBERS)
            product = builder.mul(value, factor)
            rest = builder.and_(builder.add(product, constant(_HALF)), constant(2 * _HALF - 1))
            rest = builder.sub(rest, constant(_HALF))
            values.append(value)
            lows.append(rest)
            highs.append(builder.ashr(builder.sub(product, rest), constant(_SHIFT)))
        point = word(*values)
        for part in range(COLUMNS // _ROWS):
            chosen = ir.Constant(ir.VectorType(_NUMBER, _ROWS), [part * _ROWS + place for place in range(_ROWS)])
            block = builder.add(times(step, COLUMNS // _ROWS), ir.Constant(_WHOLE, part))
            place = times(builder.add(times(block, _PAIRS), pair), _ROWS)
            store(builder.shuffle_vector(point, undefined, chosen), points, place)
        place = times(builder.add(times(step, _PAIRS), pair), 2 * COLUMNS)
        store(word(*highs), pieces, place)
        store(word(*lows), pieces, builder.add(place, ir.Constant(_WHOLE, COLUMNS)))
        following = builder.add(step, ir.Constant(_WHOLE, 1))
        step.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, groups), loop, after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(rows, first, second, weights, entry, groups, points, pieces), generate


@numba.njit(nogil=True, cache=True)
def pack_pair(
    rows: Any, rank: int, first: int, second: int, weights: Any, targets: Any, pair: int, width: int, points: Any,
    pieces: Any,
) -> None:  # fmt: skip
    """Puts pair number ``pair`` of a chunk's entries where :func:`add_weighted` wants it.

    Args:
      rows: flat int16, absolutely at most 2^11; a row is ``rank`` >= 1 numbers from ``first`` or ``second`` on.
      weights: int32 [CHUNK], of the chunk's entries, 0 to 2^10; 0 fills up the last pair.
      targets: likewise, absolutely at most 2^10.
      width: ``rank``, rounded up to a multiple of ``COLUMNS``.
      points: int32 [(width + 4) * CHUNK / 2] to fill, in blocks of four columns, with zeros to the right of ``rank``.
      pieces: int32 [2 * width * CHUNK / 2] to fill, in blocks of ``COLUMNS``, likewise.
    """
    entry, groups = 2 * pair, rank // COLUMNS
    if groups:
        _pack_groups(rows, first, second, weights, entry, groups, points, pieces)  # type: ignore[call-arg]
    for column in range(groups * COLUMNS, rank):
        left, right = np.int32(rows[first + column]), np.int32(rows[second + column])
        points[(column // _ROWS * _PAIRS + pair) * _ROWS + column % _ROWS] = (left & 0xFFFF) | (right << 16)
        left, right = left * weights[entry], right * weights[entry + 1]
        low = ((left + _HALF) & (2 * _HALF - 1)) - _HALF
        other = ((right + _HALF) & (2 * _HALF - 1)) - _HALF
        place = (column // COLUMNS * _PAIRS + pair) * 2 * COLUMNS + column % COLUMNS
        pieces[place] = (((left - low) >> _SHIFT) & 0xFFFF) | (((right - other) >> _SHIFT) << 16)
        pieces[place + COLUMNS] = (low & 0xFFFF) | (other << 16)
    place = (width // _ROWS * _PAIRS + pair) * _ROWS
    points[place] = 1 | 1 << 16
    points[place + 1] = (targets[entry] & 0xFFFF) | (targets[entry + 1] << 16)


@numba.njit(nogil=True, cache=True)
def add_weighted(points: Any, pieces: Any, width: int, high: Any, low: Any, pairs: int) -> None:
    """Adds the pairs of a chunk: ``2^11 high + low`` grows by ``sum_k w x x'``, and two rows more by its w x and t w x.

    Args:
      points, pieces: as filled by :func:`pack_pair`.
      width: a multiple of ``COLUMNS``.
      high, low: flat int32 [width + 2, width], for at most ``MOST`` entries from zero on; of the first ``width`` rows,
        only the upper triangle is complete.
      pairs: at most ``CHUNK`` / 2.
    """
    if pairs < 1:
        return
    for row in range(0, width, _ROWS):
        for column in range(row // COLUMNS * COLUMNS, width, COLUMNS):
            place = row * width + column
            _four(points, row * _PAIRS, pieces, 2 * column * _PAIRS, high, low, place, width, pairs)
    for column in range(0, width, COLUMNS):
        place = width * width + column
        _two(points, width * _PAIRS, pieces, 2 * column * _PAIRS, high, low, place, width, pairs)


@numba.njit(nogil=True, cache=True)
def add_totals(high: Any, low: Any, place: int, count: int, factor: int, out: Any, to: int) -> None:
    """Adds ``factor`` times the numbers of ``count`` cells from ``place`` on to int64 ``out`` from ``to`` on."""
    highs, lows, totals = high[place : place + count], low[place : place + count], out[to : to + count]
    for cell in range(count):
        totals[cell] += factor * ((np.int64(highs[cell]) << np.int64(_SHIFT)) + np.int64(lows[cell]))
