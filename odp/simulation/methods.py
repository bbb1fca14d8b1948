"""The rows of a comparison: this model and what it is measured against, for ratings and for implicit feedback.

Every method that spends does so under the same accounting: (ε, δ) per user, all its releases included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from odp.algorithms.implicit import evaluation as implicit
from odp.datasets.item_features import has_item_features
from odp.datasets.ratings import Ratings, Split
from odp.errors import DataError
from odp.evaluation import baselines
from odp.evaluation.ceilings import MOST_ITEMS, tuned_ease, tuned_item_knn
from odp.evaluation.dp_sgd import dp_sgd
from odp.evaluation.ranking import Ranking
from odp.simulation.engine import simulate
from odp.simulation.presets import preset_task
from odp.task import Task


@dataclass(frozen=True)
class Metric:
    """What a comparison measures on the test part; ``name`` is for people."""

    name: str
    lower_is_better: bool


RMSE = Metric("test RMSE", lower_is_better=True)
RECALL = Metric("test Recall@20", lower_is_better=False)
NDCG = Metric("test NDCG@20", lower_is_better=False)

Score = Callable[[Task, Split, int], tuple[float, ...]]
"""From a task, a split and a seed to one number per metric."""


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
      name: for people; unique in a comparison.
      privacy: for people, in a few words.
      spends: whether it uses the task's ε, so that its scores change with ε.
      score: the metrics on the test part.
    """

    name: str
    privacy: str
    spends: bool
    score: Score


@dataclass(frozen=True)
class Contest:
    """Methods, and the metrics that each of them returns, in order."""

    metrics: tuple[Metric, ...]
    methods: tuple[Method, ...]


def _error(of: Callable[[Task, Split, int], float]) -> Score:
    return lambda task, split, seed: (of(task, split, seed),)


def _dpam(task: Task, split: Split, seed: int) -> float:
    return float(simulate(task, split, seed=seed).metrics["test_rmse"])


def _dp_sgd(task: Task, split: Split, seed: int) -> float:
    baselines.check_parts(split)
    privacy = task.privacy
    done = dp_sgd(split, split.test, epsilon=privacy.epsilon, delta=privacy.delta, seed=seed)
    return baselines.rmse(done.predictions, split.test)


_DPAM = Method("DPAM", "ε, δ", True, _error(_dpam))
RATING_METHODS = (
    Method("global mean", "not private", False, _error(baselines.global_mean)),
    Method("user mean", "nothing leaves the device", False, _error(baselines.user_mean)),
    Method("DP item mean", "ε, δ", True, _error(baselines.dp_item_mean)),
    Method("DP item mean + user bias", "ε, δ", True, _error(baselines.dp_item_user_bias)),
    Method("DP-SGD on the item table", "ε, δ", True, _error(_dp_sgd)),
    _DPAM,
    Method("ALS, all data in one place", "not private", False, _error(baselines.als_ceiling)),
)


def _ranked(of: Callable[[Task, Split, int], Ranking | None]) -> Score:
    """Recall and NDCG at the first cutoff: 20, or fewer where the catalogue is smaller."""

    def score(task: Task, split: Split, seed: int) -> tuple[float, ...]:
        found = of(task, split, seed)
        if found is None:
            raise DataError(f"the test part of data set {split.test.name!r} has no items; use a larger data set")
        return next(iter(found.recall.values())), next(iter(found.ndcg.values()))

    return score


RANKING_METHODS = (
    Method(
        "DP popularity", "ε, δ", True, _ranked(lambda task, split, seed: implicit.dp_popularity(task, split, seed=seed))
    ),
    Method(
        "DPAM",
        "ε, δ",
        True,
        _ranked(lambda task, split, seed: simulate(task, split, seed=seed).metrics.get("test_ranking")),
    ),
    Method(
        "iALS, all data in one place",
        "not private",
        False,
        _ranked(lambda task, split, seed: implicit.ials_ceiling(task, split, seed=seed)),
    ),
    Method(
        "item kNN, all data in one place",
        "not private",
        False,
        _ranked(lambda task, split, seed: tuned_item_knn(split, cutoffs=implicit.within((20,), split.test)).ranking),
    ),
)
_EASE = Method(
    "EASE, all data in one place",
    "not private",
    False,
    _ranked(lambda task, split, seed: tuned_ease(split, cutoffs=implicit.within((20,), split.test)).ranking),
)


def contest_for(ratings: Ratings, *, preset: str, with_presets: bool = True) -> Contest:
    """What a data set of this kind is compared by; with public item features, DPAM has a row that uses them.

    ``with_presets``: the model is a preset's, and not one of a task, which has features or none.
    """
    if ratings.implicit:
        # It inverts a matrix of items by items.
        return Contest((RECALL, NDCG), (*RANKING_METHODS, *([_EASE] if ratings.n_items <= MOST_ITEMS else [])))
    if not has_item_features(ratings) or not with_presets:
        return Contest((RMSE,), RATING_METHODS)

    def with_features(task: Task, split: Split, seed: int) -> float:
        privacy = task.privacy
        richer = preset_task(preset, ratings, epsilon=privacy.epsilon, delta=privacy.delta, features=True)
        return _dpam(richer, split, seed)

    place = RATING_METHODS.index(_DPAM) + 1
    method = Method("DPAM with public item features", "ε, δ", True, _error(with_features))
    return Contest((RMSE,), (*RATING_METHODS[:place], method, *RATING_METHODS[place:]))
