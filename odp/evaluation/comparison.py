"""The comparison that ends `odp demo` and `odp simulate`: this model beside the baselines, as a table and a picture.

What a budget is spent on: every release of a run with its share of mu^2, in which Gaussian releases add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from odp.privacy.accounting import epsilon
from odp.privacy.events import DistributedRelease, Event, GaussianRelease, SampledRound

if TYPE_CHECKING:
    from odp.evaluation.baselines import Baselines


def comparison_table(baselines: Baselines, model_rmse: float, epsilon: float, delta: float) -> Table:
    """Test RMSE of the model beside every baseline, best last."""
    table = Table("method", "test RMSE", "privacy", title="lower RMSE is better")
    table.add_row("global mean", f"{baselines.global_mean:.4f}", "reference, not private")
    table.add_row("user mean, on the device", f"{baselines.user_mean:.4f}", "nothing leaves the device")
    table.add_row("DP item mean", f"{baselines.dp_item_mean:.4f}", "the task's ε and δ")
    table.add_row("DP item mean + local user bias", f"{baselines.dp_item_user_bias:.4f}", "the task's ε and δ")
    spent = f"ε = {epsilon:.4g}, δ = {delta:g}" if math.isfinite(epsilon) else "no noise, not private"
    table.add_row("this model", f"[bold]{model_rmse:.4f}[/bold]", spent)
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
    """Draws test RMSE and ε spent after each round (index 0: before the first), with the baselines as levels.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    from odp.pictures import charts, style

    course = charts.Course(range(len(rmse)), [value if math.isfinite(value) else None for value in rmse], epsilon)
    figure = charts.by_round(
        course,
        name="this model",
        metric="test RMSE, lower is better",
        levels=vars(baselines),
        budget=budget,
    )
    figure.axes[-1].set_xlabel("rounds done")
    path.parent.mkdir(parents=True, exist_ok=True)
    style.save(figure, path, title="test error and ε spent by round")


@dataclass(frozen=True)
class Spend:
    """One release.

    Attributes:
      round: from 0.
      name: of the release; of a sampled round, the names of all its releases, which are one event.
      mu: sensitivity over noise; 0 of reports that devices randomised. Of a sampled round, that of all its releases
        together, before amplification by sampling.
      share: of the sum of mu^2 of all releases, from 0 to 1; the shares add up to 1, or are all 0.
      epsilon_so_far: of all releases up to this one, at the run's delta.
    """

    round: int
    name: str
    mu: float
    share: float
    epsilon_so_far: float


def spending(charges: Sequence[Sequence[Event]], *, delta: float) -> tuple[Spend, ...]:
    """One entry per release of ``charges`` (one sequence per round), in order.

    Raises:
      ConfigurationError: ``delta`` is not strictly between 0 and 1.
      PrivacyError: too many numbers got noise: the sampler alone uses up ``delta``.
    """
    flat = [(number, event) for number, events in enumerate(charges) for event in events]
    mus = [_mu(event) for _, event in flat]
    total = math.fsum(mu**2 for mu in mus)
    return tuple(
        Spend(
            round=number,
            name=event.name,
            mu=mus[place],
            share=mus[place] ** 2 / total if total else 0.0,
            epsilon_so_far=epsilon([before for _, before in flat[: place + 1]], delta=delta),
        )
        for place, (number, event) in enumerate(flat)
    )


def _mu(event: Event) -> float:
    if isinstance(event, SampledRound):
        return event.joint_mu
    return event.mu if isinstance(event, (GaussianRelease, DistributedRelease)) else 0.0
