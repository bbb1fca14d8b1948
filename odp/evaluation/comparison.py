"""The comparison that ends `odp demo` and `odp simulate`: this model beside the baselines, as a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from odp.evaluation.baselines import Baselines
    from odp.evaluation.spending import Spend


def comparison_table(baselines: Baselines, model_rmse: float, epsilon: float, delta: float) -> Table:
    """Test RMSE of the model beside every baseline, best last."""
    table = Table("method", "test RMSE", "privacy", title="lower RMSE is better")
    table.add_row("global mean", f"{baselines.global_mean:.4f}", "reference, not private")
    table.add_row("user mean, on the device", f"{baselines.user_mean:.4f}", "nothing leaves the device")
    table.add_row("DP item mean", f"{baselines.dp_item_mean:.4f}", "the task's ε and δ")
    table.add_row("DP item mean + local user bias", f"{baselines.dp_item_user_bias:.4f}", "the task's ε and δ")
    spent = f"ε = {epsilon:.4g}, δ = {delta:g}" if math.isfinite(epsilon) else "no noise, not private"
    table.add_row("this model (DPAM)", f"[bold]{model_rmse:.4f}[/bold]", spent)
    table.add_row("ALS, all data in one place", f"{baselines.als_ceiling:.4f}", "not private, no item features")
    return table


def spending_table(spent: Sequence[Spend]) -> Table:
    """Where the budget went: every release with its share of mu^2 and the ε after it."""
    table = Table("round", "release", "share of μ²", "ε so far", title="what ε was spent on")
    for entry in spent:
        table.add_row(str(entry.round), entry.name, f"{100 * entry.share:.1f} %", f"{entry.epsilon_so_far:.4f}")
    return table


def draw_progress(
    path: Path, *, rmse: Sequence[float], epsilon: Sequence[float], budget: float, baselines: Baselines
) -> None:
    """A PNG of test RMSE and ε spent after each round (index 0: before the first), with the baselines as lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    rounds = range(len(rmse))
    left.plot(rounds, rmse, marker="o", color="C0", label="this model (DPAM)", zorder=3)
    for name, value, color in (
        ("global mean", baselines.global_mean, "C7"),
        ("user mean (local)", baselines.user_mean, "C1"),
        ("DP item mean", baselines.dp_item_mean, "C2"),
        ("DP item mean + user bias", baselines.dp_item_user_bias, "C4"),
        ("ALS, not private", baselines.als_ceiling, "C3"),
    ):
        left.axhline(value, color=color, linestyle="--", linewidth=1, label=f"{name} {value:.3f}")
    left.set(xlabel="rounds done", ylabel="test RMSE", title="error on held-out ratings")
    left.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=3, frameon=False)
    right.step(rounds, epsilon, where="mid", marker="o", color="C0", label="spent")
    right.axhline(budget, color="C3", linestyle="--", linewidth=1, label=f"budget {budget:g}")
    right.set(xlabel="rounds done", ylabel="ε", title="privacy budget, per user", ylim=(0, budget * 1.08))
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
