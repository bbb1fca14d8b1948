"""Table and figure of ``odp.reproductions.geyer``: what was published beside what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odp.algorithms.dense.update_spread import Spread
from odp.reproductions.geyer import EPSILON, Result

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
    found = [
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
        found.append((f"update scale of the {name} round, from its release", "", f"{value:.2e} ± {deviation:.1e}"))
    for name, spread in (("before the first", result.spread_first), ("after the last", result.spread_last)):
        found.append((f"update scale {name} round, {_ONLY}", "", f"{spread.scale:.2e}"))
        found.append((f"between-client variance {name} round, {_ONLY}", "", f"{_variance(spread):.2e}"))
    if result.without_noise is not None:
        found.append(("test accuracy of the same training without noise", "", f"{result.without_noise:.4f}"))
    return found


def draw(path: Path, result: Result) -> None:
    """Writes the picture: accuracy beside the published one, clip norm, and update scale by round."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    published, numbers = result.setting.published, range(1, len(result.accuracies) + 1)
    left.plot(numbers, result.accuracies, marker="o", label=f"here, ε = {result.epsilon:.1f}")
    left.axhline(
        published.accuracy, linestyle="--", color="C1", label=f"published, after {published.rounds} rounds"
    )  # fmt: skip
    left.set(xlabel="round", ylabel="test accuracy", title=f"{result.clients:,} clients")
    left.legend(fontsize=8)
    middle.plot(numbers, result.clips, marker="o", color="C2")
    middle.set(xlabel="round", ylabel="clip norm (released)", ylim=(0.0, None))
    values, deviations = zip(*result.scales, strict=True)
    right.errorbar(numbers, values, yerr=deviations, marker="o", capsize=3, label="clipped updates, from releases")
    ends = (0, len(result.accuracies))
    spreads = (result.spread_first, result.spread_last)
    right.plot(ends, [one.scale for one in spreads], "k^", label=f"exact, {_ONLY}")
    right.plot(ends, [_variance(one) for one in spreads], "kv", label=f"between-client variance, {_ONLY}")
    right.set(xlabel="round", ylabel="update scale, per parameter", yscale="log")
    right.legend(fontsize=7)
    for axes in (left, middle, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _variance(spread: Spread) -> float:
    return float("nan") if spread.variance is None else spread.variance
