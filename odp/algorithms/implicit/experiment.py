"""`odp simulate` and `odp report` on implicit feedback: Recall@20 and NDCG@20 beside DP popularity and iALS.

The split is the one that the data set is published with, or random 80/10/10; with ``held_out``, that many random users
take no part in training and are tested on a fifth of their items (strong generalisation).

Implicit feedback: how well a model ranks, and what it is compared with on the same split.

====================  ===============================================================================================
DP popularity         everyone gets the items of largest noisy count: one release, with the whole budget
DPAM                  the task itself
iALS, EASE, item kNN  all data in one place, no privacy; settings chosen on the validation part (``ceilings.py``)
====================  ===============================================================================================

Figures are on the test part; users have the rows of, and are masked by, their train and validation items.

Where a model of implicit feedback ranks well and where it does not, on the researcher's own evaluation data.

Buckets of items come from the noisy counts, so the same buckets could be published. What is found in them, and the
buckets of users, read held-out items without noise: diagnostics of a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from odp import _validate
from odp.algorithms.choices import TrainingTask
from odp.algorithms.experiment import FinishedRun, Metrics, NamedData, Quality
from odp.algorithms.implicit.population import ImplicitPopulation, item_rows
from odp.algorithms.registry import recommender_for
from odp.datasets.ratings import Ratings, Split, merge
from odp.evaluation.ceilings import tuned_ials
from odp.evaluation.exposure import MOST_USERS, Exposure, exposure, fifths
from odp.evaluation.noise import SeededNoise, noised
from odp.evaluation.paired import difference_error, mean_influence
from odp.evaluation.ranking import (
    Ranking,
    StrongSplit,
    evaluate,
    factor_scores,
    found_targets,
    item_scores,
    strong_split,
)
from odp.evaluation.users import chosen_entries, per_round_note, spread_users
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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

    def standard_errors(self, ranking: Ranking) -> dict[str, float]:
        """Those of the differences to a ranking of the same users, of Recall at the first cutoff, by name."""
        return {
            name: difference_error(mean_influence(ranking.recall_by_user), mean_influence(other.recall_by_user))
            for name, other in vars(self).items()
            if ranking.recall_by_user is not None and other.recall_by_user is not None
        }


def _population(definition: common_pb2.TaskDefinition) -> ImplicitPopulation:
    """Of any training of a model of implicit feedback."""
    return cast(ImplicitPopulation, recommender_for(definition).population())


class TaskEvaluation:
    """``odp.algorithms.experiment.TrainingEvaluation``: how the items that a user has not shown are ranked."""

    round_metrics: ClassVar[tuple[str, ...]] = ("validation_recall", "validation_ndcg")

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._population = _population(definition)

    def left_out(self, split: Split) -> dict[str, LeftOut]:
        """None: all ratings of a split take part."""
        return {}

    def after_round(self, model: ModelVersion, split: Split, history: Ratings) -> dict[str, float]:
        """Recall@20 and NDCG@20 on the validation items of at most 4,096 users; NaN without such items."""
        users = spread_users(split.train, _USERS_PER_ROUND)
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
    population = _population(task.definition())
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


QUALITY = Quality(
    title="Recall and NDCG",
    entries="items",
    final="test_ranking",
    label="",
    rounds=(("validation_recall", "validation Recall@20"), ("validation_ndcg", "validation NDCG@20")),
    buckets=(("recall", "test Recall@20"), ("ndcg", "test NDCG@20")),
    baselines={
        "dp_popularity": "DP popularity, same ε and δ",
        "ials_ceiling": "iALS, all data in one place, not private",
    },
    ceilings=("ials_ceiling",),
    tasks={"dp_popularity": "rank=1, training=odp.ImplicitDPAM(steps=1, count_share=0.97)"},
    not_run=("DP-SGD on the item table",),
    rival=("baseline_recall", "DP popularity"),
)


class TaskExperiment:
    """``odp.algorithms.experiment.Experiment`` on the items that users have not shown."""

    columns: ClassVar[tuple[str, ...]] = ("validation Recall@20", "NDCG@20")

    def __init__(self, task: TrainingTask, data: NamedData, *, seed: int, held_out: int | None) -> None:
        self._task, self._seed, self._held_out = task, seed, held_out
        self._strong = None if held_out is None else strong_split(data.ratings, held_out=held_out, seed=seed)
        if self._strong is None:
            self.split = self.tested = data.split(seed)
        else:
            self.split = training_split(self._strong)
            self.tested = Split(self.split.train, self.split.validation, self._strong.targets)
        self.population = self.split.train
        self._notes = data.cut_notes(self.split)

    def notes(self, *, noise: bool) -> list[str]:
        """What a cut in time leaves to the tests, or who is tested, where it is not those who took part; whom rounds
        are scored on.
        """
        rounds = per_round_note(self.split.train, _USERS_PER_ROUND)
        if self._strong is None:
            return [*self._notes, *rounds]
        return [
            *rounds,
            f"tested on {self._held_out:,} users who took no part; Recall@k divides by min(k, held-out items)",
        ]

    def cells(self, metrics: Mapping[str, float]) -> list[str]:
        return [f"{metrics[name]:.4f}" for name in ("validation_recall", "validation_ndcg")]

    def headline(self, metrics: Mapping[str, float]) -> str:
        return f"validation Recall@20 {metrics['validation_recall']:.4f}"

    def final_metrics(self, run: FinishedRun) -> Metrics:
        """Those of the run, or of the users who took no part."""
        if self._strong is None:
            return run.metrics
        return {"test_ranking": strong_generalisation(self._task, self._strong, run.model)}

    def compare(self, run: FinishedRun, metrics: Metrics, *, baselines: bool, out: Console) -> dict[str, Any]:
        """The ranking, and but for users who took no part, the baselines; nothing without held-out items."""
        ranking: Ranking | None = metrics.get("test_ranking")
        if ranking is None:
            return {}
        summary: dict[str, Any] = {}
        budget = f"ε = {run.epsilon:.4g}, δ = {self._task.privacy.delta:g}"
        if self._strong is not None:
            rows = [("this model, unseen users", ranking, budget)]
            summary["strong_ranking"] = ranking.to_json()
        else:
            rows = [("this model", ranking, budget)]
            if baselines:
                with out.status("baselines"):
                    rankings = ranking_baselines(self._task, self.split, seed=self._seed)
                rows.insert(0, ("DP popularity", rankings.dp_popularity, "same ε and δ"))
                rows.append(("iALS, all data in one place", rankings.ials_ceiling, "ceiling, not private"))
                summary["baselines"] = rankings.to_json()
                summary["standard_errors"] = rankings.standard_errors(ranking)
        out.print(_table(rows))
        return summary

    def diagnose(self, run: FinishedRun) -> RankingDiagnostics:

        history = run.history if self._strong is None else self._strong.history
        popular = noisy_counts(self._task, self.split.train, seed=self._seed)
        return diagnose_ranking(
            self._task, run.model, history, self.tested.test, item_counts=run.item_counts, baseline_counts=popular
        )


def _table(rows: list[tuple[str, Ranking, str]]) -> Table:
    from rich.table import Table

    cutoffs = list(rows[0][1].recall)
    heads = [f"{name}@{cutoff}" for name in ("Recall", "NDCG") for cutoff in cutoffs]
    table = Table("method", *heads, "privacy", title=f"higher is better; {rows[0][1].users:,} users, whole catalogue")
    for method, ranking, privacy in rows:
        values = [*ranking.recall.values(), *ranking.ndcg.values()]
        table.add_row(method, *(f"{value:.4f}" for value in values), privacy)
    return table


_CUTOFF = 20


@dataclass(frozen=True)
class RankingBucket:
    """Items (or users) with a count from ``low`` to ``high``.

    Attributes:
      members: how many there are.
      targets: held-out items among them (or of them).
      recall: of items, the share of these targets that their users were offered among the first 20 places; of users,
        mean Recall@20. None without targets.
      ndcg: of users, mean NDCG@20; None for items, which have none of their own.
      baseline_recall: as ``recall``, by DP popularity at the same budget.
    """

    low: float
    high: float
    members: int
    targets: int
    recall: float | None
    ndcg: float | None
    baseline_recall: float | None


@dataclass(frozen=True)
class RankingDiagnostics:
    """Recall by popularity of the item (noisy counts) and by activity of the user (history size), and what lists of
    recommendations show.
    """

    popularity: tuple[RankingBucket, ...]
    activity: tuple[RankingBucket, ...]
    exposure: Exposure

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def diagnose_ranking(
    task: TrainingTask,
    model: ModelVersion,
    history: Ratings,
    targets: Ratings,
    *,
    item_counts: Float64Array,
    baseline_counts: Float64Array,
) -> RankingDiagnostics:
    """Diagnostics of a model of implicit feedback.

    Args:
      task, model: what was trained.
      history: what is known of each user; its row follows from it, and it is masked.
      targets: held-out items of the same users.
      item_counts: noisy counts float64 [m].
      baseline_counts: those that DP popularity ranks by, float64 [m].

    Raises:
      DataError: sizes do not fit the task.
    """
    scores = factor_scores(_population(task.definition()).user_rows(model, history), item_rows(model))
    popular = item_scores(baseline_counts)
    cutoff = min(_CUTOFF, targets.n_items)
    model_hits = found_targets(scores, history, targets, cutoff=cutoff)
    found_by_baseline = found_targets(popular, history, targets, cutoff=cutoff)

    def by_item() -> Iterator[RankingBucket]:
        for fifth in fifths(item_counts):
            here = fifth[targets.items]
            shares = (float(hits[here].mean()) if here.any() else None for hits in (model_hits, found_by_baseline))
            recall, other = shares
            yield _bucket(item_counts[fifth], int(here.sum()), recall, None, other)

    def by_user() -> Iterator[RankingBucket]:
        sizes = history.counts().astype(np.float64)
        for fifth in fifths(sizes):
            users = np.flatnonzero(fifth)
            wanted = targets.select_users(users)
            if not wanted.n_ratings:
                yield _bucket(sizes[fifth], 0, None, None, None)
                continue
            users_history = history.select_users(users)
            part = evaluate(
                lambda block, users=users: scores(users[block]),  # type: ignore[misc]
                users_history,
                wanted,
                cutoffs=(cutoff,),
            )
            other = evaluate(popular, users_history, wanted, cutoffs=(cutoff,)).recall[cutoff]
            yield _bucket(sizes[fifth], wanted.n_ratings, part.recall[cutoff], part.ndcg[cutoff], other)

    some = np.unique(np.linspace(0, history.n_users - 1, min(MOST_USERS, history.n_users)).astype(np.int64))
    return RankingDiagnostics(
        popularity=tuple(by_item()),
        activity=tuple(by_user()),
        exposure=exposure(
            lambda block: scores(some[block]),
            popular,
            history.select_users(some),
            targets.select_users(some),
            popularity=item_counts,
            baseline_name="dp_popularity",
            cutoff=cutoff,
        ),
    )


def _bucket(
    sizes: Float64Array, targets: int, recall: float | None, ndcg: float | None, other: float | None
) -> RankingBucket:
    return RankingBucket(float(sizes.min()), float(sizes.max()), len(sizes), targets, recall, ndcg, other)
