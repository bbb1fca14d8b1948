"""Whether ranges of predictions cover what they say: the share of test ratings within them, level by level.

A figure of a simulation, computed without noise on the researcher's own test part: no private release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from odp.datasets.ratings import Ratings
from odp.models.intervals import DEFAULT_LEVEL, Intervals
from odp.numerics.arrays import Float64Array

#: Levels of a curve; the one that is shown alone is among them.
LEVELS = (0.5, 0.6, 0.7, 0.8, DEFAULT_LEVEL, 0.95, 0.99)
#: Users whose test ratings are looked at: with 17 each, the error of a coverage of .9 is about .003.
MOST_USERS = 1024


@dataclass(frozen=True)
class Coverage:
    """Of the ranges at ``level``: the share of ratings ``covered``, and the mean ``width`` in units of the ratings."""

    level: float
    covered: float
    width: float


@dataclass(frozen=True)
class Reliability:
    """Coverage by level on ``ratings`` test ratings of ``users`` users; NaN without any."""

    users: int
    ratings: int
    curve: tuple[Coverage, ...]

    @property
    def shown(self) -> Coverage:
        """At the level that is shown where nobody asks for another one."""
        return next(coverage for coverage in self.curve if coverage.level == DEFAULT_LEVEL)

    def to_json(self) -> dict[str, Any]:
        """Plain values, None for NaN."""
        plain = asdict(self)
        plain["curve"] = [
            {key: value if math.isfinite(value) else None for key, value in point.items()} for point in plain["curve"]
        ]
        return plain


def reliability(
    history: Ratings,
    targets: Ratings,
    *,
    predict: Callable[[Ratings, Ratings], Float64Array],
    half_widths: Callable[[Ratings, Ratings, Float64Array], Float64Array],
    least: float,
    most: float,
    most_users: int = MOST_USERS,
) -> Reliability:
    """Coverage on the targets of at most ``most_users`` users, evenly spread over those that have any.

    Args:
      history: what each user is solved on.
      targets: the test ratings of the same users.
      predict: from (history, targets) of some users to predictions float64 [n].
      half_widths: from the same and levels [l] to half widths float64 [l, n].
      least, most: the declared range of values.
      most_users: as said.
    """
    tested = np.flatnonzero(targets.counts())
    places = np.linspace(0, len(tested) - 1, min(most_users, len(tested))).astype(np.int64)
    users = tested[np.unique(places)]
    if not len(users):
        return Reliability(0, 0, tuple(Coverage(level, math.nan, math.nan) for level in LEVELS))
    history, targets = history.select_users(users), targets.select_users(users)
    mean = predict(history, targets)
    values = np.asarray(targets.values, dtype=np.float64)
    curve = []
    for level, half in zip(LEVELS, half_widths(history, targets, np.array(LEVELS)), strict=True):
        intervals = Intervals.around(mean, half, level=level, least=least, most=most)
        covered = (intervals.low <= values) & (values <= intervals.high)
        curve.append(Coverage(level, float(covered.mean()), float((intervals.high - intervals.low).mean())))
    return Reliability(len(users), targets.n_ratings, tuple(curve))
