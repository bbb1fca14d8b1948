"""How every reference is tuned: six settings, and the one of the best score on the validation part.

Each setting is trained on the training part and scored on the validation part, with users solved on their training
ratings. The best one, as trained, predicts the test part, with users solved on training and validation ratings.

The choice is not charged: neither the trials' trainings nor their scores. So a private reference that is tuned here has
an advantage over a model whose settings read no rating.

Source: Ferrari Dacrema, Cremonesi, Jannach 2019 (arXiv 1907.06902), for why references have to be tuned as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from odp.datasets.ratings import Ratings, Split, merge
from odp.evaluation.paired import rmse_influence
from odp.numerics.arrays import Float64Array

#: Settings per reference, data set, ε and seed.
TRIALS = 6

Settings = Mapping[str, float]
Predictor = Callable[[Ratings, Ratings], Float64Array]
"""From users' own ratings and pairs without opinion to predictions float64 [n_ratings] of the latter."""

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Outcome:
    """What a method reached on the test part.

    Attributes:
      scores: one number per metric.
      settings: what was chosen, by name; empty where there was nothing to choose.
      influence: by how much each user moves the first score, float64 [n]; None where a method does not say.
    """

    scores: tuple[float, ...]
    settings: Settings = field(default_factory=dict)
    influence: Float64Array | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, predicted: Float64Array, targets: Ratings, settings: Settings = MappingProxyType({})) -> Outcome:
        """The RMSE of predictions float64 [n_ratings]."""
        return cls((rmse(predicted, targets),), settings, rmse_influence(predicted, targets))


def rmse(predicted: Float64Array, targets: Ratings) -> float:
    """Root mean squared error over all entries of ``targets``; predictions float64 [n_ratings], not clamped.

    NaN where ``targets`` has no ratings.
    """
    if not targets.n_ratings:
        return math.nan
    return float(np.sqrt(np.mean((predicted - targets.values) ** 2)))


def best(
    grid: Sequence[Settings], made: Callable[..., _Made], loss: Callable[[_Made], float] | None
) -> tuple[_Made, Settings]:
    """What ``made(**settings)`` gives for the settings of least ``loss``, and these; the first of equal ones.

    Without a loss (there is no validation part) the first settings are taken. A loss that is no number never wins.
    """
    winner, chosen, least = made(**grid[0]), grid[0], math.inf
    if loss is None:
        return winner, chosen
    for place, settings in enumerate(grid):
        trial = winner if place == 0 else made(**settings)
        if (value := loss(trial)) < least:
            winner, chosen, least = trial, settings, value
    return winner, chosen


def tuned_rmse(split: Split, grid: Sequence[Settings], made: Callable[..., Predictor]) -> Outcome:
    """Test RMSE of the settings of least validation RMSE."""

    def loss(predict: Predictor) -> float:
        return rmse(predict(split.train, split.validation), split.validation)

    predict, settings = best(grid, made, loss if split.validation.n_ratings else None)
    return Outcome.of(predict(merge(split.train, split.validation), split.test), split.test, settings)
