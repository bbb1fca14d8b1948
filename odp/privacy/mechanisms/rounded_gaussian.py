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

Sources: Dong, Roth, Su 2022 (post-processing); Casacuberta et al. 2022 (why floats leak); Kronmal and Peterson 1979
(mixture of a table and a rejection step).
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from odp import _validate
from odp.errors import PrivacyError
from odp.privacy.mechanisms.noise_source import NoiseSource

ADDED_DELTA = 2.0**-48
"""Upper bound of the delta that one sampled number adds, at any ratio and any epsilon up to 40."""

MIN_RATIO = 1.0
MAX_RATIO = 2.0**40

_ADDED_DELTA_TABLE_ONLY = 2.0**-58  # (1 + e^40) * 2^-116
_TABLE_BITS = 128
_WORKING_BITS = 256
_WORD = 2**64
_CHUNK = 1 << 15  # numbers per pass: the temporaries of one pass stay in the processor's cache
_UNIT = 2.0**53
_FINE_CELLS = 64  # cells per standard deviation, at least


class IntegerNoise(Protocol):
    """What a release adds to its integer sums."""

    def sample(self, ratio: float, count: int) -> NDArray[np.int64]:
        """``count`` independent integers, int64 [count], of standard deviation ``ratio`` grid steps."""
        ...


class RoundedGaussian:
    """The law of ``round(G)``, ``G ~ N(0, ratio^2)``; the table of a ratio is built once per process (.3 s at most).

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
        return count * (_ADDED_DELTA_TABLE_ONLY if self._table.cell == 1 else ADDED_DELTA)

    def sample(self, count: int, source: NoiseSource) -> NDArray[np.int64]:
        """Independent numbers of the exact law, int64 [count], from ``source`` alone.

        Run time depends on the numbers drawn (redraws), so a release draws its noise before it opens any data.

        Raises:
            ConfigurationError: ``count`` is negative or not a whole number.
            PrivacyError: ``source`` gave another number of bytes than asked.
        """
        _validate.integer(low=0, high=2**40, count=count)
        out = np.empty(count, dtype=np.int64)
        for start in range(0, count, _CHUNK):
            part = out[start : start + _CHUNK]
            index = _draw_cells(self._table, len(part), source)
            part[:] = index + self._table.lowest if self._table.cell == 1 else _draw_within(self._table, index, source)
        return out


class GaussianNoise:
    """``IntegerNoise`` by ``RoundedGaussian`` from one source: the noise of every real release."""

    def __init__(self, source: NoiseSource) -> None:
        self._source = source

    def sample(self, ratio: float, count: int) -> NDArray[np.int64]:
        """``count`` independent rounded Gaussians of standard deviation ``ratio`` grid steps, int64 [count]."""
        return RoundedGaussian(ratio).sample(count, self._source)


@dataclass(frozen=True)
class _Table:
    """Boundaries and cells of one ratio; a cell's ``index`` is the number of boundaries at or below the 128-bit draw.

    Cell number ``lowest + index`` = c holds the integers cM .. cM + M - 1, M = ``cell``. ``exact`` are the boundaries
    2^128 Phi((cM - 1/2) / ratio), rounded, strictly between 0 and 2^128; ``high`` are their upper words, uint64
    [boundaries]. ``surely`` holds lower bounds, in units of 2^-53, of the acceptance probability in each cell, uint64
    [boundaries + 1].
    """

    ratio: float
    cell: int
    lowest: int
    exact: tuple[int, ...]
    high: NDArray[np.uint64]
    surely: NDArray[np.uint64]


def _cell_size(ratio: float) -> int:
    fits = int(ratio) // _FINE_CELLS
    return 1 if fits < 4 else 1 << (fits.bit_length() - 1)


@functools.lru_cache(maxsize=32)
def _build(ratio: float) -> _Table:
    from mpmath.ctx_mp import MPContext  # a private context: the precision of mpmath.mp is global

    context = MPContext()
    context.prec = _WORKING_BITS
    cell = _cell_size(ratio)
    scale = context.mpf(ratio) * context.sqrt(2)
    half = context.ldexp(1, _TABLE_BITS - 1)

    def tail(doubled: int) -> int:
        """2^128 Phi(-(doubled / 2) / ratio), rounded to nearest, for ``doubled`` >= 0."""
        return int(context.nint(half * context.erfc(context.mpf(doubled) / 2 / scale)))

    # Boundary c lies at (2cM - 1) / 2 grid steps. Both sides are computed as tails: erfc is precise there.
    below: list[int] = []
    while (value := tail(1 + 2 * cell * len(below))) > 0:
        below.append(value)  # c = 0, -1, -2, ...
    above: list[int] = []
    if cell == 1:
        above = below  # (2c - 1) for c = 1, 2, ... are the same distances 1, 3, ...
    else:
        while (value := tail(2 * cell * (len(above) + 1) - 1)) > 0:
            above.append(value)  # c = 1, 2, ...
    exact = (*reversed(below), *(2**_TABLE_BITS - value for value in above))
    lowest = -len(below)
    high = np.array([value >> 64 for value in exact], dtype=np.uint64)

    cells = np.arange(lowest, lowest + len(exact) + 1, dtype=np.int64)
    nearest = np.where(cells >= 0, cells, -cells - 1) * cell + (cells < 0)
    least = _relative_probability(ratio, nearest, np.full(len(cells), cell - 1, dtype=np.int64))
    surely = np.floor(least * (1 - 2.0**-40) * _UNIT).astype(np.uint64)  # a margin far above its rounding errors
    return _Table(ratio=ratio, cell=cell, lowest=lowest, exact=exact, high=high, surely=surely)


def _words(source: NoiseSource, count: int) -> NDArray[np.uint64]:
    data = source.random_bytes(8 * count)
    if len(data) != 8 * count:
        raise PrivacyError(f"The noise source gave {len(data)} bytes instead of {8 * count}: no noise was drawn")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)


def _draw_cells(table: _Table, count: int, source: NoiseSource) -> NDArray[np.int64]:
    """Level 1: the number of boundaries at or below a 128-bit uniform draw, int64 [count]."""
    words = _words(source, count)
    index = np.searchsorted(table.high, words, side="right").astype(np.int64)
    # The lower 64 bits matter only where the upper word equals that of a boundary.
    tied = np.flatnonzero((index > 0) & (table.high[np.maximum(index - 1, 0)] == words))
    if len(tied):
        lower = _words(source, len(tied))
        for place, low in zip(tied.tolist(), lower.tolist(), strict=True):
            index[place] = bisect.bisect_right(table.exact, int(words[place]) * _WORD + low)
    return index


def _draw_within(table: _Table, index: NDArray[np.int64], source: NoiseSource) -> NDArray[np.int64]:
    """Level 2: the integers, int64 [count], given their cells.

    A cell lies wholly on one side of zero, so ``step`` counts from its integer nearest zero, the likeliest, outwards.
    """
    cells = index + table.lowest
    negative = cells < 0
    nearest = np.where(negative, -cells - 1, cells) * table.cell + negative
    mask = np.uint64(table.cell - 1)  # cell is a power of two: the masked bits are exactly uniform
    share = table.cell <= 2**11  # then the step and the 53 bits of the coin fit into one word
    surely = table.surely[index]

    words = _words(source, len(index))
    step = (words & mask).astype(np.int64)
    coin = (words if share else _words(source, len(index))) >> np.uint64(11)
    pending = np.flatnonzero(coin >= surely)
    coin = coin[pending]
    while len(pending):
        chance = _relative_probability(table.ratio, nearest[pending], step[pending])
        refused = coin >= chance * _UNIT  # coin < 2^53 is exact as a double
        pending = pending[refused]
        words = _words(source, len(pending))
        step[pending] = (words & mask).astype(np.int64)
        coin = (words if share else _words(source, len(pending))) >> np.uint64(11)
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
