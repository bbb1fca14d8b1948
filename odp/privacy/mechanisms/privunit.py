"""PrivUnit2: a unit vector, private by itself, as a random vector whose expectation it is.

With probability ``p`` the answer's direction V is uniform on the cap of all directions v with <v, u> >= ``gamma``, else
uniform on the rest of the sphere. What is sent is Z = V / m, with the m for which E Z = u. So |Z| = 1 / m always, and

    E |Z - u|^2  =  1 / m^2 - 1

Guarantee: with q, the probability of the cap under a uniform direction, the density of V under two inputs differs by a
factor of at most p / q : (1 - p) / (1 - q), so that

    epsilon  =  log p / (1 - p)  +  log (1 - q) / q

is exact, (epsilon, 0)-local differential privacy for any two inputs, no data included. ``calibrated`` finds the gamma
with the largest m at a given epsilon.

- The coin of probability p is an exact comparison of 64-bit integers, and ``epsilon`` is that of the integer.
- q is a floating-point number by definition; the cap is the one of that probability, whose height is ``gamma`` to 1e-9.
- The height within a part comes from the logarithm of its tail, by uniform numbers with as many bits as a tail needs
  (``RandomSource.exponentials``). So every input has every answer, near its own direction, near the opposite one and at
  the edge of the cap, with the probability of the law, up to the largest epsilon.
- The direction within its part is made of floating-point numbers, and rounded to a grid of 2^-19 at random
  (``smooth_rounding``), so that their errors are a factor of each probability. ``added_epsilon`` bounds it, 3e-6 for
  1,000 dimensions; it is a part of ``epsilon``, and there is no delta.

============================  =========================================================================================
input                         what happens
============================  =========================================================================================
a vector of norm 1            exactly as above; norms within 0.1 % of 1 are scaled to 1
zeros, not finite, any other  as a direction that is drawn uniformly: a device answers whatever its data are
============================  =========================================================================================

>>> import numpy as np
>>> from odp.privacy.mechanisms.random_source import RandomSource
>>> mechanism = PrivUnit.calibrated(3, 4.0)
>>> answers = mechanism.randomize(np.tile([1.0, 0.0, 0.0], (100_000, 1)), source=RandomSource())
>>> bool(np.abs(answers.mean(axis=0) - [1.0, 0.0, 0.0]).max() < 0.05)
True

Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection Against Reconstruction and Its Applications in
Private Federated Learning", section 4.1 (algorithm 1, equations 14 and 15), with the exact probability of the cap in
place of the bounds of its theorem 1.

Rounding to integers whose law moves with the number: an error of floating-point numbers is a factor, and no delta.

A number x becomes one of its two neighbours, with the probabilities that keep its expectation, plus an integer n of
probability 2^-|n| / 3. Guarantee: for any two numbers x, x' and any integer g

    P(g | x) / P(g | x')  <=  exp(|x - x'|)

since P(g | x) is linear between integers, and of any two integers next to each other one is at most twice as probable
as the other. So where a vector was computed with errors that add up to e in steps of its grid, every probability of
the rounded vector is within a factor exp(+-e) of that of the exact vector: a pure epsilon stays pure, at 2 e more.
Rounding to the nearest integer has no such bound: near the middle of two, any error moves probability from 1 to 0.

The variance of a rounded number is 4, and at most 1/4 more.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float64Array, UInt64Array
from odp.privacy.mechanisms.random_source import NORMAL_CLOSENESS, WHOLE, RandomSource
from odp.privacy.mechanisms.spherical_cap import log_probability

#: Of the noise, with the mean of the rounding's over the places between two integers.
VARIANCE = 4.0 + 1.0 / 6.0
#: The coin between two neighbours is off by less than this, which counts as an error of the number.
COIN_ERROR = 2.0**-48
_CHUNK = 1 << 15  # numbers per pass: the temporaries of one pass stay in the processor's cache
# Of a word, two bytes are for the noise and the others for the coin.
_BITS = 16
_LONG = 127  # in the table: a byte of zeros, behind which the coin goes on


def round_smoothly(numbers: Float64Array, *, source: RandomSource) -> None:
    """Rounds ``numbers``, float64 [n, d] and contiguous, in place; magnitudes below 2^50."""
    flat = numbers.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        words = source.words(len(part))
        coin = (words >> np.uint64(_BITS)).astype(np.float64)
        coin += 0.5
        coin *= 2.0 ** (_BITS - 64)
        part += coin
        np.floor(part, out=part)
        _add_noise(part, words, source)


def _add_noise(numbers: Float64Array, words: UInt64Array, source: RandomSource) -> None:
    """Adds integers of probability 2^-|n| / 3: tails before heads of one coin without those of another one."""
    bits = (words & np.uint64((1 << _BITS) - 1)).astype(np.intp)
    difference = _differences()[bits]
    numbers += difference
    long = np.flatnonzero(difference == _LONG)
    if len(long):
        two = np.stack([bits[long] & 255, bits[long] >> 8])
        tails = np.where(two == 0, 8 + source.tails(two.size).reshape(two.shape), _tails_of_byte(two))
        numbers[long] += tails[0] - tails[1] - _LONG


@functools.cache
def _differences() -> npt.NDArray[np.int8]:
    """Of each two bytes, int8 [65536]: tails before heads in the low one without those in the high one."""
    tails = _tails_of_byte(np.arange(256))
    differences = (tails[None, :] - tails[:, None]).astype(np.int8)
    differences[:, 0] = differences[0, :] = _LONG
    return differences.reshape(-1)


def _tails_of_byte(byte: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    tails: npt.NDArray[np.intp] = np.bitwise_count((byte & -byte) - 1).astype(np.intp)
    return tails


#: Dimensions, and the range of epsilon, that the arithmetic of this module was checked for.
LEAST_DIMENSION, LARGEST_DIMENSION = 2, 10**7
SMALLEST_EPSILON, LARGEST_EPSILON = 0.1, 700.0

GRID_BITS = 19
_GRID = 2.0**GRID_BITS
_NUMBER = np.dtype("<i4")
_NORM_SLACK = 1e-3
_CANDIDATES = 200
_TALLEST = 1e5  # gamma / (1 - gamma): the sine of a taller cap would have few bits
# Nearer to 1 there are few numbers: a cap that leaves more of epsilon than this p takes uses less than was asked for.
_MOST_P = 1.0 - 2.0**-40
_CLOSENESS = 1e-9
_BLOCK = 1 << 15  # products that are added at once: they stay in the processor's cache
# Of a vector of norm 1, by its own norm: errors of products (2^-47 each, of a rest that is at least half of its
# vector), of the two parts of the height (2^-46), and of everything else together.
_ARITHMETIC = 2.0**-43.5


@dataclass(frozen=True)
class PrivUnit:
    """The mechanism of one cap.

    Attributes:
      dimension: of the vectors, from 2 to 10^7.
      gamma: height of the cap, at least 0 and below 1.
      p: how probable the cap is, from 0.5 and below 1; used down to a multiple of 2^-64.

    Raises:
      ConfigurationError: a number is out of range, or the cap is too small to say anything.
    """

    dimension: int
    gamma: float
    p: float

    def __post_init__(self) -> None:
        _validate.integer(low=LEAST_DIMENSION, high=LARGEST_DIMENSION, dimension=self.dimension)
        _validate.within(low=0.5, high=1.0, p=self.p)
        if self.p == 1.0:
            raise ConfigurationError("Expected p=1.0 to be below 1: epsilon would be infinite")
        if not 0.0 <= self.gamma < 1.0:
            raise ConfigurationError(f"Expected gamma={self.gamma!r} to be at least 0 and below 1")
        if self.chance >= WHOLE or not 0.0 < self._exact_epsilon <= LARGEST_EPSILON * (1 + 1e-9):
            raise ConfigurationError(
                f"Expected gamma={self.gamma!r} and p={self.p!r} to give an epsilon from 0 to {LARGEST_EPSILON:g}"
            )

    @classmethod
    def calibrated(cls, dimension: int, epsilon: float) -> PrivUnit:
        """The mechanism with the least variance at ``epsilon``, which its own never exceeds.

        Args:
          dimension: from 2 to 10^7.
          epsilon: from 0.1 to 700.

        Raises:
          ConfigurationError: a number is out of range.
        """
        _validate.integer(low=LEAST_DIMENSION, high=LARGEST_DIMENSION, dimension=dimension)
        _validate.positive(epsilon=epsilon)
        if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
            raise ConfigurationError(
                f"Expected epsilon={epsilon!r} of PrivUnit to be from {SMALLEST_EPSILON} to {LARGEST_EPSILON:g}"
            )
        from scipy import optimize

        # Even in log gamma - log (1 - gamma): small caps and large ones. There is one maximum.
        places = np.linspace(math.log(1e-4 / math.sqrt(dimension)), math.log(_TALLEST), _CANDIDATES)

        def loss(place: float) -> float:
            return -_log_m_at(dimension, _expit(place), epsilon)

        best = int(np.argmin([loss(place) for place in places]))
        near = places[max(best - 1, 0)], places[min(best + 1, _CANDIDATES - 1)]
        refined = optimize.minimize_scalar(loss, bounds=near, method="bounded", options={"xatol": 1e-8})
        heights = (0.0, *(_expit(place) for place in (places[best], refined.x)))
        gamma = max(heights, key=lambda height: _log_m_at(dimension, height, epsilon))
        p = _p_at(log_probability(dimension, gamma), epsilon - _added_epsilon(dimension))
        while True:
            mechanism = cls(dimension, gamma, p)
            if mechanism.epsilon <= epsilon:
                return mechanism
            # The derivative of epsilon by p is 1 / (p (1 - p)).
            p = math.nextafter(p - (1.0 - p) * _CLOSENESS, 0.0)

    @functools.cached_property
    def chance(self) -> int:
        """``p`` in units of 2^-64: that of the coin."""
        return math.floor(self.p * WHOLE)

    @functools.cached_property
    def log_q(self) -> float:
        """Logarithm of the probability of the cap under a uniform direction."""
        return log_probability(self.dimension, self.gamma)

    @property
    def epsilon(self) -> float:
        """Of one answer as it is sent, rounded up: that of the law for real numbers, and ``added_epsilon``."""
        return self._exact_epsilon * (1 + 2**-50) + self.added_epsilon

    @property
    def added_epsilon(self) -> float:
        """What the errors of floating-point numbers add at most; see the module."""
        return _added_epsilon(self.dimension)

    @functools.cached_property
    def _exact_epsilon(self) -> float:
        coin = math.log(self.chance) - math.log(WHOLE - self.chance)
        return coin + math.log1p(-math.exp(self.log_q)) - self.log_q

    @functools.cached_property
    def log_m(self) -> float:
        """Logarithm of m; the norm of an answer is 1 / m."""
        return _log_m(self.dimension, self.gamma, self.log_q, self.chance / WHOLE)

    @property
    def scale(self) -> float:
        """1 / m: the norm of every answer before it is rounded, which changes it by less than 2^-11 of it."""
        return math.exp(-self.log_m)

    @property
    def second_moment(self) -> float:
        """E |Z|^2, with the noise of rounding."""
        return math.exp(-2.0 * self.log_m) * (1.0 + self.dimension * VARIANCE / _GRID**2)

    @property
    def variance(self) -> float:
        """E |Z - u|^2, for every unit vector u."""
        return self.second_moment - 1.0

    def randomize(self, units: Float64Array, *, source: RandomSource) -> Float64Array:
        """Answers Z, float64 [n, d], one for each row of ``units`` float64 [n, d], whatever it holds.

        Raises:
          ConfigurationError: the rows have another dimension.
        """
        vectors = np.ascontiguousarray(units, dtype=np.float64)  # sums in pairs are along rows
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ConfigurationError(
                f"Expected vectors of dimension {self.dimension}, float64 [n, {self.dimension}] (got {vectors.shape})"
            )
        count = len(vectors)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(_products(vectors, vectors))
        wrong = np.flatnonzero(~(np.abs(norms - 1.0) <= _NORM_SLACK))
        if len(wrong):
            vectors = vectors.copy()
            vectors[wrong] = source.normals(len(wrong) * self.dimension).reshape(len(wrong), self.dimension)
            norms[wrong] = np.sqrt(_products(vectors[wrong], vectors[wrong]))
        cosine, side = self._parts_of_height(count, source)
        answers, along, square = _directions(vectors, norms, source)
        # Orthogonal to the input, at the length that is left, plus the input at the length of the cosine: in one pass
        # over each row, with numbers for the parts.
        side /= np.sqrt(square)
        answers *= (side * _GRID)[:, None]
        weights = (cosine / norms - along * side) * _GRID
        for row in range(count):  # in place, row by row: a product of all of them would be as large as all of them
            answers[row] += weights[row] * vectors[row]
        round_smoothly(answers, source=source)
        _shorten(answers, self._longest)
        answers *= self._step
        return answers

    def encode(self, answer: Float64Array) -> bytes:
        """One answer [d] as int32 little-endian: its numbers on the grid, 4 d bytes. Raises ConfigurationError."""
        if answer.shape != (self.dimension,):
            raise ConfigurationError(f"Expected one answer of dimension {self.dimension} (got {answer.shape})")
        return np.rint(answer / self._step).astype(_NUMBER).tobytes()

    def decode(self, data: bytes) -> Float64Array:
        """What ``encode`` wrote, float64 [d].

        Raises:
          DataError: it is not 4 d bytes, or its norm is none of an answer.
        """
        if len(data) != _NUMBER.itemsize * self.dimension:
            raise DataError(f"Expected an answer of {_NUMBER.itemsize * self.dimension} bytes (got {len(data)})")
        numbers = np.frombuffer(data, dtype=_NUMBER).astype(np.float64)
        if abs(math.sqrt(float(numbers @ numbers)) - _GRID) > self._longest - _GRID:
            raise DataError("Expected an answer of the norm that all answers have")
        return numbers * self._step

    @property
    def _step(self) -> float:
        return self.scale / _GRID

    @property
    def _longest(self) -> float:
        """The norm of the longest answer in steps: noise goes beyond it once in 2^100 answers, and is shortened."""
        return _GRID + 144.0 + 6.0 * self.dimension / (2.0 * _GRID)

    def _parts_of_height(self, count: int, source: RandomSource) -> tuple[Float64Array, Float64Array]:
        """(<V, u>, the norm of the rest of V) of each answer, float64 [n] each."""
        from odp.privacy.mechanisms.spherical_heights import heights  # SciPy: enclaves check a mechanism without it

        inside, above = source.coins(self.chance, count), source.coins(WHOLE // 2, count)
        log_uniform = -source.exponentials(count)
        q = math.exp(self.log_q)
        log_half = math.log1p(-q) - math.log(2.0)  # of half of what is outside of the cap
        # P[U_1 >= height] of the upper half of the outside is from q on, and half as long as the outside.
        upper = np.logaddexp(self.log_q, log_half + log_uniform)
        log_tail = np.where(inside, self.log_q + log_uniform, np.where(above, upper, log_half + log_uniform))
        beyond = ~inside & above & (upper > math.log(0.5))  # of the other sign: the tail on the other side counts
        log_tail[beyond] = np.log(-np.expm1(upper[beyond]))
        height, rest = heights(self.dimension, log_tail)
        negative = (~inside & ~above) | beyond
        return np.where(negative, -height, height), rest


def _products(left: Float64Array, right: Float64Array) -> Float64Array:
    """<left, right> of each row, float64 [n]: sums in pairs, whose error is below 2^-47 of the sum of magnitudes."""
    count, dimension = left.shape
    rows, columns = max(1, _BLOCK // dimension), -(-dimension // _BLOCK)
    parts = np.empty((count, columns))
    for start in range(0, count, rows):
        block = slice(start, start + rows)
        for column in range(columns):
            place = slice(column * _BLOCK, (column + 1) * _BLOCK)
            np.add.reduce(left[block, place] * right[block, place], axis=1, out=parts[block, column])
    return np.asarray(np.add.reduce(parts, axis=1))


def _directions(
    vectors: Float64Array, norms: Float64Array, source: RandomSource
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Normals [n, d], with their part along ``vectors`` in units of it and the square of the rest, float64 [n] each.

    Normals near to the axis are drawn again: the rest is a difference there. Their rest is a uniform direction at any
    angle to the axis, and so it is of those that are left.
    """
    count, dimension = vectors.shape
    normals = source.normals(count * dimension).reshape(count, dimension)
    along, square = np.empty(count), np.empty(count)
    again = np.arange(count)
    while len(again):
        # Without a copy where it is all of them.
        rows, axes = (normals, vectors) if len(again) == count else (normals[again], vectors[again])
        along[again] = _products(rows, axes) / norms[again] ** 2
        whole = _products(rows, rows)
        square[again] = whole - (along[again] * norms[again]) ** 2
        again = again[square[again] < 0.5 * whole]
        if len(again):
            normals[again] = source.normals(len(again) * dimension).reshape(len(again), dimension)
    return normals, along, square


def _shorten(answers: Float64Array, longest: float) -> None:
    """Moves whole numbers of rows beyond ``longest`` towards zero, in place: a step after the noise."""
    norms = np.sqrt(_products(answers, answers))
    for row in np.flatnonzero(norms > longest):
        answers[row] = np.trunc(answers[row] * ((longest - 1e-6) / norms[row]))


def _expit(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value > -700.0 else 0.0


def _p_at(log_q: float, epsilon: float) -> float:
    """The probability of a cap with which the whole has this epsilon; below 0.5 where the cap alone has more."""
    return min(_MOST_P, _expit(epsilon + log_q - math.log1p(-math.exp(log_q))))


def _added_epsilon(dimension: int) -> float:
    # The numbers of a unit vector add up to sqrt(d) at most. Either of two inputs has these errors.
    rounded = math.sqrt(dimension) * _ARITHMETIC * _GRID + dimension * COIN_ERROR
    return 2.0 * (rounded + dimension * NORMAL_CLOSENESS)


def _log_m_at(dimension: int, gamma: float, epsilon: float) -> float:
    log_q = log_probability(dimension, gamma)
    p = _p_at(log_q, epsilon)
    # Far below any other, and finite: the search subtracts.
    return -1e9 if p < 0.5 else _log_m(dimension, gamma, log_q, p)


def _log_m(dimension: int, gamma: float, log_q: float, p: float) -> float:
    """log of c_d (1 - gamma^2)^a / (d - 1) (p / q - (1 - p) / (1 - q)), where the bracket is (p - q) / (q (1 - q))."""
    half = (dimension - 1) / 2.0
    log_c = math.lgamma(dimension / 2.0) - 0.5 * math.log(math.pi) - math.lgamma(half)
    if dimension > 10_000:
        # The difference of two large logarithms: its expansion, Gamma(x + 1/2) / Gamma(x) ~ sqrt(x) (1 - 1/(8x) + ..).
        log_c = 0.5 * math.log(half / math.pi) + math.log1p(-1 / (8 * half) + 1 / (128 * half**2))
    q = math.exp(log_q)
    bracket = math.log((p - q) / (1.0 - q)) - log_q
    return log_c + half * _log_rest(gamma) - math.log(dimension - 1) + bracket


def _log_rest(gamma: float) -> float:
    """log(1 - gamma^2), also where gamma is almost 1."""
    return math.log1p(-gamma) + math.log1p(gamma)
