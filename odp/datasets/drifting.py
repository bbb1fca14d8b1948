"""Synthetic ratings of a service that changes: tastes drift, new items come each week, old ones go.

A rating is made as in ``rating_model.py``, from what holds in its week. From week to week a user's factors keep their
variance and turn (an autoregression of order one), and so do the biases of items. The oldest items leave the catalogue
and as many new ones come, whose popularity is largest at first. A device keeps its ratings of the last weeks alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.datasets.rating_model import ITEM_STD, MEAN, USER_STD, Floats, explained, in_steps
from odp.datasets.ratings import Ratings, Split
from odp.datasets.synthetic import (
    GENRE_SHARE_OF_BIAS,
    GENRE_SHARE_OF_FACTORS,
    SIGNAL_STD,
    ZIPF,
    genre_flags,
    genre_names,
    item_titles,
)

_FRESH, _FRESH_WEEKS = 2.0, 6.0
_NOISE = 0.7


@dataclass(frozen=True)
class Week:
    """What a training at the end of a week works on.

    Attributes:
      number: of the week, from 0.
      split: ratings on the devices for training, none for validation, and for the test what the same people rate in
        the week after. Items are those of the week after; ``item_ids`` are their keys, which stay.
      new_items: how many of them were not in the catalogue before.
    """

    number: int
    split: Split
    new_items: int


@dataclass(frozen=True)
class _Rows:
    users: np.ndarray
    items: np.ndarray
    values: Floats


def drifting_ratings(
    *,
    weeks: int,
    n_users: int = 2000,
    n_items: int = 500,
    ratings_per_week: float = 4.0,
    kept_weeks: int = 12,
    new_items: int = 5,
    drift: float = 0.02,
    rank: int = 4,
    n_genres: int = 12,
    seed: int = 1,
) -> Iterator[Week]:
    """One :class:`Week` after the other; the same for the same arguments.

    Args:
      weeks: how many trainings; ratings begin ``kept_weeks`` - 1 weeks before the first.
      n_users, n_items: people, and items in the catalogue of every week.
      ratings_per_week: of a user, the mean.
      kept_weeks: how many weeks a device keeps a rating.
      new_items: items that come, and go, each week.
      drift: share of the variance of tastes and of items' biases that is new each week; 0 to 1.
      rank, n_genres: as of ``synthetic_movielens``.
      seed: of numpy's PCG64.

    Raises:
      ConfigurationError: an argument is out of range.
    """
    _validate.integer(low=1, high=100_000, weeks=weeks)
    _validate.integer(low=1, high=1_000_000, n_users=n_users)
    _validate.integer(low=5, high=100_000, n_items=n_items)
    _validate.within(low=0.1, high=n_items / 4, ratings_per_week=ratings_per_week)
    _validate.integer(low=1, high=1000, kept_weeks=kept_weeks)
    _validate.integer(low=0, high=n_items // 2, new_items=new_items)
    _validate.within(low=0.0, high=1.0, drift=drift)
    _validate.integer(low=1, high=256, rank=rank, n_genres=n_genres)
    _validate.integer(low=0, high=2**63 - 1, seed=seed)
    return _weeks(
        _World(n_users, n_items, new_items * (weeks + kept_weeks), ratings_per_week, drift, rank, n_genres, seed),
        weeks=weeks,
        kept_weeks=kept_weeks,
        n_items=n_items,
        new_items=new_items,
    )


def _weeks(world: _World, *, weeks: int, kept_weeks: int, n_items: int, new_items: int) -> Iterator[Week]:
    earlier: deque[_Rows] = deque(maxlen=kept_weeks)
    for number in range(weeks + kept_weeks):
        first = number * new_items
        rows = world.week(slice(first, first + n_items), new_items, earlier)
        if number >= kept_weeks:
            train = world.ratings([*earlier], first, n_items)
            test = world.ratings([rows], first, n_items)
            yield Week(
                number - kept_weeks, Split(train, train.take(np.zeros(train.n_ratings, np.bool_)), test), new_items
            )
        earlier.append(rows)


class _World:
    def __init__(
        self, n_users: int, n_items: int, later: int, activity: float, drift: float, rank: int, n_genres: int, seed: int
    ) -> None:
        self._rng = rng = np.random.Generator(np.random.PCG64(seed))
        count = n_items + later
        self._names = genre_names(n_genres)
        self._flags = genre_flags(rng, count, n_genres)
        self._titles = item_titles(self._flags, self._names)
        self._factors = explained(rng, self._flags, rank, GENRE_SHARE_OF_FACTORS) * (SIGNAL_STD / math.sqrt(rank))
        self._bias = explained(rng, self._flags, 1, GENRE_SHARE_OF_BIAS)[:, 0]
        self._tastes = rng.standard_normal((n_users, rank))
        self._user_bias = rng.standard_normal(n_users) * USER_STD
        self._popularity = np.power(1.0 + rng.permutation(count).astype(np.float64) % n_items, -ZIPF)
        self._activity = activity * np.exp(rng.standard_normal(n_users) * 0.7 - 0.245)
        self._drift = drift

    def week(self, shown: slice, new_items: int, earlier: deque[_Rows]) -> _Rows:
        """Ratings of items that a person has not rated in the kept weeks; then a week passes."""
        rng, first, n_items = self._rng, shown.start, shown.stop - shown.start
        age = np.arange(n_items - 1, -1, -1) // max(1, new_items)
        weights = self._popularity[shown] * (1.0 + _FRESH * np.exp(-age / _FRESH_WEEKS))
        keys = rng.exponential(size=(len(self._tastes), n_items)) / weights
        for rows in earlier:
            here = (rows.items >= first) & (rows.items < first + n_items)
            keys[rows.users[here], rows.items[here] - first] = np.inf
        counts = np.minimum(rng.poisson(self._activity), n_items // 4)
        most = max(1, int(counts.max()))
        nearest = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
        limit = np.where(counts > 0, nearest[np.arange(len(counts)), np.maximum(counts, 1) - 1], -1.0)
        users, items = np.nonzero((keys <= limit[:, None]) & np.isfinite(keys))
        items = items + first
        signal = np.einsum("nr,nr->n", self._tastes[users], self._factors[items])
        stars = MEAN + self._user_bias[users] + ITEM_STD * self._bias[items] + signal
        stars += _NOISE * rng.standard_normal(len(users))
        self._turn()
        return _Rows(users, items, in_steps(stars, 1.0))

    def _turn(self) -> None:
        old, new = math.sqrt(1.0 - self._drift), math.sqrt(self._drift)
        self._tastes = old * self._tastes + new * self._rng.standard_normal(self._tastes.shape)
        self._bias = old * self._bias + new * self._rng.standard_normal(self._bias.shape)

    def ratings(self, weeks: list[_Rows], first: int, n_items: int) -> Ratings:
        """Those of the items from ``first``, as a data set of ``n_items`` items."""
        users, items, values = (
            np.concatenate([getattr(rows, name) for rows in weeks]) for name in ("users", "items", "values")
        )
        here = (items >= first) & (items < first + n_items)
        shown = slice(first, first + n_items)
        return Ratings.from_triples(
            "drifting",
            users[here],
            items[here] - first,
            values[here],
            low=1.0,
            high=5.0,
            n_users=len(self._tastes),
            n_items=n_items,
            titles=self._titles[shown],
            item_ids=np.arange(first, first + n_items),
            features=self._flags[shown].astype(np.float32),
            feature_names=self._names,
        )
