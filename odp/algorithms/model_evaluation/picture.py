"""A picture of an evaluation: the ranking and the calibration of each model, or its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odp.algorithms.model_evaluation.curves import Histograms, Measured
from odp.errors import DataError


@dataclass(frozen=True)
class Drawn:
    """What is drawn, by model; no histograms where none were released, and nothing at all where nothing is known."""

    models: Mapping[str, Measured]
    histograms: Mapping[str, Histograms]


def draw(found: Drawn, path: str | Path, *, exact: Drawn) -> None:
    """Saves the picture; ``exact`` is drawn beside it.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    if found.histograms:
        ranking, calibration = figure.subplots(1, 2)
        _curves(ranking, found, exact)
        _calibration(calibration, found)
    else:
        _metrics(figure.subplots(), found, exact)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as problem:
        raise DataError(f"cannot draw {path}: {problem}; give a file that ends in .png, .svg or .pdf") from problem


def _curves(panel: Any, found: Drawn, exact: Drawn) -> None:
    for name, histograms in found.histograms.items():
        panel.plot(*histograms.curve(), label=name)
    for name, histograms in exact.histograms.items():
        panel.plot(*histograms.curve(), ":", label=f"{name}, without noise (never released)")
    panel.set_xlabel("share of examples without the label above a threshold")
    panel.set_ylabel("share of examples with the label")
    panel.legend(frameon=False, fontsize="small")


def _calibration(panel: Any, found: Drawn) -> None:
    for name, model in found.models.items():
        if model.calibration is None:
            continue
        groups = model.calibration.groups
        values = [group.observed.value for group in groups]
        error = [
            [group.observed.value - group.observed.low for group in groups],
            [group.observed.high - group.observed.value for group in groups],
        ]
        panel.errorbar([group.predicted for group in groups], values, yerr=error, fmt="o", capsize=3, label=name)
    panel.plot([0, 1], [0, 1], "k:", linewidth=1)
    panel.set_xlabel("predicted probability")
    panel.set_ylabel("share that has the label")
    panel.legend(frameon=False, fontsize="small")


def _metrics(panel: Any, found: Drawn, exact: Drawn) -> None:
    for name, model in found.models.items():
        names, values = list(model.metrics), list(model.metrics.values())
        error = [[one.value - one.low for one in values], [one.high - one.value for one in values]]
        panel.errorbar(names, [one.value for one in values], yerr=error, fmt="o", capsize=4, label=name)
        if name in exact.models:
            known = [exact.models[name].metrics[metric].value for metric in names]
            panel.plot(names, known, "x", label=f"{name}, without noise (never released)")
    panel.legend(frameon=False, fontsize="small")
