"""Implicit feedback: how well a model ranks, and what it is compared with on the same split.

====================  ===============================================================================================
DP popularity         everyone gets the items of largest noisy count: one release, with the whole budget
DPAM                  the task itself
iALS, EASE, item kNN  all data in one place, no privacy; settings chosen on the validation part (``ceilings.py``)
====================  ===============================================================================================

Figures are on the test part; users have the rows of, and are masked by, their train and validation items.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from odp import _validate
from odp.algorithms.choices import TrainingTask
from odp.algorithms.experiment import Metrics
from odp.algorithms.implicit.population import ImplicitPopulation, item_rows
from odp.datasets.ratings import Ratings, Split, merge
from odp.evaluation.ceilings import tuned_ials
from odp.evaluation.noise import SeededNoise, noised
from odp.evaluation.ranking import Ranking, StrongSplit, evaluate, factor_scores, item_scores
from odp.evaluation.users import chosen_entries
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

CUTOFFS = (20, 50)
# Per count: rounded noise needs a grid well below its standard deviation.
_UNITS = 2**10
# A round is scored on at most this many users; the finished model on all.
_USERS_PER_ROUND = 4096


@dataclass(frozen=True)
class RankingBaselines:
    """Test rankings of what a model is compared with."""

    dp_popularity: Ranking
    ials_ceiling: Ranking

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"dp_popularity": self.dp_popularity.to_json(), "ials_ceiling": self.ials_ceiling.to_json()}


class TaskEvaluation:
    """``odp.algorithms.experiment.TrainingEvaluation``: how the items that a user has not shown are ranked."""

    round_metrics: ClassVar[tuple[str, ...]] = ("validation_recall", "validation_ndcg")

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._population = ImplicitPopulation(definition)

    def left_out(self, split: Split) -> dict[str, LeftOut]:
        """None: all ratings of a split take part."""
        return {}

    def after_round(self, model: ModelVersion, split: Split, history: Ratings) -> dict[str, float]:
        """Recall@20 and NDCG@20 on the validation items of at most 4,096 users; NaN without such items."""
        users = sampled(split.train, _USERS_PER_ROUND)
        targets = split.validation.select_users(users)
        if not targets.n_ratings:
            return dict.fromkeys(self.round_metrics, math.nan)
        ranking = self._ranking(model, split.train.select_users(users), targets, cutoffs=(20,))
        (recall,), (ndcg,) = ranking.recall.values(), ranking.ndcg.values()
        return {"validation_recall": recall, "validation_ndcg": ndcg}

    def after_training(
        self, model: ModelVersion, split: Split, history: Ratings, *, last: Mapping[str, float]
    ) -> Metrics:
        """Rankings of the parts that have items, for all users: ``test_ranking``, ``validation_ranking``."""
        parts = {"test": (history, split.test), "validation": (split.train, split.validation)}
        return {
            f"{name}_ranking": self._ranking(model, observed, targets, cutoffs=CUTOFFS)
            for name, (observed, targets) in parts.items()
            if targets.n_ratings
        }

    def _ranking(self, model: ModelVersion, history: Ratings, targets: Ratings, *, cutoffs: tuple[int, ...]) -> Ranking:
        """Each user's row is that of its ``history``; cutoffs beyond the catalogue are left out."""
        scores = factor_scores(self._population.user_rows(model, history), item_rows(model))
        return evaluate(scores, history, targets, cutoffs=within(cutoffs, targets))


def within(cutoffs: tuple[int, ...], targets: Ratings) -> tuple[int, ...]:
    """The cutoffs that the catalogue allows; at least one."""
    return tuple(cutoff for cutoff in cutoffs if cutoff <= targets.n_items) or (targets.n_items,)


def sampled(ratings: Ratings, most: int) -> np.ndarray:
    """At most ``most`` users, evenly spread over the numbers: for a quick look during training."""
    return np.unique(np.linspace(0, ratings.n_users - 1, min(most, ratings.n_users)).astype(np.int64))


def ranking_baselines(task: TrainingTask, split: Split, *, seed: int) -> RankingBaselines:
    """Both baselines, the private one at the task's budget.

    Raises:
      DataError: there are no targets.
    """
    return RankingBaselines(
        dp_popularity=dp_popularity(task, split, seed=seed), ials_ceiling=ials_ceiling(task, split, seed=seed)
    )


def dp_popularity(task: TrainingTask, split: Split, *, seed: int) -> Ranking:
    """Ranking by noisy counts, at most ``max_items_per_user`` random items of each user counted."""
    history = merge(split.train, split.validation)
    scores = item_scores(noisy_counts(task, split.train, seed=seed))
    return evaluate(scores, history, split.test, cutoffs=within(CUTOFFS, split.test))


def ials_ceiling(task: TrainingTask, split: Split, *, seed: int) -> Ranking:
    """Ranking by iALS without privacy, trained on the same items; nothing of it depends on the task."""
    return tuned_ials(split, seed=seed, cutoffs=within(CUTOFFS, split.test)).ranking


def strong_generalisation(
    task: TrainingTask, split: StrongSplit, model: ModelVersion, *, cutoffs: tuple[int, ...] = CUTOFFS
) -> Ranking:
    """How a model that ``split.train`` trained ranks for users it has never seen; Recall@k divides by min(k, targets).

    Raises:
      DataError: sizes do not fit, or there are no targets.
    """
    population = ImplicitPopulation(task.definition())
    scores = factor_scores(population.user_rows(model, split.history), item_rows(model))
    return evaluate(scores, split.history, split.targets, cutoffs=within(cutoffs, split.targets), capped=True)


def training_split(split: StrongSplit) -> Split:
    """``split.train`` as a Split with nothing held out, which ``simulate`` trains on."""
    none = split.train.take(np.zeros(split.train.n_ratings, dtype=np.bool_))
    return Split(split.train, none, none)


def noisy_counts(task: TrainingTask, train: Ratings, *, seed: int) -> Float64Array:
    """What DP popularity ranks by, float64 [m]: counts released with the whole budget of the task."""
    privacy = task.privacy
    bound = privacy.bound(train.n_items)
    _validate.integer(low=1, high=train.n_items, max_items_per_user=bound)
    counted = train.items[chosen_entries(train, bound, seed=seed)]
    counts = np.bincount(counted, minlength=train.n_items) * _UNITS
    event = None
    if privacy.epsilon != math.inf:
        std = math.sqrt(bound) / mu_for(epsilon=privacy.epsilon, delta=privacy.delta, coordinates=train.n_items)
        event = GaussianRelease("counts", math.sqrt(bound), std, train.n_items)
    return noised(event, counts, step=1.0 / _UNITS, noise=GaussianNoise(SeededNoise(seed)))
