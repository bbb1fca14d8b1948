"""Predictions with a range: what a value may be, and not only the best guess.

A range at level .9 covers the value that a person gives in nine of ten cases. Ranges are made on the device, from the
person's own data and a public model: nothing of them is sent, so they cost no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from odp import _validate
from odp.numerics.arrays import Float64Array, Int64Array

#: Levels of which there are ranges. Beyond .99 a person has too few ratings to tell.
LEAST_LEVEL, MOST_LEVEL = 0.5, 0.99
#: What is shown where nobody asks for another level.
DEFAULT_LEVEL = 0.9


def check_level(level: float) -> None:
    """Raises ConfigurationError where ``level`` is not from .5 to .99."""
    _validate.within(low=LEAST_LEVEL, high=MOST_LEVEL, level=level)


@dataclass(frozen=True)
class Intervals:
    """Predictions of n items with the ranges that cover their values at ``level``; arrays float64 [n].

    Attributes:
      level: share of values that the ranges cover, from .5 to .99.
      mean: as without ranges.
      low, high: ends of the ranges. These and ``mean`` are within the declared range of values.
      predicted, upper: means and upper ends before they were cut to that range: what ranks items.
    """

    level: float
    mean: Float64Array = field(repr=False)
    low: Float64Array = field(repr=False)
    high: Float64Array = field(repr=False)
    predicted: Float64Array = field(repr=False)
    upper: Float64Array = field(repr=False)

    @classmethod
    def around(cls, mean: Float64Array, half: Float64Array, *, level: float, least: float, most: float) -> Intervals:
        """``mean`` +- ``half``, cut to values from ``least`` to ``most``."""
        middle, low, high = (np.clip(values, least, most) for values in (mean, mean - half, mean + half))
        return cls(level, middle, low, high, mean, mean + half)

    def take(self, places: Int64Array) -> Intervals:
        """Those at ``places``, in that order."""
        arrays = (self.mean, self.low, self.high, self.predicted, self.upper)
        return Intervals(self.level, *(array[places] for array in arrays))
