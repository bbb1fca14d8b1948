"""A number of one person, private by itself: rounded to a point of a grid, whose index goes through k-RR.

Guarantee: (``epsilon``, 0)-local differential privacy for any two inputs of the range. The index is an exact integer
and its answer an exact coin (``randomized_response.py``), so that the stated epsilon is that of what is sent, without a
remainder for floating-point numbers: those are only in the choice between two points, and in the decoding.

The value r lies between two points b_j <= r <= b_j+1 and becomes b_j+1 with probability (r - b_j) / (b_j+1 - b_j), else
b_j, so that its expectation is r. With q, the probability of a uniform answer, and m, the mean of all points,

    Z = (b_answer - q m) / (1 - q)

has expectation r for every r. Its variance is that of the rounding plus that of the answer, both in closed form.

============================  =========================================================================================
value                         what happens
============================  =========================================================================================
within the range              exactly as above, both ends included
outside the range, infinite   refused, or the nearer end where ``clip`` is declared
not a number                  refused, or the low end where ``clip`` is declared
============================  =========================================================================================

A device declares ``clip``: whether it answers must not depend on its data.

>>> import numpy as np
>>> from odp.privacy.mechanisms.random_source import RandomSource
>>> mechanism = ScalarDP(asked=4.0, high=1.0)
>>> answers = mechanism.randomize(np.full(100_000, 0.3), source=RandomSource())
>>> abs(mechanism.decode(answers).mean() - 0.3) < 0.01
np.True_

Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection Against Reconstruction and Its Applications in
Private Federated Learning", section 4.3 (algorithm 3, ScalarDP) and appendix B.2 (algorithm 4, ScalarRelDP).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON, SMALLEST_EPSILON, RandomizedResponse, categories

MOST_LEVELS = 2**16
_LARGEST = 2.0**500  # squares of larger numbers overflow


class _OnGrid:
    """The mechanism of any grid; ``points`` is the grid, and the other fields are of the dataclasses below."""

    asked: float
    clip: bool

    @functools.cached_property
    def points(self) -> Float64Array:
        """The grid, float64 [levels + 1], increasing."""
        raise NotImplementedError

    @functools.cached_property
    def response(self) -> RandomizedResponse:
        """The mechanism of the index."""
        return RandomizedResponse(choices=len(self.points), asked=self.asked)

    @property
    def epsilon(self) -> float:
        """The true epsilon, rounded up; at most ``asked``."""
        return self.response.epsilon

    @functools.cached_property
    def values(self) -> Float64Array:
        """What each answer is decoded to, float64 [levels + 1]: the largest magnitude of a decoded number is here."""
        response = self.response
        return np.asarray((self.points - response.replaced * self.points.mean()) / response.kept)

    def randomize(self, values: Float64Array, *, source: RandomSource) -> Int64Array:
        """Private answers, int64 [n], each an index of the grid.

        Args:
          values: float64 [n], within the range, or any where ``clip`` is declared.
          source: of rounding, coins and answers.

        Raises:
          ConfigurationError: a value is refused (see the module); the message does not show it.
        """
        below, part = self._between(values)
        return self.response.randomize(below + (source.uniforms(len(below)) < part), source=source)

    def decode(self, answers: Int64Array) -> Float64Array:
        """Unbiased numbers from answers, float64 [n].

        Raises:
          ConfigurationError: an answer is no index of the grid.
        """
        return self.values[categories(answers, len(self.points))]

    def variance(self, values: Float64Array) -> Float64Array:
        """The exact variance of the decoded number where the truth is each of ``values``, float64 [n]."""
        below, part = self._between(values)
        expected = self.points[below] * (1 - part) + self.points[below + 1] * part
        rounding = (expected - self.points[below]) * (self.points[below + 1] - expected)
        return np.asarray((1 - part) * self._answered[below] + part * self._answered[below + 1] + rounding)

    @property
    def largest_variance(self) -> float:
        """The largest of all values of the range, exactly: a parabola between each two points has it."""
        points, answered = self.points, self._answered
        widths = np.diff(points)
        top = (points[1:] + points[:-1]) / 2 + np.diff(answered) / widths / 2
        inside = np.clip(top, points[:-1], points[1:])
        return float(self.variance(np.concatenate((points, inside))).max())

    def to_bytes(self, answers: Int64Array) -> bytes:
        """Answers as they are sent: 1 to 3 bytes each, by the number of points."""
        return self.response.to_bytes(answers)

    def from_bytes(self, data: bytes) -> Int64Array:
        """Answers that were sent, int64 [n].

        Raises:
          DataError: ``data`` is not of whole answers, or one is no index of the grid.
        """
        return self.response.from_bytes(data)

    @functools.cached_property
    def _answered(self) -> Float64Array:
        """The variance of the decoded number given that the value was rounded to each point, float64 [levels + 1]."""
        q, chance, points = self.response.replaced, self.response.kept, self.points
        centred = points - points.mean()  # the variance does not depend on where zero is
        return np.asarray(q * ((centred**2).mean() / chance + centred**2) / chance)

    def _between(self, values: Float64Array) -> tuple[Int64Array, Float64Array]:
        """(index of the point at or below, int64 [n] below levels; part of the way to the next, float64 [n])."""
        points = self.points
        clamped = in_range(values, low=float(points[0]), high=float(points[-1]), clip=self.clip)
        below = np.clip(np.searchsorted(points, clamped, side="right") - 1, 0, len(points) - 2)
        part = (clamped - points[below]) / (points[below + 1] - points[below])
        return below.astype(np.int64, copy=False), part


@dataclass(frozen=True, kw_only=True)
class GridScalar(_OnGrid):
    """Any increasing grid.

    Attributes:
      asked: the epsilon that was asked for, from 1e-6 to 32.
      grid: its points, 2 to 65,537 of them; the first and the last one are the range.
      clip: whether values outside the range are moved to the nearer end; otherwise they are refused.
    """

    asked: float
    grid: tuple[float, ...]
    clip: bool = False

    def __post_init__(self) -> None:
        _check_epsilon(self.asked)
        _validate.integer(low=1, high=MOST_LEVELS, levels=len(self.grid) - 1)
        _validate.within(low=-_LARGEST, high=_LARGEST, **{f"grid[{i}]": point for i, point in enumerate(self.grid)})
        for index, (point, after) in enumerate(zip(self.grid, self.grid[1:], strict=False)):
            if not point < after:
                raise ConfigurationError(f"Expected grid[{index}]={point!r} to be below grid[{index + 1}]={after!r}")

    @functools.cached_property
    def points(self) -> Float64Array:
        """``grid`` as float64."""
        return np.array(self.grid, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class ScalarDP(_OnGrid):
    """A grid of equal steps.

    Attributes:
      asked: the epsilon that was asked for, from 1e-6 to 32.
      high: the largest value.
      low: the smallest one.
      levels: how many steps, from 1 to 65,536; the number with the smallest largest variance unless given.
      clip: whether values outside the range are moved to the nearer end; otherwise they are refused.
    """

    asked: float
    high: float
    low: float = 0.0
    levels: int | None = None
    clip: bool = False

    def __post_init__(self) -> None:
        _check_epsilon(self.asked)
        check_range(self.low, self.high)
        if self.levels is None:
            object.__setattr__(self, "levels", best_levels(self.asked))
        _validate.integer(low=1, high=MOST_LEVELS, levels=self.steps)

    @property
    def steps(self) -> int:
        """``levels`` where they were given, otherwise what was chosen."""
        return self.levels or 0

    @functools.cached_property
    def points(self) -> Float64Array:
        """``steps`` + 1 points from low to high."""
        return np.linspace(self.low, self.high, self.steps + 1)


@dataclass(frozen=True, kw_only=True)
class ScalarRelDP(_OnGrid):
    """Zero, and points that grow by a factor: for magnitudes whose *relative* error matters.

    The error is relative to max(r, ``high`` ``ratio`` ^ (1 - ``levels``)). The bound that was printed for it is not
    used: ``variance`` is exact.

    Attributes:
      asked: the epsilon that was asked for, from 1e-6 to 32.
      high: the largest value; the smallest one is 0.
      ratio: of neighbouring points above zero, above 1.
      levels: how many points above zero, from 1 to 65,536.
      clip: whether values outside the range are moved to the nearer end; otherwise they are refused.
    """

    asked: float
    high: float
    ratio: float
    levels: int
    clip: bool = False

    def __post_init__(self) -> None:
        _check_epsilon(self.asked)
        check_range(0.0, self.high)
        _validate.integer(low=1, high=MOST_LEVELS, levels=self.levels)
        _validate.finite(ratio=self.ratio)
        if not self.ratio > 1:
            raise ConfigurationError(f"Expected ratio={self.ratio!r} to be above 1")
        if not (self.levels - 1) * math.log2(self.ratio) < 500:
            raise ConfigurationError(
                f"Expected ratio={self.ratio!r} ** (levels - 1 = {self.levels - 1}) to be below 2^500; "
                "choose fewer levels or a smaller ratio"
            )

    @functools.cached_property
    def points(self) -> Float64Array:
        """Zero, then ``levels`` points up to ``high``."""
        return np.concatenate(([0.0], self.high * self.ratio ** np.arange(1.0 - self.levels, 1.0)))


def published_levels(epsilon: float) -> int:
    """The number of steps in the paper, e^(epsilon / 3) rounded up."""
    _check_epsilon(epsilon)
    return math.ceil(math.exp(epsilon / 3))


@functools.lru_cache(maxsize=64)
def best_levels(epsilon: float) -> int:
    """The number of equal steps with the smallest ``largest_variance``: for epsilon = 1 it is 1, not 2 as published.

    A search between ends that are moved together: the largest variance falls, then rises with the number of steps.
    """

    def worst(levels: int) -> float:
        return ScalarDP(asked=epsilon, high=1.0, levels=levels).largest_variance

    low, high = 1, min(2 * published_levels(epsilon), MOST_LEVELS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if worst(middle) <= worst(middle + 1) else (middle + 1, high)
    return low


def check_range(low: float, high: float) -> None:
    """Raises ConfigurationError unless ``low`` < ``high``, both finite and neither huge."""
    _validate.within(low=-_LARGEST, high=_LARGEST, range_low=low, range_high=high)
    if not low < high:
        raise ConfigurationError(f"Expected low={low!r} to be below high={high!r}")


def in_range(values: Float64Array, *, low: float, high: float, clip: bool) -> Float64Array:
    """``values`` as float64 [n] within the range; moved into it where ``clip`` is set.

    Raises:
      ConfigurationError: they have several axes, or one is not a number or outside the range; it is not shown.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ConfigurationError(f"Expected values of one axis (got shape {array.shape})")
    if clip:
        return np.clip(np.where(np.isnan(array), low, array), low, high)
    if not np.isfinite(array).all():
        raise ConfigurationError(
            "Expected every value to be a finite number; declare clip=True to move them into range"
        )
    if array.size and not (array.min() >= low and array.max() <= high):
        raise ConfigurationError(
            f"Expected every value to be within [{low}, {high}]; declare clip=True to move them into range"
        )
    return array


def _check_epsilon(epsilon: float) -> None:
    _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, epsilon=epsilon)
