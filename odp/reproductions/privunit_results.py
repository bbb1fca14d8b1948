"""Tables and figure of ``odp.reproductions.privunit``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from odp.reproductions.privunit import DIMENSION, NORM, ONE_PERCENT, WITHOUT, Logistic, Result

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
    for one in result.logistic:
        table.add_row(
            one.rule, _epsilon(one.epsilon), f"{one.mean:.4f}", f"{min(one.final):.4f}, {max(one.final):.4f}",
            f"{one.rate:g}",
        )  # fmt: skip
    return table


def pictures_of(result: Result) -> Table:
    """Rows of (epsilon of a direction, of a report, central epsilon, accuracy) on MNIST, for a terminal."""
    from rich.table import Table

    table = Table("ε of a direction", "ε of a report", "central ε", "test accuracy", title="MNIST, 60,000 people")
    for one in result.mnist:
        table.add_row(_epsilon(one.direction), f"{one.local:.4g}", f"{one.central:.3g}", f"{one.accuracy:.4f}")
    return table


def draw(path: Path, result: Result) -> None:
    """Writes the picture: error by people, boxes of the final errors by epsilon, accuracy on MNIST by epsilon."""
    from matplotlib.figure import Figure

    pictures = bool(result.mnist)
    figure = Figure(figsize=(13 if pictures else 9, 3.8), layout="constrained")
    left, middle, *rest = figure.subplots(1, 2 + pictures)
    for one in result.logistic:
        dashed = "--" if one.rule == ONE_PERCENT else "-"
        colour = "k" if one.rule == WITHOUT else f"C{_places(result).index(one.epsilon)}"
        left.plot(result.steps, one.curve, dashed, color=colour, linewidth=1.4, label=_name(one))
    left.axhline(NORM, color="0.6", linewidth=0.8)
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.locator_params(axis="x", nbins=5)
    left.set(
        xlabel="people",
        ylabel="error of the mean parameters",
        ylim=(min(min(one.curve) for one in result.logistic) - 0.5, 1.15 * NORM),
        title="mean of all seeds",
    )
    left.legend(fontsize=6, ncol=2)
    epsilons = _places(result)
    for one in result.logistic:
        if one.rule == WITHOUT:
            middle.axhline(one.mean, color="k", linewidth=0.8, label=WITHOUT)
            continue
        published = one.rule == ONE_PERCENT
        place = epsilons.index(one.epsilon) + (_BESIDE if published else -_BESIDE)
        colour = "C1" if published else "C0"
        middle.boxplot([one.final], positions=[place], widths=0.28, manage_ticks=False,
                       boxprops={"color": colour}, medianprops={"color": colour})  # fmt: skip
    for colour, rule in (("C0", "exact cap"), ("C1", ONE_PERCENT)):
        middle.plot([], [], color=colour, label=rule)
    middle.axhline(NORM, color="0.6", linewidth=0.8, label="zeros")
    middle.set_xticks(range(len(epsilons)), [f"{one:g}" for one in epsilons])
    middle.set(xlabel="ε of a direction", ylabel="final error", title=f"{len(result.seeds)} seeds")
    middle.legend(fontsize=7)
    for axes in rest:
        known = [one for one in result.mnist if math.isfinite(one.direction)]
        axes.plot([one.direction for one in known], [one.accuracy for one in known], marker="o")
        axes.set(
            xscale="log", xlabel="ε of a direction", ylabel="test accuracy",
            title=f"MNIST, central ε = {result.mnist[0].central:.3g} too",
        )  # fmt: skip
    for axes in (left, middle, *rest):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _places(result: Result) -> list[float]:
    return sorted({one.epsilon for one in result.logistic if one.rule != WITHOUT})


def _name(one: Logistic) -> str:
    return WITHOUT if one.rule == WITHOUT else f"{one.rule}, ε = {one.epsilon:g}"


def _epsilon(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "none"
