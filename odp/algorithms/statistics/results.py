"""What a statistics task released, query by query: its estimates by name, as plain values and as a picture.

Released histograms and means in the units of the question, with intervals for what the noise did to them.

The noise's law is public, so an interval costs no privacy. It covers the noise alone: the devices that contributed are
counted as they are, not as a sample of others, and what a clip cut off is not in it. Each interval holds for its own
number.

Released statistics on a terminal: a table per histogram, a line per mean.

A picture of released statistics: bars with their intervals, and in a simulation the exact values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape
from rich.table import Table

from odp import _validate
from odp.algorithms.estimates import CONFIDENCE, Estimate, deviations, quantile, quotient_interval
from odp.algorithms.statistics.parts import HistogramPart, MeanPart, Part
from odp.algorithms.statistics.terms import Terms
from odp.errors import ConfigurationError
from odp.identity import normal
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array
from odp.pictures import style
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class HistogramResult:
    """A released histogram.

    Attributes:
      counts: float64 [bins], unbiased: noise can make a small count negative.
      std: standard deviation of the noise on each count, of all or float64 [bins].
      edges: float64 [bins + 1] of values, None of items.
      counting: "users", "records" or "shares".
      sum_std: float64 [bins] for sums of counts, as of independent noise, where the noise of counts is correlated: the
        variance of any sum with weights w is at most that of (w sum_std)^2. None where it is not.
      labels: that the question gave to the bins; () for none.
    """

    counts: Float64Array
    std: float | Float64Array
    edges: Float64Array | None
    counting: str
    sum_std: Float64Array | None = None
    labels: tuple[str, ...] = ()

    def name(self, bin: int) -> str:
        """What people call a bin: its label, its range of values, or the id of its item."""
        if self.labels:
            return self.labels[bin]
        return str(bin) if self.edges is None else f"{self.edges[bin]:g} .. {self.edges[bin + 1]:g}"

    def count(self, label: str) -> float:
        """The count of the bin with this label. Raises ConfigurationError where there is none."""
        if not self.labels:
            raise ConfigurationError(
                f"Expected a histogram with labels for label={label!r}: this one has none, and its counts are by place"
            )
        spelled = normal(label) if isinstance(label, str) else label
        _validate.one_of(self.labels, label=spelled)
        return float(self.counts[self.labels.index(spelled)])

    def interval(self, confidence: float = CONFIDENCE) -> tuple[Float64Array, Float64Array]:
        """(low, high), float64 [bins] each."""
        reach = deviations(confidence) * self.std
        return self.counts - reach, self.counts + reach

    def quantile(self, q: float, confidence: float = CONFIDENCE) -> Estimate:
        """The value below which a share ``q`` of what was counted lies, interpolated within its bin.

        The interval ends at edges: those of which the noise leaves open on which side they lie, all at once.

        Raises:
          ConfigurationError: ``q`` or ``confidence`` is not strictly between 0 and 1, or the bins are of items.
        """
        if self.edges is None:
            raise ConfigurationError("Expected a histogram of values for a quantile: items have no order")
        std = self.std if self.sum_std is None else self.sum_std
        return quantile(self.counts, std=std, edges=self.edges, q=q, confidence=confidence)


@dataclass(frozen=True)
class MeanResult:
    """A released mean, as the quotient of two noisy sums.

    Attributes:
      total: sum of weight * mean over users, moved and scaled so that [low, high] became [-1, 1].
      weight: sum of the users' weights.
      std: standard deviation of the noise on ``total``, and on ``weight`` unless ``weight_std`` says otherwise.
      low, high: the declared range; every estimate lies within it.
      weight_std: standard deviation of the noise on ``weight``; None where it is ``std``.
      covariance: of the noise on both.
    """

    total: float
    weight: float
    std: float
    low: float
    high: float
    weight_std: float | None = None
    covariance: float = 0.0

    @property
    def value(self) -> float:
        """The estimate; the middle of the range where the noisy weight is not positive."""
        return self._real(self.total / self.weight if self.weight > 0 else 0.0)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """(low, high): exact for any weight; the whole range where the noise hides whether there was any."""
        variance = self.std**2
        of_weight = variance if self.weight_std is None else self.weight_std**2
        interval = quotient_interval(
            (self.total, variance), (self.weight, of_weight), deviations=deviations(confidence),
            covariance=self.covariance,
        )  # fmt: skip
        return (self.low, self.high) if interval is None else (self._real(interval[0]), self._real(interval[1]))

    def _real(self, quotient: float) -> float:
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        return middle + half * min(1.0, max(-1.0, quotient))


_MOST_BARS = 400
_MOST_NAMED = 40
#: Characters that fit side by side below a panel.
_FLAT_CHARACTERS = 90
_UNITS = {"users": "users", "records": "records", "shares": "users, by share of their records"}


def draw(
    results: Mapping[str, HistogramResult | MeanResult],
    path: Path,
    *,
    title: str,
    exact: Mapping[str, HistogramResult | MeanResult],
    confidence: float,
) -> None:
    """Saves one panel per query, with ``exact`` beside it where it is known.

    Of a histogram of more than 400 bins, only the 400 largest are drawn.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    heights = [3.2 if isinstance(answer, HistogramResult) else 1.3 for answer in results.values()]
    figure, panels = style.figure(len(results), height=sum(heights) + 0.6, height_ratios=heights)
    for panel, name in zip(panels, results, strict=True):
        result, truth = results[name], exact.get(name)
        if isinstance(result, HistogramResult):
            style.head(panel, name, _UNITS[result.counting])
            _bars(panel, result, truth if isinstance(truth, HistogramResult) else None, confidence)
        else:
            _point(panel, name, result, truth if isinstance(truth, MeanResult) else None, confidence)
    style.note(figure, f"{title}\n{style.marks(confidence, exact=bool(exact))}")
    style.save(figure, path, title=title)


def _bars(panel: Axes, result: HistogramResult, exact: HistogramResult | None, confidence: float) -> None:
    low, high = result.interval(confidence)
    shown = np.arange(len(result.counts))
    if len(shown) > _MOST_BARS:
        shown = np.sort(np.argsort(-result.counts, kind="stable")[:_MOST_BARS])
    if result.edges is None:
        place, width = np.arange(len(shown), dtype=np.float64), np.full(len(shown), 0.8)
        if len(shown) == len(result.counts):
            panel.set_xlabel("item")
        else:
            panel.set_xlabel(f"the {len(shown)} largest of {len(result.counts):,} items, in order of number")
    else:
        place = 0.5 * (result.edges[:-1] + result.edges[1:])[shown]
        width = 0.9 * np.diff(result.edges)[shown]
        panel.set_xlabel("value")
    if result.labels and len(shown) <= _MOST_NAMED:
        names = [result.name(bin) for bin in shown.tolist()]
        turned = 45 if len(names) * max(map(len, names)) > _FLAT_CHARACTERS else 0
        panel.set_xticks(
            place, names, rotation=turned, ha="right" if turned else "center", parse_math=False
        )  # a label may have dollar signs
    panel.bar(place, result.counts[shown], width, color=style.LIGHT.soft)
    style.whiskers(panel, place, result.counts[shown], low[shown], high[shown])
    panel.axhline(0.0, color=style.LIGHT.muted, linewidth=0.8)
    panel.spines["bottom"].set_visible(False)
    if exact is not None:
        style.exact_mark(panel, place, exact.counts[shown])


def _point(panel: Axes, name: str, result: MeanResult, exact: MeanResult | None, confidence: float) -> None:
    low, high = result.interval(confidence)
    value = result.value
    style.whiskers(panel, [value], [0.0], [max(low, result.low)], [min(high, result.high)], along="x")
    panel.plot([value], [0.0], "o", color=style.LIGHT.accent, markersize=8)
    truth = "" if exact is None else f"; without noise {exact.value:.4g}"
    style.head(panel, f"{name}: {value:.4g}", f"mean value, from {low:.4g} to {high:.4g}{truth}")
    if exact is not None:
        style.exact_mark(panel, [exact.value], [0.0])
    panel.set_xlim(result.low, result.high)
    panel.set_yticks([])


@dataclass(frozen=True)
class Results(Mapping[str, HistogramResult | MeanResult]):
    """What one statistics task released, by the names of its queries, in their order.

    Attributes:
      contributions: devices that took part.
      epsilon, delta: what the joint release cost each of them; epsilon is infinite where there was no noise.
      left_out: of a simulation, by the name of a query, the rows that it is not about; empty of devices.
    """

    queries: Mapping[str, HistogramResult | MeanResult] = field(repr=False)
    contributions: int
    epsilon: float
    delta: float
    left_out: Mapping[str, LeftOut] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> HistogramResult | MeanResult:
        _validate.one_of(self.queries, query=name)
        return self.queries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.queries)

    def __len__(self) -> int:
        return len(self.queries)

    def histogram(self, name: str) -> HistogramResult:
        """The histogram ``name``. Raises ConfigurationError where there is none."""
        result = self[name]
        if not isinstance(result, HistogramResult):
            raise ConfigurationError(f"Expected query {name!r} to be a histogram: it is a mean")
        return result

    def mean(self, name: str) -> MeanResult:
        """The mean ``name``. Raises ConfigurationError where there is none."""
        result = self[name]
        if not isinstance(result, MeanResult):
            raise ConfigurationError(f"Expected query {name!r} to be a mean: it is a histogram")
        return result

    def draw(self, path: str | Path, *, exact: Results | None = None, confidence: float = CONFIDENCE) -> None:
        """Saves a picture, one panel per query; ``exact`` are a simulation's answers without noise.

        Raises:
          DataError: the file cannot be written, or its ending names no format of pictures.
        """
        cost = f"ε = {self.epsilon:.3g}" if math.isfinite(self.epsilon) else "no noise"
        title = f"{self.contributions:,} devices, {cost}, δ = {self.delta:g}; intervals at {confidence:.0%}"
        draw(self, Path(path), title=title, exact=exact or {}, confidence=confidence)

    def lines(self, confidence: float, exact: Results | None = None) -> Iterator[object]:
        """What a terminal shows."""

        return lines(self, exact, confidence, self.left_out)

    def to_json(self, confidence: float = CONFIDENCE) -> dict[str, object]:
        """Plain values."""
        return {
            "contributions": self.contributions,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "confidence": confidence,
            "queries": {name: _plain(result, confidence) for name, result in self.queries.items()},
            **({"left_out": {name: rows.to_json() for name, rows in self.left_out.items()}} if self.left_out else {}),
        }


def results_of(
    definition: common_pb2.TaskDefinition,
    released: Float64Array,
    *,
    contributions: int,
    epsilon: float,
    noisy: bool = True,
) -> Results:
    """The answers in what a statistics task released, float64 [size]; without noise, intervals have no width.

    Raises:
      ConfigurationError: the definition is no valid statistics task, or ``released`` has another size.
    """
    terms = Terms.of(definition)
    if released.shape != (terms.grid.size,):
        raise ConfigurationError(f"Expected {terms.grid.size} released numbers (got {list(released.shape)})")
    std = terms.grid.std_of(contributions) if noisy else 0.0
    results = {part.name: _result(part, released[part.place] / part.scale, std / part.scale) for part in terms.parts}
    return Results(results, contributions, epsilon, definition.privacy.delta)


def _result(part: Part, values: Float64Array, std: float) -> HistogramResult | MeanResult:
    if isinstance(part.kind, MeanPart):
        return MeanResult(float(values[0]), float(values[1]), std, part.kind.low, part.kind.high)
    kind: HistogramPart = part.kind
    return HistogramResult(values, std, kind.edges, kind.counting, labels=kind.labels)


def _plain(result: HistogramResult | MeanResult, confidence: float) -> dict[str, object]:
    low, high = result.interval(confidence)
    if isinstance(result, MeanResult):
        return {"kind": "mean", "value": result.value, "low": low, "high": high, "weight": result.weight}
    return {
        "kind": "histogram",
        "counting": result.counting,
        "counts": result.counts.tolist(),
        "low": np.asarray(low).tolist(),
        "high": np.asarray(high).tolist(),
        "std": result.std if isinstance(result.std, float) else result.std.tolist(),
        "edges": None if result.edges is None else result.edges.tolist(),
        "labels": list(result.labels) or None,
    }


_MOST_ROWS = 40


def lines(
    results: Mapping[str, HistogramResult | MeanResult],
    exact: Mapping[str, HistogramResult | MeanResult] | None,
    confidence: float,
    left_out: Mapping[str, LeftOut],
) -> Iterator[Table | str]:
    """What rich prints; of a simulation, ``exact`` are answers without noise, and ``left_out`` rows of no bin."""
    for name, result in results.items():
        exact_result = None if exact is None else exact[name]
        if isinstance(result, HistogramResult):
            shown = _histogram(
                name, result, exact_result if isinstance(exact_result, HistogramResult) else None, confidence
            )
            if name in left_out and left_out[name].count:
                shown.title = f"{shown.title}; {left_out[name].sentence('ratings')}"
            yield shown
            continue
        low, high = result.interval(confidence)
        truth = (
            ""
            if exact_result is None or isinstance(exact_result, HistogramResult)
            else f" (without noise {exact_result.value:.4g})"
        )
        yield f"[bold]{name}[/bold]: mean {result.value:.4g}, from {low:.4g} to {high:.4g}{truth}"


def _histogram(name: str, result: HistogramResult, exact: HistogramResult | None, confidence: float) -> Table:
    low, high = result.interval(confidence)
    shown = np.arange(len(result.counts))
    title = f"{name}: {result.counting} per bin"
    if len(shown) > _MOST_ROWS:
        shown = np.argsort(-result.counts, kind="stable")[:_MOST_ROWS]
        title += f", the {_MOST_ROWS} largest of {len(result.counts):,}"
    table = Table("bin", "count", "from", "to", *([] if exact is None else ["without noise"]), title=title)
    for bin in shown.tolist():
        row = [escape(result.name(bin)), f"{result.counts[bin]:.1f}", f"{low[bin]:.1f}", f"{high[bin]:.1f}"]
        table.add_row(*row, *([] if exact is None else [f"{exact.counts[bin]:.1f}"]))
    return table
