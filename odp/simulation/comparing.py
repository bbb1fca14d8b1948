"""Many methods at many budgets on the same splits: one table, one figure, one JSON.

A method is a function of (task, split, seed); see ``methods.py``. Those that do not depend on ε run once per seed, on
the task of the largest ε.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odp import _validate
from odp.datasets.ratings import Ratings, Split
from odp.datasets.splitting import permutation_split, random_split
from odp.errors import ConfigurationError, DataError
from odp.pictures import style
from odp.simulation.inputs import ONE_PERMUTATION, SIMULATION
from odp.simulation.methods import Contest, Method, Metric, contest_for
from odp.simulation.presets import preset_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table


@dataclass(frozen=True)
class Comparison:
    """Scores [method][metric][epsilon][seed], by names; one inner list per ε also where ε does not matter.

    ``permuted``: the splits are permutations of all ratings, as in published comparisons.
    """

    data: str
    preset: str
    metrics: tuple[Metric, ...]
    epsilons: tuple[float, ...]
    delta: float
    seeds: tuple[int, ...]
    methods: tuple[Method, ...]
    scores: dict[str, dict[str, list[list[float]]]]
    seconds: float
    permuted: bool = False

    @property
    def statement(self) -> str:
        """One line for people about the kind of numbers."""
        return f"{SIMULATION}; {ONE_PERMUTATION}" if self.permuted else SIMULATION

    def mean(self, method: str, place: int, *, metric: str | None = None) -> float:
        """Mean over seeds of ``method`` at ``epsilons[place]``; of the first metric where none is named."""
        return statistics.fmean(self.scores[method][metric or self.metrics[0].name][place])

    def to_json(self) -> dict[str, Any]:
        """A JSON-able value; an infinite ε is the string "inf"."""
        return {
            "statement": self.statement,
            "data": self.data,
            "preset": self.preset,
            "metrics": [asdict(metric) for metric in self.metrics],
            "delta": self.delta,
            "seeds": list(self.seeds),
            "epsilons": ["inf" if math.isinf(value) else value for value in self.epsilons],
            "methods": [
                {
                    "name": method.name,
                    "privacy": method.privacy,
                    "scores": {
                        metric: {"mean": [statistics.fmean(seeds) for seeds in by_epsilon], "by_seed": by_epsilon}
                        for metric, by_epsilon in self.scores[method.name].items()
                    },
                }
                for method in self.methods
            ],
            "seconds": round(self.seconds, 2),
        }


def compare(
    ratings: Ratings,
    *,
    epsilons: Sequence[float],
    delta: float,
    seeds: Sequence[int] = (1, 2, 3),
    preset: str = "auto",
    contest: Contest | None = None,
    split_of: Callable[[int], Split] | None = None,
    permuted: bool = False,
    on_score: Callable[[str, float, int, tuple[float, ...]], None] | None = None,
) -> Comparison:
    """Scores every method at every ε, on a split for every seed.

    Args:
      ratings: the data set.
      epsilons: distinct budgets, each of a whole task; infinity is without privacy.
      delta: of every budget.
      seeds: each decides a split, where it is random, and the noise on it.
      preset: of DPAM, see ``presets.py``.
      contest: rows of the table, in order, and what they are scored by; None is what suits the data.
      split_of: from a seed to a split; None is the random 80/10/10 split.
      permuted: take ``permutation_split``, the protocol of published comparisons, where ``split_of`` is None.
      on_score: called with (method, epsilon, seed, scores), for progress.

    Raises:
      ConfigurationError: an ε, a seed or a name is out of range or named twice.
      DataError, PrivacyError: as ``preset_task`` and the methods.
    """
    started = time.perf_counter()
    if not epsilons or not seeds or len(set(epsilons)) < len(epsilons) or len(set(seeds)) < len(seeds):
        raise ConfigurationError("Expected epsilons and seeds to be one or more distinct numbers each")
    for seed in seeds:
        _validate.integer(seed=seed, low=0, high=2**62)
    if contest is None:
        contest = contest_for(ratings, preset=preset)
    methods, metrics = contest.methods, contest.metrics
    order = sorted(epsilons)
    tasks = [preset_task(preset, ratings, epsilon=value, delta=delta) for value in order]
    scores: dict[str, dict[str, list[list[float]]]] = {
        method.name: {metric.name: [[] for _ in order] for metric in metrics} for method in methods
    }
    cut = permutation_split if permuted else random_split
    for seed in seeds:
        split = cut(ratings, seed=seed) if split_of is None else split_of(seed)
        for method in methods:
            found: tuple[float, ...] = ()
            for place, task in enumerate(tasks):
                if method.spends or not place:
                    found = method.score(task if method.spends else tasks[-1], split, seed)
                    if len(found) != len(metrics) or not all(math.isfinite(score) for score in found):
                        raise DataError(
                            f"{method.name} has no finite score on {ratings.name!r} at epsilon={order[place]}"
                        )
                    if on_score is not None:
                        on_score(method.name, order[place], seed, found)
                for metric, score in zip(metrics, found, strict=True):
                    scores[method.name][metric.name][place].append(score)
    return Comparison(
        data=ratings.name,
        preset=preset,
        metrics=metrics,
        epsilons=tuple(order),
        delta=delta,
        seeds=tuple(seeds),
        methods=methods,
        scores=scores,
        seconds=time.perf_counter() - started,
        permuted=permuted,
    )


def comparison_rows(found: Comparison, metric: Metric) -> Table:
    """Mean over seeds: one row per method, one column per ε; the best private method of a column is bold."""
    from rich.table import Table

    seeds = f"mean of {len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
    better = "lower" if metric.lower_is_better else "higher"
    table = Table(title=f"{metric.name} on {found.data}, {seeds}, δ = {found.delta:g}; {better} is better")
    for head in ("method", "privacy", *(f"ε = {value:g}" for value in found.epsilons)):
        table.add_column(head)
    choose = min if metric.lower_is_better else max
    private = [method.name for method in found.methods if method.spends]
    for method in found.methods:
        cells = []
        for place in range(len(found.epsilons)):
            value = found.mean(method.name, place, metric=metric.name)
            best = bool(private) and value == choose(found.mean(name, place, metric=metric.name) for name in private)
            cells.append(f"[bold]{value:.4f}[/bold]" if best else f"{value:.4f}")
        table.add_row(method.name, method.privacy, *cells)
    return table


def draw_comparison(path: Path, found: Comparison) -> None:
    """Draws each metric against ε (logarithmic): a line per method that spends, a level for each that does not.

    Intervals are from the least to the largest of the seeds. An infinite ε is drawn at the right, apart from others.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    count = len(found.metrics)
    figure, panels = style.figure(1, count, width=6.2 * count + 1.8, height=4.8)
    for axes, metric in zip(panels, found.metrics, strict=True):
        _draw_metric(axes, found, metric)
    seeds = "one seed"
    if len(found.seeds) > 1:
        seeds = f"mean of {len(found.seeds)} seeds; intervals from the least to the largest"
    style.note(figure, f"{found.data}, δ = {found.delta:g}, {seeds}")
    path.parent.mkdir(parents=True, exist_ok=True)
    style.save(figure, path, title=f"{', '.join(metric.name for metric in found.metrics)} by ε on {found.data}")


def _draw_metric(axes: Axes, found: Comparison, metric: Metric) -> None:
    finite = [value for value in found.epsilons if math.isfinite(value)]
    apart = 3.0 * max(finite, default=1.0)
    places = [value if math.isfinite(value) else apart for value in found.epsilons]
    ours = 0
    for method in found.methods:
        scores = found.scores[method.name][metric.name]
        means = [statistics.fmean(seeds) for seeds in scores]
        shown = style.look(method.name)
        text = f"{shown.name}  {means[-1]:.3f}"
        if not method.spends:
            style.level(axes, means[0], shown, text=text)
            continue
        if shown.ours:
            shown = style.ours(shown.name, ours)
            ours += 1
        known = [index for index, value in enumerate(found.epsilons) if math.isfinite(value)]
        style.line(axes, [places[index] for index in known], [means[index] for index in known], shown, text=text)
        if len(found.seeds) > 1:
            low, high = [min(seeds) for seeds in scores], [max(seeds) for seeds in scores]
            style.whiskers(axes, places, means, low, high, colour=shown.colour)
        if len(known) < len(places):
            axes.plot([apart], [means[-1]], marker="s", color=shown.colour)
    axes.set_xscale("log")
    axes.set_xticks(places, ["∞" if math.isinf(value) else f"{value:g}" for value in found.epsilons])
    axes.minorticks_off()
    axes.set_xlabel("ε per user (logarithmic)")
    better = "lower" if metric.lower_is_better else "higher"
    style.head(axes, f"{metric.name[:1].upper()}{metric.name[1:]} by ε", f"{better} is better")
