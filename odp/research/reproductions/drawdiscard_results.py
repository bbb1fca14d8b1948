"""Tables and figure of ``odp.research.reproductions.drawdiscard`` and ``known_weights``: published beside found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odp.pictures import style
from odp.research.reproductions.drawdiscard import BATCHES, INSTANCES, LEVELS, Result, Run, claims
from odp.research.reproductions.known_weights import PUBLISHED, PUBLISHED_UPDATES, TRUTH, Trained, truth

if TYPE_CHECKING:
    from rich.table import Table


def table_of(result: Result) -> Table:
    """The claims about MNIST."""
    from rich.table import Table

    table = Table(
        "published", "here", "", title=f"MNIST, test accuracy after {result.passes} passes, seed {result.seed}"
    )
    for claim in claims(result):
        table.add_row(claim.published, claim.found, claim.verdict)
    return table


def known_table(trained: Sequence[Trained]) -> Table:
    """The known weights: measures, and every weight."""
    from rich.table import Table

    table = Table("", "published", "true weights", title="logistic model of 33 known weights")
    for fitted in trained:
        table.add_column(_level(fitted.epsilon), justify="right")
    table.add_row("updates", f"{PUBLISHED_UPDATES:,}", "", *(f"{model.updates:,}" for model in trained))
    for name, value in PUBLISHED.items():
        table.add_row(
            name, f"{value:.2f}", f"{trained[0].best[name]:.4f}", *(f"{model.measures[name]:.4f}" for model in trained)
        )
    errors = [np.abs(model.errors) for model in trained]
    table.add_row("largest error of a weight", "", "0", *(f"{error.max():.3f}" for error in errors))
    table.add_row("mean error of a weight", "", "0", *(f"{error.mean():.3f}" for error in errors))
    for place, name in enumerate(TRUTH):
        table.add_row(name, "", f"{truth()[place]:.2f}", *(f"{model.weights[place]:.3f}" for model in trained))
    return table


def draw(path: Path, result: Result) -> None:
    """Writes the picture: accuracy by epsilon for each number of instances, and by instances and batches."""
    figure, (left, right) = style.figure(1, 2, width=11.5, height=4.2)
    names = {instances: f"{instances} instance{'s' if instances > 1 else ''}" for instances in INSTANCES}
    for number, instances in enumerate(reversed(INSTANCES)):
        shown = style.OURS if not number else style.GREYS[min(number, len(style.GREYS)) - 1]
        values = [result.accuracies[Run(instances, level)] for level in LEVELS]
        style.line(left, range(len(LEVELS)), values, shown, text=names[instances])
    left.set_xticks(range(len(LEVELS)), ["none" if math.isinf(level) else f"log {level:g}" for level in LEVELS])
    left.set_xlabel("ε per feature")
    style.head(left, "Noise (figure 2)", "test accuracy")
    style.line(
        right, INSTANCES, [result.accuracies[Run(instances)] for instances in INSTANCES], style.OURS, text="instances"
    )
    batches = [result.accuracies[Run(server="batch", group=group)] for group in BATCHES]
    style.line(right, BATCHES, batches, style.GREYS[0], text="reports of a batch")
    squares = [instances for instances in INSTANCES if instances**2 in BATCHES]
    published = [result.accuracies[Run(server="batch", group=instances**2)] for instances in squares]
    style.line(right, squares, published, style.GREYS[3], text="instances, as published")
    right.set(xscale="log", xlabel="instances, or reports of a batch")
    style.head(right, "No noise (figure 3)", "test accuracy")
    style.save(figure, path, title="accuracy by noise, and by instances or reports of a batch")


def _level(epsilon: float) -> str:
    return f"ε = log {math.exp(epsilon):.3g}" if math.isfinite(epsilon) else "no noise"
