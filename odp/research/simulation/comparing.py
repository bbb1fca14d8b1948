"""Many methods at many budgets on the same splits: one table, one figure, one JSON.

::

    found = odp.compare("ml-1m", epsilons=(1, 8), seeds=2)
    found                                   # the table
    found.rows, found.to_csv("scores.csv"), found.report("comparison.html")

A method is a function of (task, split, seed); see ``methods.py``. Those that do not depend on ε run once per seed, on
the task of the largest ε.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import html
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odp import _validate
from odp.algorithms.experiment import NamedData
from odp.algorithms.registry import recommender_for
from odp.datasets.ratings import Ratings, Split
from odp.datasets.registry import load
from odp.datasets.splitting import permutation_split, random_split
from odp.errors import ConfigurationError, DataError
from odp.evaluation.paired import difference_error
from odp.evaluation.trials import Outcome, Settings
from odp.pictures import page, style
from odp.research.simulation.engine import check_population
from odp.research.simulation.engines.seam import Engine, LocalEngine
from odp.research.simulation.inputs import ONE_PERMUTATION, SIMULATION
from odp.research.simulation.methods import Contest, Method, Metric, contest_for, of_task
from odp.research.simulation.presets import preset_task
from odp.research.simulation.result_tables import html_table, text_table, write_csv, write_page
from odp.research.simulation.trials import FinishedTrials, outcome_of, stored_outcome
from odp.research.simulation.verdict import LEVEL, runs_it
from odp.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

_DELTA = 1e-6
# Of what a method's score is; a file of finished runs of another one is refused.
_METHODS_VERSION = 2
TUNED = (
    "Each method with settings here took the best of six on the validation part. Neither these trials nor the choice "
    "are charged, which favours them: the preset of DPAM reads no rating."
)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Scores [method][metric][epsilon][seed], by names; one inner list per ε also where ε does not matter.

    ``settings`` [method][epsilon][seed] are those that a tuned method took, see ``evaluation/trials.py``; a method
    without any has none there. ``permuted``: the splits are permutations of all ratings, as in published comparisons.
    ``notes`` say how the table was read: what was guessed, and how many rows were left out. ``standard_errors`` are, by
    private method, of the difference of its first metric to the best one's at the largest ε, over paired users.
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
    settings: Mapping[str, list[list[Settings]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    standard_errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def statement(self) -> str:
        """One line for people about the kind of numbers."""
        return f"{SIMULATION}; {ONE_PERMUTATION}" if self.permuted else SIMULATION

    def mean(self, method: str, place: int, *, metric: str | None = None) -> float:
        """Mean over seeds of ``method`` at ``epsilons[place]``; of the first metric where none is named."""
        return statistics.fmean(self.scores[method][metric or self.metrics[0].name][place])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per method, metric and ε.

        Its keys are ``method``, ``privacy``, ``metric``, ``epsilon``, ``mean``, ``std``, ``seeds`` and ``settings``. A
        method that spends nothing has one row per metric, whose ``epsilon`` is None; ``std`` is None for one seed, and
        ``settings`` is the text of what was chosen on validation parts, empty where nothing was.
        """
        rows = []
        for metric in self.metrics:
            for method in self.methods:
                by_epsilon = self.scores[method.name][metric.name]
                for place, (epsilon, scores) in enumerate(zip(self.epsilons, by_epsilon, strict=True)):
                    rows.append(
                        {
                            "method": method.name,
                            "privacy": method.privacy,
                            "metric": metric.name,
                            "epsilon": epsilon if method.spends else None,
                            "mean": statistics.fmean(scores),
                            "std": statistics.stdev(scores) if len(scores) > 1 else None,
                            "seeds": len(scores),
                            "settings": self.chosen(method.name, place),
                        }
                    )
                    if not method.spends:
                        break
        return rows

    def chosen(self, method: str, place: int) -> str:
        """The settings that ``method`` took at ``epsilons[place]``, with the number of seeds where seeds differ."""
        texts = [_text_of(settings) for settings in self.settings[method][place]] if method in self.settings else []
        counted = Counter(texts).most_common()
        if len(counted) < 2:
            return "".join(texts[:1])
        return "; ".join(f"{text} ({count} of {len(texts)} seeds)" for text, count in counted)

    @property
    def tuned(self) -> bool:
        """Whether any method chose settings on validation parts."""
        return bool(self.settings)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Writes ``rows``, and returns the path. Raises DataError where it cannot be written."""
        return write_csv(path, self.rows)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Writes a page with the chart and the tables, self-contained, and returns its path. Raises DataError."""
        parts = [page.heading(f"Comparison on {self.data}", 1), page.paragraph(self.verdict, "verdict")]
        best = _best_private(self.methods, self.scores, self.metrics[0])
        for metric in self.metrics:
            title = _title(self, metric)
            parts += [
                page.chart(
                    functools.partial(_chart, self, metric), title=title, name=metric.name.replace(" ", "-").lower()
                ),
                page.table(title, *_cells(self, metric, "{}"), ours=best),
            ]
        if self.tuned:
            title = "Settings chosen on validation parts, uncharged"
            parts += [page.table(title, *_chosen_cells(self), ours=""), page.paragraph(TUNED)]
        parts += map(page.paragraph, (self.statement, *self.notes))
        return write_page(path, page.document(f"Comparison on {self.data}", parts))

    @property
    def verdict(self) -> str:
        """The best private method at the largest ε, in one line, and those that are level with it.

        Level are scores within 0.5 % of each other, and those within one standard error over paired users.
        """
        metric = self.metrics[0]
        if not (best := _best_private(self.methods, self.scores, metric)):
            return "no method of this comparison is private"
        reached, errors = self.mean(best, -1), self.standard_errors
        level = [
            f"{method.name} {self.mean(method.name, -1):.4f}"
            for method in self.methods
            if method.spends
            and method.name != best
            and abs(self.mean(method.name, -1) - reached) <= max(LEVEL * abs(reached), errors.get(method.name, 0.0))
        ]
        at = f"at ε = {self.epsilons[-1]:g}: {metric.name} {reached:.4f}"
        chance = f", by no more than chance: level with it are {', '.join(level)}" if level else ""
        return f"{best} is the best private method {at}{chance}{self._runs(best)}"

    def _runs(self, name: str) -> str:
        """What runs a private method on devices, by the settings that most seeds chose at the largest ε.

        Nothing where the comparison trained it as a task.
        """
        (method,) = (method for method in self.methods if method.name == name)
        if method.task is None:
            return ""
        by_seed = self.settings[name][-1] if name in self.settings else []
        settings = max(by_seed, key=by_seed.count, default={})
        return f". {runs_it(name, method.task(settings))}".removesuffix(".")

    def __repr__(self) -> str:
        tables = [f"{_title(self, metric)}\n{text_table(*_cells(self, metric))}" for metric in self.metrics]
        if self.tuned:
            tables.append(f"settings chosen on validation parts, uncharged\n{text_table(*_chosen_cells(self))}")
        return "\n\n".join([*tables, self.verdict, self.statement, *self.notes])

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{html.escape(_title(self, metric))}</p>{html_table(*_cells(self, metric))}" for metric in self.metrics
        )

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
                    "settings": [list(map(dict, seeds)) for seeds in self.settings.get(method.name, [])],
                }
                for method in self.methods
            ],
            "verdict": self.verdict,
            "standard_errors": dict(self.standard_errors),
            "seconds": round(self.seconds, 2),
            "notes": list(self.notes),
        }


def compare(
    data: Ratings | str | os.PathLike[str] | Any = "synthetic",
    *,
    epsilons: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    delta: float | None = None,
    seeds: int | Sequence[int] = 3,
    methods: Sequence[str] | None = None,
    task: Task | None = None,
    preset: str = "auto",
    contest: Contest | None = None,
    split_of: Callable[[int], Split] | None = None,
    permuted: bool = False,
    split_name: str = "given",
    on_score: Callable[[str, float, int, tuple[float, ...]], None] | None = None,
    engine: Engine | None = None,
    resume: Path | None = None,
) -> Comparison:
    """Scores every method at every ε, on a split for every seed.

    Args:
      data: ratings, or what ``odp.load`` reads: a name, a path or a table.
      epsilons: distinct budgets, each of a whole task; infinity is without privacy.
      delta: of every budget; by default the task's, else 1e-6.
      seeds: each decides a split, where it is random, and the noise on it; a number n is 1 to n.
      methods: names of the rows to compute; by default all.
      task: trained in place of the preset's, at each budget; its model and settings stay as they are.
      preset: settings of this model, see ``presets.py``.
      contest: rows of the table, in order, and what they are scored by; None is what suits the data.
      split_of: from a seed to a split; None is the published split of ``data`` where there is one, else a random one,
        80/10/10.
      permuted: take ``permutation_split``, the protocol of published comparisons, where ``split_of`` is None.
      split_name: what ``split_of`` does: finished runs of a file to resume are those of one name.
      on_score: called with (method, epsilon, seed, scores), for progress, in the order in which they are done.
      engine: where runs are computed, several at once on a cluster; None is this machine, one after the other.
      resume: a file that keeps finished runs: the same call takes them from there.

    Raises:
      ConfigurationError: an ε, a seed or a name is out of range or named twice, or the task has no model of items.
      DataError, PrivacyError: as ``odp.load``, ``preset_task`` and the methods.
    """
    started = time.perf_counter()
    if isinstance(seeds, int):
        _validate.integer(seeds=seeds, low=1, high=1000)
        seeds = range(1, seeds + 1)
    if not epsilons or not seeds or len(set(epsilons)) < len(epsilons) or len(set(seeds)) < len(seeds):
        raise ConfigurationError("Expected epsilons and seeds to be one or more distinct numbers each")
    for seed in seeds:
        _validate.integer(seed=seed, low=0, high=2**62)
    if delta is None:
        delta = _DELTA if task is None else task.privacy.delta
    if isinstance(data, str):
        named = NamedData(data)
    elif isinstance(data, os.PathLike):
        named = NamedData(str(Path(data).absolute()))
    else:
        named = NamedData.of(data if isinstance(data, Ratings) else load(data))
    ratings = named.ratings
    if split_of is None and not permuted:
        split_of = named.split
    if task is not None:
        _require_comparable(task, ratings, preset)
    if contest is None:
        contest = contest_for(ratings, preset=preset, with_presets=task is None)
        contest = contest if task is None else of_task(contest, task)
    if methods is not None:
        contest = _chosen(contest, methods)
    rows, metrics = contest.methods, contest.metrics
    order = sorted(epsilons)
    tasks = [_task_at(task, preset, ratings, epsilon=value, delta=delta) for value in order]
    scores: dict[str, dict[str, list[list[float]]]] = {
        method.name: {metric.name: [[] for _ in order] for metric in metrics} for method in rows
    }
    cut = permutation_split if permuted else random_split
    finished = None
    if resume is not None:
        way = "permuted" if permuted else split_name
        finished = FinishedTrials(resume, _identity(ratings, task, preset=preset, delta=delta, split=way))
    by_trial: dict[tuple[str, int, int], Outcome] = {}

    def trials() -> Iterator[tuple[tuple[str, int, int], tuple[Any, ...]]]:
        for seed in seeds:
            split = cut(ratings, seed=seed) if split_of is None else split_of(seed)
            for method in rows:
                for place, at_epsilon in enumerate(tasks):
                    before = None if finished is None else finished.find((method.name, order[place], seed))
                    if before is not None:
                        by_trial[method.name, place, seed] = outcome_of(before, metrics=len(metrics), path=resume)
                    elif method.spends or not place:
                        trained = at_epsilon if method.spends else tasks[-1]
                        yield (method.name, place, seed), (method, trained, split, seed)

    with finished or contextlib.nullcontext():
        for (name, place, seed), outcome in (engine or LocalEngine()).each(_score, trials()):
            score = outcome.scores
            if len(score) != len(metrics) or not all(math.isfinite(number) for number in score):
                raise DataError(f"{name} has no finite score on {ratings.name!r} at epsilon={order[place]}")
            by_trial[name, place, seed] = outcome
            if finished is not None:
                finished.add((name, order[place], seed), stored_outcome(outcome))
            if on_score is not None:
                on_score(name, order[place], seed, score)
    settings: dict[str, list[list[Settings]]] = {}
    for method in rows:
        for place in range(len(order)):
            outcomes = [by_trial[method.name, place if method.spends else 0, seed] for seed in seeds]
            for outcome in outcomes:
                for metric, metric_score in zip(metrics, outcome.scores, strict=True):
                    scores[method.name][metric.name][place].append(metric_score)
            if any(outcome.settings for outcome in outcomes):
                settings.setdefault(method.name, []).append([outcome.settings for outcome in outcomes])
    return Comparison(
        data=ratings.name,
        preset=preset,
        metrics=metrics,
        epsilons=tuple(order),
        delta=delta,
        seeds=tuple(seeds),
        methods=rows,
        scores=scores,
        seconds=time.perf_counter() - started,
        permuted=permuted,
        settings=settings,
        notes=ratings.notes,
        standard_errors=_standard_errors(rows, _best_private(rows, scores, metrics[0]), by_trial, last=len(order) - 1),
    )


def _best_private(
    methods: Sequence[Method], scores: Mapping[str, Mapping[str, list[list[float]]]], metric: Metric
) -> str:
    """The best private method at the largest ε by a metric; empty where none is private."""
    private = [method.name for method in methods if method.spends]
    choose = min if metric.lower_is_better else max
    return choose(private, key=lambda name: statistics.fmean(scores[name][metric.name][-1])) if private else ""


def _standard_errors(
    methods: Sequence[Method], best: str, by_trial: Mapping[tuple[str, int, int], Outcome], *, last: int
) -> dict[str, float]:
    """Those of the differences to ``best`` of the other private methods, as far as both say how users move them.

    The mean over seeds: these are of the same users, so that their errors do not average out.
    """
    errors: dict[str, list[float]] = {}
    for (name, place, seed), outcome in by_trial.items():
        if place == last and name != best and any(method.spends for method in methods if method.name == name):
            ours = by_trial[best, place, seed].influence
            if ours is None or outcome.influence is None or len(ours) != len(outcome.influence):
                errors.setdefault(name, []).append(math.nan)
            else:
                errors.setdefault(name, []).append(difference_error(ours, outcome.influence))
    means = {name: statistics.fmean(of_seeds) for name, of_seeds in errors.items()}
    return {name: error for name, error in means.items() if math.isfinite(error)}


def _score(method: Method, task: Task, split: Split, seed: int) -> Outcome:
    return method.score(task, split, seed)


def _identity(ratings: Ratings, task: Task | None, *, preset: str, delta: float, split: str) -> dict[str, Any]:
    """What decides the scores, but for the budget, the method and the seed, which name a run."""
    values = hashlib.sha256(ratings.values.tobytes()).hexdigest()
    items = hashlib.sha256(ratings.items.tobytes()).hexdigest()
    at_one = (
        None
        if task is None
        else dataclasses.replace(task, privacy=dataclasses.replace(task.privacy, epsilon=1.0)).definition()
    )
    return {
        "methods": _METHODS_VERSION,
        "data": [ratings.name, ratings.n_users, items, values],
        "task": None if at_one is None else hashlib.sha256(at_one.SerializeToString(deterministic=True)).hexdigest(),
        "preset": preset,
        "delta": delta,
        "split": split,
    }


def _require_comparable(task: Task, ratings: Ratings, preset: str) -> None:
    if preset != "auto":
        raise ConfigurationError("Expected one of task and preset, not both")
    recommender_for(task.definition())
    check_population(task, ratings)


def _task_at(task: Task | None, preset: str, ratings: Ratings, *, epsilon: float, delta: float) -> Task:
    if task is None:
        return preset_task(preset, ratings, epsilon=epsilon, delta=delta)
    return dataclasses.replace(task, privacy=dataclasses.replace(task.privacy, epsilon=epsilon, delta=delta))


def _chosen(contest: Contest, names: Sequence[str]) -> Contest:
    """The methods of these names, in the order of the table. Raises ConfigurationError."""
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise ConfigurationError(f"Expected methods={names!r} to be one or more distinct names in a list")
    for name in names:
        _validate.one_of([method.name for method in contest.methods], method=name)
    return dataclasses.replace(contest, methods=tuple(method for method in contest.methods if method.name in names))


def _title(comparison: Comparison, metric: Metric) -> str:
    seeds = f"mean of {len(comparison.seeds)} seed{'s' if len(comparison.seeds) > 1 else ''}"
    better = "lower" if metric.lower_is_better else "higher"
    return f"{metric.name} on {comparison.data}, {seeds}, δ = {comparison.delta:g}; {better} is better"


def _cells(comparison: Comparison, metric: Metric, best: str = "*{}") -> tuple[list[str], list[list[str]]]:
    """(head, rows) of the table of one metric; ``best`` marks the best private method of a column."""
    choose = min if metric.lower_is_better else max
    private = [method.name for method in comparison.methods if method.spends]
    rows = []
    for method in comparison.methods:
        cells = []
        for place in range(len(comparison.epsilons)):
            value = comparison.mean(method.name, place, metric=metric.name)
            rivals = (comparison.mean(name, place, metric=metric.name) for name in private)
            is_best = method.spends and value == choose(rivals)
            cells.append(best.format(f"{value:.4f}") if is_best else f"{value:.4f}")
        rows.append([method.name, method.privacy, *cells])
    return ["method", "privacy", *(f"ε = {value:g}" for value in comparison.epsilons)], rows


def _text_of(settings: Settings) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())


def _chosen_cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """(head, rows): what every tuned method chose, by ε."""
    rows = []
    for method in comparison.methods:
        if method.name in comparison.settings:
            if method.spends:
                rows += [
                    [method.name, f"{value:g}", comparison.chosen(method.name, place)]
                    for place, value in enumerate(comparison.epsilons)
                ]
            else:
                rows.append([method.name, "-", comparison.chosen(method.name, 0)])
    return ["method", "ε", "settings"], rows


def chosen_rows(comparison: Comparison) -> Table:
    """What every tuned method chose on validation parts: one row per method and ε."""
    from rich.table import Table

    head, rows = _chosen_cells(comparison)
    table = Table(*head, title="settings chosen on validation parts, uncharged")
    for row in rows:
        table.add_row(*row)
    return table


def comparison_rows(comparison: Comparison, metric: Metric) -> Table:
    """Mean over seeds: one row per method, one column per ε; the best private method of a column is bold."""
    from rich.table import Table

    head, rows = _cells(comparison, metric, "[bold]{}[/bold]")
    table = Table(title=_title(comparison, metric))
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table


def draw_comparison(path: Path, comparison: Comparison) -> None:
    """Draws each metric against ε (logarithmic): a line per method that spends, a level for each that does not.

    Intervals are from the least to the largest of the seeds. An infinite ε is drawn at the right, apart from others.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    count = len(comparison.metrics)
    figure, panels = style.figure(1, count, width=6.2 * count + 1.8, height=4.8)
    for axes, metric in zip(panels, comparison.metrics, strict=True):
        _draw_metric(axes, comparison, metric)
    seeds = (
        f"mean of {len(comparison.seeds)} seeds; intervals from the least to the largest"
        if len(comparison.seeds) > 1
        else "one seed"
    )
    style.note(figure, f"{comparison.data}, δ = {comparison.delta:g}, {seeds}")
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = ", ".join(metric.name for metric in comparison.metrics)
    style.save(figure, path, title=f"{metrics} by ε on {comparison.data}")


def _chart(comparison: Comparison, metric: Metric, width: float) -> Figure:
    figure, (panel,) = style.figure(width=width, height=4.4)
    _draw_metric(panel, comparison, metric)
    return figure


def _draw_metric(axes: Axes, comparison: Comparison, metric: Metric) -> None:
    finite = [value for value in comparison.epsilons if math.isfinite(value)]
    apart = 3.0 * max(finite, default=1.0)
    places = [value if math.isfinite(value) else apart for value in comparison.epsilons]
    ours = 0
    for method in comparison.methods:
        scores = comparison.scores[method.name][metric.name]
        means = [statistics.fmean(seeds) for seeds in scores]
        shown = style.look(method.name)
        text = f"{shown.name}  {means[-1]:.3f}"
        if not method.spends:
            style.level(axes, means[0], shown, text=text)
            continue
        if shown.ours:
            shown = style.ours(shown.name, ours)
            ours += 1
        finite_places = [index for index, value in enumerate(comparison.epsilons) if math.isfinite(value)]
        style.line(axes, [places[index] for index in finite_places], [means[index] for index in finite_places], shown)
        # The label stands for the last budget, which may be the one apart.
        style.label(axes, means[-1], text, colour=shown.colour, bold=shown.ours)
        if len(comparison.seeds) > 1:
            low, high = [min(seeds) for seeds in scores], [max(seeds) for seeds in scores]
            style.whiskers(axes, places, means, low, high, colour=shown.colour)
        if len(finite_places) < len(places):
            axes.plot([apart], [means[-1]], marker="s", color=shown.colour)
    axes.set_xscale("log")
    axes.set_xticks(places, ["∞" if math.isinf(value) else f"{value:g}" for value in comparison.epsilons])
    axes.minorticks_off()
    axes.set_xlabel("ε per user (logarithmic)")
    better = "lower" if metric.lower_is_better else "higher"
    style.head(axes, f"{metric.name[:1].upper()}{metric.name[1:]} by ε", f"{better} is better")
