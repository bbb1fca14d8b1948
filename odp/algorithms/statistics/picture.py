"""A picture of released statistics: bars with their intervals, and in a simulation the exact values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odp.algorithms.statistics.estimates import HistogramResult, MeanResult
from odp.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 400
_UNITS = {"users": "users", "records": "records", "shares": "users, by share of their records"}
_BAR, _MARK, _EXACT = "#4c8bbf", "#1b3a57", "#d1495b"


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
    from matplotlib.figure import Figure

    heights = [3.2 if isinstance(found, HistogramResult) else 1.4 for found in results.values()]
    figure = Figure(figsize=(8.0, sum(heights) + 0.4), layout="constrained")
    panels = figure.subplots(len(results), squeeze=False, height_ratios=heights)[:, 0]
    for panel, name in zip(panels, results, strict=True):
        found, known = results[name], exact.get(name)
        if isinstance(found, HistogramResult):
            _bars(panel, found, known if isinstance(known, HistogramResult) else None, confidence)
        else:
            _point(panel, found, known if isinstance(known, MeanResult) else None, confidence)
        panel.set_title(name, loc="left", fontweight="bold")
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize="medium")
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot draw {path}: {error}; give a file that ends in .png, .svg or .pdf") from error


def _bars(panel: Axes, found: HistogramResult, known: HistogramResult | None, confidence: float) -> None:
    low, high = found.interval(confidence)
    shown = np.arange(len(found.counts))
    if len(shown) > _MOST_BARS:
        shown = np.sort(np.argsort(-found.counts, kind="stable")[:_MOST_BARS])
    if found.edges is None:
        place, width = np.arange(len(shown), dtype=np.float64), np.full(len(shown), 0.8)
        if len(shown) == len(found.counts):
            panel.set_xlabel("item")
        else:
            panel.set_xlabel(f"the {len(shown)} largest of {len(found.counts):,} items, in order of number")
    else:
        place = 0.5 * (found.edges[:-1] + found.edges[1:])[shown]
        width = 0.9 * np.diff(found.edges)[shown]
        panel.set_xlabel("value")
    error: Any = np.vstack([found.counts - low, high - found.counts])[:, shown]
    style: dict[str, Any] = {"color": _BAR, "ecolor": _MARK, "capsize": 2 if len(shown) <= 60 else 0}
    panel.bar(place, found.counts[shown], width, yerr=error, label="released, with noise", **style)
    if known is not None:
        panel.plot(place, known.counts[shown], "o", color=_EXACT, markersize=3, label="without noise (never released)")
        panel.legend(frameon=False, fontsize="small")
    panel.set_ylabel(_UNITS[found.counting])


def _point(panel: Axes, found: MeanResult, known: MeanResult | None, confidence: float) -> None:
    low, high = found.interval(confidence)
    value = found.value
    error: Any = [[max(0.0, value - low)], [max(0.0, high - value)]]
    panel.errorbar([value], [0.0], xerr=error, fmt="o", color=_MARK, capsize=4, label=f"released: {value:.4g}")
    if known is not None:
        panel.axvline(known.value, color=_EXACT, label=f"without noise: {known.value:.4g}")
    panel.set_xlim(found.low, found.high)
    panel.set_yticks([])
    panel.set_xlabel("mean value, over its declared range")
    panel.legend(frameon=False, fontsize="small")
