"""What recommendations show of a catalogue: coverage, inequality of exposure, and bias towards what is popular.

Lists of the first 20 items for simulated users, their history left out, on the researcher's own data without noise:
figures of a simulation, which no platform could compute on a real population.

=====================  ==============================================================================================
figure                 meaning
=====================  ==============================================================================================
coverage               share of the catalogue that is on anybody's list
Gini coefficient       of how often items are on lists: 0 where all items are alike, near 1 where few have everything
popularity lift        mean popularity of a user's list / that of the user's history - 1, of means over users
exposure by fifth      share of the places that items of a fifth by popularity have, beside their share of what people
                       really liked among held-out items: what is above it is shown more than it is liked
=====================  ==============================================================================================

Source: Abdollahpouri et al. 2019 (the unfairness of popularity bias in recommendation) for the lift.

Members of a population by their size, for diagnostics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.datasets.ratings import Ratings
from odp.evaluation.ranking import Scores, first_places
from odp.numerics.arrays import Float64Array, Int64Array

_BUCKETS = 5


def fifths(sizes: Float64Array) -> Iterator[npt.NDArray[np.bool_]]:
    """Members cut by size into at most five parts of about the same number, smallest first; equal sizes stay together.

    Each part is a mask bool [len(sizes)]; none is empty.
    """
    edges = np.unique(np.quantile(sizes, np.linspace(0.0, 1.0, _BUCKETS + 1)))
    place = np.searchsorted(edges[1:-1], sizes, side="left")
    for number in np.unique(place):
        yield place == number


CUTOFF = 20
MOST_USERS = 4096
_BLOCK = 64  # users whose scores are in memory at once


@dataclass(frozen=True)
class Lists:
    """Figures of one method's lists.

    Attributes:
      coverage, gini: see the module.
      popularity: mean over users of the mean noisy count on their lists.
      lift: of it over histories; None without histories.
      exposure: share of all places by fifth of the items, as of ``Exposure.fifths``; they add up to 1.
    """

    coverage: float
    gini: float
    popularity: float
    lift: float | None
    exposure: tuple[float, ...]


@dataclass(frozen=True)
class ItemFifth:
    """Items with a noisy count from ``low`` to ``high``.

    Attributes:
      members: how many there are.
      relevance: their share of what people liked among held-out items; None where nobody liked any.
    """

    low: float
    high: float
    members: int
    relevance: float | None


@dataclass(frozen=True)
class Exposure:
    """Lists of a model beside those of a baseline, for the same users.

    Attributes:
      cutoff: items on a list.
      users: who got lists.
      baseline_name: key of the baseline.
      history: mean over users of the mean noisy count of their histories; None without histories.
    """

    cutoff: int
    users: int
    baseline_name: str
    history: float | None
    fifths: tuple[ItemFifth, ...]
    model: Lists
    baseline: Lists

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def exposure(
    scores: Scores,
    baseline: Scores,
    history: Ratings,
    liked: Ratings,
    *,
    popularity: Float64Array,
    baseline_name: str,
    cutoff: int = CUTOFF,
) -> Exposure:
    """Exposure in lists of all users of ``history``; take a sample of the users where there are many.

    Args:
      scores, baseline: from users int64 [b] to scores [b, n_items], asked for in blocks.
      history: what is known of each user, and is not recommended.
      liked: held-out items of the same users that they liked.
      popularity: noisy counts [n_items]; what is below 0 counts as 0.
      baseline_name: key of the baseline.
      cutoff: items on a list, at most the catalogue.

    Raises:
      ConfigurationError: the cutoff is out of range.
    """
    _validate.integer(low=1, high=history.n_items, cutoff=cutoff)
    counts = np.maximum(popularity, 0.0)
    groups = list(fifths(popularity))
    wanted = np.bincount(liked.items, minlength=liked.n_items)
    sizes = history.counts()
    has_history = sizes > 0
    sums = np.bincount(history.users(), weights=counts[history.items], minlength=history.n_users)
    history_popularity = float((sums[has_history] / sizes[has_history]).mean()) if has_history.any() else None
    blocks = [np.arange(start, min(start + _BLOCK, history.n_users)) for start in range(0, history.n_users, _BLOCK)]

    def of(shown: Scores) -> Lists:
        places = np.concatenate([_lists(shown, users, history, cutoff) for users in blocks])
        # -1 stands where only history is left.
        valid = places >= 0
        times = np.bincount(places[valid], minlength=history.n_items).astype(np.float64)
        length = np.maximum(valid.sum(axis=1), 1)
        mean = float(((np.where(valid, counts[places], 0.0)).sum(axis=1) / length).mean())
        return Lists(
            coverage=float((times > 0).mean()),
            gini=gini(times),
            popularity=mean,
            lift=mean / history_popularity - 1.0 if history_popularity else None,
            exposure=tuple(float(times[group].sum() / max(times.sum(), 1.0)) for group in groups),
        )

    return Exposure(
        cutoff=cutoff,
        users=history.n_users,
        baseline_name=baseline_name,
        history=history_popularity,
        fifths=tuple(
            ItemFifth(
                low=float(popularity[group].min()),
                high=float(popularity[group].max()),
                members=int(group.sum()),
                relevance=float(wanted[group].sum() / wanted.sum()) if wanted.sum() else None,
            )
            for group in groups
        ),
        model=of(scores),
        baseline=of(baseline),
    )


def gini(values: Float64Array) -> float:
    """Gini coefficient of values >= 0 [n]: 0 where all are equal, (n - 1) / n where one has everything; 0 of zeros.

    >>> gini(np.array([1.0, 1.0, 1.0, 1.0])), gini(np.array([0.0, 0.0, 0.0, 8.0]))
    (0.0, 0.75)
    """
    if not (total := float(values.sum())):
        return 0.0
    ranks = np.arange(1, len(values) + 1)
    return float(2.0 * (ranks @ np.sort(values)) / (len(values) * total) - (len(values) + 1) / len(values))


def _lists(scores: Scores, users: Int64Array, history: Ratings, cutoff: int) -> Int64Array:
    """The first items of each user [b, cutoff] outside of its history; -1 where nothing else is left."""
    shown = np.array(scores(users), dtype=np.float32)
    block_history = history.select_users(users)
    shown[block_history.users(), block_history.items] = -np.inf
    places = first_places(shown, cutoff)
    return np.where(np.isfinite(np.take_along_axis(shown, places, axis=1)), places, -1)
