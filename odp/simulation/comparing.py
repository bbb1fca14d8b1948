"""Many methods at many budgets on the same splits: one table, one figure, one JSON.

A method is a function of (task, split, seed). Those that do not depend on ε run once per seed. The methods of another
kind of data (rankings of implicit feedback) are another tuple of ``Method``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odp import _validate
from odp.datasets.item_features import has_item_features
from odp.datasets.ratings import Ratings, Split, random_split
from odp.errors import ConfigurationError, DataError
from odp.simulation import baselines
from odp.simulation.dp_sgd import dp_sgd
from odp.simulation.engine import simulate
from odp.simulation.presets import preset_task
from odp.task import Task

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
      name: for people; unique in a comparison.
      privacy: for people, in a few words.
      spends: whether it uses the task's ε, so that its score changes with ε.
      score: the metric on the test part.
    """

    name: str
    privacy: str
    spends: bool
    score: Callable[[Task, Split, int], float]


@dataclass(frozen=True)
class Comparison:
    """Scores of ``methods`` [method][epsilon][seed], by name; one inner list per ε also where ε does not matter."""

    data: str
    preset: str
    metric: str
    lower_is_better: bool
    epsilons: tuple[float, ...]
    delta: float
    seeds: tuple[int, ...]
    methods: tuple[Method, ...]
    scores: dict[str, list[list[float]]]
    seconds: float

    def mean(self, method: str, place: int) -> float:
        """Mean over seeds of ``method`` at ``epsilons[place]``."""
        return statistics.fmean(self.scores[method][place])

    def to_json(self) -> dict[str, Any]:
        """A JSON-able value; an infinite ε is the string "inf"."""
        return {
            "data": self.data,
            "preset": self.preset,
            "metric": self.metric,
            "lower_is_better": self.lower_is_better,
            "delta": self.delta,
            "seeds": list(self.seeds),
            "epsilons": ["inf" if math.isinf(value) else value for value in self.epsilons],
            "methods": [
                {
                    "name": method.name,
                    "privacy": method.privacy,
                    "mean": [self.mean(method.name, place) for place in range(len(self.epsilons))],
                    "by_seed": self.scores[method.name],
                }
                for method in self.methods
            ],
            "seconds": round(self.seconds, 2),
        }


def _dpam(task: Task, split: Split, seed: int) -> float:
    return simulate(task, split, seed=seed).test_rmse


def _dp_sgd(task: Task, split: Split, seed: int) -> float:
    baselines.check_parts(split)
    privacy = task.privacy
    done = dp_sgd(split, split.test, epsilon=privacy.epsilon, delta=privacy.delta, seed=seed)
    return baselines.rmse(done.predictions, split.test)


_DPAM = Method("DPAM", "ε, δ", True, _dpam)
RATING_METHODS = (
    Method("global mean", "not private", False, baselines.global_mean),
    Method("user mean", "nothing leaves the device", False, baselines.user_mean),
    Method("DP item mean", "ε, δ", True, baselines.dp_item_mean),
    Method("DP item mean + user bias", "ε, δ", True, baselines.dp_item_user_bias),
    Method("DP-SGD on the item table", "ε, δ", True, _dp_sgd),
    _DPAM,
    Method("ALS, all data in one place", "not private", False, baselines.als_ceiling),
)


def rating_methods(ratings: Ratings, *, preset: str) -> tuple[Method, ...]:
    """``RATING_METHODS``, and DPAM with the public item features of ``ratings`` where there are any."""
    if not has_item_features(ratings):
        return RATING_METHODS

    def with_features(task: Task, split: Split, seed: int) -> float:
        privacy = task.privacy
        richer = preset_task(preset, ratings, epsilon=privacy.epsilon, delta=privacy.delta, features=True)
        return simulate(richer, split, seed=seed).test_rmse

    place = RATING_METHODS.index(_DPAM) + 1
    method = Method("DPAM with public item features", "ε, δ", True, with_features)
    return (*RATING_METHODS[:place], method, *RATING_METHODS[place:])


def compare(
    ratings: Ratings,
    *,
    epsilons: Sequence[float],
    delta: float,
    seeds: Sequence[int] = (1, 2, 3),
    preset: str = "auto",
    methods: Sequence[Method] | None = None,
    metric: str = "test RMSE",
    lower_is_better: bool = True,
    on_score: Callable[[str, float, int, float], None] | None = None,
) -> Comparison:
    """Scores every method at every ε, on the random 80/10/10 split of every seed.

    Args:
      ratings: the data set.
      epsilons: distinct budgets, each of a whole task; infinity is without privacy.
      delta: of every budget.
      seeds: each decides a split and the noise on it.
      preset: of DPAM, see ``presets.py``.
      methods: rows of the table, in order; None for those of ratings.
      metric, lower_is_better: what ``Method.score`` returns.
      on_score: called with (method, epsilon, seed, score), for progress.

    Raises:
      ConfigurationError: an ε, a seed or a name is out of range or named twice.
      DataError, PrivacyError: as ``preset_task`` and the methods.
    """
    started = time.perf_counter()
    if not epsilons or not seeds or len(set(epsilons)) < len(epsilons) or len(set(seeds)) < len(seeds):
        raise ConfigurationError("Expected epsilons and seeds to be one or more distinct numbers each")
    for seed in seeds:
        _validate.integer(seed=seed, low=0, high=2**62)
    if methods is None:
        methods = rating_methods(ratings, preset=preset)
    order = sorted(epsilons)
    tasks = [preset_task(preset, ratings, epsilon=value, delta=delta) for value in order]
    scores: dict[str, list[list[float]]] = {method.name: [[] for _ in order] for method in methods}
    for seed in seeds:
        split = random_split(ratings, seed=seed)
        for method in methods:
            score = math.nan
            for place, task in enumerate(tasks):
                if method.spends or not place:
                    score = method.score(task, split, seed)
                    if not math.isfinite(score):
                        raise DataError(
                            f"{method.name} has no finite score on {ratings.name!r} at epsilon={order[place]}"
                        )
                    if on_score is not None:
                        on_score(method.name, order[place], seed, score)
                scores[method.name][place].append(score)
    return Comparison(
        data=ratings.name,
        preset=preset,
        metric=metric,
        lower_is_better=lower_is_better,
        epsilons=tuple(order),
        delta=delta,
        seeds=tuple(seeds),
        methods=tuple(methods),
        scores=scores,
        seconds=time.perf_counter() - started,
    )


def comparison_rows(found: Comparison) -> Table:
    """Mean over seeds: one row per method, one column per ε; the best private method of a column is bold."""
    from rich.table import Table

    seeds = f"mean of {len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
    better = "lower" if found.lower_is_better else "higher"
    table = Table(title=f"{found.metric} on {found.data}, {seeds}, δ = {found.delta:g}; {better} is better")
    for head in ("method", "privacy", *(f"ε = {value:g}" for value in found.epsilons)):
        table.add_column(head)
    choose = min if found.lower_is_better else max
    private = [method.name for method in found.methods if method.spends]
    for method in found.methods:
        cells = []
        for place in range(len(found.epsilons)):
            value = found.mean(method.name, place)
            best = bool(private) and value == choose(found.mean(name, place) for name in private)
            cells.append(f"[bold]{value:.4f}[/bold]" if best else f"{value:.4f}")
        table.add_row(method.name, method.privacy, *cells)
    return table


def draw_comparison(path: Path, found: Comparison) -> None:
    """A PNG of the metric against ε (logarithmic): a line per method that spends, a level for each that does not.

    An infinite ε is drawn at the right, apart from the others.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    finite = [value for value in found.epsilons if math.isfinite(value)]
    apart = 3.0 * max(finite, default=1.0)
    places = [value if math.isfinite(value) else apart for value in found.epsilons]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for number, method in enumerate(found.methods):
        means = [found.mean(method.name, place) for place in range(len(places))]
        color = f"C{number % 10}"
        if not method.spends:
            axes.axhline(means[0], color=color, linestyle="--", linewidth=1, label=method.name)
            continue
        spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in found.scores[method.name]]
        known = [index for index, value in enumerate(found.epsilons) if math.isfinite(value)]
        axes.errorbar(
            [places[index] for index in known],
            [means[index] for index in known],
            yerr=[spread[index] for index in known],
            marker="o",
            color=color,
            label=method.name,
            capsize=2,
        )
        if len(known) < len(places):
            axes.plot([apart], [means[-1]], marker="s", color=color)
    axes.set_xscale("log")
    axes.set_xticks(places, ["∞" if math.isinf(value) else f"{value:g}" for value in found.epsilons])
    axes.minorticks_off()
    axes.set(xlabel="ε per user (logarithmic)", ylabel=found.metric, title=f"{found.data}, δ = {found.delta:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
