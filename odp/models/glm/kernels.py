"""``odp.models.glm.training`` in machine code, user after user.

Import needs numba; nothing imports this module at the top. All functions release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.models.glm.shape import POISSON_LIMIT
from odp.models.local_training import EPOCH_SHIFT
from odp.numerics.hash_kernels import splitmix64

#: Families by number.
LINEAR, LOGISTIC, MULTINOMIAL, POISSON = 0, 1, 2, 3

_FUSED = {"contract", "nsz"}
_SUMMED = {"contract", "nsz", "reassoc"}
_S32 = np.uint64(32)
_LIMIT = np.float32(POISSON_LIMIT)
_ONE, _ZERO, _HALF = np.float32(1.0), np.float32(0.0), np.float32(0.5)
_SURE = np.float32(87.0)  # a logistic mean beyond it is 0 or 1 in float32
# Of e^v: where it is nearly zero, 1 / ln(2), ln(2) in two parts, 1/3! to 1/7!, and the layout of float32.
_LOWEST, _LOG2_E = np.float32(-87.0), np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_T3, _T4, _T5, _T6, _T7 = (np.float32(1.0 / n) for n in (6, 24, 120, 720, 5040))
_LINE = 16  # numbers of a cache line
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@numba.njit(nogil=True, cache=True)
def _draw(order: Any, size: int, taken: int, stream: Any, epoch: int) -> None:
    """The first ``taken`` of a permutation of 0 .. size - 1, as ``LocalTraining`` draws it."""
    for place in range(size):
        order[place] = place
    for place in range(taken):
        number = np.uint64(((epoch + 1) << EPOCH_SHIFT) + place)
        random_bits = splitmix64(stream ^ splitmix64(number)) >> _S32
        other = place + np.int64((random_bits * np.uint64(size - place)) >> _S32)
        order[place], order[other] = order[other], order[place]


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _raise(values: Any, powers: Any) -> None:
    """e^v for each number <= 88 of ``values`` float32, in place, to 2e-7 of it; ``powers`` int32 is as long.

    Without a call per number, so that it becomes vector code: e^v = 2^n e^r with |r| <= ln(2) / 2, and e^r by its
    Taylor series, whose rest is below 2^-24.
    """
    scales = powers.view(np.float32)
    for place in range(len(values)):
        value = max(values[place], _LOWEST)
        power = np.floor(value * _LOG2_E + _HALF)
        rest = value - power * _LN2_HIGH - power * _LN2_LOW
        series = _T7
        series = series * rest + _T6
        series = series * rest + _T5
        series = series * rest + _T4
        series = series * rest + _T3
        series = series * rest + _HALF
        series = series * rest + _ONE
        values[place] = series * rest + _ONE
        powers[place] = (np.int32(power) + _BIAS) << _MANTISSA
    for place in range(len(values)):
        values[place] *= scales[place]


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _moves(
    family: int, z: Any, powers: Any, biases: Any, targets: Any, chosen: Any, count: int, outputs: int, step: Any
) -> None:
    """Turns products in ``z`` [count, outputs] into ``step`` times mean minus target, and adds them to the biases."""
    for e in range(count):
        row = z[e * outputs : (e + 1) * outputs]
        top = _ZERO
        for o in range(outputs):
            row[o] += biases[o]
        if family == MULTINOMIAL:
            top = row[0]
            for o in range(1, outputs):
                top = max(top, row[o])
            for o in range(outputs):
                row[o] -= top
        elif family == POISSON:
            row[0] = min(max(row[0], -_LIMIT), _LIMIT)
        elif family == LOGISTIC:
            row[0] = -min(max(row[0], -_SURE), _SURE)
    if family != LINEAR:
        _raise(z[: count * outputs], powers[: count * outputs])
    for e in range(count):
        row = z[e * outputs : (e + 1) * outputs]
        target = targets[chosen[e]]
        if family == MULTINOMIAL:
            total = _ZERO
            for o in range(outputs):
                total += row[o]
            share = step / total
            for o in range(outputs):
                row[o] *= share
                if np.float32(o) == target:
                    row[o] -= step
        else:
            mean = _ONE / (_ONE + row[0]) if family == LOGISTIC else row[0]
            row[0] = step * (mean - target)
    for e in range(count):
        for o in range(outputs):
            biases[o] += z[e * outputs + o]


@numba.njit(nogil=True, cache=True)
def _aligned(numbers: int) -> Any:
    """Zeros float32 [numbers] from the start of a cache line on: vectors across two lines cost a fifth of the work."""
    spare = np.zeros(numbers + _LINE, dtype=np.float32)
    begin = (-spare.ctypes.data % (4 * _LINE)) // 4
    return spare[begin : begin + numbers]


@numba.njit(nogil=True, cache=True)
def _copy(values: Any, into: Any) -> None:
    """An assignment of the whole array takes three times as long."""
    for j in range(len(values)):
        into[j] = values[j]


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _gather(features: Any, chosen: Any, count: int, scale: Any, into: Any) -> None:
    size = features.shape[1]
    for e in range(count):
        row, copy = features[chosen[e]], into[e * size : (e + 1) * size]
        for j in range(size):
            copy[j] = np.float32(row[j]) * scale


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED)
def _set_dots(x: Any, places: Any, count: int, w: Any, outputs: int, size: int, z: Any) -> None:
    """``z[e, o] = sum_j x_e[j] w[o, j]`` for e < ``count``; x_e begins at ``places[e]`` of the flat ``x``."""
    for e in range(count):
        example = x[places[e] : places[e] + size]
        for o in range(outputs):
            row, total = w[o * size : (o + 1) * size], _ZERO
            for j in range(size):
                total += example[j] * row[j]
            z[e * outputs + o] = total


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _add_outer(x: Any, places: Any, count: int, z: Any, outputs: int, size: int, w: Any) -> None:
    """``w[o, j] += sum_e z[e, o] x_e[j]`` for e < ``count``: two examples per pass, for fewer loads of w."""
    for o in range(outputs):
        row = w[o * size : (o + 1) * size]
        for e in range(0, count - 1, 2):
            even, odd = x[places[e] : places[e] + size], x[places[e + 1] : places[e + 1] + size]
            first, second = z[e * outputs + o], z[(e + 1) * outputs + o]
            for j in range(size):
                row[j] += first * even[j] + second * odd[j]
        if count % 2:
            last, factor = x[places[count - 1] : places[count - 1] + size], z[(count - 1) * outputs + o]
            for j in range(size):
                row[j] += factor * last[j]


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _pull(values: Any, starts: Any, share: Any) -> None:
    for j in range(len(values)):
        values[j] -= share * (values[j] - starts[j])


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED)
def _subtract(values: Any, starts: Any, out: Any) -> Any:
    """Fills ``out`` with the difference; the sum of its squares."""
    total = _ZERO
    for j in range(len(out)):
        moved = values[j] - starts[j]
        out[j] = moved
        total += moved * moved
    return total


@numba.njit(nogil=True, cache=True)
def differences(
    family: int, start: Any, outputs: int, features: Any, flat: Any, targets: Any, rows: Any, offsets: Any,
    scale: Any, seeds: Any, round: int, epochs: int, batch: int, most: int, rate: float, proximal: float,
    shuffle: bool, out: Any,
) -> None:  # fmt: skip
    """Fills ``out`` float32 [users, size] with ``training.difference`` of each user.

    Args:
      family: its number.
      start: float32 [size].
      features, targets, rows, scale: as of ``UsersExamples``.
      flat: ``features`` as one row, to be read where they lie; empty where they are to be copied, because they are
        bytes or are scaled.
      offsets: int64 [users + 1], into ``rows``.
      seeds: uint64 [users].
    """
    size = features.shape[1]
    weights = outputs * size
    direct = len(flat) > 0
    first, first_biases = start[:weights], start[weights:]
    w, biases = _aligned(weights), first_biases.copy()
    most_examples = 1
    for user in range(len(seeds)):
        most_examples = max(most_examples, offsets[user + 1] - offsets[user])
    batch = min(batch, most_examples)
    order, chosen, places = np.empty(most_examples, np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64)
    z, powers = np.zeros(batch * outputs, dtype=np.float32), np.zeros(batch * outputs, dtype=np.int32)
    copied = _aligned(1 if direct else batch * size)
    pull = np.float32(rate * proximal)
    for user in range(len(seeds)):
        held = offsets[user + 1] - offsets[user]
        taken = min(held, most)
        _copy(first, w)
        _copy(first_biases, biases)
        stream = splitmix64(splitmix64(seeds[user]) ^ np.uint64(round))
        for epoch in range(epochs):
            if shuffle:
                _draw(order, held, taken, stream, epoch)
            else:
                order[:taken] = np.arange(taken)
            begin = 0
            while begin < taken:
                count = min(batch, taken - begin)
                for e in range(count):
                    chosen[e] = rows[offsets[user] + order[begin + e]]
                    places[e] = chosen[e] * size if direct else e * size
                if not direct:
                    _gather(features, chosen, count, scale, copied)
                x = flat if direct else copied
                _set_dots(x, places, count, w, outputs, size, z)
                step = np.float32(-rate / count)
                before = biases.copy() if proximal > 0.0 else biases
                _moves(family, z, powers, biases, targets, chosen, count, outputs, step)
                if proximal > 0.0:
                    _pull(w, first, pull)
                    for o in range(outputs):
                        biases[o] -= pull * (before[o] - first_biases[o])
                _add_outer(x, places, count, z, outputs, size, w)
                begin += count
        difference = out[user]
        squares = _subtract(w, first, difference[:weights])
        squares += _subtract(biases, first_biases, difference[weights:])
        if not np.isfinite(squares):
            for j in range(len(difference)):
                if not np.isfinite(difference[j]):
                    difference[:] = _ZERO
                    break
