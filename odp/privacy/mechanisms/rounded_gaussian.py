"""Integer noise ``round(G / g)``, ``G ~ N(0, s^2)``, sampled from its exact law without floating-point normals.

Guarantee: data that lie on the grid ``g Z`` plus ``g`` times this noise equal the rounded output of the *continuous*
Gaussian mechanism, so the release is post-processing of a Gaussian of standard deviation ``s``: mu-GDP with
``mu = sensitivity / s``, with no float leak in the low bits. Data and noise must be on the same grid.

Only ``ratio = s / g`` matters. Two levels:

1. A *cell* of ``M`` neighbouring integers, from a table of 128-bit cumulative probabilities (computed with 256 bits).
   ``M`` is 1 below ``ratio = 256``, then the power of two that keeps ``ratio / M`` within [64, 128).
2. One of the ``M`` integers: uniform, accepted with its probability relative to the cell's likeliest, else redrawn.

Distance from the exact law. Level 1: total variation below 2^-116 per number. Level 2: with ``h = 1 / ratio <= 2^-8``
and ``t = n h``, the probability of ``n`` is ``h phi(t) (1 + h^2 He2(t)/24 + h^4 He4(t)/1920 + O(h^6))`` (Taylor series
of the density, integrated over one grid step); the rest and double rounding leave every probability within a *factor*
``exp(+-2^-49.2)`` of the exact one. A factor ``e^k`` on both neighbouring laws adds at most ``k + (e^k - 1)`` to the
delta at any epsilon (bound each side on the set where the first density exceeds ``e^epsilon`` times the second), a
total variation ``tau`` adds ``(1 + e^epsilon) tau``. Hence ``ADDED_DELTA`` per number, proved for epsilon up to 40.
The factor can be charged to epsilon instead, which is far less for many numbers (``odp/privacy/numerical.py``).

Sources: Dong, Roth, Su 2022 (post-processing); Casacuberta et al. 2022 (why floats leak); Kronmal and Peterson 1979
(mixture of a table and a rejection step).
"""

from __future__ import annotations

import bisect
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from odp import _validate
from odp.errors import PrivacyError
from odp.privacy.mechanisms.discrete_gaussian import NoiseSource, deferred

if TYPE_CHECKING:
    from mpmath.ctx_mp import MPContext

ADDED_DELTA = 2.0**-48
"""Upper bound of the delta that one sampled number adds, at any ratio and any epsilon up to 40."""

CLOSENESS = 2.0**-49.2
"""Every probability is within a factor ``exp(+-CLOSENESS)`` of the exact one, but for the table's total variation."""

TABLE_DELTA = 2.0**-58  # (1 + e^40) * 2^-116
"""Upper bound of the delta that the total variation of the table adds per number, at any epsilon up to 40."""

MIN_RATIO = 1.0
MAX_RATIO = 2.0**40

_TABLE_BITS = 128
_WORKING_BITS = 320
_FIXED_BITS = 256
# One series gives tails on 2^5 points to either side at most, while that is no farther than this.
_MOST_SPAN_BITS = 5
_LARGEST_REACH = 0.25
_HALF_STEP = 1 << (_FIXED_BITS - _TABLE_BITS - 1)
_WORD = 2**64
_CHUNK = 1 << 15  # numbers per pass: the temporaries of one pass stay in the processor's cache
_GROUP = 1 << 18  # numbers whose redraws are made together
_WORTHWHILE = 1 << 17  # fewer numbers take no longer than to load the machine code
_SHARED_CELL = 2**11  # up to this size, the step and the 53 bits of the coin fit into one word
_GUIDE_BITS = 13
_UNIT = 2.0**53
_FINE_CELLS = 64  # cells per standard deviation, at least


class IntegerNoise(Protocol):
    """The noise of a release for its integer sums."""

    def sample(self, ratio: float, count: int) -> NDArray[np.int64]:
        """``count`` independent integers, int64 [count], of standard deviation ``ratio`` grid steps."""


class RoundedGaussian:
    """The law of ``round(G)``, ``G ~ N(0, ratio^2)``; the table of a ratio is built once per process (.1 s at most).

    Args:
        ratio: standard deviation of the noise divided by the grid step, within [1, 2^40]. A mechanism that follows
            the grid rule (step at most a 64th of the noise) has 64 or more.

    Raises:
        ConfigurationError: ``ratio`` is not a finite number within the range that the tables cover.
    """

    def __init__(self, ratio: float) -> None:
        _validate.within(low=MIN_RATIO, high=MAX_RATIO, ratio=ratio)
        self.ratio = float(ratio)
        self._table = _build(self.ratio)

    def __repr__(self) -> str:
        return f"RoundedGaussian(ratio={self.ratio!r})"

    def added_delta(self, count: int) -> float:
        """Upper bound of the delta that ``count`` numbers add to the claim of the continuous mechanism."""
        _validate.integer(low=0, high=2**62, count=count)
        return count * (TABLE_DELTA if self._table.cell == 1 else ADDED_DELTA)

    def sample(self, count: int, source: NoiseSource, *, compiled: bool = False) -> NDArray[np.int64]:
        """Independent numbers of the exact law, int64 [count], from ``source`` alone.

        Run time depends on the numbers drawn (redraws), so a release draws its noise before it opens any data.
        ``compiled`` may use numba where it is installed, for the same numbers in less time: an enclave should not,
        since numba keeps machine code in files.

        Raises:
            ConfigurationError: ``count`` is negative or not a whole number.
            PrivacyError: ``source`` gave another number of bytes than asked.
        """
        _validate.integer(low=0, high=2**40, count=count)
        out = np.empty(count, dtype=np.int64)
        with _workers() as pool:
            for start in range(0, count, _GROUP):
                self._fill(out[start : start + _GROUP], count, source, pool, compiled)
        return out

    def blocks(
        self, count: int, source: NoiseSource, pool: ThreadPoolExecutor, *, compiled: bool = False
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(start, numbers) of the parts of one :meth:`sample`, in order, in memory that the next part takes over."""
        _validate.integer(low=0, high=2**40, count=count)
        memory = np.empty(min(count, _GROUP), dtype=np.int64)
        for start in range(0, count, _GROUP):
            part = memory[: min(_GROUP, count - start)]
            self._fill(part, count, source, pool, compiled)
            yield start, part

    def _fill(
        self, out: NDArray[np.int64], count: int, source: NoiseSource, pool: ThreadPoolExecutor, compiled: bool
    ) -> None:
        """Draws at most ``_GROUP`` of ``count`` numbers."""
        code = _machine_code_for(count) if compiled else None
        _draw(self._table, out, source, pool, _first_tries if code is None else code.first_tries)


class GaussianNoise:
    """``IntegerNoise`` by ``RoundedGaussian`` from one source: the noise of every real release.

    Args:
        source: of the random bytes.
        compiled: as of :meth:`RoundedGaussian.sample`; the numbers are the same.
    """

    def __init__(self, source: NoiseSource, *, compiled: bool = False) -> None:
        self._source = source
        self._compiled = compiled

    def sample(self, ratio: float, count: int) -> NDArray[np.int64]:
        """``count`` independent rounded Gaussians of standard deviation ``ratio`` grid steps, int64 [count]."""
        return RoundedGaussian(ratio).sample(count, self._source, compiled=self._compiled)

    def added(self, sums: NDArray[np.int64], ratios: NDArray[np.float64], step: float) -> NDArray[np.float64]:
        """(sums + noise) * step in the memory of ``sums``, which is lost.

        The numbers are those of :meth:`sample` for the columns of each ratio together, smallest ratio first, row by
        row.

        Args:
            sums: contiguous int64.
            ratios: standard deviation of the noise per entry of the last axis, in grid steps.
            step: of the grid.
        """
        integers, values, width = sums.reshape(-1), sums.reshape(-1).view(np.float64), len(ratios)
        code = _machine_code_for(sums.size) if self._compiled else None
        add: Callable[..., None] = _add_to_columns if code is None else code.add_to_columns
        with _workers() as pool:
            for ratio in np.unique(ratios):
                columns = np.flatnonzero(ratios == ratio)
                law, count = RoundedGaussian(float(ratio)), sums.size // width * len(columns)
                for start, numbers in law.blocks(count, self._source, pool, compiled=self._compiled):
                    tasks = [
                        pool.submit(add, integers, values, width, columns, start + at, numbers[at : at + _CHUNK], step)
                        for at in range(0, len(numbers), _CHUNK)
                    ]
                    for task in tasks:
                        task.result()
        return values.reshape(sums.shape)


def _add_to_columns(
    integers: NDArray[np.int64], values: NDArray[np.float64], width: int, columns: NDArray[np.int64], start: int,
    numbers: NDArray[np.int64], step: float,
) -> None:  # fmt: skip
    """As ``rounded_gaussian_kernels.add_to_columns``."""
    row, column = np.divmod(np.arange(start, start + len(numbers)), len(columns))
    place = row * width + columns[column]
    values[place] = (integers[place] + numbers) * step


def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@dataclass(frozen=True)
class _Table:
    """Boundaries and cells of one ratio; a cell's ``index`` is the number of boundaries at or below the 128-bit draw.

    Cell number ``lowest + index`` = c holds the integers cM .. cM + M - 1, M = ``cell``. ``exact`` are the boundaries
    2^128 Phi((cM - 1/2) / ratio), rounded, strictly between 0 and 2^128; ``high`` are their upper words, uint64
    [boundaries]; ``guide`` uint16 [2^13 + 1] counts those whose first 13 bits are below the place. ``surely`` holds
    lower bounds, in units of 2^-53, of the acceptance probability in each cell, uint64 [boundaries + 1].
    """

    ratio: float
    cell: int
    lowest: int
    exact: tuple[int, ...]
    high: NDArray[np.uint64]
    guide: NDArray[np.uint16]
    surely: NDArray[np.uint64]

    @property
    def words(self) -> int:
        """Number of words for the first attempt of a number: for the cell, the step within it, the coin."""
        return 1 if self.cell == 1 else 2 if self.cell <= _SHARED_CELL else 3


def _cell_size(ratio: float) -> int:
    fits = int(ratio) // _FINE_CELLS
    return 1 if fits < 4 else 1 << (fits.bit_length() - 1)


@functools.lru_cache(maxsize=32)
def _build(ratio: float) -> _Table:
    from mpmath.ctx_mp import MPContext  # a private context: the precision of mpmath.mp is global

    context = MPContext()
    context.prec = _WORKING_BITS
    cell = _cell_size(ratio)
    # Boundary c lies at (2cM - 1) / 2 grid steps. Both sides are computed as tails, from zero outwards.
    below = _tails(context, ratio, first=1, cell=cell)  # c = 0, -1, -2, ...
    # (2c - 1) for c = 1, 2, ... are the same distances 1, 3, ...
    above = below if cell == 1 else _tails(context, ratio, first=2 * cell - 1, cell=cell)  # c = 1, 2, ...
    exact = (*reversed(below), *(2**_TABLE_BITS - value for value in above))
    lowest = -len(below)
    high = np.array([value >> 64 for value in exact], dtype=np.uint64)

    cells = np.arange(lowest, lowest + len(exact) + 1, dtype=np.int64)
    nearest = np.where(cells >= 0, cells, -cells - 1) * cell + (cells < 0)
    least = _relative_probability(ratio, nearest, np.full(len(cells), cell - 1, dtype=np.int64))
    surely = np.floor(least * (1 - 2.0**-40) * _UNIT).astype(np.uint64)  # a margin far above its rounding errors
    guide = np.searchsorted(high >> np.uint64(64 - _GUIDE_BITS), np.arange(2**_GUIDE_BITS + 1, dtype=np.uint64))
    return _Table(ratio, cell, lowest, exact, high, guide.astype(np.uint16), surely)


def _tails(context: MPContext, ratio: float, *, first: int, cell: int) -> list[int]:
    """2^128 Phi(-d / ratio), rounded to nearest, for d = first / 2, first / 2 + cell, and so on, while positive.

    In fixed-point integers of 256 bits. With ``x = d / (sqrt(2) ratio)`` and ``h = cell / (sqrt(2) ratio)``, the tail
    at ``x + u`` is that at ``x`` less ``exp(-x^2) / sqrt(pi)`` times the integral of ``exp(-2xt - t^2)``, 0 <= t <= u.
    One Taylor series about a centre ``x`` gives all points ``u = j h``, |j| <= ``span``: with ``r = span h``, its terms
    are those of ``_series``, at ``j / span``. The next centre lies ``2 r`` farther; the point between them joins them.
    A point adds an error below 2^-220 (terms reach 2^20 at ratio 1); there are at most 2^12 points.
    """

    def fixed(value: object) -> int:
        return int(context.nint(context.ldexp(value, _FIXED_BITS)))

    scale = context.mpf(ratio) * context.sqrt(2)
    start, step = context.mpf(first) / 2 / scale, context.mpf(cell) / scale
    shift = next((bits for bits in range(_MOST_SPAN_BITS, 0, -1) if step * 2**bits <= _LARGEST_REACH), 0)
    reach, centre = step * 2**shift, start + step * 2**shift
    tail, density = fixed(context.erfc(start) / 2), fixed(context.exp(-(centre**2)) / context.sqrt(context.pi))
    fall, falls = fixed(context.exp(-4 * reach * (centre + reach))), fixed(context.exp(-8 * reach**2))
    width, slope, curve = fixed(reach), fixed(-2 * centre * reach), fixed(-2 * reach**2)
    tails = [(tail + _HALF_STEP) >> (_FIXED_BITS - _TABLE_BITS)]
    while tails[-1] > 0:
        steepness = (density * width) >> _FIXED_BITS
        before, after = _falls(_series(slope, curve), steepness, shift)
        tail += before[-1]
        points = [*(tail - fallen for fallen in before[-2::-1]), tail, *(tail - fallen for fallen in after)]
        tails += [(point + _HALF_STEP) >> (_FIXED_BITS - _TABLE_BITS) for point in points]
        tail = points[-1]
        density = (density * fall) >> _FIXED_BITS
        fall, slope = (fall * falls) >> _FIXED_BITS, slope + 2 * curve
    return tails[: next(place for place, value in enumerate(tails) if value <= 0)]


def _series(slope: int, curve: int) -> list[int]:
    """The coefficients of ``s^n`` in the mean of ``exp(slope t + curve t^2 / 2)`` over 0 <= t <= s, of 256 bits.

    Those of the exponential follow ``(n + 1) b_{n+1} = slope b_n + curve b_{n-1}``.
    """
    before, term, number = 0, 1 << _FIXED_BITS, 0
    means: list[int] = []
    while term or before:
        number += 1
        means.append(term // number)
        before, term = term, ((slope * term + curve * before) >> _FIXED_BITS) // number
        if term == -1:  # what rounding down leaves of zero
            term = 0
    return means


def _falls(means: list[int], steepness: int, shift: int) -> tuple[list[int], list[int]]:
    """What the tail falls by from a centre to the points before it and to those after it, nearest first.

    Their places are ``j 2^-shift``, j from 1 to 2^shift; even and odd terms are the same on both sides.
    """
    even_terms, odd_terms = means[::2][::-1], means[1::2][::-1]
    before, after = [], []
    for place in range(1, 2**shift + 1):
        square, even, odd = place * place, 0, 0
        for term in even_terms:
            even = ((even * square) >> 2 * shift) + term
        for term in odd_terms:
            odd = ((odd * square) >> 2 * shift) + term
        odd = (odd * place) >> shift
        before.append(-((steepness * ((even - odd) * place >> shift)) >> _FIXED_BITS))
        after.append((steepness * ((even + odd) * place >> shift)) >> _FIXED_BITS)
    return before, after


def _machine_code_for(count: int) -> ModuleType | None:
    """Machine code, if ``count`` numbers are worth loading it, or it is loaded already; else None."""
    return _machine_code() if count >= _WORTHWHILE or _machine_code.cache_info().currsize else None


@functools.cache
def _machine_code() -> ModuleType | None:
    """``rounded_gaussian_kernels``, or None where numba is not installed."""
    try:
        from odp.privacy.mechanisms import rounded_gaussian_kernels
    except ImportError:
        return None
    return rounded_gaussian_kernels


def _words(source: NoiseSource, count: int) -> NDArray[np.uint64]:
    return _words_of(source.random_bytes(8 * count), count)


def _words_of(data: bytes, count: int) -> NDArray[np.uint64]:
    if len(data) != 8 * count:
        raise PrivacyError(f"The noise source gave {len(data)} bytes instead of {8 * count}: no noise was drawn")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)


class _Unsure(NamedTuple):
    """Numbers of a chunk that are undecided after their first words: position, index of the cell, step, coin, tied or
    not.
    """

    position: NDArray[np.int64]
    cell: NDArray[np.int64]
    step: NDArray[np.int64]
    coin: NDArray[np.uint64]
    tied: NDArray[np.bool_]


_FirstTries = Callable[["_Table", NDArray[np.uint64], NDArray[np.int64]], tuple[NDArray[np.generic], ...]]


def _draw(
    table: _Table, out: NDArray[np.int64], source: NoiseSource, pool: ThreadPoolExecutor, first_tries: _FirstTries
) -> None:
    """Fills ``out`` with at most ``_GROUP`` numbers.

    The source first gives what every number needs, chunk by chunk, and then what few need: so the numbers depend on
    neither the threads nor the machine code.
    """
    parts = [out[start : start + _CHUNK] for start in range(0, len(out), _CHUNK)]

    def tried(part: NDArray[np.int64], random_bytes: Callable[[], bytes]) -> tuple[NDArray[np.generic], ...]:
        # Random bytes take as long as all that is done with them: each thread makes its own.
        return first_tries(table, _words_of(random_bytes(), table.words * len(part)), part)

    tries = [pool.submit(tried, part, deferred(source, 8 * table.words * len(part))) for part in parts]
    results = [future.result() for future in tries]
    unsure = _Unsure(*(np.concatenate(arrays) for arrays in zip(*results, strict=True)))
    sizes = [len(result[0]) for result in results]
    unsure.position[:] += np.repeat(np.arange(len(parts)) * _CHUNK, sizes)
    if len(unsure.position):
        out[unsure.position] = _decided(table, unsure, source)


def _first_tries(table: _Table, words: NDArray[np.uint64], out: NDArray[np.int64]) -> _Unsure:
    """Fills ``out`` from the first words, uint64 [table.words * len(out)]; returns the numbers that may be wrong.

    Level 1 is the number of boundaries at or below a 128-bit uniform draw: the upper word is compared, and those that
    equal a boundary's are told. Level 2: coins that are not surely accepted are told.
    """
    count = len(out)
    index = np.searchsorted(table.high, words[:count], side="right").astype(np.int64)
    tied = (index > 0) & (table.high[np.maximum(index - 1, 0)] == words[:count])
    if table.cell == 1:
        out[:] = index + table.lowest
        unsure = np.flatnonzero(tied)
        nothing = np.zeros(len(unsure), dtype=np.int64)
        return _Unsure(unsure, index[unsure], nothing, nothing.astype(np.uint64), tied[unsure])
    step = (words[count : 2 * count] & np.uint64(table.cell - 1)).astype(np.int64)
    coin = words[(table.words - 1) * count :] >> np.uint64(11)
    nearest, negative = _nearest(table, index)
    out[:] = np.where(negative, -(nearest + step), nearest + step)
    unsure = np.flatnonzero(tied | (coin >= table.surely[index]))
    return _Unsure(unsure, index[unsure], step[unsure], coin[unsure], tied[unsure])


def _nearest(table: _Table, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(magnitude of the integer nearest zero, whether negative) of cells: each lies wholly on one side of zero.

    That integer is the cell's likeliest; the step of level 2 counts from it outwards.
    """
    cells = index + table.lowest
    negative = cells < 0
    return np.where(negative, -cells - 1, cells) * table.cell + negative, negative


def _decided(table: _Table, unsure: _Unsure, source: NoiseSource) -> NDArray[np.int64]:
    """Decides the remaining numbers: ties by lower words, coins by the exact chance; draws refused ones again."""
    index, step, coin = unsure.cell, unsure.step, unsure.coin
    tied = np.flatnonzero(unsure.tied)
    if len(tied):
        lower = _words(source, len(tied))
        for place, low in zip(tied.tolist(), lower.tolist(), strict=True):
            # The upper word equals that of the boundary before the cell, and perhaps of more.
            upper = int(table.high[index[place] - 1])
            index[place] = bisect.bisect_right(table.exact, upper * _WORD + low)
    if table.cell == 1:
        return index + table.lowest
    nearest, negative = _nearest(table, index)
    mask = np.uint64(table.cell - 1)  # cell is a power of two: the masked bits are exactly uniform
    pending = np.arange(len(index))
    while len(pending):
        chance = _relative_probability(table.ratio, nearest[pending], step[pending])
        refused = coin >= chance * _UNIT  # coin < 2^53 is exact as a double
        pending = pending[refused]
        words = _words(source, len(pending))
        step[pending] = (words & mask).astype(np.int64)
        coin = (words if table.words == 2 else _words(source, len(pending))) >> np.uint64(11)
    magnitude = nearest + step
    return np.where(negative, -magnitude, magnitude)


def _relative_probability(ratio: float, nearest: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.float64]:
    """P[nearest + step] / P[nearest] of the exact law for 0 <= nearest, float64, at most 1.

    The exponent is formed from the *difference* of squares, so that no digits cancel.
    """
    fall = (step / ratio) * ((2 * nearest + step) / ratio) * 0.5
    return np.minimum(np.exp(-fall) * (_correction(ratio, nearest + step) / _correction(ratio, nearest)), 1.0)


def _correction(ratio: float, number: NDArray[np.int64]) -> NDArray[np.float64]:
    """P[number] / (phi(t) / ratio): mean of the density over one grid step, relative to its middle."""
    square = (number / ratio) ** 2
    second = (square - 1.0) / 24.0
    fourth = (square * square - 6.0 * square + 3.0) / 1920.0
    narrow = ratio**-2.0
    result: NDArray[np.float64] = 1.0 + narrow * (second + narrow * fourth)
    return result
