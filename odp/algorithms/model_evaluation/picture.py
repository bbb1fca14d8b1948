"""A picture of an evaluation: the ranking and the calibration of each model, or its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odp.algorithms.model_evaluation.curves import Histograms, Measured
from odp.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Drawn:
    """What is drawn, by model; no histograms where none were released, and nothing at all where nothing is known."""

    models: Mapping[str, Measured]
    histograms: Mapping[str, Histograms]


def draw(results: Drawn, path: str | Path, *, exact: Drawn) -> None:
    """Saves the picture; ``exact`` is drawn beside it.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    if results.histograms:
        figure, (ranking, calibration) = style.figure(1, 2, width=10.0, height=4.6)
        _curves(ranking, results, exact)
        _calibration(calibration, results)
        rings = "; dotted: without noise, never released" if exact.histograms else ""
    else:
        figure, (panel,) = style.figure(width=8.0, height=4.0)
        _metrics(panel, results, exact)
        rings = "; rings: without noise, never released" if exact.models else ""
    style.note(figure, f"Released, with noise; thin lines are its intervals{rings}")
    style.save(figure, path, title="evaluation of models")


def _looks(results: Drawn) -> dict[str, style.Look]:
    """The first model in the accent colour, those that it is compared with in grey."""
    looks = (style.OURS, *style.GREYS)
    return {name: looks[place % len(looks)] for place, name in enumerate(results.models or results.histograms)}


def _curves(panel: Axes, results: Drawn, exact: Drawn) -> None:
    looks = _looks(results)
    for name, histograms in results.histograms.items():
        shown = looks.get(name, style.OURS)
        panel.plot(*histograms.curve(), color=shown.colour, linestyle=shown.dashes, linewidth=shown.width)
        if name in exact.histograms:
            panel.plot(*exact.histograms[name].curve(), ":", color=style.LIGHT.ink, linewidth=1.0)
    panel.plot([0, 1], [0, 1], color=style.LIGHT.grid, linewidth=1)
    # Curves meet at both ends, so that their names stand in the empty corner below them.
    for place, name in enumerate(reversed(list(results.histograms))):
        shown = looks.get(name, style.OURS)
        panel.annotate(
            f"{name}{_dash(shown)}", (0.98, 0.04 + 0.08 * place), xycoords="axes fraction", ha="right",
            color=shown.colour, fontsize=style.BODY, fontweight="bold" if shown.ours else "normal",
        )  # fmt: skip
    style.head(panel, "Ranking", "share of examples with the label above a threshold")
    panel.set_xlabel("share of examples without the label above it")


def _dash(shown: style.Look) -> str:
    return "" if shown.dashes == "-" else " (dashed)"


def _calibration(panel: Axes, results: Drawn) -> None:
    panel.plot([0, 1], [0, 1], color=style.LIGHT.muted, linewidth=0.8, linestyle=":")
    looks = _looks(results)
    for name, model in results.models.items():
        if model.calibration is None:
            continue
        shown, groups = looks[name], model.calibration.groups
        places, values = [group.predicted for group in groups], [group.observed.value for group in groups]
        low, high = [group.observed.low for group in groups], [group.observed.high for group in groups]
        style.whiskers(panel, places, values, low, high, colour=shown.colour)
        panel.plot(
            places, values, shown.marker, color=shown.colour, markersize=6,
            markerfacecolor=shown.colour if shown.ours else style.LIGHT.paper, zorder=4,
        )  # fmt: skip
        if groups:
            style.label(panel, values[-1], name, colour=shown.colour, bold=shown.ours)
    style.head(panel, "Calibration", "share that has the label; exact on the dotted line")
    panel.set_xlabel("predicted probability")


def _metrics(panel: Axes, results: Drawn, exact: Drawn) -> None:
    looks, count = _looks(results), max(len(results.models), 1)
    names = list(dict.fromkeys(metric for model in results.models.values() for metric in model.metrics))
    for number, (name, model) in enumerate(results.models.items()):
        shown = looks[name]
        places = [names.index(metric) + 0.5 * ((number + 0.5) / count - 0.5) for metric in model.metrics]
        values = list(model.metrics.values())
        heights = [estimate.value for estimate in values]
        low, high = [estimate.low for estimate in values], [estimate.high for estimate in values]
        style.whiskers(panel, places, heights, low, high, colour=shown.colour)
        panel.plot(
            places, heights, shown.marker, color=shown.colour, markersize=7, zorder=4,
            markerfacecolor=shown.colour if shown.ours else style.LIGHT.paper,
        )  # fmt: skip
        if name in exact.models:
            style.exact_mark(panel, places, [exact.models[name].metrics[metric].value for metric in model.metrics])
        if heights:
            style.label(panel, heights[-1], name, colour=shown.colour, bold=shown.ours)
    panel.set_xticks(range(len(names)), names)
    panel.margins(x=0.15)
    style.head(panel, "Metrics of the models")
