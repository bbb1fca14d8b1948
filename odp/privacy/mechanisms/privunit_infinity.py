"""PrivUnit-infinity: a vector of the cube, private by itself, as a random vector with it as expectation.

A vector u of [-1, 1]^d becomes signs: +1 with probability (1 + u_j) / 2. With probability ``p`` the answer V is uniform
among the sign vectors with at least ``least`` matches, else among those with fewer. What is sent is Z = V / m, with the
m for which E Z = u.

Guarantee: with Q, the share of all 2^d sign vectors that have at least ``least`` matches,

    epsilon  =  log p / (1 - p)  +  log (1 - Q) / Q

is exact, (epsilon, 0)-local differential privacy for any two inputs, no data included. The coin is an exact comparison
of 64-bit integers, and epsilon is that of the integer. The number of matches within a part comes from tables of the
logarithms of tails, by uniform numbers with as many bits as a tail needs (``RandomSource.exponentials``): every answer
has a probability within a factor ``exp(+-CLOSENESS)`` of its law, all matches and none as well as any other, up to the
largest dimension. Two of these factors are a part of ``epsilon``.

A number of u that is not finite counts as 0, of which the sign is a fair coin; others are cut to [-1, 1].

Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection Against Reconstruction and Its Applications in
Private Federated Learning", section 4.2 (algorithm 2, equations 18 and 19). The exact share of the matches replaces the
bound of its corollary 4.1, which is not enough for this ``least``.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.mechanisms.random_source import WHOLE, RandomSource

LARGEST_DIMENSION = 2**20
SMALLEST_EPSILON, LARGEST_EPSILON = 0.1, 700.0
#: Of every probability, and of the logarithms of tails.
CLOSENESS = 1e-9
_MOST_P = 1.0 - 2.0**-40
_FEW = 16  # below, the series of Stirling's remainder is not exact enough


@dataclass(frozen=True)
class PrivUnitInfinity:
    """The mechanism of one number of matches.

    Attributes:
      dimension: of the vectors, from 1 to 2^20.
      least: matches of the likelier part, more than half of the dimension.
      p: how probable that part is, above Q and below 1; used down to a multiple of 2^-64.

    Raises:
      ConfigurationError: a number is out of range.
    """

    dimension: int
    least: int
    p: float

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=LARGEST_DIMENSION, dimension=self.dimension)
        _validate.integer(low=(self.dimension + 2) // 2, high=self.dimension, least=self.least)
        _validate.within(low=0.0, high=_MOST_P, p=self.p)
        if self.epsilon <= 0.0:
            raise ConfigurationError(f"Expected p={self.p!r} to be above the share of the signs with so many matches")

    @classmethod
    def calibrated(cls, dimension: int, epsilon: float) -> PrivUnitInfinity:
        """The mechanism with the least variance at ``epsilon``, which its own never exceeds.

        Raises:
          ConfigurationError: the dimension is not from 1 to 2^20, or epsilon not from 0.1 to 700.
        """
        _validate.integer(low=1, high=LARGEST_DIMENSION, dimension=dimension)
        _validate.positive(epsilon=epsilon)
        if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
            raise ConfigurationError(
                f"Expected epsilon={epsilon!r} of PrivUnitInfinity to be from {SMALLEST_EPSILON} to {LARGEST_EPSILON:g}"
            )
        tails = _log_tails(dimension)
        least = np.arange((dimension + 2) // 2, dimension + 1)
        log_q, log_rest = tails.above[least], tails.below[least]
        p = np.minimum(special.expit(epsilon + log_q - log_rest), _MOST_P)
        # (p / Q - (1 - p) / (1 - Q)) as (p - Q) / (Q (1 - Q)), times C(d - 1, s - 1) / 2^d.
        with np.errstate(divide="ignore", invalid="ignore"):
            log_m = np.log(p - np.exp(log_q)) - log_q - log_rest + tails.edge[least]
        log_m[np.isnan(log_m)] = -np.inf
        best = int(np.argmax(log_m))
        chosen = float(p[best])
        while True:
            mechanism = cls(dimension, int(least[best]), chosen)
            if mechanism.epsilon <= epsilon:
                return mechanism
            chosen = math.nextafter(chosen - (1.0 - chosen) * CLOSENESS, 0.0)

    @functools.cached_property
    def chance(self) -> int:
        """``p`` in units of 2^-64: that of the coin."""
        return math.floor(self.p * WHOLE)

    @property
    def epsilon(self) -> float:
        """Of one answer as it is drawn, rounded up: two logarithms of tails and two probabilities may be off."""
        tails = _log_tails(self.dimension)
        coin = math.log(max(self.chance, 1)) - math.log(WHOLE - self.chance)
        return float(coin + tails.below[self.least] - tails.above[self.least]) + 4.0 * CLOSENESS

    @functools.cached_property
    def scale(self) -> float:
        """1 / m: the magnitude of every number of an answer."""
        tails = _log_tails(self.dimension)
        p, log_q, log_rest = self.chance / WHOLE, tails.above[self.least], tails.below[self.least]
        return math.exp(log_q + log_rest - tails.edge[self.least] - math.log(p - math.exp(log_q)))

    def variance(self, values: Float64Array) -> Float64Array:
        """Exact variance of each number of an answer for numbers ``values`` of the cube, float64 of the same shape."""
        return self.scale**2 - np.square(values)

    def randomize(self, values: Float64Array, *, source: RandomSource) -> Float64Array:
        """Answers, float64 [n, d] of numbers +-``scale``, for vectors ``values`` float64 [n, d], whatever they hold.

        Raises:
          ConfigurationError: the rows have another dimension.
        """
        vectors = np.asarray(values, dtype=np.float64)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ConfigurationError(
                f"Expected vectors of dimension {self.dimension}, float64 [n, {self.dimension}] (got {vectors.shape})"
            )
        count, size = vectors.shape
        vectors = np.clip(np.where(np.isfinite(vectors), vectors, 0.0), -1.0, 1.0)
        signs = source.uniforms(count * size).reshape(count, size) < (1.0 + vectors) / 2.0
        matches = self._matches(source, count)
        # A uniform set of places: those of the smallest words. Two equal ones are as probable as a broken key.
        order = np.argsort(source.words(count * size).reshape(count, size), axis=1)
        matching = np.zeros((count, size), dtype=np.bool_)
        np.put_along_axis(matching, order, np.arange(size) < matches[:, None], axis=1)
        return np.where(signs == matching, self.scale, -self.scale)

    def encode(self, answer: Float64Array) -> bytes:
        """The signs of one answer [d], one bit each in ceil(d / 8) bytes. Raises ConfigurationError."""
        if answer.shape != (self.dimension,):
            raise ConfigurationError(f"Expected one answer of dimension {self.dimension} (got {answer.shape})")
        return np.packbits(answer > 0.0).tobytes()

    def decode(self, data: bytes) -> Float64Array:
        """What ``encode`` wrote, float64 [d]. Raises DataError for another length, or bits beyond the last sign."""
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
        if len(data) != -(-self.dimension // 8) or bits[self.dimension :].any():
            raise DataError(f"Expected the {self.dimension} signs of an answer in {-(-self.dimension // 8)} bytes")
        return np.where(bits[: self.dimension] == 1, self.scale, -self.scale)

    def _matches(self, source: RandomSource, count: int) -> Int64Array:
        """Numbers of matches, int64 [n]."""
        likely, log_uniform = source.coins(self.chance, count), -source.exponentials(count)
        runs = _runs(self.dimension, self.least)
        high = ~likely & source.coins(runs.high_chance, count)
        matches = np.empty(count, dtype=np.int64)
        for run, chosen in ((runs.likely, likely), (runs.high, high), (runs.low, ~likely & ~high)):
            matches[chosen] = run.first + run.direction * np.searchsorted(
                run.log_tails, log_uniform[chosen], side="left"
            )
        return matches


@dataclass(frozen=True)
class _Run:
    """Numbers of matches whose probabilities increase: each tail from the least probable one on is no small difference.

    Attributes:
      first: the least probable number.
      direction: 1 where the numbers go up from it, or -1.
      log_tails: logarithm of the probability of it and of those before it, among all of the run; the last one is 0.
    """

    first: int
    direction: int
    log_tails: Float64Array

    @classmethod
    def of(cls, log_mass: Float64Array, first: int, last: int) -> _Run:
        """From ``first`` to ``last``, of which each is as probable as the one before it or more."""
        direction = 1 if first <= last else -1
        masses = log_mass[first : last + 1] if direction == 1 else log_mass[last : first + 1][::-1]
        tails = np.logaddexp.accumulate(masses)
        return cls(first, direction, tails - tails[-1])


@dataclass(frozen=True)
class _Runs:
    """The likelier part, and the other one as its numbers above half of the dimension and up to it.

    Attributes:
      high_chance: of ``high`` within the less likely part, in units of 2^-64; ``high`` is empty where it is 0.
    """

    likely: _Run
    high: _Run
    low: _Run
    high_chance: int


@functools.lru_cache(maxsize=16)
def _runs(dimension: int, least: int) -> _Runs:
    log_mass, half = _log_mass(dimension), dimension // 2
    tails = _log_tails(dimension)
    high = np.exp(log_mass[half + 1 : least]).sum() / math.exp(tails.below[least])
    return _Runs(
        _Run.of(log_mass, dimension, least),
        _Run.of(log_mass, least - 1, min(half + 1, least - 1)),
        _Run.of(log_mass, 0, half),
        round(math.ldexp(high, 64)),
    )


@dataclass(frozen=True)
class _Tails:
    """Logarithms for a binomial of ``dimension`` fair coins, each float64 [dimension + 2].

    Attributes:
      above: P(L >= s) at s.
      below: P(L < s) at s.
      edge: C(dimension - 1, s - 1) / 2^dimension at s; minus infinity at 0.
    """

    above: Float64Array
    below: Float64Array
    edge: Float64Array


@functools.lru_cache(maxsize=16)
def _log_tails(dimension: int) -> _Tails:
    mass = _log_mass(dimension)
    above = np.append(np.logaddexp.accumulate(mass[::-1])[::-1], -np.inf)
    below = np.insert(np.logaddexp.accumulate(mass), 0, -np.inf)
    counts = np.arange(dimension + 2)
    with np.errstate(divide="ignore"):
        edge = np.append(mass, -np.inf) + np.log(counts) - math.log(dimension)
    return _Tails(above, below, edge)


def _log_mass(dimension: int) -> Float64Array:
    """log of C(d, l) / 2^d for each l, float64 [d + 1], each to 2e-15 of itself and 1e-13.

    By Stirling's formula with its remainder, in which nothing large cancels (a difference of log-gammas is off by 2e-9
    in a million dimensions). With e = (2 l - d) / d, the large part is -d / 2 (log(1 - e^2) + 2 e atanh(e)).
    """
    logarithms = np.full(dimension + 1, -dimension * math.log(2.0))  # right for none and for all of them
    counts = np.arange(1, dimension, dtype=np.float64)
    apart = (2.0 * counts - dimension) / dimension
    near, far = counts * (dimension - counts) / dimension**2 * 4.0, np.abs(apart)
    with np.errstate(divide="ignore"):
        # log(1 - e^2) of a large e by the product; atanh(e) likewise.
        log_near = np.where(far < 0.5, np.log1p(-(apart**2)), np.log(near))
        atanh = np.where(far < 0.5, np.arctanh(far), np.log1p(far) - 0.5 * log_near)
    large = -0.5 * dimension * (log_near + 2.0 * far * atanh)
    small = 0.5 * (np.log(2.0 / (math.pi * dimension)) - log_near)
    remainder = _remainder(np.array([float(dimension)]))[0] - _remainder(counts) - _remainder(dimension - counts)
    logarithms[1:-1] = large + small + remainder
    return logarithms


def _remainder(counts: Float64Array) -> Float64Array:
    """log n! - log(sqrt(2 pi n) (n / e)^n) of each n from 1 on: Stirling's remainder."""
    n = np.maximum(counts, _FEW)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / n**2) / n**2) / n**2) / n**2) / n
    few = np.minimum(counts, _FEW)
    exact = special.gammaln(few + 1.0) - (0.5 * np.log(2.0 * math.pi * few) + few * (np.log(few) - 1.0))
    remainders: Float64Array = np.where(counts < _FEW, exact, series)
    return remainders
