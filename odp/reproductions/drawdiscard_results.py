"""Tables and figure of ``odp.reproductions.drawdiscard`` and ``known_weights``: published beside found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odp.reproductions.drawdiscard import BATCHES, INSTANCES, LEVELS, Result, Run, claims
from odp.reproductions.known_weights import PUBLISHED, PUBLISHED_UPDATES, TRUTH, Found, truth

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


def known_table(trained: Sequence[Found]) -> Table:
    """The known weights: measures, and every weight."""
    from rich.table import Table

    table = Table("", "published", "true weights", title="logistic model of 33 known weights")
    for found in trained:
        table.add_column(_level(found.epsilon), justify="right")
    table.add_row("updates", f"{PUBLISHED_UPDATES:,}", "", *(f"{found.updates:,}" for found in trained))
    for name, value in PUBLISHED.items():
        table.add_row(
            name, f"{value:.2f}", f"{trained[0].best[name]:.4f}", *(f"{found.measures[name]:.4f}" for found in trained)
        )
    errors = [np.abs(found.errors) for found in trained]
    table.add_row("largest error of a weight", "", "0", *(f"{error.max():.3f}" for error in errors))
    table.add_row("mean error of a weight", "", "0", *(f"{error.mean():.3f}" for error in errors))
    for place, name in enumerate(TRUTH):
        table.add_row(name, "", f"{truth()[place]:.2f}", *(f"{found.weights[place]:.3f}" for found in trained))
    return table


def draw(path: Path, result: Result) -> None:
    """Writes the picture: accuracy by epsilon for each number of instances, and by instances and batches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for instances in INSTANCES:
        left.plot(
            range(len(LEVELS)), [result.accuracies[Run(instances, level)] for level in LEVELS], marker="o",
            label=f"{instances} instance{'s' if instances > 1 else ''}",
        )  # fmt: skip
    left.set_xticks(range(len(LEVELS)), ["none" if math.isinf(level) else f"log {level:g}" for level in LEVELS])
    left.set(xlabel="ε per feature", ylabel="test accuracy", title="noise (figure 2)")
    right.plot(INSTANCES, [result.accuracies[Run(instances)] for instances in INSTANCES], marker="o", label="instances")
    right.plot(
        BATCHES, [result.accuracies[Run(server="batch", group=group)] for group in BATCHES], marker="s",
        label="reports of a batch",
    )  # fmt: skip
    squares = [instances for instances in INSTANCES if instances**2 in BATCHES]
    right.plot(
        squares, [result.accuracies[Run(server="batch", group=instances**2)] for instances in squares], ":",
        marker="x", color="0.4", label="instances, as published",
    )  # fmt: skip
    right.set(xscale="log", xlabel="instances, or reports of a batch", ylabel="test accuracy",
              title="no noise (figure 3)")  # fmt: skip
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _level(epsilon: float) -> str:
    return f"ε = log {math.exp(epsilon):.3g}" if math.isfinite(epsilon) else "no noise"
