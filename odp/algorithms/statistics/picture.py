"""A picture of released statistics: bars with their intervals, and in a simulation the exact values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.statistics.estimates import HistogramResult, MeanResult
from odp.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
