"""Tables and figure of ``odp.research.reproductions.privunit``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from odp.pictures import style
from odp.research.reproductions.privunit import DIMENSION, NORM, ONE_PERCENT, WITHOUT, Logistic, Result

if TYPE_CHECKING:
    from rich.table import Table

_BESIDE = 0.17  # of a box, from its epsilon: in units of a place


def claims_of(result: Result) -> Table:
    """Rows of (claim, published, here, whether it holds), for a terminal."""
    from rich.table import Table

    seeds = f"seeds {result.seeds[0]} to {result.seeds[-1]}"
    table = Table("claim", "published", "here", "", title=f"PrivUnit, {seeds}")
    for claim in result.claims():
        table.add_row(claim.statement, claim.published, claim.here, "holds" if claim.holds else "does not hold")
    return table


def table_of(result: Result) -> Table:
    """Rows of (mechanism, error, least and largest of the seeds, rate), for a terminal."""
    from rich.table import Table

    title = f"logistic regression, d = {DIMENSION}, {result.steps[-1]:,} people: error of the mean parameters"
    table = Table("mechanism", "ε of a direction", "error", "least, largest", "rate", title=title)
    for line in result.logistic:
        table.add_row(
            line.rule, _epsilon(line.epsilon), f"{line.mean:.4f}", f"{min(line.final):.4f}, {max(line.final):.4f}",
            f"{line.rate:g}",
        )  # fmt: skip
    return table


def pictures_of(result: Result) -> Table:
    """Rows of (epsilon of a direction, of a report, central epsilon, accuracy) on MNIST, for a terminal."""
    from rich.table import Table

    table = Table("ε of a direction", "ε of a report", "central ε", "test accuracy", title="MNIST, 60,000 people")
    for run in result.mnist:
        table.add_row(_epsilon(run.direction), f"{run.local:.4g}", f"{run.central:.3g}", f"{run.accuracy:.4f}")
    return table


def draw(path: Path, result: Result) -> None:
    """Writes the picture: error by people, boxes of the final errors by epsilon, accuracy on MNIST by epsilon."""
    pictures = bool(result.mnist)
    figure, (left, middle, *rest) = style.figure(1, 2 + pictures, width=17 if pictures else 12.5, height=4.6)
    epsilons = _places(result)
    for line in result.logistic:
        shown = _look(line, epsilons)
        left.plot(result.steps, line.curve, color=shown.colour, linestyle=shown.dashes, linewidth=shown.width)
        style.label(left, line.curve[-1], _name(line), colour=shown.colour, bold=shown.ours)
    style.level(left, NORM, style.GREYS[3], text="zeros")
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.locator_params(axis="x", nbins=5)
    left.set(xlabel="people", ylim=(min(min(fitted.curve) for fitted in result.logistic) - 0.5, 1.15 * NORM))
    style.head(left, "Mean of all seeds", "error of the mean parameters")
    for line in result.logistic:
        if line.rule == WITHOUT:
            style.level(middle, line.mean, style.GREYS[1], text=WITHOUT)
            continue
        published = line.rule == ONE_PERCENT
        place = epsilons.index(line.epsilon) + (_BESIDE if published else -_BESIDE)
        shown = style.GREYS[0] if published else style.OURS
        style.whiskers(middle, [place], [line.mean], [min(line.final)], [max(line.final)], colour=shown.colour)
        middle.plot([place], [line.mean], shown.marker, color=shown.colour, markersize=6, zorder=4)
        if line.epsilon == epsilons[-1]:
            name = ONE_PERCENT if published else "exact cap"
            style.label(middle, line.mean, name, colour=shown.colour, bold=shown.ours)
    style.level(middle, NORM, style.GREYS[3], text="zeros")
    middle.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
    middle.set_xlabel("ε of a direction")
    style.head(middle, "Final error", f"mean of {len(result.seeds)} seeds, from the least to the largest")
    for axes in rest:
        finite = [run for run in result.mnist if math.isfinite(run.direction)]
        style.line(axes, [run.direction for run in finite], [run.accuracy for run in finite], style.OURS)
        axes.set(xscale="log", xlabel="ε of a direction")
        style.head(axes, "MNIST", f"test accuracy, central ε = {result.mnist[0].central:.3g} too")
    style.save(figure, path, title="error by people and by ε of a direction")


def _look(line: Logistic, epsilons: list[float]) -> style.Look:
    if line.rule == WITHOUT:
        return style.GREYS[1]
    if line.rule != ONE_PERCENT and line.epsilon == epsilons[-1]:
        return style.OURS
    return style.GREYS[3] if line.rule == ONE_PERCENT else style.GREYS[0]


def _places(result: Result) -> list[float]:
    return sorted({line.epsilon for line in result.logistic if line.rule != WITHOUT})


def _name(line: Logistic) -> str:
    return WITHOUT if line.rule == WITHOUT else f"{line.rule}, ε = {line.epsilon:g}"


def _epsilon(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "none"
