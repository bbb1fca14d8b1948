"""Released statistics on a terminal: a table per histogram, a line per mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from rich.markup import escape
from rich.table import Table

from odp.algorithms.statistics.estimates import HistogramResult, MeanResult
from odp.models.left_out import LeftOut

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
