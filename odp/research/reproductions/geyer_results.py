"""Table and figure of ``odp.research.reproductions.geyer``: what was published beside what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.dense.update_spread import Spread
from odp.pictures import style
from odp.research.reproductions.geyer import EPSILON, Result

if TYPE_CHECKING:
    from rich.table import Table

_ONLY = "simulation only"


def table_of(result: Result) -> Table:
    """Rows of (what, published, here), for a terminal."""
    from rich.table import Table

    table = Table("", "published", "here", title=f"MNIST, {result.clients:,} clients of two shards, seed {result.seed}")
    for row in rows(result):
        table.add_row(*row)
    return table


def rows(result: Result) -> list[tuple[str, str, str]]:
    """(what, published, here); empty where it was not published."""
    published = result.setting.published
    traffic = result.communications * (result.upload_bytes + result.download_bytes)
    listed = [
        ("test accuracy", f"{published.accuracy:.2f}", f"{result.accuracy:.4f}"),
        ("rounds", str(published.rounds), str(len(result.accuracies))),
        ("communications (client updates)", f"{published.communications:,}", f"{result.communications:,}"),
        ("clients of a round", f"{published.communications / published.rounds:.0f}, drawn", f"all {result.clients:,}"),
        ("noise multiplier σ of a round", "1", f"{result.noise_multiplier:.4f}"),
        ("δ", f"{result.delta:g}", f"{result.delta:g}"),
        ("ε as stated", f"{EPSILON:g}", f"{result.epsilon:.4f}"),
        ("ε of its rounds, as secret Poisson samples", f"{published.epsilon:.2f}", f"{result.epsilon:.4f}"),
        ("ε of its rounds, as the fixed-size samples it draws", f">= {published.epsilon_fixed:.1f}", "none drawn"),
        ("clip norm, first and last round (released)", "", f"{result.clips[0]:.3f}, {result.clips[-1]:.3f}"),
        ("parameters", "", f"{result.parameters:,}"),
        ("bytes up and down, of a client in a round", "", f"{result.upload_bytes:,}, {result.download_bytes:,}"),
        ("bytes of all clients in all rounds", "", f"{traffic:,}"),
    ]
    for name, (value, deviation) in (("first", result.scales[0]), ("last", result.scales[-1])):
        listed.append((f"update scale of the {name} round, from its release", "", f"{value:.2e} ± {deviation:.1e}"))
    for name, spread in (("before the first", result.spread_first), ("after the last", result.spread_last)):
        listed.append((f"update scale {name} round, {_ONLY}", "", f"{spread.scale:.2e}"))
        listed.append((f"between-client variance {name} round, {_ONLY}", "", f"{_variance(spread):.2e}"))
    if result.without_noise is not None:
        listed.append(("test accuracy of the same training without noise", "", f"{result.without_noise:.4f}"))
    return listed


def draw(path: Path, result: Result) -> None:
    """Writes the picture: accuracy beside the published one, clip norm, and update scale by round."""
    figure, (left, middle, right) = style.figure(1, 3, width=14.0, height=4.2)
    published, numbers = result.setting.published, range(1, len(result.accuracies) + 1)
    style.line(left, numbers, result.accuracies, style.OURS, text=f"here, ε = {result.epsilon:.1f}")
    style.level(left, published.accuracy, style.GREYS[1], text=f"published, {published.rounds} rounds")
    style.head(left, f"{result.clients:,} clients", "test accuracy")
    style.line(middle, numbers, result.clips, style.OURS)
    middle.set_ylim(0.0, None)
    style.head(middle, "Clip norm", "released")
    values, deviations = zip(*result.scales, strict=True)
    style.line(right, numbers, values, style.OURS, text="clipped updates")
    style.whiskers(right, numbers, values, np.subtract(values, deviations), np.add(values, deviations))
    ends = (0, len(result.accuracies))
    spreads = (result.spread_first, result.spread_last)
    style.line(right, ends, [spread.scale for spread in spreads], style.GREYS[0], text="exact scale")
    style.line(
        right, ends, [_variance(spread) for spread in spreads], style.GREYS[2], text="exact variance\nbetween clients"
    )
    right.set_yscale("log")
    style.head(right, "Update scale", "per parameter, logarithmic")
    for axes in (left, middle, right):
        style.whole_numbers(axes)
        axes.set_xlabel("round")
    style.note(figure, f"Exact values: {_ONLY}; bars: ± 1 standard deviation of the noise")
    style.save(figure, path, title="accuracy, clip norm and update scale by round")


def _variance(spread: Spread) -> float:
    return float("nan") if spread.variance is None else spread.variance
