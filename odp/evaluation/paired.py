"""Whether two methods differ by more than chance: standard errors of differences over users, who are paired.

Both methods are tested on the same entries. What differs by chance is who the users are, and entries of one user are
alike, so a user counts as one draw.
"""

from __future__ import annotations

import math

import numpy as np

from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Float64Array, Int64Array


def squares_by_user(predicted: Float64Array, targets: Ratings) -> Float64Array:
    """Each user's sum of squared errors float64 [n_users], of predictions float64 [n_ratings]."""
    squares = (predicted - targets.values) ** 2
    return np.asarray(np.bincount(targets.users(), weights=squares, minlength=targets.n_users), dtype=np.float64)


def rmse_error(squares: Float64Array, others: Float64Array, entries: Int64Array) -> float:
    """The standard error of the difference of two root mean squared errors.

    ``squares`` and ``others`` float64 [n] are sums of squared errors by user, over ``entries`` int64 [n] each. The mean
    squared error is a ratio of sums over users (Cochran 1977, *Sampling Techniques*, section 6.4); its root is taken by
    the delta method. NaN with fewer than two users.
    """
    users, total = int(np.count_nonzero(entries)), int(entries.sum())
    if users < 2:
        return math.nan
    moved = _moved(others, entries, total) - _moved(squares, entries, total)
    return math.sqrt(float(moved @ moved) * users / (users - 1))


def _moved(squares: Float64Array, entries: Int64Array, total: int) -> Float64Array:
    """By how much each user moves a root mean squared error, to first order, float64 [n]."""
    mean = float(squares.sum()) / total
    return (squares - entries * mean) / (2.0 * math.sqrt(mean) * total) if mean else np.zeros(len(squares))


def mean_error(values: Float64Array, others: Float64Array) -> float:
    """The standard error of the difference of two means over the same users, float64 [n] each; NaN below two."""
    return float(np.std(values - others, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
