"""Where each measurement stands in a user's vector, and the bound of the whole.

A user of half h has numbers in the places of that half alone:

===========  ==================  =======================================================  ==============
block        numbers             of a user                                                L2 bound
===========  ==================  =======================================================  ==============
users        1                   1                                                        1
means        models * scalars    mean over its examples, its range moved to [-1, 1]       1 each
squares      scalars, compared   half the square of its mean, or of half the difference   1/2 each
histograms   models * 2 bins     shares of its examples, which sum to 1                   1 per model
===========  ==================  =======================================================  ==============

``factor`` scales the whole to at most 1 in L2, with room for the rounding of every number up by one step: a vector is
then never cut, and the sums are unbiased.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SQUARE = 0.5


@dataclass(frozen=True)
class Layout:
    """The vector of a task.

    Attributes:
      halves: 2 where users are in one of two halves, else 1.
      models: evaluated on the same user.
      scalars: means of each model.
      bins: of the predicted probability; 0 for no histograms.
    """

    halves: int
    models: int
    scalars: int
    bins: int

    @property
    def compared(self) -> bool:
        """Whether two models are."""
        return self.halves * self.models == 2

    @property
    def squares(self) -> int:
        """Numbers for the spread over users."""
        return self.scalars if self.compared else 0

    @property
    def width(self) -> int:
        """Numbers of one half."""
        return 1 + self.models * (self.scalars + 2 * self.bins) + self.squares

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.halves * self.width

    @property
    def bound(self) -> float:
        """L2 bound of a vector before it is scaled."""
        histograms = self.models if self.bins else 0
        return math.sqrt(1 + self.models * self.scalars + _SQUARE**2 * self.squares + histograms)

    def factor(self, units: int) -> float:
        """What every number is multiplied by, where the bound is ``units`` steps of the grid."""
        return (1.0 - math.sqrt(self.size) / units) / self.bound

    def means(self, model: int) -> slice:
        """Of one model, within a half."""
        start = 1 + model * self.scalars
        return slice(start, start + self.scalars)

    @property
    def spread(self) -> slice:
        """The squares, within a half."""
        start = 1 + self.models * self.scalars
        return slice(start, start + self.squares)

    def histogram(self, model: int) -> slice:
        """With the label, then without, within a half."""
        start = 1 + self.models * self.scalars + self.squares + model * 2 * self.bins
        return slice(start, start + 2 * self.bins)
