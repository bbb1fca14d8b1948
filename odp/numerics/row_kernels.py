"""Rows of float32 as whole numbers: squares, rounding at random, and sums, in vectors of 64-bit lanes.

Every lane does the operations of numpy in their order, nothing is fused, and a sum of squares has the 16 lanes of
``odp.numerics.row_squares``: the numbers are those of numpy, to the bit. Import needs numba; nothing imports this
module at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from odp.numerics.hash_kernels import FIRST, GOLDEN, SECOND, SHIFTS, splitmix64
from odp.numerics.row_squares import LANES

#: Numbers of a step: half the lanes of a sum of squares.
_WIDTH = 8
_WHOLE, _BYTE = ir.IntType(64), ir.IntType(8)
_WORDS = ir.VectorType(_WHOLE, _WIDTH)
_DOUBLES = ir.VectorType(ir.DoubleType(), _WIDTH)
_SINGLES = ir.VectorType(ir.FloatType(), _WIDTH)
_INTEGERS = ir.VectorType(ir.IntType(32), _WIDTH)
_UNUSED = 11  # bits of a hash beyond the digits of a float64
_S11, _UNIT = np.uint64(_UNUSED), 2.0**-53


class _Writer:
    """Vector code at the place of a numba intrinsic's builder."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._context, self.builder, self._signature, self._arguments = context, builder, signature, arguments

    def array(self, place: int) -> Any:
        """Where the data of an argument begin."""
        argument = self._signature.args[place], self._arguments[place]
        return cgutils.create_struct_proxy(argument[0])(self._context, self.builder, argument[1]).data

    def at(self, pointer: Any, offset: Any, kind: Any) -> Any:
        """A pointer to the vector of this kind, ``offset`` numbers on."""
        return self.builder.bitcast(self.builder.gep(pointer, [offset]), kind.as_pointer())

    def load(self, pointer: Any, offset: Any, kind: Any) -> Any:
        """The vector of this kind, ``offset`` numbers on."""
        return self.builder.load(self.at(pointer, offset, kind), align=4)

    def store(self, vector: Any, pointer: Any, offset: Any) -> None:
        """Writes a vector, ``offset`` numbers on."""
        self.builder.store(vector, self.at(pointer, offset, vector.type), align=4)

    def spread(self, number: Any, kind: Any) -> Any:
        """A number in all lanes of a vector of this kind."""
        undefined = ir.Constant(kind, ir.Undefined)
        alone = self.builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(alone, undefined, ir.Constant(_INTEGERS, [0] * _WIDTH))

    def call(self, name: str, vector: Any) -> Any:
        """A function of LLVM, of each float64 of a vector."""
        kind = ir.FunctionType(_DOUBLES, [_DOUBLES])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{_WIDTH}f64")
        return self.builder.call(function, [vector])

    def hashed(self, words: Any) -> Any:
        """``splitmix64`` of each word."""
        build = self.builder
        mixed = build.add(words, _words(GOLDEN))
        for shift, factor in zip(SHIFTS, (FIRST, SECOND, None), strict=True):
            mixed = build.xor(mixed, build.lshr(mixed, _words(shift)))
            if factor is not None:
                mixed = build.mul(mixed, _words(factor))
        return mixed

    def summed(self, steps: Any, terms: int, body: Callable[[Any], list[Any]]) -> list[Any]:
        """Sums of the ``terms`` vectors that ``body(offset)`` has at each of ``steps`` >= 1 steps, in their order."""
        build = self.builder
        before, loop, after = build.block, build.append_basic_block(), build.append_basic_block()
        build.branch(loop)
        build.position_at_end(loop)
        step = build.phi(_WHOLE)
        step.add_incoming(ir.Constant(_WHOLE, 0), before)
        sums = [build.phi(_DOUBLES) for _ in range(terms)]
        added = body(build.mul(step, ir.Constant(_WHOLE, max(1, terms) * _WIDTH)))
        following = build.add(step, ir.Constant(_WHOLE, 1))
        step.add_incoming(following, loop)
        summed = []
        for total, value in zip(sums, added, strict=True):
            total.add_incoming(ir.Constant(_DOUBLES, [0.0] * _WIDTH), before)
            summed.append(build.fadd(total, value))
            total.add_incoming(summed[-1], loop)
        build.cbranch(build.icmp_signed("<", following, steps), loop, after)
        build.position_at_end(after)
        return summed


def _words(number: Any) -> Any:
    return ir.Constant(_WORDS, [int(number)] * _WIDTH)


@intrinsic
def _square_lanes(context: Any, row: Any, steps: Any, scale: Any, lanes: Any) -> Any:
    """``lanes[l]`` = sum of ``(row[l + 16 k] * scale)^2`` for k < ``steps`` >= 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = _Writer(context, builder, signature, arguments)
        source, scales = write.array(0), write.spread(arguments[2], _DOUBLES)

        def body(offset: Any) -> list[Any]:
            lane_squares = []
            for half in range(LANES // _WIDTH):
                here = builder.add(offset, ir.Constant(_WHOLE, half * _WIDTH))
                value = builder.fmul(builder.fpext(write.load(source, here, _SINGLES), _DOUBLES), scales)
                lane_squares.append(builder.fmul(value, value))
            return lane_squares

        for half, total in enumerate(write.summed(arguments[1], LANES // _WIDTH, body)):
            write.store(total, write.array(3), ir.Constant(_WHOLE, half * _WIDTH))
        return context.get_dummy_value()

    return types.void(row, steps, scale, lanes), generate


@intrinsic
def _round_steps(
    context: Any, row: Any, steps: Any, scale: Any, factor: Any, stream: Any, hashes: Any, out: Any, lanes: Any
) -> Any:
    """``out[j] = floor(row[j] scale factor + a fraction by the hash of stream and j)`` for j < 8 ``steps``, >= 1 steps.

    ``lanes`` gets 8 sums whose sum is that of the squares.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = _Writer(context, builder, signature, arguments)
        source, places, target = write.array(0), write.array(5), write.array(6)
        scales, factors = (write.spread(arguments[place], _DOUBLES) for place in (2, 3))
        streams, unit = write.spread(arguments[4], _WORDS), ir.Constant(_DOUBLES, [_UNIT] * _WIDTH)

        def body(offset: Any) -> list[Any]:
            value = builder.fpext(write.load(source, offset, _SINGLES), _DOUBLES)
            value = builder.fmul(builder.fmul(value, scales), factors)
            hashed = write.hashed(builder.xor(streams, write.load(places, offset, _WORDS)))
            hashed = builder.lshr(hashed, _words(_UNUSED))
            fraction = builder.fmul(builder.sitofp(hashed, _DOUBLES), unit)
            rounded = write.call("floor", builder.fadd(value, fraction))
            write.store(builder.fptosi(rounded, _INTEGERS), target, offset)
            return [builder.fmul(rounded, rounded)]

        (total,) = write.summed(arguments[1], 1, body)
        write.store(total, write.array(7), ir.Constant(_WHOLE, 0))
        return context.get_dummy_value()

    return types.void(row, steps, scale, factor, stream, hashes, out, lanes), generate


@intrinsic
def _add_steps(context: Any, values: Any, steps: Any, factor: Any, total: Any) -> Any:
    """Adds ``trunc(values[j] factor)`` to ``total[j]`` for j < 8 ``steps``, >= 1 steps."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = _Writer(context, builder, signature, arguments)
        source, target, factors = write.array(0), write.array(3), write.spread(arguments[2], _DOUBLES)

        def body(offset: Any) -> list[Any]:
            value = builder.sitofp(write.load(source, offset, _INTEGERS), _DOUBLES)
            value = write.call("trunc", builder.fmul(value, factors))
            write.store(builder.fadd(write.load(target, offset, _DOUBLES), value), target, offset)
            return []

        write.summed(arguments[1], 0, body)
        return context.get_dummy_value()

    return types.void(values, steps, factor, total), generate


@numba.njit(nogil=True, cache=True)
def squares(row: Any, scale: float, first: float, second: float, lanes: Any) -> Any:
    """``row_squares`` of one row: of ``row`` float32 times ``scale``, and of two numbers after it.

    ``lanes`` float64 [16] is overwritten.
    """
    size = len(row)
    whole = size // LANES * LANES
    lanes[:] = 0.0
    if whole:
        _square_lanes(row, whole // LANES, scale, lanes)  # type: ignore[call-arg]  # numba passes the context
    for place in range(whole, size):
        value = np.float64(row[place]) * scale
        lanes[place - whole] += value * value
    lanes[size % LANES] += first * first
    lanes[(size + 1) % LANES] += second * second
    total = lanes[0]
    for lane in range(1, LANES):
        total += lanes[lane]
    return total


@numba.njit(nogil=True, cache=True)
def round_row(row: Any, scale: float, factor: float, stream: Any, hashes: Any, out: Any, lanes: Any) -> Any:
    """Fills ``out`` int32 with ``row`` float32 times ``scale`` times ``factor``, rounded at random; the sum of squares.

    Exact where that sum is below 2^53. ``lanes`` is overwritten.

    Args:
      stream: uint64, of user and round.
      hashes: uint64, of the places.
    """
    size = len(row)
    whole = size // _WIDTH * _WIDTH
    lanes[:] = 0.0
    if whole:
        _round_steps(row, whole // _WIDTH, scale, factor, stream, hashes, out, lanes)  # type: ignore[call-arg]
    total = lanes[:_WIDTH].sum()
    for place in range(whole, size):
        rounded = round_number(np.float64(row[place]) * scale * factor, stream, hashes[place])
        out[place] = np.int32(rounded)
        total += rounded * rounded
    return total


@numba.njit(nogil=True, cache=True, inline="always")
def round_number(value: float, stream: Any, place: Any) -> Any:
    """``value`` rounded up or down, without bias, by the hash of a stream and the hash of a place."""
    return np.floor(value + np.float64(np.int64(splitmix64(stream ^ place) >> _S11)) * _UNIT)


@numba.njit(nogil=True, cache=True)
def add_row(values: Any, factor: float, total: Any) -> None:
    """Adds ``values`` int32 times ``factor``, cut to whole numbers, to ``total`` float64."""
    size = len(values)
    whole = size // _WIDTH * _WIDTH
    if whole:
        _add_steps(values, whole // _WIDTH, factor, total)  # type: ignore[call-arg]
    for place in range(whole, size):
        total[place] += np.trunc(np.float64(values[place]) * factor)
