"""Released statistics in the units of the question, with intervals for what the noise did to them.

The noise's law is public, so an interval costs no privacy. It covers the noise alone: the devices that contributed are
counted as they are, not as a sample of others, and what a clip cut off is not in it. Each interval holds for its own
number.

Source for the quotient: Fieller 1954, "Some problems in interval estimation".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np

from odp import _validate
from odp.algorithms.seam import Float64Array
from odp.algorithms.statistics.terms import HistogramPart, MeanPart, Part, Terms
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and the interval that contains what was there without noise, at the confidence asked for."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class HistogramResult:
    """A released histogram.

    Attributes:
      counts: float64 [bins], unbiased: noise can make a small count negative.
      std: standard deviation of the noise on each count.
      edges: float64 [bins + 1] of values, None of items.
      counting: "users", "records" or "shares".
    """

    counts: Float64Array
    std: float
    edges: Float64Array | None
    counting: str

    def interval(self, confidence: float = CONFIDENCE) -> tuple[Float64Array, Float64Array]:
        """(low, high), float64 [bins] each."""
        reach = _deviations(confidence) * self.std
        return self.counts - reach, self.counts + reach

    def quantile(self, q: float, confidence: float = CONFIDENCE) -> Estimate:
        """The value below which a share ``q`` of what was counted lies, interpolated within its bin.

        The interval ends at edges: those of which the noise leaves open on which side they lie, all at once.

        Raises:
          ConfigurationError: ``q`` or ``confidence`` is not strictly between 0 and 1, or the bins are of items.
        """
        if self.edges is None:
            raise ConfigurationError("Expected a histogram of values for a quantile: items have no order")
        if not 0.0 < q < 1.0:
            raise ConfigurationError(f"Expected q={q!r} to be strictly between 0 and 1")
        bins = len(self.counts)
        # At edge j: (1 - q) * what lies below - q * what lies above; positive where the quantile is below the edge.
        below = np.concatenate([[0.0], np.cumsum(self.counts)])
        balance = below - q * below[-1]
        at = np.arange(bins + 1)
        noise = self.std * np.sqrt(at * (1.0 - q) ** 2 + (bins - at) * q**2)
        reach = _deviations(1.0 - (1.0 - confidence) / (bins + 1)) * noise
        surely_above, surely_below = np.flatnonzero(balance < -reach), np.flatnonzero(balance > reach)
        low = self.edges[surely_above[-1]] if len(surely_above) else self.edges[0]
        high = self.edges[surely_below[0]] if len(surely_below) else self.edges[-1]
        cumulative = np.concatenate([[0.0], np.cumsum(np.maximum(self.counts, 0.0))])
        if cumulative[-1] == 0.0:
            value = float(0.5 * (self.edges[0] + self.edges[-1]))
        else:
            bin = min(int(np.searchsorted(cumulative, q * cumulative[-1], side="left")), bins) - 1
            bin = max(bin, 0)
            inside = (q * cumulative[-1] - cumulative[bin]) / max(cumulative[bin + 1] - cumulative[bin], 1e-300)
            value = float(self.edges[bin] + inside * (self.edges[bin + 1] - self.edges[bin]))
        return Estimate(value, float(min(low, value)), float(max(high, value)))


@dataclass(frozen=True)
class MeanResult:
    """A released mean, as the quotient of two noisy sums.

    Attributes:
      total: sum of weight * mean over users, moved and scaled so that [low, high] became [-1, 1].
      weight: sum of the users' weights.
      std: standard deviation of the noise on both.
      low, high: the declared range; every estimate lies within it.
    """

    total: float
    weight: float
    std: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """The estimate; the middle of the range where the noisy weight is not positive."""
        return self._real(self.total / self.weight if self.weight > 0 else 0.0)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """(low, high): exact for any weight; the whole range where the noise hides whether there was any."""
        # Every quotient r for which |total - r weight| is within the noise of that difference (Fieller).
        square = (_deviations(confidence) * self.std) ** 2
        a, b, c = self.weight**2 - square, self.total * self.weight, self.total**2 - square
        if a <= 0 or self.weight <= 0:
            return self.low, self.high
        reach = math.sqrt(max(b * b - a * c, 0.0))
        return self._real((b - reach) / a), self._real((b + reach) / a)

    def _real(self, quotient: float) -> float:
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        return middle + half * min(1.0, max(-1.0, quotient))


@dataclass(frozen=True)
class Results(Mapping[str, "HistogramResult | MeanResult"]):
    """What one statistics task released, by the names of its queries, in their order.

    Attributes:
      contributions: devices that took part.
      epsilon, delta: what the joint release cost each of them; epsilon is infinite where there was no noise.
    """

    queries: Mapping[str, HistogramResult | MeanResult] = field(repr=False)
    contributions: int
    epsilon: float
    delta: float

    def __getitem__(self, name: str) -> HistogramResult | MeanResult:
        _validate.one_of(self.queries, query=name)
        return self.queries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.queries)

    def __len__(self) -> int:
        return len(self.queries)

    def histogram(self, name: str) -> HistogramResult:
        """The histogram ``name``. Raises ConfigurationError where there is none."""
        found = self[name]
        if not isinstance(found, HistogramResult):
            raise ConfigurationError(f"Expected query {name!r} to be a histogram: it is a mean")
        return found

    def mean(self, name: str) -> MeanResult:
        """The mean ``name``. Raises ConfigurationError where there is none."""
        found = self[name]
        if not isinstance(found, MeanResult):
            raise ConfigurationError(f"Expected query {name!r} to be a mean: it is a histogram")
        return found

    def draw(self, path: str | Path, *, exact: Results | None = None, confidence: float = CONFIDENCE) -> None:
        """Saves a picture, one panel per query; ``exact`` is what a simulation knows to have been there.

        Raises:
          DataError: the file cannot be written, or its ending names no format of pictures.
        """
        from odp.algorithms.statistics.picture import draw

        draw(self, Path(path), exact=exact, confidence=confidence)

    def to_json(self, confidence: float = CONFIDENCE) -> dict[str, object]:
        """Plain values."""
        return {
            "contributions": self.contributions,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "confidence": confidence,
            "queries": {name: _plain(found, confidence) for name, found in self.queries.items()},
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
    std = terms.grid.noise_std if noisy else 0.0
    if terms.grid.sharers:
        # Every contribution brings a share; ``noise_std`` is of the fewest honest ones.
        std *= math.sqrt(max(1.0, contributions / terms.grid.sharers))
    found = {part.name: _result(part, released[part.place] / part.scale, std / part.scale) for part in terms.parts}
    return Results(found, contributions, epsilon, definition.privacy.delta)


def _result(part: Part, values: Float64Array, std: float) -> HistogramResult | MeanResult:
    if isinstance(part.kind, MeanPart):
        return MeanResult(float(values[0]), float(values[1]), std, part.kind.low, part.kind.high)
    kind: HistogramPart = part.kind
    return HistogramResult(values, std, kind.edges, kind.counting)


def _plain(found: HistogramResult | MeanResult, confidence: float) -> dict[str, object]:
    low, high = found.interval(confidence)
    if isinstance(found, MeanResult):
        return {"kind": "mean", "value": found.value, "low": low, "high": high, "weight": found.weight}
    return {
        "kind": "histogram",
        "counting": found.counting,
        "counts": found.counts.tolist(),
        "low": np.asarray(low).tolist(),
        "high": np.asarray(high).tolist(),
        "std": found.std,
        "edges": None if found.edges is None else found.edges.tolist(),
    }


def _deviations(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ConfigurationError(f"Expected confidence={confidence!r} to be strictly between 0 and 1")
    return NormalDist().inv_cdf(0.5 + 0.5 * confidence)
