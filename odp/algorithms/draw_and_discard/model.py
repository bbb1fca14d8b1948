"""A model that reports made: its weights by name, what it predicts, and what one report tells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.algorithms.draw_and_discard.adversaries import disclosure_of
from odp.algorithms.draw_and_discard.left_out import UsableRows
from odp.algorithms.draw_and_discard.terms import Terms
from odp.errors import ConfigurationError, DataError
from odp.models.glm.shape import Family
from odp.models.left_out import UNKNOWN, LeftOut
from odp.numerics.arrays import Float64Array

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
        """``adversaries.disclosure_of`` as plain values: what one report tells, by adversary.

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
