"""Where a model is good and where it is not, on the researcher's own evaluation data.

Buckets of items come from the *released* (noisy) counts, so the same buckets could be published. The errors themselves,
the buckets of users and the shares of clipped data read the ratings without noise: diagnostics of a simulation, which
no party could compute on a real population. ``NoisyTotals`` has what the releases themselves show about clipping.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from odp.algorithms.capabilities import RecommenderPopulation
from odp.algorithms.choices import TrainingTask
from odp.algorithms.dpam.evaluation import covered
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.dpam.terms import BIASES_ROUND, COUNT_COLUMN
from odp.datasets.ratings import Ratings, Split, merge
from odp.evaluation.baselines import dp_item_means, dp_item_user_bias_predictions, user_mean_predictions
from odp.evaluation.exposure import CUTOFF, Exposure, exposure
from odp.evaluation.fifths import fifths
from odp.evaluation.ranking import item_scores
from odp.evaluation.reliability import Reliability
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion

# Predictions for lists of recommendations: they fit a user's smooth taste to every item.
_MOST_PREDICTIONS = 2_000_000
_LEAST_USERS, _MOST_USERS = 16, 512
# A held-out rating from here on, as a share of the declared range, is of an item that the user liked: 4 of 1 .. 5.
_LIKED = 0.75


@dataclass(frozen=True)
class Bucket:
    """Entries of the test part whose item (or user) has a count from ``low`` to ``high``; RMSE None without entries.

    ``user_mean_rmse`` is that of each user's own mean, which no platform is needed for; ``baseline_rmse`` that of the
    DP item mean + user bias at the same budget.
    """

    low: float
    high: float
    members: int
    ratings: int
    rmse: float | None
    user_mean_rmse: float | None
    baseline_rmse: float | None


@dataclass(frozen=True)
class Clipping:
    """Without noise, on the training part: simulation only.

    Attributes:
      users_over_bound: share of users with more items than ``max_items_per_user``.
      ratings_left_out: share of ratings that no single round uses because of that bound.
      targets_clipped: share of ratings further from the biases' prediction than the clip of the last round's targets.
      users_shortened: share of users whose differences from that prediction have a root mean square above the bound of
        the last round on all targets together; weights aside.
    """

    users_over_bound: float
    ratings_left_out: float
    targets_clipped: float
    users_shortened: float


@dataclass(frozen=True)
class Diagnostics:
    """Test error by popularity of the item (noisy counts) and by activity of the user (history size); what lists of
    recommendations show, None where there are none; clipping; what the ranges of predictions cover.
    """

    popularity: tuple[Bucket, ...]
    activity: tuple[Bucket, ...]
    exposure: Exposure | None
    clipping: Clipping
    intervals: Reliability

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def diagnose(
    task: TrainingTask, split: Split, model: ModelVersion, *, seed: int = 1, intervals: Reliability | None = None
) -> Diagnostics:
    """Diagnostics of a rating model on ``split``; users are solved on train and validation ratings.

    ``seed`` is of the baseline's noise. ``intervals`` is what the ranges cover, where that is known already.

    Raises:
      DataError: sizes do not fit the task.
    """
    definition = task.definition()
    population = DpamPopulation(definition)
    history = merge(split.train, split.validation)
    squares = (population.predict(model, history, split.test) - split.test.values) ** 2
    means = dp_item_means(task, split.train, seed=seed)
    others = {
        "user_mean_rmse": (user_mean_predictions(split) - split.test.values) ** 2,
        "baseline_rmse": (dp_item_user_bias_predictions(history, split.test, means) - split.test.values) ** 2,
    }
    counts = model.keyed.rows[:, COUNT_COLUMN].astype(np.float64)
    train = split.train
    # A model of the round of biases has no factors, so its predictions are what targets are measured from.
    biases = ModelVersion(min(model.version, BIASES_ROUND), model.tables)
    off = np.abs(train.values - population.predict(biases, train, train))
    training = definition.dpam
    clip, vector_clip = training.bias_target_clip, training.bias_vector_clip
    if training.steps:
        clip, vector_clip = training.factor_target_clip, training.factor_vector_clip
    mean_squares = np.bincount(train.users(), weights=off**2, minlength=train.n_users) / np.maximum(train.counts(), 1)
    bound, sizes = definition.privacy.max_items_per_user, train.counts()
    return Diagnostics(
        popularity=_buckets(counts, split.test.items, squares, others),
        activity=_buckets(history.counts().astype(np.float64), split.test.users(), squares, others),
        exposure=_exposure(population, model, history, split.test, counts, means),
        clipping=Clipping(
            users_over_bound=float((sizes > bound).mean()) if len(sizes) else 0.0,
            ratings_left_out=_share(float(np.maximum(sizes - bound, 0).sum()), train),
            targets_clipped=_share(float((off > clip).sum()), train),
            users_shortened=float((mean_squares > vector_clip**2).mean()) if train.n_users else 0.0,
        ),
        intervals=covered(definition, population, model, history, split.test) if intervals is None else intervals,
    )


def _share(count: float, ratings: Ratings) -> float:
    return count / ratings.n_ratings if ratings.n_ratings else 0.0


def _exposure(
    population: RecommenderPopulation,
    model: ModelVersion,
    history: Ratings,
    test: Ratings,
    counts: Float64Array,
    means: Float64Array,
) -> Exposure | None:
    """What the lists of some users show, by predicted rating; None where no user has a history."""
    active = np.flatnonzero(history.counts())
    if not len(active):
        return None
    most = int(np.clip(_MOST_PREDICTIONS // history.n_items, _LEAST_USERS, _MOST_USERS))
    users = active[np.unique(np.linspace(0, len(active) - 1, min(most, len(active))).astype(np.int64))]
    sampled_history, held_out = history.select_users(users), test.select_users(users)
    liked = held_out.take(held_out.values >= test.low + _LIKED * (test.high - test.low))

    def predicted(block: Int64Array) -> Float32Array:
        items = np.tile(np.arange(sampled_history.n_items, dtype=np.int32), len(block))
        every = Ratings(
            sampled_history.name,
            np.arange(len(block) + 1, dtype=np.int64) * sampled_history.n_items,
            items,
            np.full(len(items), sampled_history.low, dtype=np.float32),
            sampled_history.n_items,
            sampled_history.low,
            sampled_history.high,
        )
        predictions = population.predict(model, sampled_history.select_users(block), every)
        return predictions.reshape(len(block), sampled_history.n_items).astype(np.float32)

    return exposure(
        predicted,
        item_scores(means),
        sampled_history,
        liked,
        popularity=counts,
        baseline_name="dp_item_user_bias",
        cutoff=min(CUTOFF, sampled_history.n_items),
    )


def _buckets(
    sizes: Float64Array, member: np.ndarray, squares: Float64Array, others: Mapping[str, Float64Array]
) -> tuple[Bucket, ...]:
    """Members cut into fifths by size, with the error of the entries of each, and that of others by field."""
    buckets = []
    for fifth in fifths(sizes):
        entries = squares[fifth[member]]
        buckets.append(
            Bucket(
                low=float(sizes[fifth].min()),
                high=float(sizes[fifth].max()),
                members=int(fifth.sum()),
                ratings=len(entries),
                rmse=math.sqrt(float(entries.mean())) if len(entries) else None,
                **{
                    name: math.sqrt(float(errors[fifth[member]].mean())) if len(entries) else None
                    for name, errors in others.items()
                },
            )
        )
    return tuple(buckets)
