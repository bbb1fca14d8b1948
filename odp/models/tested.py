"""What testing a model on examples gives."""

from __future__ import annotations

from dataclasses import dataclass

from odp.numerics.arrays import Float64Array, Int64Array


@dataclass(frozen=True)
class Tested:
    """Of n examples. Numbers may be anything, NaN too: a network's are its program's word.

    Attributes:
      losses: float64 [n].
      probabilities: of each class, float64 [n, classes], at least two; None where targets are numbers.
      places: of each example's item among those that the person did not choose, int64 [n], 0 the best; None where
        the model was not asked to rank. Then nothing else is computed, and ``losses`` is empty.
    """

    losses: Float64Array
    probabilities: Float64Array | None = None
    places: Int64Array | None = None
