"""`odp simulate` and `odp report` on ratings: RMSE round by round, beside baselines on the same split.

How good a rating model is on data that the researcher owns.

Where a model is good and where it is not, on the researcher's own evaluation data.

Buckets of items come from the *released* (noisy) counts, so the same buckets could be published. The errors themselves,
the buckets of users and the shares of clipped data read the ratings without noise: diagnostics of a simulation, which
no party could compute on a real population. ``NoisyTotals`` has what the releases themselves show about clipping.

Whether noise will drown what a rating model is to learn: a researcher should know it before a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from odp.algorithms.capabilities import RecommenderPopulation
from odp.algorithms.choices import TrainingTask
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.dpam.terms import BIASES_ROUND, COUNT_COLUMN, Terms
from odp.algorithms.experiment import FinishedRun, Metrics, NamedData, Quality
from odp.algorithms.registry import recommender_for
from odp.datasets.ratings import Ratings, Split, merge
from odp.errors import ConfigurationError
from odp.evaluation.baselines import (
    Baselines,
    baseline_outcomes,
    dp_item_means,
    dp_item_user_bias_predictions,
    rmse,
    user_mean_predictions,
)
from odp.evaluation.exposure import CUTOFF, Exposure, exposure, fifths
from odp.evaluation.paired import difference_error, rmse_influence
from odp.evaluation.ranking import item_scores
from odp.evaluation.reliability import Reliability, reliability
from odp.evaluation.trials import Outcome
from odp.evaluation.users import per_round_note, spread_users
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from rich.console import Console

#: A ridge on users' biases that leaves none: the task of rank 0 then learns and predicts item means.
NO_USER_BIAS = 1e6

QUALITY = Quality(
    title="Error",
    entries="ratings",
    final="test_rmse",
    label="RMSE",
    rounds=(("test_rmse", "test RMSE"), ("validation_rmse", "validation RMSE")),
    buckets=(("rmse", "test RMSE"),),
    baselines={
        "global_mean": "global mean",
        "user_mean": "user mean, on the device",
        "dp_item_mean": "DP item mean, same ε and δ",
        "dp_item_user_bias": "DP item mean + user bias, same ε and δ",
        "als_ceiling": "ALS, all data in one place, not private",
    },
    ceilings=("als_ceiling",),
    tasks={
        "user_mean": None,
        "dp_item_mean": f"rank=0, training=odp.DPAM(user_bias_ridge={NO_USER_BIAS:g})",
        "dp_item_user_bias": "rank=0, training=odp.DPAM()",
    },
    not_run=("DP item covariance", "DP-SGD on the item table"),
    alone=("user_mean_rmse", "user mean, on the device"),
    rival=("baseline_rmse", "DP item mean + user bias"),
)


#: A round is scored on at most this many users; the finished model on all.
_USERS_PER_ROUND = 500


class TaskExperiment:
    """``odp.algorithms.experiment.Experiment`` on a split of ratings."""

    columns: ClassVar[tuple[str, ...]] = ("validation RMSE", "test RMSE")

    def __init__(self, task: TrainingTask, data: NamedData, *, seed: int, held_out: int | None) -> None:
        if held_out is not None:
            raise ConfigurationError("--held-out is for implicit feedback: ratings of known users are predicted")
        self._task, self._seed = task, seed
        self.population = data.ratings
        self.split = self.tested = data.split(seed)
        self._notes = data.cut_notes(self.split)

    def notes(self, *, noise: bool) -> list[str]:
        """What a cut in time leaves to the tests, whom rounds are scored on, and whether noise drowns the signal."""
        notes = [*self._notes, *per_round_note(self.split.train, _USERS_PER_ROUND)]
        if not noise or self.population.n_items != self._task.factorization.items:
            return notes
        weak = weak_signal(self._task, self.split.train)
        return notes if weak is None else [*notes, str(weak)]

    def cells(self, metrics: Mapping[str, float]) -> list[str]:
        return [f"{metrics[name]:.4f}" for name in ("validation_rmse", "test_rmse")]

    def headline(self, metrics: Mapping[str, float]) -> str:
        return f"test RMSE {metrics['test_rmse']:.4f}"

    def final_metrics(self, run: FinishedRun) -> Metrics:
        return run.metrics

    def compare(self, run: FinishedRun, metrics: Metrics, *, baselines: bool, out: Console) -> dict[str, Any]:
        """The test error beside the baselines, and what the ranges of predictions cover."""
        from odp.evaluation.comparison import comparison_table

        intervals = metrics["test_intervals"]
        if intervals.ratings:
            out.print(intervals_line(intervals))
        # Before the baselines, which take longer than the training.
        out.print(f"test RMSE {metrics['test_rmse']:.4f} of {self.split.test.n_ratings:,} ratings")
        if not baselines:
            return {}
        with out.status("baselines"):
            outcomes = baseline_outcomes(self._task, self.split, seed=self._seed)
        baselines_reached = Baselines.of(outcomes)
        out.print(comparison_table(baselines_reached, metrics["test_rmse"], run.epsilon, self._task.privacy.delta))
        return {
            "baselines": asdict(baselines_reached),
            "standard_errors": standard_errors(self._task, self.split, run.model, outcomes),
        }

    def diagnose(self, run: FinishedRun) -> Diagnostics:
        """Errors by popularity and activity, and shares of clipped data."""

        return diagnose(self._task, self.split, run.model, seed=self._seed, intervals=run.metrics["test_intervals"])


def standard_errors(
    task: TrainingTask, split: Split, model: ModelVersion, baselines: Mapping[str, Outcome]
) -> dict[str, float]:
    """Of the differences of a final model's test RMSE to those of baselines, by name, over paired users."""
    predicted = _population(task.definition()).predict(model, merge(split.train, split.validation), split.test)
    ours = rmse_influence(predicted, split.test)
    return {
        name: difference_error(ours, outcome.influence)
        for name, outcome in baselines.items()
        if outcome.influence is not None
    }


def intervals_line(reliability: Reliability) -> str:
    """What the ranges at the level that is shown cover, and how wide they are."""
    shown = reliability.shown
    return (
        f"ranges at {100 * shown.level:g} %: {100 * shown.covered:.1f} % of {reliability.ratings:,} test ratings of "
        f"{reliability.users:,} users lie within; mean width {shown.width:.3f}"
    )


def _population(definition: common_pb2.TaskDefinition) -> DpamPopulation:
    """Of any training of a model of ratings."""
    return cast(DpamPopulation, recommender_for(definition).population())


class TaskEvaluation:
    """``odp.algorithms.experiment.TrainingEvaluation``: root mean square errors of predicted ratings, and coverage."""

    round_metrics: ClassVar[tuple[str, ...]] = ("validation_rmse", "test_rmse")

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._definition, self._population = definition, _population(definition)

    def left_out(self, split: Split) -> dict[str, LeftOut]:
        """None: all ratings of a split take part."""
        return {}

    def after_round(self, model: ModelVersion, split: Split, history: Ratings) -> dict[str, float]:
        """RMSE on the validation and the test part of at most 500 users; NaN of an empty one."""
        users = spread_users(split.train, _USERS_PER_ROUND)
        parts = (split.train, split.validation, history, split.test)
        return self._errors(model, *(part.select_users(users) for part in parts))

    def _errors(
        self, model: ModelVersion, train: Ratings, validation: Ratings, history: Ratings, test: Ratings
    ) -> dict[str, float]:
        predict = self._population.predict
        return {
            "validation_rmse": rmse(predict(model, train, validation), validation),
            "test_rmse": rmse(predict(model, history, test), test),
        }

    def after_training(
        self, model: ModelVersion, split: Split, history: Ratings, *, last: Mapping[str, float]
    ) -> Metrics:
        """Those of all users, and ``test_intervals``: what the ranges of test ratings cover."""
        if split.train.n_users > _USERS_PER_ROUND:
            last = {**last, **self._errors(model, split.train, split.validation, history, split.test)}
        return {**last, "test_intervals": covered(self._definition, self._population, model, history, split.test)}


def covered(
    definition: common_pb2.TaskDefinition,
    population: DpamPopulation,
    model: ModelVersion,
    history: Ratings,
    targets: Ratings,
) -> Reliability:
    """What the ranges of a model cover on ``targets``, each user solved on ``history``.

    Raises:
      DataError: sizes do not fit the task.
    """
    return reliability(
        history,
        targets,
        predict=lambda observed, wanted: population.predict(model, observed, wanted),
        half_widths=lambda observed, wanted, levels: population.half_widths(model, observed, wanted, levels=levels),
        least=definition.data.low,
        most=definition.data.high,
    )


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
      targets_clipped: share of ratings further from the biases' prediction than the clip of the last round's targets;
        0 where only a user's whole gradient has one.
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
    population = _population(definition)
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
    mean_squares = np.bincount(train.users(), weights=off**2, minlength=train.n_users) / np.maximum(train.counts(), 1)
    bound, sizes = definition.privacy.max_items_per_user, train.counts()
    clip, vector_clip = population.target_bounds(sizes)
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


@dataclass(frozen=True)
class WeakSignal:
    """The noise exceeds the signal of an average item.

    Attributes:
      raters_needed: raters of an average item at which its sum equals the noise.
      raters: what the population has, each counted with its weight.
      users_needed: users at which an average item has enough of them, all else alike.
    """

    raters_needed: float
    raters: float
    users_needed: int

    def __str__(self) -> str:
        """One line that says what happens, and what to do."""
        return (
            f"the noise exceeds the signal: an average item needs {self.raters_needed:,.0f} raters and has "
            f"{self.raters:,.0f}; the model falls back to user means. "
            f"It would work from about {self.users_needed:,} users at this ε, or at a larger ε"
        )


def weak_signal(task: TrainingTask, train: Ratings) -> WeakSignal | None:
    """Whether the item sums drown in noise; None where they do not, without noise, or for implicit feedback.

    The rule: a sum with noise of standard deviation s C beats it from about ``s C / rms`` raters of weight 1 on, with
    rms the size of targets: at most C, to which those of a user together are shortened, and by a public guess a 4.5th
    of the declared range. Of gradients, those of all steps count together, and each user's have the norm C. Reads the
    population's mean number of ratings per user, so it is a diagnostic of a simulation, not a release.
    """
    if (
        task.privacy.epsilon == math.inf
        or not train.n_ratings
        or not (isinstance(task.data, RatingsData) and isinstance(task.training, DPAM))
    ):
        return None
    terms = Terms.of(task.definition())
    used = np.minimum(train.counts(), terms.max_items).astype(np.float64)
    if terms.gradient:
        weights = used
        norm = math.sqrt(min(terms.learned, 1.0 + terms.row_clip**2))
        # Of a user with n items, each gets a share of 1 / sqrt(n) of the norm.
        needed = terms.target_noise * norm / math.sqrt(terms.steps) * float(used.sum() / np.sqrt(used).sum())
    else:
        needed = terms.bias_sum_noise * terms.bias_vector_clip
        needed /= min(math.sqrt(terms.residual_variance), terms.bias_vector_clip)
        # A user's squared weights add up to the bound when weights adapt; uniform weights are 1.
        weights = np.sqrt(used * terms.max_items) if terms.adaptive else used
    # Of a sampled task, only the drawn users' weights are in a sum.
    raters = (task.cohort.sampling_probability or 1.0) * float(weights.sum()) / terms.items
    if raters >= needed:
        return None
    return WeakSignal(needed, raters, math.ceil(train.n_users * needed / raters))
