"""Many updates of Draw and Discard in machine code. Import needs numba; nothing imports this module at the top.

All functions release the interpreter lock. Random numbers are for simulations and for thresholds, never for a device:
one word per decision from splitmix64 of a counter, and for noise one xorshift generator of 64 bits per weight, so that
the draws of all weights are vector code. Source of the generators: Steele et al. 2014; Marsaglia 2003.
"""

from __future__ import annotations

from typing import Any

from odp._system.extras import require

require("numba", to="compute Draw and Discard")

import numba  # noqa: E402
import numpy as np  # noqa: E402

from odp.models.glm.shape import POISSON_LIMIT  # noqa: E402
from odp.numerics.hash_kernels import splitmix64  # noqa: E402

#: Families by number, as ``odp.models.glm.shape.Family`` has them.
LINEAR, LOGISTIC, MULTINOMIAL, POISSON = 0, 1, 2, 3
#: What the server does with a report, by number.
DISCARD, SAME, ACCEPT, AVERAGE, BATCH = 0, 1, 2, 3, 4

_FUSED = {"contract", "nsz"}
_SUMMED = {"contract", "nsz", "reassoc"}
_A, _B, _C, _HIGH = np.uint64(13), np.uint64(7), np.uint64(17), np.uint64(32)
_SIGN, _REST = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_HALF32, _UNIT31 = np.float32(0.5), np.float32(2.0**-31)
_BITS, _ONE_BITS, _MANTISSA = np.int32(23), np.int32(0x3F800000), np.int32(0x007FFFFF)
_BIAS, _LN2 = np.int32(127), np.float32(0.6931471805599453)
_ONE, _TWO = np.float32(1.0), np.float32(2.0)
_T3, _T5, _T7, _T9 = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7), np.float32(1 / 9)
_NO_VARIANCE = 1e280
_CHECKED = 1024  # updates between two exact sums over the instances


@numba.njit(nogil=True, cache=True)
def below(state: Any, count: int) -> Any:
    """A number from 0 to ``count`` - 1; ``state`` uint64 [1] counts on."""
    state[0] += np.uint64(1)
    return np.int64(((splitmix64(state[0]) >> _HIGH) * np.uint64(count)) >> _HIGH)


@numba.njit(nogil=True, cache=True)
def start_lanes(seed: Any, lanes: Any) -> None:
    """Fills ``lanes`` uint64 [n] with states that are not zero."""
    for j in range(len(lanes)):
        lanes[j] = splitmix64(splitmix64(np.uint64(seed)) ^ np.uint64(j)) | np.uint64(1)


@numba.njit(nogil=True, cache=True, fastmath=_FUSED, error_model="numpy")
def fill_laplace(lanes: Any, out: Any, bits: Any) -> None:
    """Fills ``out`` float32 [n] with Laplace noise of scale 1, to 2e-6 of it; ``bits`` int32 [n] is written to.

    -log(u) of a uniform u = 2^e m is -(e log 2 + log m), with log m = 2 artanh((m - 1) / (m + 1)) by its series.
    """
    signs = out.view(np.uint32)
    uniforms = bits.view(np.float32)
    for j in range(len(out)):
        s = lanes[j]
        s ^= s << _A
        s ^= s >> _B
        s ^= s << _C
        lanes[j] = s
        word = np.uint32(s >> _HIGH)
        signs[j] = word & _SIGN
        uniforms[j] = (np.float32(np.int32(word & _REST)) + _HALF32) * _UNIT31
    for j in range(len(out)):
        raw = bits[j]
        power = np.float32((raw >> _BITS) - _BIAS)
        bits[j] = (raw & _MANTISSA) | _ONE_BITS
        m = uniforms[j]
        t = (m - _ONE) / (m + _ONE)
        q = t * t
        series = _TWO * t * (_ONE + q * (_T3 + q * (_T5 + q * (_T7 + q * _T9))))
        uniforms[j] = max(-(power * _LN2 + series), np.float32(0.0))
        signs[j] |= np.uint32(bits[j])


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED, error_model="numpy")
def _sums(rows: Any, total: Any, squares: Any) -> None:
    """Centres the instances ``rows`` float32 [k, p] and fills their sums and sums of squares."""
    count = len(rows)
    for j in range(rows.shape[1]):
        first = np.float32(0.0)
        for i in range(count):
            first += rows[i, j]
        first /= np.float32(count)
        column_sum, column_squares = np.float32(0.0), np.float32(0.0)
        for i in range(count):
            value = rows[i, j] - first
            rows[i, j] = value
            column_sum += value
            column_squares += value * value
        total[j], squares[j] = column_sum, column_squares


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED, error_model="numpy")
def honest_statistics(rows: Any, burn: int, seed: Any, largest: Any, spread: Any) -> None:
    """The two statistics of the spam test for honest reports without data: pure noise of scale 1.

    ``rows`` float32 [k, p], k >= 2, is the start and the end of the chain. Fills ``largest`` and ``spread`` float64 [n]
    for n updates, after ``burn`` updates that are not looked at.
    """
    count, size = rows.shape
    lanes = np.empty(size, dtype=np.uint64)
    start_lanes(seed, lanes)
    state = np.array([splitmix64(np.uint64(seed))], dtype=np.uint64)
    noise, bits = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.int32)
    total, squares = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.float32)
    share, rest = np.float32(1.0 / count), np.float32(1.0 / (count - 1))
    for update in range(burn + len(largest)):
        if update % _CHECKED == 0:
            _sums(rows, total, squares)
        source_row, replaced = below(state, count), below(state, count)
        fill_laplace(lanes, noise, bits)
        source, target = rows[source_row], rows[replaced]
        top, moved, spreads = np.float32(0.0), np.float32(0.0), np.float32(0.0)
        for j in range(size):
            value = source[j] + noise[j]
            off = value - total[j] * share
            off *= off
            variance = (squares[j] - total[j] * total[j] * share) * rest
            top = max(top, off / variance)
            moved += off
            spreads += variance
            old = target[j]
            total[j] += value - old
            squares[j] += value * value - old * old
            target[j] = value
        if update >= burn:
            largest[update - burn] = np.sqrt(top)
            spread[update - burn] = moved / spreads


@numba.njit(nogil=True, cache=True, error_model="numpy")
def sums_of(rows: Any) -> Any:
    """(centre, sum, sum of squares), float64 [p] each, of ``rows`` int32 [k, p] around their first row, the centre."""
    count, size = rows.shape
    centre, total, squares = np.empty(size), np.zeros(size), np.zeros(size)
    for j in range(size):
        centre[j] = np.float64(rows[0, j])
    for i in range(1, count):
        for j in range(size):
            value = np.float64(rows[i, j]) - centre[j]
            total[j] += value
            squares[j] += value * value
    return centre, total, squares


@numba.njit(nogil=True, cache=True, error_model="numpy")
def move_sums(centre: Any, total: Any, squares: Any, before: Any, after: Any) -> None:
    """Changes what ``sums_of`` gave where the row ``before`` int32 [p] becomes ``after``."""
    for j in range(len(total)):
        old, new = np.float64(before[j]) - centre[j], np.float64(after[j]) - centre[j]
        total[j] += new - old
        squares[j] += new * new - old * old


@numba.njit(nogil=True, cache=True, error_model="numpy")
def band_of(centre: Any, total: Any, squares: Any, count: int) -> Any:
    """(mean float64 [p], 1 / variance float64 [p], sum of all variances) of ``count`` >= 2 instances, from their sums.

    A weight in which all instances agree has a mean that is exact, and stands for any deviation from it.
    """
    mean, inverse, spreads = np.empty(len(total)), np.empty(len(total)), 0.0
    for j in range(len(total)):
        mean[j] = centre[j] + total[j] / count
        variance = (squares[j] - total[j] * total[j] / count) / (count - 1)
        inverse[j] = 1.0 / variance if variance > 0.0 else _NO_VARIANCE
        spreads += max(variance, 0.0)
    return mean, inverse, spreads


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED | {"nnan"}, error_model="numpy")
def compare(report: Any, mean: Any, inverse: Any, spreads: float) -> Any:
    """(largest deviation, spread) of a ``report`` int32 [p] over instances whose ``band_of`` is known."""
    top, moved = 0.0, 0.0
    for j in range(len(report)):
        off = np.float64(report[j]) - mean[j]
        off *= off
        moved += off
        top = max(top, off * inverse[j])
    ratio = moved / spreads if spreads > 0.0 else (1e300 if moved > 0.0 else 0.0)
    return np.sqrt(top), ratio


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED, error_model="numpy")
def _expected(family: int, z: Any) -> Any:
    """The mean of one predictor."""
    if family == LOGISTIC:
        return _ONE / (_ONE + np.exp(-min(max(z, np.float32(-60.0)), np.float32(60.0))))
    if family == POISSON:
        return np.exp(min(max(z, np.float32(-POISSON_LIMIT)), np.float32(POISSON_LIMIT)))
    return z


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED, error_model="numpy")
def _gradient_of_one(family: int, weights: Any, features: Any, targets: Any, begin: int, end: int, out: Any) -> None:
    """Fills ``out`` [inputs] with the mean gradient of the rows from ``begin`` to ``end``."""
    size = len(weights)
    out[:] = np.float32(0.0)
    for row in range(begin, end):
        x = features[row]
        z = np.float32(0.0)
        for j in range(size):
            z += weights[j] * x[j]
        residual = (_expected(family, z) - targets[row]) / np.float32(end - begin)
        for j in range(size):
            out[j] += residual * x[j]


@numba.njit(nogil=True, cache=True, fastmath=_SUMMED, error_model="numpy")
def _gradient_of_classes(weights: Any, features: Any, targets: Any, begin: int, end: int, out: Any) -> None:
    """The same of a multinomial model, [classes * inputs]: products of small matrices."""
    inputs = features.shape[1]
    classes = len(weights) // inputs
    x = features[begin:end]
    z = np.dot(x, weights.reshape(classes, inputs).T)
    for row in range(end - begin):
        top = z[row].max()
        total = np.float32(0.0)
        for c in range(classes):
            z[row, c] = np.exp(z[row, c] - top)
            total += z[row, c]
        for c in range(classes):
            z[row, c] /= total * np.float32(end - begin)
        z[row, np.int64(targets[begin + row])] -= _ONE / np.float32(end - begin)
    out[:] = np.dot(z.T, x).ravel()


@numba.njit(nogil=True, cache=True, fastmath=_FUSED, error_model="numpy")
def advance(
    strategy: int, family: int, rows: Any, batch: Any, features: Any, targets: Any, offsets: Any, users: Any,
    rate: float, clip: float, scale: float, lanes: Any, state: Any,
) -> None:  # fmt: skip
    """One update for each of ``users`` int64 [n], in this order.

    Args:
      strategy, family: numbers.
      rows: float32 [k, p], the instances.
      batch: int64 [2], of the strategy BATCH: reports per step, and reports that wait; of ACCEPT, the first says of how
        many reports one is accepted. With BATCH, ``rows`` has one more row, their sum.
      features: float32 [m, inputs]; ``targets`` float32 [m].
      offsets: int64 [users + 1]: the rows of each user.
      scale: of the Laplace noise; 0 for none.
      lanes: uint64 [p], of the noise.
      state: uint64 [1].
    """
    size = rows.shape[1]
    count = len(rows) - 1 if strategy == BATCH else len(rows)
    gradient, noise = np.empty(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
    bits = np.empty(size, dtype=np.int32)
    step, most, width = np.float32(rate), np.float32(clip), np.float32(scale)
    for user in users:
        begin, end = offsets[user], offsets[user + 1]
        source_row = below(state, count)
        replaced = source_row if strategy in (SAME, BATCH) else below(state, count)
        if end > begin:
            if family == MULTINOMIAL:
                _gradient_of_classes(rows[source_row], features, targets, begin, end, gradient)
            else:
                _gradient_of_one(family, rows[source_row], features, targets, begin, end, gradient)
        else:
            gradient[:] = np.float32(0.0)
        if scale > 0.0:
            fill_laplace(lanes, noise, bits)
        source, target = rows[source_row], rows[replaced]
        if strategy == BATCH:
            total = rows[count]
            for j in range(size):
                total[j] += width * noise[j] - step * min(max(gradient[j], -most), most)
            batch[1] += 1
            if batch[1] == batch[0]:
                share = np.float32(1.0 / batch[0])
                for j in range(size):
                    source[j] += share * total[j]
                    total[j] = np.float32(0.0)
                batch[1] = 0
            continue
        if strategy == ACCEPT and below(state, batch[0]) > 0:
            continue
        if strategy == AVERAGE:
            for j in range(size):
                value = source[j] + width * noise[j] - step * min(max(gradient[j], -most), most)
                target[j] = _HALF32 * (target[j] + value)
        else:
            for j in range(size):
                target[j] = source[j] + width * noise[j] - step * min(max(gradient[j], -most), most)
