"""Discrete Gaussian noise in shares: every client of a sum draws its own share, so no single party knows the noise.

The discrete Gaussian of variance v gives the integer n with probability proportional to exp(-n^2 / 2v). The sum of m
independent shares of variance v is *not* discrete Gaussian, but every probability of it is within a factor exp(+-tau)
of the one of variance m v, tau <= 10 m exp(-pi^2 v) per coordinate. Shares of a standard deviation below 4 grid units
are refused, so that tau < 1e-60 for a million shares: the sum satisfies the concentrated differential privacy of the
Gaussian of variance m v (Renyi divergence alpha Delta^2 / 2 m v), and is charged as such.

Sampling: a table of the distribution function in 128-bit integers, from 256-bit arithmetic; one 64-bit draw per number,
a second one on a tie. Total variation from the exact law: at most 2^-128 for each of the table's 28 sigma entries, and
1e-42 beyond 14 sigma.

Source: Canonne, Kamath, Steinke 2020 (theorem 4, concentrated privacy); Kairouz, Liu, Steinke 2021 (theorem 1, sums).

The source of randomness for released noise: the operating system, and in an enclave nothing else.
"""

from __future__ import annotations

import bisect
import functools
import math
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from odp import _validate
from odp.errors import PrivacyError


class NoiseSource(Protocol):
    """Uniformly random, independent bytes.

    The seam by which a test injects known bytes *in process*. There is no registry and no configuration key for it,
    so no message, flag or environment variable can choose the source of an enclave.
    """

    def random_bytes(self, count: int) -> bytes:
        """Exactly ``count`` bytes, never given out before."""


class DeferringSource(NoiseSource, Protocol):
    """A source whose bytes several threads can make at once."""

    def later(self, count: int) -> Callable[[], bytes]:
        """The next ``count`` bytes, which the result makes when it is called: once, and in any thread."""


def deferred(source: NoiseSource, count: int) -> Callable[[], bytes]:
    """The next ``count`` bytes of any source: made when they are asked for where it can, else now."""
    if hasattr(source, "later"):
        return cast("DeferringSource", source).later(count)
    data = source.random_bytes(count)
    return lambda: data


class OperatingSystemNoise:
    """The kernel's generator, ``os.urandom``: the only source for real releases. It takes no seed."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` bytes of the kernel's generator.

        Raises:
            ConfigurationError: ``count`` is negative or not a whole number.
        """
        return self.later(count)()

    def later(self, count: int) -> Callable[[], bytes]:
        """As of ``DeferringSource``; raises as ``random_bytes``."""
        _validate.integer(low=0, high=2**31 - 1, count=count)
        return functools.partial(os.urandom, count)


#: Shares below this (grid units) are refused: the sum would not be close enough to a discrete Gaussian.
SMALLEST_STD = 4.0
#: Larger tables are slow to build, and a finer grid than this serves nothing.
LARGEST_STD = 2.0**14
#: Nothing farther from zero is drawn, in standard deviations.
TAIL = 14

_BITS = 256
_ONE = 1 << _BITS
_WORD = 1 << 64


def largest(std: float) -> int:
    """The largest absolute value of a draw: a ring needs room for it."""
    _require_std(std)
    return math.floor(TAIL * std)


class DiscreteGaussian:
    """Draws int64 of the discrete Gaussian with standard deviation parameter ``std``, in grid units.

    Raises PrivacyError where ``std`` is out of range.
    """

    def __init__(self, std: float) -> None:
        _require_std(std)
        self.std = float(std)
        self._high, self._low, self._first = _table(self.std)

    def draw(self, count: int, source: NoiseSource) -> NDArray[np.int64]:
        """``count`` independent numbers, int64 [count]."""
        _validate.integer(low=0, high=2**28, count=count)
        random_words = np.frombuffer(source.random_bytes(8 * count), dtype="<u8")
        place = np.searchsorted(self._high, random_words, side="left")
        ties = np.flatnonzero(np.searchsorted(self._high, random_words, side="right") != place)
        for index in ties:  # of probability 28 std / 2^64 each
            low = int.from_bytes(source.random_bytes(8), "little")
            begin, end = int(place[index]), int(np.searchsorted(self._high, random_words[index], side="right"))
            place[index] = bisect.bisect_right(self._low, low, begin, end)
        return place.astype(np.int64) + self._first


def _require_std(std: float) -> None:
    if not (math.isfinite(std) and SMALLEST_STD <= std <= LARGEST_STD):
        change = "a finer grid" if std < SMALLEST_STD else "a coarser grid"
        raise PrivacyError(
            f"Expected std={std!r} of a noise share to be from {SMALLEST_STD:g} to {LARGEST_STD:g} grid units; choose "
            f"{change}"
        )


@functools.lru_cache(maxsize=8)
def _table(std: float) -> tuple[NDArray[np.uint64], list[int], int]:
    """(high words, low words, smallest number) of P[X <= n] 2^128, for n from the smallest to the second largest."""
    variance = Fraction(std) ** 2
    top = largest(std)
    weights = [_ONE]
    ratio = _exp_minus(1 / (2 * variance))  # of the weights of 1 and 0
    shrink = _exp_minus(1 / variance)
    for _ in range(top):
        weights.append(weights[-1] * ratio >> _BITS)
        ratio = ratio * shrink >> _BITS
    whole = [*weights[:0:-1], *weights]
    total, running, thresholds = sum(whole), 0, []
    for weight in whole[:-1]:
        running += weight
        thresholds.append((running << 128) // total)
    high = np.array([threshold // _WORD for threshold in thresholds], dtype=np.uint64)
    return high, [threshold % _WORD for threshold in thresholds], -top


def _exp_minus(value: Fraction) -> int:
    """exp(-value) as a multiple of 2^-256, for 0 <= value <= 1: its Taylor series."""
    numerator = (value.numerator << _BITS) // value.denominator
    term, total, index = _ONE, 0, 0
    while term:
        total += term if index % 2 == 0 else -term
        index += 1
        term = term * numerator // (index << _BITS)
    return total
