"""k-ary randomized response: one answer out of k that is private by itself, for any observer.

With a secret coin of probability q the answer is drawn uniformly from all k choices, the true one included; otherwise
it is the true one. For any two truths x, x' and any answer y

    P(y | x) / P(y | x')  <=  (1 - q + q / k) / (q / k)  =  1 + k (1 - q) / q  =  exp(epsilon)

which is (epsilon, 0)-*local* differential privacy: no party but the device holds the truth.

- q is a multiple of 2^-64, and the coin and the uniform draw are exact on it: the stated epsilon is that of the integer
  q, and never above the one that was asked for.
- Many answers at once (``randomize``) have the same coin. Counts of answers give unbiased frequencies (``estimate``),
  with an exact variance; binary randomized response (Warner) is that of two choices.
- The draw is over the full range. Drawing from the *other* choices alone, or from a range without its ends, gives
  another epsilon than the one stated; so does a coin of floating-point numbers.

Sources: Kairouz, Bonawitz, Ramage 2016, "Discrete distribution estimation under local privacy", section 3 (k-RR), with
q = k / (k - 1 + exp(epsilon)); Warner 1965, "Randomized response" (two choices).

Integers below a public limit as bytes of a fixed width: the size of a report depends on nothing that it says.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float64Array, Int64Array

if TYPE_CHECKING:
    from odp.privacy.mechanisms.random_source import RandomSource

_WORD = 64
_ONE = 1 << _WORD
MOST_CHOICES = 2**20
#: Below it the answer says nothing at all.
SMALLEST_EPSILON = 1e-6
#: Beyond it the answer is as good as the truth, and the coin of 64 bits is too coarse.
LARGEST_EPSILON = 32.0


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse:
    """The mechanism of one question.

    Attributes:
      choices: the answers are 0 .. choices - 1; from 2 to 2^20.
      asked: the epsilon that was asked for, from 1e-6 to 32.
      noise: q in units of 2^-64, an integer: how probable a uniform answer is.
    """

    choices: int
    asked: float
    noise: int = field(init=False)

    def __post_init__(self) -> None:
        _validate.integer(low=2, high=MOST_CHOICES, choices=self.choices)
        _validate.positive(epsilon=self.asked)
        _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, epsilon=self.asked)
        # exp() is off by an ulp or so, 2^-52 relative: 2^-50 less keeps the true epsilon below the asked one.
        odds = Fraction(math.exp(self.asked)) * (1 - Fraction(1, 2**50))
        object.__setattr__(self, "noise", math.ceil(Fraction(self.choices) / (self.choices - 1 + odds) * _ONE))

    @property
    def ratio(self) -> Fraction:
        """exp(epsilon), exactly: the largest ratio of the probabilities of an answer under two truths."""
        return 1 + self.choices * Fraction(_ONE - self.noise, self.noise)

    @property
    def epsilon(self) -> float:
        """The true epsilon, rounded up; at most ``asked``."""
        return min(rounded_up(self.ratio), self.asked)

    def check(self, truth: int) -> None:
        """Raises ConfigurationError unless ``truth`` is one of the choices; the message does not show it."""
        if not isinstance(truth, int) or isinstance(truth, bool) or not 0 <= truth < self.choices:
            raise ConfigurationError(f"Expected the true answer to be an integer from 0 to {self.choices - 1}")

    def answer(self, truth: int, *, random_bits: Callable[[int], int] = secrets.randbits) -> int:
        """A private answer to a question whose true answer is ``truth``.

        Args:
          truth: from 0 to choices - 1.
          random_bits: returns a uniform integer with the given number of bits, from a cryptographic source.

        Raises:
          ConfigurationError: ``truth`` is out of range; the message does not show it.
        """
        self.check(truth)
        # Both draws are made whatever the coin says: the time does not tell which one counted.
        uniform = _below(self.choices, random_bits)
        return uniform if random_bits(_WORD) < self.noise else truth

    @property
    def replaced(self) -> float:
        """q as a float: how probable a uniform answer is."""
        return self.noise / _ONE

    @property
    def kept(self) -> float:
        """1 - q as a float, to full precision where it is small."""
        return (_ONE - self.noise) / _ONE

    def randomize(self, truths: Int64Array, *, source: RandomSource) -> Int64Array:
        """Private answers to questions with these true answers, int64 [n].

        Args:
          truths: from 0 to choices - 1, int64 [n].
          source: of coins and answers.

        Raises:
          ConfigurationError: a truth is out of range; the message does not show it.
        """
        truths = categories(truths, self.choices)
        # Both draws are made whatever the coin says, as in ``answer``.
        uniform = source.below(self.choices, len(truths))
        return np.where(source.coins(self.noise, len(truths)), uniform, truths)

    def counts(self, answers: Int64Array) -> Int64Array:
        """How often each choice was answered, int64 [choices].

        Raises:
          ConfigurationError: an answer is no choice.
        """
        return np.bincount(categories(answers, self.choices), minlength=self.choices)

    def estimate(self, counts: Int64Array, n: int) -> Float64Array:
        """Unbiased frequencies of the choices, float64 [choices], from counts of ``n`` answers; some may be below 0.

        They add up to 1 where the counts add up to ``n``.

        Raises:
          ConfigurationError: another number of counts than choices, or ``n`` is not positive.
        """
        check_length(counts=len(counts), choices=self.choices)
        _validate.integer(low=1, high=2**62, n=n)
        return (np.asarray(counts) / n - self.replaced / self.choices) / self.kept

    def variance(self, frequencies: Float64Array, n: int) -> Float64Array:
        """The exact variance of ``estimate`` from ``n`` answers where the truths have ``frequencies``, [choices].

        Equal to (k - 2 + e) / (n (e - 1)^2) + h (k - 2) / (n (e - 1)) for e = exp(epsilon), frequency h. The second
        term is missing in print (Bellet, lecture 6), which is right for h = 0 or k = 2 alone.

        Raises:
          ConfigurationError: another number of frequencies than choices, or ``n`` is not positive.
        """
        check_length(frequencies=len(frequencies), choices=self.choices)
        _validate.integer(low=1, high=2**62, n=n)
        q, h = self.replaced, np.asarray(frequencies, dtype=np.float64)
        other = q / self.choices
        same = self.kept + other
        # q - other is 1 - same without cancellation, which a small q would cause.
        single = h * same * (q - other) + (1 - h) * other * (1 - other)
        return np.asarray(single / (n * self.kept**2), dtype=np.float64)

    def to_bytes(self, answers: Int64Array) -> bytes:
        """Answers as they are sent: 1 to 3 bytes each, by the number of choices.

        Raises:
          ConfigurationError: an answer is no choice.
        """
        return to_bytes(categories(answers, self.choices), self.choices)

    def from_bytes(self, data: bytes) -> Int64Array:
        """Answers that were sent, int64 [n].

        Raises:
          DataError: ``data`` is not of whole answers, or one is no choice.
        """
        return from_bytes(data, self.choices)


def rounded_up(ratio: Fraction) -> float:
    """The logarithm of an exact ratio of probabilities, above 1, never too small."""
    # Both roundings, to a float and in the logarithm, are below 2^-51.
    return math.log1p(float(ratio - 1)) * (1 + 2**-50) + 2**-50


def categories(values: Int64Array, choices: int, *, none: int = 0) -> Int64Array:
    """``values`` as int64 [n].

    Args:
      values: categories.
      choices: how many there are.
      none: -1 where that stands for no data.

    Raises:
      ConfigurationError: they are not integers of one axis from ``none`` to ``choices`` - 1; the message shows none.
    """
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigurationError(f"Expected categories as integers of one axis (got {array.dtype} {array.shape})")
    if array.size and not (array.min() >= none and array.max() < choices):
        raise ConfigurationError(f"Expected every category to be an integer from {none} to {choices - 1}")
    return array.astype(np.int64, copy=False)


def check_length(*, choices: int, **lengths: int) -> None:
    """Raises ConfigurationError unless each of ``lengths`` is the number of choices."""
    for name, length in lengths.items():
        if length != choices:
            raise ConfigurationError(f"Expected {name} of {choices} choices (got {length})")


def _below(high: int, random_bits: Callable[[int], int]) -> int:
    """Uniform from 0 to ``high`` - 1, by rejection: exact."""
    bits = (high - 1).bit_length()
    while True:
        if (value := random_bits(bits)) < high:
            return value


MOST = 2**62


def width(limit: int) -> int:
    """Bytes of an integer from 0 to ``limit`` - 1: the fewest that hold the largest, 1 at least.

    Raises:
      ConfigurationError: ``limit`` is not a whole number from 1 to 2^62.
    """
    _validate.integer(low=1, high=MOST, limit=limit)
    return max(1, -(-(limit - 1).bit_length() // 8))


def to_bytes(values: Int64Array, limit: int) -> bytes:
    """``values``, int64 [n] from 0 to ``limit`` - 1, little-endian in ``width(limit)`` bytes each."""
    return values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, : width(limit)].tobytes()


def from_bytes(data: bytes, limit: int) -> Int64Array:
    """What ``to_bytes`` wrote, int64 [n].

    Raises:
      DataError: ``data`` has part of an integer, or one that is not below ``limit``.
    """
    size = width(limit)
    if len(data) % size:
        raise DataError(f"Expected reports of {size} bytes each (got {len(data)} bytes)")
    wide = np.zeros((len(data) // size, 8), dtype=np.uint8)
    wide[:, :size] = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    indices = wide.view("<i8").reshape(-1).astype(np.int64, copy=False)
    if indices.size and not indices.max() < limit:
        raise DataError(f"Expected every report to be below {limit} (got {indices.max()})")
    return indices
