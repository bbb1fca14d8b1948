"""Whether two methods differ by more than chance: standard errors of differences over users, who are paired.

Both methods are tested on the same entries. What differs by chance is who the users are, and entries of one user are
alike, so a user counts as one draw.
"""

from __future__ import annotations

import math

import numpy as np

from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Float64Array


def rmse_influence(predicted: Float64Array, targets: Ratings) -> Float64Array:
    """By how much each user moves the root mean squared error of predictions float64 [n_ratings], float64 [n_users].

    To first order: the mean squared error is a ratio of sums over users (Cochran 1977, *Sampling Techniques*, section
    6.4), and its root is taken by the delta method. NaN with fewer than two users who have ratings.
    """
    entries = targets.counts()
    squares = np.bincount(targets.users(), weights=(predicted - targets.values) ** 2, minlength=targets.n_users)
    if np.count_nonzero(entries) < 2:
        return np.full(targets.n_users, math.nan)
    mean = float(squares.sum()) / targets.n_ratings
    return (squares - entries * mean) / (2.0 * math.sqrt(mean) * targets.n_ratings) if mean else np.zeros(len(squares))


def mean_influence(values: Float64Array) -> Float64Array:
    """By how much each user moves the mean of ``values`` float64 [n], one per user; NaN below two users."""
    return (values - values.mean()) / len(values) if len(values) > 1 else np.full(len(values), math.nan)


def difference_error(influence: Float64Array, others: Float64Array) -> float:
    """The standard error of the difference of two figures of the same users, by their influence float64 [n] each."""
    moved = others - influence
    return math.sqrt(float(moved @ moved) * len(moved) / (len(moved) - 1)) if len(moved) > 1 else math.nan
