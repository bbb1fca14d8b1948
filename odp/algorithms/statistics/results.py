"""What a statistics task released, query by query: its estimates by name, as plain values and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from odp import _validate
from odp.algorithms.estimates import CONFIDENCE
from odp.algorithms.statistics.estimates import HistogramResult, MeanResult
from odp.algorithms.statistics.parts import HistogramPart, MeanPart, Part
from odp.algorithms.statistics.picture import draw
from odp.algorithms.statistics.terms import Terms
from odp.errors import ConfigurationError
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array
from odp.v1 import common_pb2


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
        from odp.algorithms.statistics.printing import lines

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
