"""What a task released, as quantiles with intervals for the noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from odp.algorithms.estimates import CONFIDENCE, Estimate, quantile
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array


@dataclass(frozen=True)
class QuantileResults(Mapping[float, Estimate]):
    """The reported quantiles, by their share of the users' records.

    Attributes:
      counts: float64 [bins], what was released: shares of records, summed over users; noise can make one negative.
      std: standard deviation of the noise on each.
      edges: float64 [bins + 1].
      at: what is reported.
      contributions: devices that took part.
      epsilon, delta: what the release cost each of them; epsilon is infinite where there was no noise.
    """

    counts: Float64Array = field(repr=False)
    std: float
    edges: Float64Array = field(repr=False)
    at: tuple[float, ...]
    contributions: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if self.counts.shape != (len(self.edges) - 1,):
            raise ConfigurationError(f"Expected {len(self.edges) - 1} released numbers (got {list(self.counts.shape)})")

    def __getitem__(self, q: float) -> Estimate:
        if q not in self.at:
            raise KeyError(f"q={q!r} is not reported; estimate({q!r}) reads it off the same counts")
        return self.estimate(q)

    def __iter__(self) -> Iterator[float]:
        return iter(self.at)

    def __len__(self) -> int:
        return len(self.at)

    def estimate(self, q: float, confidence: float = CONFIDENCE) -> Estimate:
        """Any quantile, reported or not: it costs no privacy. Raises ConfigurationError where q is not in (0, 1)."""
        return quantile(self.counts, std=self.std, edges=self.edges, q=q, confidence=confidence)

    def to_json(self, confidence: float = CONFIDENCE) -> dict[str, object]:
        """Plain values."""
        estimates = {q: self.estimate(q, confidence) for q in self.at}
        return {
            "contributions": self.contributions,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "confidence": confidence,
            "quantiles": [
                {"at": q, "value": estimate.value, "low": estimate.low, "high": estimate.high}
                for q, estimate in estimates.items()
            ],
            "counts": self.counts.tolist(),
            "edges": self.edges.tolist(),
            "std": self.std,
        }

    def lines(self, confidence: float, exact: QuantileResults | None = None) -> Iterator[object]:
        """What a terminal shows."""
        for q in self.at:
            estimate = self.estimate(q, confidence)
            truth = "" if exact is None else f" (without noise {exact[q].value:.4g})"
            yield f"quantile {q:g}: {estimate.value:.4g}, from {estimate.low:.4g} to {estimate.high:.4g}{truth}"

    def draw(self, path: str | Path, *, exact: QuantileResults | None = None, confidence: float = CONFIDENCE) -> None:
        """Saves a picture: each quantile with its interval, and ``exact`` beside it.

        Raises:
          DataError: the file cannot be written, or its ending names no format of pictures.
        """
        from odp.pictures import style

        estimates = [self.estimate(q, confidence) for q in self.at]
        values = [at_quantile.value for at_quantile in estimates]
        figure, (panel,) = style.figure(height=1.6 + 0.4 * len(estimates))
        places = range(len(estimates))
        style.whiskers(
            panel,
            values,
            places,
            [at_quantile.low for at_quantile in estimates],
            [at_quantile.high for at_quantile in estimates],
            along="x",
        )
        panel.plot(values, places, "o", color=style.LIGHT.accent, markersize=7)
        if exact is not None:
            style.exact_mark(panel, [exact[q].value for q in self.at], places)
        panel.set_yticks(places, [f"{100 * q:g} % of records below" for q in self.at])
        panel.margins(y=0.2)
        panel.grid(visible=True, axis="x")
        for place, estimate in zip(places, estimates, strict=True):
            style.label(panel, place, f"{estimate.value:.4g}", colour=style.LIGHT.accent, bold=True)
        panel.set_xlim(float(self.edges[0]), float(self.edges[-1]))
        panel.set_xlabel("value")
        style.note(figure, style.marks(confidence, exact=exact is not None))
        style.save(figure, path, title="quantiles")
