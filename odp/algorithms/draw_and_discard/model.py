"""A model that reports made: its weights by name, what it predicts, and what one report tells.

What three adversaries learn of one report: one guarantee, and two expectations that are none.

=====  =========================================  ================================================================
who    sees                                       what holds
=====  =========================================  ================================================================
I      the instance that a device got, and its    epsilon, per feature and for the model: the guarantee
       report
II     all instances before and after, but not    an average over the server's coins of worst cases: no guarantee.
       which one the device got                   ``mean_loss``
III    one instance, T updates later              likewise; ``lineage`` is the probability that anything of the
                                                  report is left, ``convolved_epsilon`` what T noises hide
=====  =========================================  ================================================================

The published bound for III (Lemma 3) is too small for 100 updates and more, and exceeds epsilon for few. The exact
number is a hockey-stick divergence of T-fold sums of Laplace noise, computed by Fourier transform.

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", section IV.

Which rows of a developer's own table Draw and Discard cannot use, and why. A device leaves them out silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.draw_and_discard.terms import MOST_INSTANCES, Terms
from odp.errors import ConfigurationError, DataError
from odp.models.class_names import TakenLabels, is_missing
from odp.models.glm.shape import Family
from odp.models.left_out import UNKNOWN, LeftOut
from odp.numerics.arrays import Float64Array, Int64Array

_MOST_UPDATES = 10**6
_GRID = 1 << 19
_BISECTIONS = 40


def mean_loss(epsilon: float, *, instances: int) -> float:
    """Adversary II: (k - 1) / (2 k) epsilon, the published average of Lemma 1; an expectation, and no guarantee."""
    _check(epsilon, instances)
    return (instances - 1) / (2.0 * instances) * epsilon


def lineage(*, instances: int, updates: int) -> float:
    """The probability that no instance descends from a report any more, ``updates`` updates after it was stored.

    The number of descendants goes up and down by one with probability i (k - i) / k^2 each; in the end it is 0 with
    probability 1 - 1/k, or k.
    """
    _validate.integer(low=1, high=MOST_INSTANCES, instances=instances)
    _validate.integer(low=0, high=_MOST_UPDATES, updates=updates)
    count = np.arange(instances + 1, dtype=np.float64)
    moves = count * (instances - count) / instances**2
    chain = np.diag(1.0 - 2.0 * moves)
    chain[np.arange(1, instances + 1), np.arange(instances)] = moves[1:]
    chain[np.arange(instances), np.arange(1, instances + 1)] = moves[:-1]
    return float(np.linalg.matrix_power(chain, updates)[min(1, instances), 0])


def convolved_epsilon(epsilon: float, *, updates: int, delta: float) -> float:
    """The least e such that T = ``updates`` noises hide one report in (e, delta); never above ``epsilon``.

    Noise of T reports is a T-fold convolution of Laplace(2 c rate / epsilon), whose characteristic function is
    (1 + b^2 w^2)^-T; two inputs differ by 2 c rate. Units of 2 c rate here, so that b = 1 / epsilon.

    Raises:
      ConfigurationError: a number is out of range.
    """
    _check(epsilon, 1)
    _validate.integer(low=1, high=_MOST_UPDATES, updates=updates)
    _validate.within(low=1e-12, high=0.5, delta=delta)
    if updates == 1:
        return epsilon
    density, step = _density(1.0 / epsilon, updates)
    shift = round(1.0 / step)
    low, high = 0.0, epsilon
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        excess = density[:-shift] - math.exp(middle) * density[shift:]
        if float(np.maximum(excess, 0.0).sum()) * step > delta:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class Learned:
    """What the adversaries learn of one report; see the module.

    Attributes:
      feature_epsilon, model_epsilon: of adversary I: the guarantee.
      mean_loss: of adversary II, per feature: an expectation.
      lineage: probability that the report left no trace after ``updates`` updates.
      convolved_epsilon: of adversary III per feature, at ``delta``, where a trace is left.
    """

    feature_epsilon: float
    model_epsilon: float
    mean_loss: float
    lineage: float
    convolved_epsilon: float
    updates: int
    delta: float


def disclosure_of(
    feature_epsilon: float, *, weights: int, instances: int, updates: int = 1000, delta: float = 1e-8
) -> Learned:
    """What the three adversaries learn. Raises ConfigurationError for a number out of range."""
    return Learned(
        feature_epsilon=feature_epsilon, model_epsilon=weights * feature_epsilon,
        mean_loss=mean_loss(feature_epsilon, instances=instances),
        lineage=lineage(instances=instances, updates=updates),
        convolved_epsilon=convolved_epsilon(feature_epsilon, updates=updates, delta=delta),
        updates=updates, delta=delta,
    )  # fmt: skip


def _check(epsilon: float, instances: int) -> None:
    _validate.within(low=1e-6, high=1e4, epsilon=epsilon)
    _validate.integer(low=1, high=MOST_INSTANCES, instances=instances)


def _density(scale: float, updates: int) -> tuple[Float64Array, float]:
    """(density of the sum of ``updates`` Laplace noises on a grid from below to above, its step, a whole part of 1)."""
    deviation = math.sqrt(2.0 * updates) * scale
    half = 1.0 + 9.0 * deviation + 30.0 * scale
    step = 1.0 / max(1, math.floor(_GRID / (2.0 * half)))
    points = 2 * math.ceil(half / step)
    points += points % 2
    # The inverse transform of the periodic density, at the middle of its period.
    frequency = 2.0 * np.pi * np.fft.rfftfreq(points, d=step)
    transform = np.exp(-updates * np.log1p((scale * frequency) ** 2))
    density = np.fft.fftshift(np.fft.irfft(transform, n=points)) / step
    return np.maximum(density, 0.0), step


@dataclass(frozen=True, eq=False)
class UsableRows:
    """The rows of a table as a model reads them.

    Attributes:
      numbers: float64 [n, inputs]; zeros of rows that cannot be used.
      targets: float64 [n].
      reason: uint8 [n], why a row is left out: a place in ``reasons``, 0 for a usable row.
    """

    numbers: Float64Array
    targets: Float64Array
    reason: npt.NDArray[np.uint8]
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, terms: Terms, columns: Mapping[str, npt.NDArray[Any]], rows: Int64Array | None = None) -> Self:
        """The table of these columns, or the people's ``rows`` of it.

        Raises:
          DataError: a column is missing, or a label is none of the model's classes.
        """
        labels, features = labels_of(terms, columns), terms.features
        read = features.numbers(columns)
        numbers, _ = features.encode(read, len(labels))
        targets, taken = terms.targets(features.responses(labels))
        missing = is_missing(labels)
        other = ~taken & ~missing
        owned = slice(None) if rows is None else rows
        if terms.classes_range is not None and other[owned].any():
            accepted = TakenLabels(
                features.label, terms.classes_range, (0.0, 0.0), features.class_names, of="odp.DrawAndDiscard"
            )
            raise accepted.refusal(labels[owned], other=other[owned])
        reasons = [
            "", f"without a label {features.label!r}",
            f"whose label {features.label!r} is not from {features.label_low:g} to {features.label_high:g}",
        ]  # fmt: skip
        reason = np.zeros(len(labels), dtype=np.uint8)
        for name, unusable in features.unusable(read, len(labels)):
            reason[unusable & (reason == 0)] = len(reasons)
            reasons.append(f"whose {name!r} cannot be used")
        reason[other], reason[missing] = 2, 1
        return cls(numbers, targets, reason, tuple(reasons))

    def left_out(self, rows: Int64Array | None = None) -> LeftOut:
        """How many of ``rows``, or of all, are left out, and why."""
        reason = self.reason if rows is None else self.reason[rows]
        counts = np.bincount(reason, minlength=len(self.reasons)).tolist()
        return LeftOut(
            len(reason), {why: count for why, count in zip(self.reasons[1:], counts[1:], strict=True) if count}
        )


def labels_of(terms: Terms, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The responses of rows [n]. Raises DataError where a column is missing, or they are text of no class."""
    wanted = (*terms.features.columns, terms.features.label)
    for name in wanted:
        if name not in columns:
            raise DataError(f"Expected a column {name!r}, as the task reads it (got {', '.join(columns)})")
    labels = columns[terms.features.label]
    if labels.ndim != 1 or (labels.dtype.kind == "U" and terms.classes_range is None):
        raise DataError(f"Expected one number per row in the column {terms.features.label!r} of labels")
    return labels


_MOST_ROWS = 40


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A model that reports made.

    Attributes:
      weights: float64 [weights], the mean of all instances.
      updates: that made it.
      deviation: standard deviation over the instances, the root of its mean square over the weights; 0 of one instance.
      trained_without: of a simulation, the people's rows that it left out; None of devices, whose counts are private.
    """

    terms: Terms = field(repr=False)
    weights: Float64Array
    updates: int
    deviation: float
    trained_without: LeftOut | None = None

    @property
    def named(self) -> dict[str, float]:
        """The weights by name; of a multinomial model, ``class:name``."""
        names, classes = self.terms.features.names, self.terms.classes
        shown = self.terms.features.class_names or range(classes)
        full = names if classes == 1 else [f"{label}:{name}" for label in shown for name in names]
        return dict(zip(full, self.weights.tolist(), strict=True))

    def predict(self, columns: Mapping[str, npt.NDArray[Any]]) -> Float64Array:
        """What the model expects of rows, float64 [n, classes]; not a number for rows that cannot be used."""
        rows = len(next(iter(columns.values())))
        numbers, usable = self.terms.features.encode(self.terms.features.numbers(columns), rows)
        means = self.terms.means(numbers @ self.weights.reshape(self.terms.classes, -1).T)
        means[~usable] = np.nan
        return means

    def classify(self, columns: Mapping[str, npt.ArrayLike]) -> npt.NDArray[Any]:
        """The likeliest class of each row, [n]: its name as text, or its number as int64 where the task names none.

        Raises:
          ConfigurationError: the model predicts no classes.
          DataError: a column is missing, or a row cannot be used.
        """
        features = self.terms.features
        if self.terms.classes_range is None:
            raise ConfigurationError("Expected a logistic or multinomial model: others predict numbers")
        for name in features.columns:
            if name not in columns:
                raise DataError(f"Expected a column {name!r}, as the task reads it (got {', '.join(columns)})")
        predictions = self.predict({name: np.asarray(columns[name]) for name in features.columns})
        if unusable := int(np.isnan(predictions[:, 0]).sum()):
            raise DataError(f"Expected rows that the model can use; {unusable:,} of {len(predictions):,} are not")
        numbers = predictions.argmax(axis=1) if predictions.shape[1] > 1 else (predictions[:, 0] > 0.5).astype(np.int64)
        return np.array(features.class_names)[numbers] if features.classes else numbers

    def measures(self, columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
        """How well the model predicts labelled rows: accuracy of classes, precision and recall of two, or a mean error.

        ``used`` and ``left_out`` count the rows that the figures are about, and those that cannot be used;
        ``left_out`` says why.

        Raises:
          DataError: a column is missing, a label is none of the model's classes, or no row can be used.
        """
        rows = UsableRows.of(self.terms, columns)
        left_out, usable = rows.left_out(), rows.reason == 0
        if not usable.any():
            raise DataError(f"Expected labelled rows that the task can use; {left_out}")
        counts = {"used": float(left_out.used), "left_out": float(left_out.count)}
        return scores(self.terms.family, self.predict(columns)[usable], rows.targets[usable]) | counts

    def left_out(self, columns: Mapping[str, npt.NDArray[Any]]) -> LeftOut:
        """The rows that ``measures`` is not about, and why. Raises DataError as ``measures``."""
        return UsableRows.of(self.terms, columns).left_out()

    @property
    def contributions(self) -> int:
        """Reports that made it."""
        return self.updates

    @property
    def epsilon(self) -> float:
        """Pure epsilon of one report, of the whole model; infinite without noise."""
        return self.terms.model_epsilon

    @property
    def delta(self) -> float:
        """Reports are private without it."""
        return 0.0

    def to_json(self, confidence: float = 0.95) -> dict[str, object]:
        """Plain values: the weights by name, and what one report tells."""
        del confidence  # the mean of the instances goes on walking: it has no interval of a fixed width
        terms = self.terms
        return {
            "updates": self.updates,
            "weights": self.named,
            "deviation_of_instances": self.deviation,
            "left_out": UNKNOWN if self.trained_without is None else self.trained_without.to_json(),
            "feature_epsilon": terms.feature_epsilon if terms.noise_scale else None,
            "model_epsilon": terms.model_epsilon if terms.noise_scale else None,
            "lifetime_epsilon": terms.lifetime_epsilon if terms.noise_scale else None,
        }

    def lines(self, confidence: float, exact: LocalModel | None = None) -> Iterator[object]:
        """What a terminal shows: the largest weights."""
        from rich.table import Table

        named = self.named
        shown = sorted(named, key=lambda name: -abs(named[name]))[:_MOST_ROWS]
        table = Table("weight", "value", *([] if exact is None else ["without noise"]))
        for name in shown:
            table.add_row(name, f"{named[name]:.4g}", *([] if exact is None else [f"{exact.named[name]:.4g}"]))
        yield table
        if len(shown) < len(named):
            yield f"the {len(shown)} largest of {len(named)} weights"
        yield UNKNOWN if self.trained_without is None else f"trained {self.trained_without.sentence('examples')}"
        yield (
            f"{self.terms.instances} instances differ by {self.deviation:.3g} (root mean square); "
            f"epsilon of one report: {self.terms.feature_epsilon:.4g} for one weight, "
            f"{self.terms.model_epsilon:.4g} for the model"
        )

    def draw(self, path: str | Path, *, exact: LocalModel | None = None, confidence: float = 0.95) -> None:
        """Saves a picture: the largest weights, and those of ``exact`` beside them.

        Raises:
          DataError: the file cannot be written, or its ending names no format of pictures.
        """
        from odp.pictures import style

        named = self.named
        shown = sorted(named, key=lambda name: -abs(named[name]))[:_MOST_ROWS][::-1]
        figure, (panel,) = style.figure(width=7.0, height=1.6 + 0.25 * len(shown))
        places = np.arange(len(shown))
        panel.barh(places, [named[name] for name in shown], 0.7, color=style.LIGHT.soft)
        if exact is not None:
            style.exact_mark(panel, [exact.named[name] for name in shown], places)
        panel.set_yticks(places, shown)
        panel.axvline(0.0, color=style.LIGHT.muted, linewidth=0.8)
        panel.grid(visible=False, axis="y")
        panel.grid(visible=True, axis="x")
        panel.set_xlabel("weight")
        style.head(panel, "The largest weights", f"{self.updates:,} reports, ε = {self.epsilon:.4g} each")
        rings = "" if exact is None else "; rings: without noise, never released"
        style.note(figure, f"Bars: mean of the instances{rings}")
        style.save(figure, path, title="the largest weights of the model")

    def report(self, *, delta: float = 1e-8, updates: int = 1000) -> dict[str, float]:
        """``disclosure_of`` as plain values: what one report tells, by adversary.

        All of them are infinite without noise.
        """
        terms = self.terms
        if not terms.noise_scale:
            return {"feature_epsilon": math.inf, "model_epsilon": math.inf, "lifetime_epsilon": math.inf}
        disclosure = disclosure_of(
            terms.feature_epsilon, weights=terms.weights, instances=terms.instances, updates=updates, delta=delta
        )
        return vars(disclosure) | {"lifetime_epsilon": terms.lifetime_epsilon}


def scores(family: Family, expected: Float64Array, targets: Float64Array) -> dict[str, float]:
    """As ``LocalModel.measures``, of expectations [n, classes] and targets [n]."""
    if family is Family.MULTINOMIAL:
        return {"accuracy": float((expected.argmax(axis=1) == targets).mean())}
    if family is not Family.LOGISTIC:
        return {"mean_squared_error": float(np.square(expected[:, 0] - targets).mean())}
    guessed, truth = expected[:, 0] >= 0.5, targets == 1
    both = int((guessed & truth).sum())
    return {
        "accuracy": float((guessed == truth).mean()),
        "precision": both / max(int(guessed.sum()), 1),
        "recall": both / max(int(truth.sum()), 1),
    }
