"""What an evaluation released, in the units of its metrics, with intervals.

=====================  ==========================================================================================
interval of            covers
=====================  ==========================================================================================
a metric               the noise: the users who took part are counted as they are
a difference           the noise, and which users took part: it is about the population that they are drawn from
=====================  ==========================================================================================

An interval holds for its own number. Clamped losses and the bins of probabilities are part of a metric's definition.

Source for differences: Zou and Donner 2008, "Construction of confidence limits about effect measures": the intervals of
two independent numbers give that of their difference.

An evaluation on a terminal: a table of metrics, one of calibration, and one of differences.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from odp.algorithms.estimates import CONFIDENCE, Estimate, deviations, quotient_interval
from odp.algorithms.model_evaluation.curves import Drawn, Histograms, Measured, draw
from odp.algorithms.model_evaluation.terms import Scalar, Terms
from odp.errors import ConfigurationError
from odp.models.left_out import ANSWERS, UNKNOWN, LeftOut
from odp.numerics.arrays import Float64Array

AUC, CALIBRATION_ERROR = "auc", "calibration_error"


@dataclass(frozen=True)
class EvaluationResults(Mapping[str, Estimate]):
    """The metrics of the model; of two, those of the first one.

    Attributes:
      terms: of the task.
      sums: float64 [size], what was released, in users.
      std: standard deviation of the noise on each.
      contributions: devices that took part.
      epsilon, delta: what the release cost each of them; epsilon is infinite where there was no noise.
      left_out: of a simulation, under "answers", what was not tested on; empty of devices, whose counts are private.
    """

    terms: Terms = field(repr=False)
    sums: Float64Array = field(repr=False)
    std: float
    contributions: int
    epsilon: float
    delta: float
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.sums.shape != (self.terms.layout.size,):
            raise ConfigurationError(
                f"Expected {self.terms.layout.size} released numbers (got {list(self.sums.shape)})"
            )

    def __getitem__(self, name: str) -> Estimate:
        return next(iter(self.models().values())).metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        ranked = (AUC,) if self.terms.classes == 2 else ()
        binned = (*ranked, CALIBRATION_ERROR) if self.terms.layout.bins else ()
        return (*(scalar.name for scalar in self.terms.scalars), *binned)

    @property
    def compared(self) -> tuple[str, str] | None:
        """Names of the two models in ``models``; None where there is one."""
        layout = self.terms.layout
        if not layout.compared:
            return None
        return ("a", "b") if layout.halves == 2 else ("global", "personal")

    def models(self, confidence: float = CONFIDENCE) -> dict[str, Measured]:
        """Each evaluated model by its name: "model"; "a" and "b" on their halves; or "global" and "personal".

        Raises:
          ConfigurationError: ``confidence`` is not strictly between 0 and 1.
        """
        names = self.compared or ("model",)
        return {name: self._measured(*place, confidence) for name, place in zip(names, self._places, strict=True)}

    def differences(self, confidence: float = CONFIDENCE) -> dict[str, Estimate]:
        """The second model minus the first, by metric; empty where there is one model.

        The spread of a mean over users is estimated from released squares, and moved up by the standard deviation of
        its noise. That of an AUC is bounded (``curves``). Without an interval of its own, the calibration error has no
        difference.
        """
        if self.compared is None:
            return {}
        differences = {
            scalar.name: self._difference(index, confidence) for index, scalar in enumerate(self.terms.scalars)
        }
        if AUC in self._names:
            first, second = (self._histograms(*place).auc(confidence, sampled=True) for place in self._places)
            # Halves are independent. Two models on the same users may err together.
            joined = math.hypot if self.terms.layout.halves == 2 else operator.add
            differences[AUC] = _minus(second, first, joined, largest=1.0)
        return differences

    def to_json(self, confidence: float = CONFIDENCE) -> dict[str, object]:
        """Plain values."""
        return {
            "contributions": self.contributions,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "confidence": confidence,
            "left_out": self.left_out[ANSWERS].to_json() if self.left_out else UNKNOWN,
            "std": self.std,
            "models": {name: _model_json(model) for name, model in self.models(confidence).items()},
            "differences": {name: vars(estimate) for name, estimate in self.differences(confidence).items()},
        }

    def lines(self, confidence: float, exact: EvaluationResults | None = None) -> Iterator[object]:
        """What a terminal shows."""

        tested = f"tested {self.left_out[ANSWERS].sentence('examples')}" if self.left_out else UNKNOWN
        yield from lines_of_models(self.models(confidence), {} if exact is None else exact.models(confidence), tested)
        if self.compared is not None:
            truths = {} if exact is None else exact.differences(confidence)
            yield from lines_of_differences(self.compared, self.differences(confidence), truths)

    def draw(self, path: str | Path, *, exact: EvaluationResults | None = None, confidence: float = CONFIDENCE) -> None:
        """Saves a picture: curves of each model, or its metrics where there are no histograms.

        Raises:
          DataError: the file cannot be written, or its ending names no format of pictures.
        """
        truths = Drawn({}, {}) if exact is None else Drawn(exact.models(confidence), exact.histograms())
        draw(Drawn(self.models(confidence), self.histograms()), path, exact=truths)

    def histograms(self) -> dict[str, Histograms]:
        """The released histograms of each model by its name; empty without any."""
        names = self.compared or ("model",)
        places = zip(names, self._places, strict=True)
        return {name: self._histograms(*place) for name, place in places} if self.terms.layout.bins else {}

    @property
    def _places(self) -> tuple[tuple[int, int], ...]:
        """(half, model) of each evaluated model."""
        layout = self.terms.layout
        return tuple((half, model) for half in range(layout.halves) for model in range(layout.models))

    def _half(self, half: int) -> Float64Array:
        width = self.terms.layout.width
        return self.sums[half * width : (half + 1) * width]

    def _histograms(self, half: int, model: int) -> Histograms:
        counts = self._half(half)[self.terms.layout.histogram(model)]
        bins = self.terms.layout.bins
        return Histograms(counts[:bins], counts[bins:], self.std)

    def _measured(self, half: int, model: int, confidence: float) -> Measured:
        numbers, layout = self._half(half), self.terms.layout
        users, variance, z = float(numbers[0]), self.std**2, deviations(confidence)
        metrics: dict[str, Estimate] = {}
        for scalar, total in zip(self.terms.scalars, numbers[layout.means(model)].tolist(), strict=True):
            interval = quotient_interval((total, variance), (users, variance), deviations=z)
            metrics[scalar.name] = _in_units(scalar, _quotient(total, users), interval or (-1.0, 1.0))
        calibration = None
        if layout.bins:
            histograms = self._histograms(half, model)
            calibration = histograms.calibration(max(users, 1.0), confidence)
            if AUC in self._names:
                metrics[AUC] = histograms.auc(confidence)
            metrics[CALIBRATION_ERROR] = calibration.error
        reach = z * self.std
        return Measured(Estimate(users, users - reach, users + reach), metrics, calibration)

    def _difference(self, scalar: int, confidence: float) -> Estimate:
        layout, z, variance = self.terms.layout, deviations(confidence), self.std**2
        half_range = self.terms.scalars[scalar].half
        if layout.models == 2:
            numbers = self._half(0)
            first, second = (float(numbers[layout.means(model)][scalar]) for model in range(2))
            users, total = float(numbers[0]), 0.5 * (second - first)
            spread = self._spread(numbers, scalar, total)
            interval = quotient_interval(
                (total, 0.5 * variance + max(users, 0.0) * spread), (users, variance), deviations=z
            )
            value = _quotient(total, users)
            low, high = interval or (-1.0, 1.0)
            return Estimate(
                2.0 * half_range * value,
                2.0 * half_range * min(value, max(low, -1.0)),
                2.0 * half_range * max(value, min(high, 1.0)),
            )
        sides = []
        for half in range(2):
            numbers = self._half(half)
            users, total = float(numbers[0]), float(numbers[layout.means(0)][scalar])
            spread = self._spread(numbers, scalar, total)
            interval = quotient_interval((total, variance + max(users, 0.0) * spread), (users, variance), deviations=z)
            mean = _quotient(total, users)
            low, high = interval or (-1.0, 1.0)
            sides.append(
                Estimate(
                    *(half_range * point for point in (mean, max(-1.0, min(low, mean)), min(1.0, max(high, mean))))
                )
            )
        return _minus(sides[1], sides[0], math.hypot, largest=2.0 * half_range)

    def _spread(self, numbers: Float64Array, scalar: int, total: float) -> float:
        """Variance over users of a number in [-1, 1], from above."""
        users = max(float(numbers[0]), 1e-9)
        mean = _quotient(total, users)
        # The released numbers are halves of squares.
        square = 2.0 * (float(numbers[self.terms.layout.spread][scalar]) + self.std) / users
        return min(max(square - mean**2, 0.0), 1.0 - mean**2)


def _quotient(total: float, users: float) -> float:
    """In [-1, 1]; 0 where no user is left."""
    return min(1.0, max(-1.0, total / users)) if users > 0.0 else 0.0


def _in_units(scalar: Scalar, value: float, interval: tuple[float, float]) -> Estimate:
    low, high = max(-1.0, min(interval[0], value)), min(1.0, max(interval[1], value))
    return Estimate(*(scalar.middle + scalar.half * point for point in (value, low, high)))


def _minus(second: Estimate, first: Estimate, joined: Callable[[float, float], float], *, largest: float) -> Estimate:
    """The difference; all of ``largest`` on both sides where one of the two can be any number."""
    value = second.value - first.value
    if max(second.high - second.low, first.high - first.low) >= largest:
        return Estimate(value, -largest, largest)
    low = value - joined(second.value - second.low, first.high - first.value)
    high = value + joined(second.high - second.value, first.value - first.low)
    return Estimate(value, max(-largest, low), min(largest, high))


def _model_json(model: Measured) -> dict[str, object]:
    groups = () if model.calibration is None else model.calibration.groups
    return {
        "users": vars(model.users),
        "metrics": {name: vars(estimate) for name, estimate in model.metrics.items()},
        "calibration": [vars(group) | {"observed": vars(group.observed)} for group in groups],
    }


def lines_of_models(
    models: Mapping[str, Measured], exact: Mapping[str, Measured], tested: str
) -> Iterator[Table | str]:
    """What rich prints of each model; ``exact`` are a simulation's without noise, or none.

    ``tested`` says how many examples the metrics are about.
    """
    for name, model in models.items():
        truth = exact.get(name)
        table = Table("metric", "value", "from", "to", *([] if truth is None else ["without noise"]))
        table.title = f"{name}: {model.users.value:,.0f} users with examples; {tested}"
        for metric, estimate in model.metrics.items():
            table.add_row(metric, *_cells(estimate), *([] if truth is None else [f"{truth.metrics[metric].value:.4g}"]))
        yield table
        if model.calibration is not None:
            groups = Table("predicted", "share of examples", "observed", "from", "to", title=f"{name}: calibration")
            for group in model.calibration.groups:
                groups.add_row(f"{group.predicted:.3f}", f"{group.share:.1%}", *_cells(group.observed))
            yield groups


def lines_of_differences(
    names: tuple[str, str], differences: Mapping[str, Estimate], exact: Mapping[str, Estimate]
) -> Iterator[Table | str]:
    """What rich prints of the second model minus the first."""
    table = Table("metric", "difference", "from", "to", *(["without noise"] if exact else []))
    table.title = f"{names[1]} minus {names[0]}"
    for metric, estimate in differences.items():
        table.add_row(metric, *_cells(estimate), *([f"{exact[metric].value:.4g}"] if exact else []))
    yield table
    yield "intervals of differences cover the noise and which users took part"


def _cells(estimate: Estimate) -> tuple[str, str, str]:
    return f"{estimate.value:.4g}", f"{estimate.low:.4g}", f"{estimate.high:.4g}"
