"""What a private model is compared with, on the same split.

======================  =====================================================================================
global mean             of all training ratings; not private
user mean               each user's own, on the device; costs nothing
DP item mean            one noisy release of counts and sums
+ user bias             the same, and each device adds its own mean offset
ALS                     all data in one place; not private (``rating_ceilings.py``)
======================  =====================================================================================

All but the first are tuned: six settings each, chosen on the validation part (``trials.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from odp.datasets.ratings import Ratings, Split, merge
from odp.errors import DataError
from odp.evaluation.noise import SeededNoise, noised
from odp.evaluation.rating_ceilings import tuned_als
from odp.evaluation.trials import Outcome, Predictor, Settings, rmse as rmse, tuned_rmse
from odp.evaluation.users import chosen_entries
from odp.numerics.arrays import Float64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise, IntegerNoise

if TYPE_CHECKING:
    from odp.protocol.terms import UserLevelDP

_USER_MEAN_RIDGE = 2.0
# Of the declared range; where DPAM centres values, too.
_PUBLIC_CENTRE = 0.625
# Share of mu^2 for the counts of the DP item mean; the sums are the harder part.
_COUNT_SHARE = 0.2
_UNITS = 2**10  # grid steps per count, and per unit of value

#: Settings that are tried. Items per user are at most those of the task; ``spread`` is the guess of how far means of
#: items differ, in the declared range.
USER_MEAN_GRID: tuple[Settings, ...] = tuple({"ridge": ridge} for ridge in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0))
ITEM_MEAN_GRID: tuple[Settings, ...] = tuple(
    {"items_per_user": items, "spread": spread} for items, spread in itertools.product((300, 100, 30), (0.125, 0.0625))
)
USER_BIAS_GRID: tuple[Settings, ...] = tuple(
    {"items_per_user": items, "ridge": ridge} for items, ridge in itertools.product((300, 100, 30), (2.0, 8.0))
)
_SPREAD = 0.125
_USER_BIAS_RIDGE = 5.0


class BudgetedTask(Protocol):
    """What baselines read of a task."""

    @property
    def privacy(self) -> UserLevelDP:
        """Budget of all releases of a baseline together."""


@dataclass(frozen=True)
class Baselines:
    """Test RMSE of each baseline."""

    global_mean: float
    user_mean: float
    dp_item_mean: float
    dp_item_user_bias: float
    als_ceiling: float

    @classmethod
    def of(cls, outcomes: Mapping[str, Outcome]) -> Baselines:
        """Those of ``baseline_outcomes``."""
        return cls(**{name: outcome.scores[0] for name, outcome in outcomes.items()})


def baseline_outcomes(task: BudgetedTask, split: Split, *, seed: int) -> dict[str, Outcome]:
    """All baselines at the task's budget on the test part, by name; personalisation reads train and validation ratings.

    Raises:
      DataError: a part has no ratings, or the data are implicit.
    """
    scorers = {
        "global_mean": global_mean,
        "user_mean": user_mean,
        "dp_item_mean": dp_item_mean,
        "dp_item_user_bias": dp_item_user_bias,
        "als_ceiling": als_ceiling,
    }
    return {name: score(task, split, seed) for name, score in scorers.items()}


def item_mean_events(
    *, epsilon: float, delta: float, low: float, high: float, n_items: int, max_items_per_user: int
) -> tuple[GaussianRelease, GaussianRelease]:
    """What the DP item mean would be charged: counts, then sums of values less the middle of [low, high].

    Together they spend the whole budget. A user adds 1 to a count and at most (high - low) / 2 to a sum, for at most
    ``max_items_per_user`` items.
    """
    mu = mu_for(epsilon=epsilon, delta=delta, coordinates=2 * n_items)
    return means_events(mu, low=low, high=high, n_items=n_items, max_items_per_user=max_items_per_user)


def means_events(
    mu: float, *, low: float, high: float, n_items: int, max_items_per_user: int
) -> tuple[GaussianRelease, GaussianRelease]:
    """The same for sensitivities over noise whose squares add up to ``mu`` squared."""
    counts, half = math.sqrt(max_items_per_user), (high - low) / 2
    return (
        GaussianRelease("counts", counts, counts / math.sqrt(_COUNT_SHARE) / mu, n_items),
        GaussianRelease("sums", half * counts, half * counts / math.sqrt(1 - _COUNT_SHARE) / mu, n_items),
    )


def global_mean(task: BudgetedTask, split: Split, seed: int) -> Outcome:
    """Test RMSE of the mean of all training ratings."""
    check_parts(split)
    return Outcome.of(np.full(split.test.n_ratings, float(split.train.values.mean())), split.test)


def user_mean(task: BudgetedTask, split: Split, seed: int) -> Outcome:
    """Test RMSE of the users' own means, shrunk towards a public constant by a ridge in ratings."""
    check_parts(split)

    def made(ridge: float) -> Predictor:
        return lambda history, targets: _own_means(history, ridge=ridge)[targets.users()]

    return tuned_rmse(split, USER_MEAN_GRID, made)


def user_mean_predictions(split: Split) -> Float64Array:
    """Each user's own mean for every test entry, float64 [n], shrunk towards a public constant by two ratings.

    The mean of all users would not be public.
    """
    return _own_means(merge(split.train, split.validation), ridge=_USER_MEAN_RIDGE)[split.test.users()]


def dp_item_mean(task: BudgetedTask, split: Split, seed: int) -> Outcome:
    """Test RMSE of noisy item means."""
    check_parts(split)

    def made(items_per_user: float, spread: float) -> Predictor:
        means = dp_item_means(task, split.train, seed=seed, most=int(items_per_user), spread=spread)
        return lambda history, targets: np.asarray(means[targets.items])

    return tuned_rmse(split, ITEM_MEAN_GRID, made)


def dp_item_user_bias(task: BudgetedTask, split: Split, seed: int) -> Outcome:
    """Test RMSE of noisy item means plus each device's own mean offset from them."""
    check_parts(split)

    def made(items_per_user: float, ridge: float) -> Predictor:
        means = dp_item_means(task, split.train, seed=seed, most=int(items_per_user))
        return lambda history, targets: dp_item_user_bias_predictions(history, targets, means, ridge=ridge)

    return tuned_rmse(split, USER_BIAS_GRID, made)


def dp_item_user_bias_predictions(
    history: Ratings, targets: Ratings, means: Float64Array, *, ridge: float = _USER_BIAS_RIDGE
) -> Float64Array:
    """Noisy item ``means`` [m] plus each device's own mean offset from them, for every target, float64 [n]."""
    offsets = _user_offsets(history, means[history.items], ridge=ridge)
    return np.asarray(means[targets.items] + offsets[targets.users()])


def als_ceiling(task: BudgetedTask, split: Split, seed: int) -> Outcome:
    """Test RMSE of alternating least squares without privacy."""
    check_parts(split)
    return tuned_als(split, seed=seed)


def check_parts(split: Split) -> None:
    """Raises DataError where RMSE has no meaning: no ratings in a part, or pairs without an opinion."""
    if split.train.implicit:
        raise DataError(f"the data set {split.train.name!r} holds implicit feedback; RMSE baselines need ratings")
    for name, part in (("training", split.train), ("test", split.test)):
        if not part.n_ratings:
            raise DataError(f"the {name} part of data set {part.name!r} has no ratings; use a larger data set")


def _own_means(history: Ratings, *, ridge: float) -> Float64Array:
    mean = history.low + _PUBLIC_CENTRE * (history.high - history.low)
    return mean + _user_offsets(history, mean, ridge=ridge)


def _user_offsets(history: Ratings, predicted: Float64Array | float, *, ridge: float) -> Float64Array:
    sums = np.bincount(history.users(), weights=history.values - predicted, minlength=history.n_users)
    return sums / (np.diff(history.offsets) + ridge)


def dp_item_means(
    task: BudgetedTask, train: Ratings, *, seed: int, most: int = 2**31, spread: float = _SPREAD
) -> Float64Array:
    """Item means at the whole budget of the task, at most ``most`` items of a user."""
    privacy = task.privacy
    bound = min(privacy.bound(train.n_items), most)
    events = None
    if privacy.epsilon != math.inf:
        events = item_mean_events(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            low=train.low,
            high=train.high,
            n_items=train.n_items,
            max_items_per_user=bound,
        )
    return item_means(train, events, bound=bound, seed=seed, spread=spread, noise=GaussianNoise(SeededNoise(seed)))[0]


def item_means(
    train: Ratings,
    events: tuple[GaussianRelease, GaussianRelease] | None,
    *,
    bound: int,
    seed: int,
    spread: float,
    noise: IntegerNoise,
) -> tuple[Float64Array, Float64Array]:
    """(means, noisy counts) of the items, float64 [items] each, from one noisy release of counts and centred sums.

    Args:
      train: at least one rating.
      events: what counts and sums are charged as; None is without noise.
      bound: random items of a user that count.
      seed: of this choice.
      spread: guess of how far means of items differ, in the declared range.
      noise: that both releases get.
    """
    chosen = chosen_entries(train, bound, seed=seed)
    centre, half = (train.low + train.high) / 2, (train.high - train.low) / 2
    items = train.items[chosen]
    counts = np.bincount(items, minlength=train.n_items) * _UNITS
    # Towards zero, rating by rating: rounding a sum could move it by more than one user's bound.
    centred = np.trunc(np.clip(train.values[chosen].astype(np.float64) - centre, -half, half) * _UNITS)
    sums = np.bincount(items, weights=centred, minlength=train.n_items).astype(np.int64)
    for_counts, for_sums = (None, None) if events is None else events
    noisy_counts = noised(for_counts, counts, step=1.0 / _UNITS, noise=noise)
    noisy_sums = noised(for_sums, sums, step=1.0 / _UNITS, noise=noise)
    sum_std = 0.0 if for_sums is None else for_sums.noise_std
    # Posterior mean under public guesses: ratings differ by a quarter of the range, means of items by ``spread``.
    total = noisy_sums.sum() / max(noisy_counts.sum(), 1.0)
    weight = np.maximum(noisy_counts, 1.0)
    between, within = (2 * half * spread) ** 2, (half / 2) ** 2
    shrink = between / (between + within / weight + (sum_std / weight) ** 2)
    means: Float64Array = centre + total + shrink * (noisy_sums / weight - total)
    return means, noisy_counts
