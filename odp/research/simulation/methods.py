"""The rows of a comparison: this model and what it is measured against, for ratings and for implicit feedback.

Every method that spends does so under the same accounting: (ε, δ) per user, all its releases included. Every method but
DPAM, whose preset reads no rating, takes the best of six settings on the validation part, which is not charged
(``evaluation/trials.py``): so the comparison favours the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.experiment import NO_USER_BIAS
from odp.algorithms.implicit import experiment as implicit
from odp.algorithms.implicit.config import ImplicitDPAM
from odp.algorithms.registry import recommender_for
from odp.datasets.item_features import has_item_features
from odp.datasets.ratings import Ratings, Split
from odp.errors import DataError
from odp.evaluation import baselines
from odp.evaluation.ceilings import MOST_ITEMS, Tuned, tuned_ease, tuned_ials, tuned_item_knn
from odp.evaluation.dp_covariance import tuned_dp_covariance
from odp.evaluation.dp_sgd import tuned_dp_sgd
from odp.evaluation.dp_sgd_implicit import tuned_dp_sgd_implicit
from odp.evaluation.paired import mean_influence
from odp.evaluation.ranking import Ranking
from odp.evaluation.rating_ceilings import MOST_ITEMS_EASE, MOST_ITEMS_KNN, tuned_rating_ease, tuned_rating_knn
from odp.evaluation.trials import Outcome, Settings
from odp.research.simulation.engine import simulate
from odp.research.simulation.presets import preset_task
from odp.tasks.task import Task


@dataclass(frozen=True)
class Metric:
    """What a comparison measures on the test part; ``name`` is for people."""

    name: str
    lower_is_better: bool


RMSE = Metric("test RMSE", lower_is_better=True)
RECALL = Metric("test Recall@20", lower_is_better=False)
NDCG = Metric("test NDCG@20", lower_is_better=False)

Score = Callable[[Task, Split, int], Outcome]
"""From a task, a split and a seed to one number per metric, and the settings that were chosen for it."""


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
      name: for people; unique in a comparison.
      privacy: for people, in a few words.
      spends: whether it uses the task's ε, so that its scores change with ε.
      score: the metrics on the test part, and the chosen settings.
      task: of a private method, what runs it on devices with settings that were chosen: "" for nothing. None: the
        comparison trained a task of its own for it.
    """

    name: str
    privacy: str
    spends: bool
    score: Score
    task: Callable[[Settings], str] | None = None


@dataclass(frozen=True)
class Contest:
    """Methods, and the metrics that each of them returns, in order."""

    metrics: tuple[Metric, ...]
    methods: tuple[Method, ...]


def _dpam(task: Task, split: Split, seed: int) -> Outcome:
    run = simulate(task, split, seed=seed)
    population = recommender_for(task.definition()).population()
    return Outcome.of(population.predict(run.model, run.history, split.test), split.test)


def _private(of: Callable[..., Outcome]) -> Score:
    """A tuned method that knows a budget, not a task."""

    def score(task: Task, split: Split, seed: int) -> Outcome:
        baselines.check_parts(split)
        return of(split, epsilon=task.privacy.epsilon, delta=task.privacy.delta, seed=seed)

    return score


def _ceiling(of: Callable[[Split], Outcome]) -> Score:
    def score(task: Task, split: Split, seed: int) -> Outcome:
        baselines.check_parts(split)
        return of(split)

    return score


def _of_item_means(settings: Settings) -> str:
    return f"rank=0, training=odp.DPAM(user_bias_ridge={settings.get('ridge', NO_USER_BIAS):g})"


def _of_dp_sgd(settings: Settings) -> str:
    rounds, rate = int(settings["steps"]) + 1, settings["rate"]
    return f"rank={settings['rank']:g}, training=odp.DPSGD(rounds={rounds}, server_rate={rate:g})"


def _of_dp_sgd_implicit(settings: Settings) -> str:
    rounds, weight = int(settings["steps"]) + 1, settings["unobserved_weight"]
    return (
        f"rank={settings['rank']:g}, training=odp.DPSGD(rounds={rounds}, server_rate=2, clip=1, "
        f"unobserved_weight={weight:g})"
    )


_DPAM = Method("DPAM", "ε, δ", True, _dpam)
RATING_METHODS = (
    Method("global mean", "not private", False, baselines.global_mean),
    Method("user mean", "nothing leaves the device", False, baselines.user_mean),
    Method("DP item mean", "ε, δ", True, baselines.dp_item_mean, _of_item_means),
    Method("DP item mean + user bias", "ε, δ", True, baselines.dp_item_user_bias, _of_item_means),
    Method("DP item covariance", "ε, δ", True, _private(tuned_dp_covariance), lambda settings: ""),
    Method("DP-SGD on the item table", "ε, δ", True, _private(tuned_dp_sgd), _of_dp_sgd),
    _DPAM,
    Method("ALS, all data in one place", "not private", False, baselines.als_ceiling),
)
_RATING_KNN = Method("item kNN, all data in one place", "not private", False, _ceiling(tuned_rating_knn))
_RATING_EASE = Method("EASE, all data in one place", "not private", False, _ceiling(tuned_rating_ease))


def _ranked(of: Callable[[Task, Split, int], Ranking | Tuned | None]) -> Score:
    """Recall and NDCG at the first cutoff: 20, or fewer where the catalogue is smaller."""

    def score(task: Task, split: Split, seed: int) -> Outcome:
        if (outcome := of(task, split, seed)) is None:
            raise DataError(f"the test part of data set {split.test.name!r} has no items; use a larger data set")
        ranking, settings = (outcome.ranking, outcome.settings) if isinstance(outcome, Tuned) else (outcome, {})
        scores = next(iter(ranking.recall.values())), next(iter(ranking.ndcg.values()))
        by_user = ranking.recall_by_user
        return Outcome(scores, settings, None if by_user is None else mean_influence(by_user))

    return score


def _cutoffs(split: Split) -> tuple[int, ...]:
    return implicit.within((20,), split.test)


_RANKED_DPAM = Method(
    "DPAM",
    "ε, δ",
    True,
    _ranked(lambda task, split, seed: simulate(task, split, seed=seed).metrics.get("test_ranking")),
)
RANKING_METHODS = (
    Method(
        "DP popularity",
        "ε, δ",
        True,
        _ranked(lambda task, split, seed: implicit.dp_popularity(task, split, seed=seed)),
        lambda settings: str(implicit.QUALITY.tasks["dp_popularity"]),
    ),
    Method(
        "DP-SGD on the item table",
        "ε, δ",
        True,
        _ranked(
            lambda task, split, seed: tuned_dp_sgd_implicit(
                split,
                epsilon=task.privacy.epsilon,
                delta=task.privacy.delta,
                seed=seed,
                cutoffs=_cutoffs(split),
            )
        ),
        _of_dp_sgd_implicit,
    ),
    _RANKED_DPAM,
    Method(
        "iALS, all data in one place",
        "not private",
        False,
        _ranked(lambda task, split, seed: tuned_ials(split, seed=seed, cutoffs=_cutoffs(split))),
    ),
    Method(
        "item kNN, all data in one place",
        "not private",
        False,
        _ranked(lambda task, split, seed: tuned_item_knn(split, cutoffs=_cutoffs(split))),
    ),
)
_EASE = Method(
    "EASE, all data in one place",
    "not private",
    False,
    _ranked(lambda task, split, seed: tuned_ease(split, cutoffs=_cutoffs(split))),
)


def contest_for(ratings: Ratings, *, preset: str, with_presets: bool = True) -> Contest:
    """What a data set of this kind is compared by; with public item features, DPAM has a row that uses them.

    ``with_presets``: the model is a preset's, and not one of a task, which has features or none.
    """
    methods: tuple[Method, ...] = RATING_METHODS
    metrics: tuple[Metric, ...] = (RMSE,)
    dpam = _DPAM
    # Each ceiling needs a matrix of items by items.
    ceilings = [
        *([_RATING_KNN] if ratings.n_items <= MOST_ITEMS_KNN else []),
        *([_RATING_EASE] if ratings.n_items <= MOST_ITEMS_EASE else []),
    ]
    if ratings.implicit:
        methods, dpam, metrics = RANKING_METHODS, _RANKED_DPAM, (RECALL, NDCG)
        ceilings = [_EASE] if ratings.n_items <= MOST_ITEMS else []
    if has_item_features(ratings) and with_presets:
        place = methods.index(dpam) + 1
        richer = Method("DPAM with public item features", "ε, δ", True, _with_features(dpam, ratings, preset))
        methods = (*methods[:place], richer, *methods[place:])
    return Contest(metrics, (*methods, *ceilings))


def of_task(contest: Contest, task: Task) -> Contest:
    """The contest with the row of the trained model named by the task's training, where that is no DPAM."""
    name = type(task.training).__name__
    if isinstance(task.training, DPAM | ImplicitDPAM):
        return contest
    return replace(
        contest,
        methods=tuple(
            replace(method, name=f"odp.{name}, as in the task") if method in (_DPAM, _RANKED_DPAM) else method
            for method in contest.methods
        ),
    )


def _with_features(method: Method, ratings: Ratings, preset: str) -> Score:
    """``method`` on the preset's task that has the data set's public features."""

    def score(task: Task, split: Split, seed: int) -> Outcome:
        privacy = task.privacy
        richer = preset_task(preset, ratings, epsilon=privacy.epsilon, delta=privacy.delta, features=True)
        return method.score(richer, split, seed)

    return score
