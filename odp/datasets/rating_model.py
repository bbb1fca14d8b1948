"""Synthetic users and items with known structure, to learn where a method works: no download, nobody's data.

A rating is a sum of independent parts whose spread is chosen, rounded to half stars and clipped to [1, 5]::

    3.6 + user bias (std 0.4) + item bias (std 0.5) + <user row, item row> (std ``signal``) + noise (std ``noise``)

Of implicit feedback the same rows decide what a user picks: an item's odds are its popularity times the exponential of
the product of the rows. Of ratings popularity alone decides who rates what, so that values are missing at random.

Popularity falls as a power of the rank, and the number of a user's items is log-normal. Public features of the items
are standard normal columns, of which a share of the variance of item rows and biases is a linear function.

Sources: the sum of biases and a product of rows is the model of Salakhutdinov, Mnih 2007 (*Probabilistic matrix
factorization*); picks in proportion to weights are drawn without replacement as of Efraimidis, Spirakis 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError

MEAN = 3.6
USER_STD, ITEM_STD = 0.4, 0.5
LOW, HIGH = 1.0, 5.0
FEWEST = 5
_BLOCK_CELLS = 4_000_000  # user x item cells drawn at once: 32 MB

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RatingModel:
    """What a data set is drawn from.

    Attributes:
      n_users, n_items: sizes; some unpopular items may stay without ratings.
      ratings_per_user: mean number of items of a user, before the bounds 5 and ``n_items``.
      rank: dimensions of the rows; 0 is no structure but biases and popularity.
      signal: standard deviation of the product of a user's and an item's row, in stars; of implicit feedback in
        logarithms of odds.
      noise: standard deviation of the part of a rating that nothing explains, before rounding, in stars. Implicit
        feedback has its noise in the draw.
      popularity: an item's popularity is its rank to the power of minus this; at 0 all items are alike.
      popular_bias: correlation of an item's bias with the logarithm of its popularity; of ratings.
      activity: standard deviation of the logarithm of the number of a user's items above the fewest; 0 for users who
        are all alike, .9 as in MovieLens-1M, 1.5 and more for heavy tails.
      n_features: columns of public item features.
      feature_share: share of the variance of item rows and biases that the features explain, linearly.
      implicit: pairs of a user and an item, in place of ratings.

    Raises:
      ConfigurationError: a field is out of range, or needs another one.
    """

    n_users: int = 1000
    n_items: int = 600
    ratings_per_user: float = 40.0
    rank: int = 4
    signal: float = 0.5
    noise: float = 0.7
    popularity: float = 0.8
    popular_bias: float = 0.0
    activity: float = 0.9
    n_features: int = 0
    feature_share: float = 0.0
    implicit: bool = False

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=10_000_000, n_users=self.n_users)
        _validate.integer(low=FEWEST, high=1_000_000, n_items=self.n_items)
        _validate.within(low=FEWEST, high=self.n_items, ratings_per_user=self.ratings_per_user)
        _validate.integer(low=0, high=256, rank=self.rank)
        _validate.within(low=0, high=10, signal=self.signal, noise=self.noise)
        _validate.within(low=0, high=5, popularity=self.popularity, activity=self.activity)
        _validate.within(low=-1, high=1, popular_bias=self.popular_bias)
        _validate.integer(low=0, high=10_000, n_features=self.n_features)
        _validate.within(low=0, high=1, feature_share=self.feature_share)
        if self.signal and not self.rank:
            raise ConfigurationError(f"Expected signal={self.signal!r} to be 0 at rank=0: there are no rows")
        if self.feature_share and not self.n_features:
            raise ConfigurationError(f"Expected feature_share={self.feature_share!r} to be 0 without n_features")
        if self.popular_bias and (self.implicit or not self.popularity):
            raise ConfigurationError(
                f"Expected popular_bias={self.popular_bias!r} to be 0 where all items are alike, or have no values"
            )


def synthetic_ratings(model: RatingModel, *, seed: int = 1) -> Ratings:
    """Draws a data set from ``model``: ratings in half stars within [1, 5], or implicit feedback.

    A user has at least 5 items, each once. Features, float32 [n_items, n_features], are those of the data set. It is a
    function of its arguments.

    Args:
      model: what to draw from.
      seed: seed of numpy's PCG64.

    Raises:
      ConfigurationError: the seed is no whole number from 0.
    """
    _validate.integer(low=0, high=2**63 - 1, seed=seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    features = rng.standard_normal((model.n_items, model.n_features))
    users, items, stars = interactions(rng, model, features, bias_share=model.feature_share)
    if model.implicit:
        values, low, high = np.ones(len(users)), 0.0, 1.0
    else:
        values, low, high = in_steps(stars, 0.5), LOW, HIGH
    return Ratings.from_triples(
        "synthetic",
        users,
        items,
        values,
        low=low,
        high=high,
        n_users=model.n_users,
        n_items=model.n_items,
        implicit=model.implicit,
        features=features.astype(np.float32) if model.n_features else None,
        feature_names=tuple(f"feature {place + 1}" for place in range(model.n_features)) or None,
    )


def interactions(
    rng: np.random.Generator, model: RatingModel, features: Floats, *, bias_share: float
) -> tuple[Longs, Longs, Floats]:
    """(users, items, stars), [ratings] each, of which stars are not rounded yet; empty for implicit feedback.

    Args:
      rng: draws everything.
      model: what to draw from.
      features: [n_items, p], of which rows take the model's share and biases ``bias_share``.
      bias_share: share of the variance of item biases that ``features`` explain.
    """
    item_rows = explained(rng, features, model.rank, model.feature_share) * (model.signal / math.sqrt(model.rank or 1))
    item_bias = explained(rng, features, 1, bias_share)[:, 0] * ITEM_STD
    user_rows = rng.standard_normal((model.n_users, model.rank))
    user_bias = rng.standard_normal(model.n_users) * USER_STD
    counts = _activity(rng, model)
    ranks = 1.0 + rng.permutation(model.n_items).astype(np.float64)
    popularity = np.power(ranks, -model.popularity)
    if model.implicit:
        users, items = _choose_items(rng, counts, popularity, rows=(user_rows, item_rows))
        return users, items, np.empty(0)
    users, items = _choose_items(rng, counts, popularity, rows=None)
    if model.popular_bias:
        falling = np.log(ranks)
        standard = (falling.mean() - falling) / falling.std()
        item_bias *= math.sqrt(1.0 - model.popular_bias**2)
        item_bias += model.popular_bias * ITEM_STD * standard
    signal = np.einsum("nr,nr->n", user_rows[users], item_rows[items])  # [ratings]
    noise = model.noise * rng.standard_normal(len(users))
    return users, items, MEAN + user_bias[users] + item_bias[items] + signal + noise


def in_steps(stars: Floats, step: float) -> Floats:
    """``stars`` rounded to multiples of ``step``, within [1, 5]."""
    return np.clip(np.rint(stars / step) * step, LOW, HIGH)


def explained(rng: np.random.Generator, features: Floats, width: int, share: float) -> Floats:
    """[n_items, width] of unit variance, of which ``share`` is a linear function of ``features`` [n_items, p]."""
    linear = features @ rng.standard_normal((features.shape[1], width))
    linear -= linear.mean(axis=0)
    spread = linear.std(axis=0)
    linear /= np.where(spread > 0, spread, 1.0)
    residual = rng.standard_normal((len(features), width))
    return math.sqrt(share) * linear + math.sqrt(1.0 - share) * residual


def _activity(rng: np.random.Generator, model: RatingModel) -> Longs:
    """Items of each user [n_users]: log-normal above the smallest count."""
    activity = np.exp(model.activity * rng.standard_normal(model.n_users) - model.activity**2 / 2)  # mean 1
    counts = np.rint(FEWEST + (model.ratings_per_user - FEWEST) * activity)
    return np.clip(counts, FEWEST, model.n_items).astype(np.int64)


def _choose_items(
    rng: np.random.Generator, counts: Longs, popularity: Floats, *, rows: tuple[Floats, Floats] | None
) -> tuple[Longs, Longs]:
    """``counts[u]`` distinct items for every user, drawn by weight without replacement: flat (users, items).

    A weight is the popularity [n_items], times exp of the product of ``rows`` of user and item, where there are any.
    Blocks of users of like activity keep memory bounded and the partial sort short.
    """
    by_activity = np.argsort(counts, kind="stable")
    block = max(1, _BLOCK_CELLS // len(popularity))
    users, items = [], []
    for start in range(0, len(counts), block):
        here = by_activity[start : start + block]
        weights = popularity if rows is None else popularity * np.exp(rows[0][here] @ rows[1].T)
        # The smallest of exponentials over weights are a sample without replacement in proportion to the weights.
        keys = rng.exponential(size=(len(here), len(popularity))) / weights
        most = int(counts[here[-1]])
        smallest = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
        limit = smallest[np.arange(len(here)), counts[here] - 1]
        row, item = np.nonzero(keys <= limit[:, None])
        users.append(here[row])
        items.append(item)
    return np.concatenate(users), np.concatenate(items)
