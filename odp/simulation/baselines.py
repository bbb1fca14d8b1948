"""What a private model is compared with, on the same split.

===================  ===================================================================================
global mean          one number; no personalisation (not private: a reference)
user mean            each device's own mean: local, so it costs no privacy
DP item mean         one release of item sums and counts with the whole budget
DP item, user bias   the same item means, and each device's own mean offset from them
ALS ceiling          alternating least squares with biases, all data in one place, no privacy
===================  ===================================================================================

DP-SGD has its own module, ``dp_sgd.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp.algorithms.seam import Float64Array
from odp.datasets.ratings import Ratings, Split, merge
from odp.errors import DataError
from odp.privacy.accounting import mu_for
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise
from odp.simulation.als import als
from odp.simulation.noise import SeededNoise
from odp.task import Task

_ALS_RANK = 16
_USER_MEAN_RIDGE = 2.0
_USER_BIAS_RIDGE = 5.0
# Share of mu^2 for the counts of the DP item mean; the sums are the harder part.
_COUNT_SHARE = 0.2
_GRID = 2.0**-10


@dataclass(frozen=True)
class Baselines:
    """Test RMSE of each baseline."""

    global_mean: float
    user_mean: float
    dp_item_mean: float
    dp_item_user_bias: float
    als_ceiling: float


def rmse(predicted: Float64Array, targets: Ratings) -> float:
    """Root mean squared error over all entries of ``targets``; predictions float64 [n_ratings], not clamped.

    NaN where there is no entry.
    """
    if not targets.n_ratings:
        return math.nan
    return float(np.sqrt(np.mean((predicted - targets.values) ** 2)))


def baselines(task: Task, split: Split, *, seed: int) -> Baselines:
    """All baselines at the task's budget, on the test part; personalisation reads train and validation ratings.

    Raises:
      DataError: a part has no ratings, or the data are implicit.
    """
    return Baselines(
        global_mean=global_mean(task, split, seed),
        user_mean=user_mean(task, split, seed),
        dp_item_mean=dp_item_mean(task, split, seed),
        dp_item_user_bias=dp_item_user_bias(task, split, seed),
        als_ceiling=als_ceiling(task, split, seed),
    )


def global_mean(task: Task, split: Split, seed: int) -> float:
    """Test RMSE of the mean of all training ratings."""
    check_parts(split)
    return rmse(np.full(split.test.n_ratings, float(split.train.values.mean())), split.test)


def user_mean(task: Task, split: Split, seed: int) -> float:
    """Test RMSE of each user's own mean, shrunk toward the global one."""
    check_parts(split)
    mean = float(split.train.values.mean())
    history = merge(split.train, split.validation)
    return rmse(mean + _user_offsets(history, mean, ridge=_USER_MEAN_RIDGE)[split.test.users()], split.test)


def dp_item_mean(task: Task, split: Split, seed: int) -> float:
    """Test RMSE of noisy item means."""
    check_parts(split)
    return rmse(_dp_item_means(task, split.train, seed=seed)[split.test.items], split.test)


def dp_item_user_bias(task: Task, split: Split, seed: int) -> float:
    """Test RMSE of noisy item means plus each device's own mean offset from them."""
    check_parts(split)
    means = _dp_item_means(task, split.train, seed=seed)
    history = merge(split.train, split.validation)
    offsets = _user_offsets(history, means[history.items], ridge=_USER_BIAS_RIDGE)
    return rmse(means[split.test.items] + offsets[split.test.users()], split.test)


def als_ceiling(task: Task, split: Split, seed: int) -> float:
    """Test RMSE of alternating least squares without privacy."""
    check_parts(split)
    history = merge(split.train, split.validation)
    return rmse(als(split.train, history, split.test, rank=_ALS_RANK, seed=seed), split.test)


def check_parts(split: Split) -> None:
    """Raises DataError where RMSE has no meaning: no ratings in a part, or pairs without an opinion."""
    if split.train.implicit:
        raise DataError(f"the data set {split.train.name!r} holds implicit feedback; RMSE baselines need ratings")
    for name, part in (("training", split.train), ("test", split.test)):
        if not part.n_ratings:
            raise DataError(f"the {name} part of data set {part.name!r} has no ratings; use a larger data set")


def _user_offsets(history: Ratings, predicted: Float64Array | float, *, ridge: float) -> Float64Array:
    sums = np.bincount(history.users(), weights=history.values - predicted, minlength=history.n_users)
    offsets: Float64Array = sums / (np.diff(history.offsets) + ridge)
    return offsets


def _dp_item_means(task: Task, train: Ratings, *, seed: int) -> Float64Array:
    """Item means from one noisy release of (counts, centred sums), each user's items bounded as in the task."""
    privacy = task.privacy
    bound = privacy.bound(train.n_items)
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(train.n_ratings), train.users()))
    rank = np.arange(train.n_ratings) - np.repeat(train.offsets[:-1], np.diff(train.offsets))
    chosen = order[rank < bound]
    centre, half = (train.low + train.high) / 2, (train.high - train.low) / 2
    items = train.items[chosen]
    counts = np.bincount(items, minlength=train.n_items).astype(np.float64)
    centred = np.clip(train.values[chosen].astype(np.float64) - centre, -half, half)
    # Truncated entry by entry, so that no rounding adds to a user's part of the sums.
    sums = np.bincount(items, weights=np.trunc(centred / _GRID), minlength=train.n_items)
    count_std = sum_std = 0.0
    if privacy.epsilon != math.inf:
        mu = mu_for(epsilon=privacy.epsilon, delta=privacy.delta, coordinates=2 * train.n_items)
        count_std = np.sqrt(bound / _COUNT_SHARE) / mu
        sum_std = half * np.sqrt(bound / (1 - _COUNT_SHARE)) / mu
        noise = GaussianNoise(SeededNoise(seed))
        counts += noise.sample(count_std / _GRID, train.n_items) * _GRID
        sums += noise.sample(sum_std / _GRID, train.n_items)
    noisy_sums = sums * _GRID
    # Posterior mean under public guesses: item means differ by an eighth of the range, one item's ratings by a quarter.
    total = noisy_sums.sum() / max(counts.sum(), 1.0)
    weight = np.maximum(counts, 1.0)
    between, within = (half / 4) ** 2, (half / 2) ** 2
    shrink = between / (between + within / weight + (sum_std / weight) ** 2)
    means: Float64Array = centre + total + shrink * (noisy_sums / weight - total)
    return means
