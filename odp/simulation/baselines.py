"""What a private model is compared with, on the same split.

=================  =====================================================================================
global mean        one number; no personalisation (not private: a reference)
user mean          each device's own mean, shrunk towards a public constant: local, so it costs no privacy
DP item mean       one release of item sums and counts with the whole budget
ALS ceiling        alternating least squares with biases, all data in one place, no privacy
=================  =====================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from odp.algorithms.seam import Float64Array
from odp.datasets.ratings import Ratings
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise
from odp.simulation.noise import SeededNoise

_ALS_RANK = 16
_ALS_SWEEPS = 12
_ALS_RIDGE = 0.08
_USER_MEAN_RIDGE = 2.0
# Of the declared range; where DPAM centres values, too.
_PUBLIC_CENTRE = 0.625
# Share of mu^2 for the counts of the DP item mean; the sums are the harder part.
_COUNT_SHARE = 0.2
_GRID = 2.0**-10


@dataclass(frozen=True)
class Baselines:
    """Test RMSE of each baseline."""

    global_mean: float
    user_mean: float
    dp_item_mean: float
    als_ceiling: float


def rmse(predicted: Float64Array, targets: Ratings) -> float:
    """Root mean squared error over all entries of ``targets``; predictions float64 [n_ratings], not clamped.

    NaN where ``targets`` has no ratings.
    """
    if not targets.n_ratings:
        return math.nan
    return float(np.sqrt(np.mean((predicted - targets.values) ** 2)))


def baselines(
    *, train: Ratings, history: Ratings, test: Ratings, epsilon: float, delta: float, max_items_per_user: int, seed: int
) -> Baselines:
    """All baselines. ``history`` is what personalisation may read at test time (train and validation ratings)."""
    users = test.users()
    mean = float(train.values.mean())
    user_means = _user_means(history)
    return Baselines(
        global_mean=rmse(np.full(test.n_ratings, mean), test),
        user_mean=rmse(user_means[users], test),
        dp_item_mean=rmse(
            _dp_item_mean(train, epsilon=epsilon, delta=delta, bound=max_items_per_user, seed=seed)[test.items], test
        ),
        als_ceiling=rmse(_als(train, history, test, mean, seed=seed), test),
    )


def item_mean_events(
    *, epsilon: float, delta: float, low: float, high: float, n_items: int, max_items_per_user: int
) -> tuple[GaussianRelease, GaussianRelease]:
    """What the DP item mean would be charged: counts, then sums of values less the middle of [low, high].

    Together they spend the whole budget. A user adds 1 to a count and at most (high - low) / 2 to a sum, for at most
    ``max_items_per_user`` items.
    """
    mu = mu_for(epsilon=epsilon, delta=delta, coordinates=2 * n_items)
    counts, half = math.sqrt(max_items_per_user), (high - low) / 2
    return (
        GaussianRelease("counts", counts, counts / math.sqrt(_COUNT_SHARE) / mu, n_items),
        GaussianRelease("sums", half * counts, half * counts / math.sqrt(1 - _COUNT_SHARE) / mu, n_items),
    )


def _user_means(history: Ratings) -> Float64Array:
    # The mean of all would be better, but it is not public.
    centre = history.low + _PUBLIC_CENTRE * (history.high - history.low)
    sums = np.bincount(history.users(), weights=history.values - centre, minlength=history.n_users)
    means: Float64Array = centre + sums / (np.diff(history.offsets) + _USER_MEAN_RIDGE)
    return means


def _dp_item_mean(train: Ratings, *, epsilon: float, delta: float, bound: int, seed: int) -> Float64Array:
    """Item means from one noisy release of (counts, centred sums) over at most ``bound`` random items per user.

    An infinite epsilon asks for no noise.
    """
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(train.n_ratings), train.users()))
    rank = np.arange(train.n_ratings) - np.repeat(train.offsets[:-1], np.diff(train.offsets))
    chosen = order[rank < bound]
    centre, half = (train.low + train.high) / 2, (train.high - train.low) / 2
    items = train.items[chosen]
    counts = np.bincount(items, minlength=train.n_items) / _GRID
    # Towards zero, rating by rating: rounding a sum could move it by more than one user's bound.
    centred = np.trunc(np.clip(train.values[chosen].astype(np.float64) - centre, -half, half) / _GRID)
    sums = np.bincount(items, weights=centred, minlength=train.n_items)
    sum_std = 0.0
    if epsilon != math.inf:
        for_counts, for_sums = item_mean_events(
            epsilon=epsilon,
            delta=delta,
            low=train.low,
            high=train.high,
            n_items=train.n_items,
            max_items_per_user=bound,
        )
        sum_std = for_sums.noise_std
        noise = GaussianNoise(SeededNoise(seed))
        counts = counts + noise.sample(for_counts.noise_std / _GRID, train.n_items)
        sums = sums + noise.sample(for_sums.noise_std / _GRID, train.n_items)
    noisy_counts, noisy_sums = counts * _GRID, sums * _GRID
    # Posterior mean under public guesses: means of items differ by an eighth of the range, single ratings by a quarter.
    total = noisy_sums.sum() / max(noisy_counts.sum(), 1.0)
    weight = np.maximum(noisy_counts, 1.0)
    between, within = (half / 4) ** 2, (half / 2) ** 2
    shrink = between / (between + within / weight + (sum_std / weight) ** 2)
    means: Float64Array = centre + total + shrink * (noisy_sums / weight - total)
    return means


def _als(train: Ratings, history: Ratings, test: Ratings, mean: float, *, seed: int) -> Float64Array:
    """Predictions of biased ALS: rows (1, user bias, factors) against (item bias, 1, factors)."""
    rank = min(_ALS_RANK, train.n_items)
    items = np.zeros((train.n_items, rank + 2))
    items[:, 1] = 1.0
    items[:, 2:] = np.random.default_rng(seed).normal(0.0, 0.1, (train.n_items, rank))
    matrix = _residuals(train, mean)
    for _ in range(_ALS_SWEEPS):
        users = _solve(matrix, items, known=0)
        items = _solve(matrix.T.tocsr(), users, known=1)
    users = _solve(_residuals(history, mean), items, known=0)
    predictions: Float64Array = mean + np.einsum("nd,nd->n", users[test.users()], items[test.items])
    return predictions


def _residuals(ratings: Ratings, mean: float) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(
        (ratings.values.astype(np.float64) - mean, ratings.items, ratings.offsets),
        shape=(ratings.n_users, ratings.n_items),
    )


def _solve(matrix: scipy.sparse.csr_matrix, features: Float64Array, *, known: int) -> Float64Array:
    """Ridge solve of one side: every row's own column ``known`` is the constant 1, the others are fitted."""
    count, width = matrix.shape[0], features.shape[1]
    fitted = [column for column in range(width) if column != known]
    design = features[:, fitted]
    pattern = scipy.sparse.csr_matrix((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
    upper = np.triu_indices(width - 1)
    packed = pattern @ (design[:, upper[0]] * design[:, upper[1]])
    right = matrix @ design - pattern @ (design * features[:, [known]])
    grams = np.zeros((count, width - 1, width - 1))
    grams[:, upper[0], upper[1]] = packed
    grams[:, upper[1], upper[0]] = packed
    ridge = _ALS_RIDGE * (np.diff(matrix.indptr) + 1.0)
    grams[:, range(width - 1), range(width - 1)] += ridge[:, None]
    solved = np.ones((count, width))
    solved[:, fitted] = np.linalg.solve(grams, right[:, :, None])[:, :, 0]
    return solved
