"""What a private model is compared with, on the same split.

===================  ============================================================================"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from odp.datasets.ratings import Ratings, Split, merge
from odp.errors import DataError
from odp.evaluation.als import als
from odp.evaluation.noise import SeededNoise, noised
from odp.evaluation.users import chosen_entries
from odp.numerics.arrays import Float64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise

_ALS_RANK = 16
_USER_MEAN_RIDGE = 2.0
_USER_BIAS_RIDGE = 5.0
# Of the declared range; where DPAM centres values, too.
_PUBLIC_CENTRE = 0.625
# Share of mu^2 for the counts of the DP item mean; the sums are the harder part.
_COUNT_SHARE = 0.2
_UNITS = 2**10  # grid steps per count, and per unit of value


class UserBudget(Protocol):
    """What a baseline may spend per user; ``odp.UserLevelDP`` is one."""

    @property
    def epsilon(self) -> float:
        """Above 0; infinite without privacy."""
        ...

    @property
    def delta(self) -> float:
        """Between 0 and 1."""
        ...

    def bound(self, items: int) -> int:
        """At most this many items of one user count, in a catalogue of ``items``."""
        ...


class BudgetedTask(Protocol):
    """What baselines read of a task."""

    @property
    def privacy(self) -> UserBudget:
        """Budget of all releases of a baseline together."""
        ...


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

    NaN where ``targets`` has no ratings.
    """
    if not targets.n_ratings:
        return math.nan
    return float(np.sqrt(np.mean((predicted - targets.values) ** 2)))


def baselines(task: BudgetedTask, split: Split, *, seed: int) -> Baselines:
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


def global_mean(task: BudgetedTask, split: Split, seed: int) -> float:
    """Test RMSE of the mean of all training ratings."""
    check_parts(split)
    return rmse(np.full(split.test.n_ratings, float(split.train.values.mean())), split.test)


def user_mean(task: BudgetedTask, split: Split, seed: int) -> float:
    """Test RMSE of ``user_mean_predictions``."""
    check_parts(split)
    return rmse(user_mean_predictions(split), split.test)


def user_mean_predictions(split: Split) -> Float64Array:
    """Each user's own mean for every test entry, float64 [n], shrunk towards a public constant.

    The mean of all users would not be public.
    """
    mean = split.train.low + _PUBLIC_CENTRE * (split.train.high - split.train.low)
    history = merge(split.train, split.validation)
    found: Float64Array = mean + _user_offsets(history, mean, ridge=_USER_MEAN_RIDGE)[split.test.users()]
    return found


def dp_item_mean(task: BudgetedTask, split: Split, seed: int) -> float:
    """Test RMSE of noisy item means."""
    check_parts(split)
    return rmse(dp_item_means(task, split.train, seed=seed)[split.test.items], split.test)


def dp_item_user_bias(task: BudgetedTask, split: Split, seed: int) -> float:
    """Test RMSE of ``dp_item_user_bias_predictions``."""
    check_parts(split)
    return rmse(dp_item_user_bias_predictions(split, dp_item_means(task, split.train, seed=seed)), split.test)


def dp_item_user_bias_predictions(split: Split, means: Float64Array) -> Float64Array:
    """Noisy item ``means`` [m] plus each device's own mean offset from them, for every test entry, float64 [n]."""
    history = merge(split.train, split.validation)
    offsets = _user_offsets(history, means[history.items], ridge=_USER_BIAS_RIDGE)
    return np.asarray(means[split.test.items] + offsets[split.test.users()])


def als_ceiling(task: BudgetedTask, split: Split, seed: int) -> float:
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


def dp_item_means(task: BudgetedTask, train: Ratings, *, seed: int) -> Float64Array:
    """Item means from one noisy release of (counts, centred sums), each user's items bounded as in the task."""
    privacy = task.privacy
    bound = privacy.bound(train.n_items)
    chosen = chosen_entries(train, bound, seed=seed)
    centre, half = (train.low + train.high) / 2, (train.high - train.low) / 2
    items = train.items[chosen]
    counts = np.bincount(items, minlength=train.n_items) * _UNITS
    # Towards zero, rating by rating: rounding a sum could move it by more than one user's bound.
    centred = np.trunc(np.clip(train.values[chosen].astype(np.float64) - centre, -half, half) * _UNITS)
    sums = np.bincount(items, weights=centred, minlength=train.n_items).astype(np.int64)
    for_counts = for_sums = None
    if privacy.epsilon != math.inf:
        for_counts, for_sums = item_mean_events(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            low=train.low,
            high=train.high,
            n_items=train.n_items,
            max_items_per_user=bound,
        )
    noise = GaussianNoise(SeededNoise(seed))
    noisy_counts = noised(for_counts, counts, step=1.0 / _UNITS, noise=noise)
    noisy_sums = noised(for_sums, sums, step=1.0 / _UNITS, noise=noise)
    sum_std = 0.0 if for_sums is None else for_sums.noise_std
    # Posterior mean under public guesses: means of items differ by an eighth of the range, single ratings by a quarter.
    total = noisy_sums.sum() / max(noisy_counts.sum(), 1.0)
    weight = np.maximum(noisy_counts, 1.0)
    between, within = (half / 4) ** 2, (half / 2) ** 2
    shrink = between / (between + within / weight + (sum_std / weight) ** 2)
    means: Float64Array = centre + total + shrink * (noisy_sums / weight - total)
    return means
