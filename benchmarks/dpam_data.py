"""Data sets of known shape for the DPAM benchmark, and the plain loop that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odp.algorithms.seam import Float64Array
from odp.datasets.ratings import Ratings


@dataclass(frozen=True)
class Shape:
    """Sizes of a data set and of the model that is trained on it."""

    name: str
    users: int
    items: int
    ratings: int
    rank: int


SMALL = Shape("small", 1_000, 800, 60_000, 16)
ML_1M = Shape("ML-1M", 6_040, 3_706, 1_000_209, 32)
ML_20M = Shape("ML-20M", 138_493, 26_744, 20_000_000, 64)

#: Ratings per user grow with the user's activity up to this, which is also the most that one user contributes.
MOST = 2_048


def made(shape: Shape, *, ratings: int | None = None, seed: int = 1) -> Ratings:
    """Synthetic ratings: log-normal activity of users, popularity of items as rank ** -.8, four planted factors.

    ``ratings`` replaces the shape's number of ratings; the same arguments give the same data.
    """
    wanted = shape.ratings if ratings is None else ratings
    generator = np.random.Generator(np.random.PCG64([seed, wanted]))
    activity = np.minimum(generator.lognormal(0.0, 1.1, shape.users), 30.0)
    popularity = np.cumsum((np.arange(shape.items) + 10.0) ** -0.8)
    most = min(MOST, shape.items // 2)
    pairs = np.empty(0, dtype=np.int64)
    while len(pairs) < wanted:  # repeated pairs are dropped, so a few passes are needed
        short = int((wanted - len(pairs)) * 1.5) + 1000
        draws = np.minimum(generator.poisson(activity * (short / activity.sum())), most)
        users = np.repeat(np.arange(shape.users), draws)
        items = np.searchsorted(popularity, generator.random(len(users)) * popularity[-1])
        pairs = np.union1d(pairs, users * shape.items + items)
        before = np.searchsorted(pairs, np.arange(shape.users) * shape.items)
        place = np.arange(len(pairs)) - before[pairs // shape.items]
        pairs = pairs[place < most]
    pairs = np.delete(pairs, generator.choice(len(pairs), len(pairs) - wanted, replace=False))
    users, items = np.divmod(pairs, shape.items)
    taste, trait = generator.normal(size=(shape.users, 4)), 0.25 * generator.normal(size=(shape.items, 4))
    values = 3.5 + 0.4 * generator.normal(size=shape.users)[users] + 0.4 * generator.normal(size=shape.items)[items]
    values += np.einsum("kd,kd->k", taste[users], trait[items]) + 0.8 * generator.standard_normal(wanted)
    return Ratings(
        name=shape.name,
        offsets=np.concatenate(([0], np.cumsum(np.bincount(users, minlength=shape.users)))),
        items=items.astype(np.int32),
        values=np.clip(np.rint(values), 1, 5).astype(np.float32),
        n_items=shape.items,
        low=1.0,
        high=5.0,
    )


def plain_sweep(ratings: Ratings, factors: Float64Array, *, ridge: float) -> Float64Array:
    """One sweep of alternating least squares as a person writes it first: a loop over users, then one over items.

    Without privacy: no sampling, clip, grid, noise or projection. Factors float64 [m, d]; returns the next ones.
    """
    rank = factors.shape[1]
    identity = ridge * np.eye(rank)
    rows = np.empty((ratings.n_users, rank))
    grams, targets = np.zeros((ratings.n_items, rank, rank)), np.zeros((ratings.n_items, rank))
    for user in range(ratings.n_users):
        items, values = ratings.user(user)
        mine = factors[items]
        off = values - 3.5
        rows[user] = np.linalg.solve(mine.T @ mine + identity, mine.T @ off)
        for item, value in zip(items, off, strict=True):
            grams[item] += np.outer(rows[user], rows[user])
            targets[item] += value * rows[user]
    return np.stack([np.linalg.solve(gram + identity, target) for gram, target in zip(grams, targets, strict=True)])
