"""A number of one person plus noise of its own, for means: Laplace with a pure epsilon, Gaussian with a delta.

The value is rounded at random to one of D + 1 equal points of its range, so that its expectation is kept, and integer
noise is added to the index of the point. Any two inputs of one person differ by at most D steps.

- ``LaplaceMean``: discrete Laplace of a whole scale T, (D / T, 0)-local differential privacy.
- ``GaussianMean``: discrete Gaussian of standard deviation s, (epsilon, delta)-local, with delta the exact sum over the
  integers of max(P[n] - e^epsilon P[n - D], 0).

What is sent is bounded: noise beyond 64 T, of probability e^-64, is moved to 64 T, and the Gaussian has no draw beyond
14 s. That is a step after the noise, so it costs no privacy. Decoded numbers are unbiased but for it, by less than
1e-27 scales. Values outside the range are treated as in ``scalar.py``.

For a pure epsilon from 1 on ``scalar.ScalarDP`` has a smaller variance than Laplace noise.

Sources: Canonne, Kamath, Steinke 2020, "The Discrete Gaussian for Differential Privacy", section 3 (profile) and
algorithm 2; Bellet, lecture 6 (local means).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.mechanisms import discrete_gaussian, randomized_response
from odp.privacy.mechanisms.random_source import LAPLACE_CLOSENESS, RandomSource
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON, SMALLEST_EPSILON
from odp.privacy.mechanisms.scalar import check_range, in_range

#: Steps of the range under Laplace noise: fine against its scale at every epsilon.
LAPLACE_STEPS = 2**20
#: Scales from either end of the range within which an answer is sent.
LAPLACE_ROOM = 64
SMALLEST_GAUSSIAN_EPSILON = 0.01
SMALLEST_DELTA, LARGEST_DELTA = 1e-15, 0.1

_FINE_STD = 2.0**10  # grid steps of the Gaussian's standard deviation, about
#: The table of the discrete Gaussian is this close to its law: 28 s entries of 2^-128 each, and 1e-42 beyond.
_TABLE = 28 * discrete_gaussian.LARGEST_STD * 2.0**-128 + 1e-42


class _Noisy:
    """What both have in common."""

    low: float
    high: float
    clip: bool

    @property
    def steps(self) -> int:
        """D, the steps of the range."""
        raise NotImplementedError

    @property
    def _noise_variance(self) -> float:
        """In squared steps."""
        raise NotImplementedError

    @property
    def _margin(self) -> int:
        """Steps beyond either end of the range that an answer may be."""
        raise NotImplementedError

    def _noise(self, count: int, source: RandomSource) -> Int64Array:
        raise NotImplementedError

    @property
    def step(self) -> float:
        """The width of a step."""
        return (self.high - self.low) / self.steps

    def randomize(self, values: Float64Array, *, source: RandomSource) -> Int64Array:
        """Private answers, int64 [n]: steps above ``low``, and below it where negative.

        Args:
          values: float64 [n], within the range, or any where ``clip`` is declared.
          source: of rounding and noise.

        Raises:
          ConfigurationError: a value is refused; the message does not show it.
        """
        below, part = self._between(values)
        noise = self._noise(len(below), source)  # drawn alike for all values
        rounded = below + (source.uniforms(len(below)) < part)
        answers: Int64Array = np.clip(rounded + noise, -self._margin, self.steps + self._margin)
        return answers

    def decode(self, answers: Int64Array) -> Float64Array:
        """Unbiased numbers from answers, float64 [n]."""
        return self.low + self.step * np.asarray(answers, dtype=np.float64)

    def variance(self, values: Float64Array) -> Float64Array:
        """The exact variance of the decoded number where the truth is each of ``values``, float64 [n]."""
        part = self._between(values)[1]
        return np.asarray((part * (1 - part) + self._noise_variance) * self.step**2)

    @property
    def largest_variance(self) -> float:
        """The largest of all values of the range: of one midway between two points."""
        return (0.25 + self._noise_variance) * self.step**2

    def to_bytes(self, answers: Int64Array) -> bytes:
        """Answers as they are sent, each in the bytes that the largest one needs."""
        return randomized_response.to_bytes(np.asarray(answers) + self._margin, self._answers)

    def from_bytes(self, data: bytes) -> Int64Array:
        """Answers that were sent, int64 [n].

        Raises:
          DataError: ``data`` is not of whole answers, or one is beyond what the mechanism sends.
        """
        return randomized_response.from_bytes(data, self._answers) - self._margin

    @property
    def _answers(self) -> int:
        """How many different answers there are."""
        return self.steps + 2 * self._margin + 1

    def _between(self, values: Float64Array) -> tuple[Int64Array, Float64Array]:
        """(step at or below, int64 [n]; part of the next one, float64 [n])."""
        clamped = in_range(values, low=self.low, high=self.high, clip=self.clip)
        place = np.clip((clamped - self.low) / (self.high - self.low) * self.steps, 0.0, float(self.steps))
        below = np.floor(place)
        return below.astype(np.int64), place - below


@dataclass(frozen=True, kw_only=True)
class LaplaceMean(_Noisy):
    """Discrete Laplace noise.

    Attributes:
      asked: the epsilon that was asked for, from 1e-6 to 32.
      high: the largest value.
      low: the smallest one.
      clip: whether values outside the range are moved to the nearer end; otherwise they are refused.
      scale: T in steps: the smallest whole one within ``asked``.
    """

    asked: float
    high: float
    low: float = 0.0
    clip: bool = False
    scale: int = field(init=False)

    def __post_init__(self) -> None:
        _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, epsilon=self.asked)
        check_range(self.low, self.high)
        left = Fraction(self.asked) - 2 * Fraction(LAPLACE_CLOSENESS)
        object.__setattr__(self, "scale", math.ceil(LAPLACE_STEPS / left))

    @property
    def steps(self) -> int:
        """D."""
        return LAPLACE_STEPS

    @property
    def epsilon(self) -> float:
        """The true epsilon with what sampling adds, rounded up; at most ``asked``."""
        return min(math.nextafter(LAPLACE_STEPS / self.scale + 2 * LAPLACE_CLOSENESS, math.inf), self.asked)

    @property
    def _noise_variance(self) -> float:
        return 0.5 / math.sinh(0.5 / self.scale) ** 2

    @property
    def _margin(self) -> int:
        return LAPLACE_ROOM * self.scale

    def _noise(self, count: int, source: RandomSource) -> Int64Array:
        return source.discrete_laplace(self.scale, count)


@dataclass(frozen=True, kw_only=True)
class GaussianMean(_Noisy):
    """Discrete Gaussian noise: smaller tails than Laplace, a delta, and a better sum over many answers of one person.

    Attributes:
      asked: the epsilon that was asked for, from 0.01 to 32.
      delta: of the claim, from 1e-15 to 0.1.
      high: the largest value.
      low: the smallest one.
      clip: whether values outside the range are moved to the nearer end; otherwise they are refused.
    """

    asked: float
    delta: float
    high: float
    low: float = 0.0
    clip: bool = False

    def __post_init__(self) -> None:
        _validate.within(low=SMALLEST_GAUSSIAN_EPSILON, high=LARGEST_EPSILON, epsilon=self.asked)
        _validate.within(low=SMALLEST_DELTA, high=LARGEST_DELTA, delta=self.delta)
        check_range(self.low, self.high)

    @property
    def steps(self) -> int:
        """D."""
        return _calibrated(self.asked, self.delta)[0]

    @property
    def std(self) -> float:
        """The standard deviation of the noise in steps, s."""
        return _calibrated(self.asked, self.delta)[1]

    @property
    def epsilon(self) -> float:
        """``asked``: its ``delta_of_gaussian`` is at most ``delta`` and within a part in 1e8 of it."""
        return self.asked

    @property
    def _noise_variance(self) -> float:
        return self.std**2  # of the discrete Gaussian, too: to a part in e^(2 pi^2 s^2)

    @property
    def _margin(self) -> int:
        return discrete_gaussian.largest(self.std)

    def _noise(self, count: int, source: RandomSource) -> Int64Array:
        return discrete_gaussian.DiscreteGaussian(self.std).draw(count, source)


def delta_of_gaussian(epsilon: float, *, steps: int, std: float) -> float:
    """The delta of a discrete Gaussian of ``std`` for two inputs ``steps`` apart: the exact sum, rounded up.

    With P[n] = exp(-n^2 / 2 std^2) / Z the loss ln P[n] / P[n - steps] falls in n, so all terms are positive below some
    n and none is lost to cancellation. What the sampler's table is off by is added.
    """
    reach = math.ceil(40 * std)  # beyond, the sum is below 1e-340
    number = np.arange(-reach, reach + 1, dtype=np.float64)
    weight = np.exp(-0.5 * (number / std) ** 2)
    loss = steps * (steps - 2 * number) / (2 * std**2)
    above = loss > epsilon
    terms = weight[above] * -np.expm1(epsilon - loss[above])
    return float(terms.sum() / weight.sum()) * (1 + 1e-9) + (1 + math.exp(epsilon)) * _TABLE


@functools.lru_cache(maxsize=64)
def _calibrated(epsilon: float, delta: float) -> tuple[int, float]:
    """(steps D, std s): D with which s is near 2^10, then the smallest s that is within the budget."""

    def fits(steps: int, std: float) -> bool:
        return delta_of_gaussian(epsilon, steps=steps, std=std) <= delta

    few, many = 1, math.ceil(_FINE_STD * (math.sqrt(2 * epsilon) + 10))
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle, _FINE_STD) else (few, middle)
    low, high = discrete_gaussian.SMALLEST_STD, discrete_gaussian.LARGEST_STD
    if not fits(few, high):
        raise ConfigurationError(
            f"Expected delta={delta!r} to be reached at epsilon={epsilon!r}: choose a larger epsilon or delta"
        )
    while high - low > 1e-9 * high:
        middle_std = 0.5 * (low + high)
        low, high = (low, middle_std) if fits(few, middle_std) else (middle_std, high)
    return few, high
