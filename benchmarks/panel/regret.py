"""How far DPAM's default is from the best private method of each cell: regret, its summary, a table and a picture.

Regret is DPAM's error over that of the best private method at the same ε, less 1; of rankings, the best Recall@20 over
DPAM's, less 1. Scores are means over seeds. DPAM itself is among the methods, so that no regret is below 0; the margin
is the same against the others alone, and is negative where DPAM is the best.

Where a data set has public features, DPAM's default uses them, as ``odp simulate`` does, and DPAM without them is one
of the others.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.panel.cells import HELD_OUT, Cell
from benchmarks.panel.scores import PLAIN, WITH_FEATURES, Trial
from odp.evaluation.paired import difference_error
from odp.pictures import style

#: What item means or popularity alone reach: a cell is hard where the best method is hardly better.
SIMPLE = ("DP item mean", "DP popularity")
SIMPLE_WITH_USERS = (*SIMPLE, "DP item mean + user bias")
WORTH = 0.03
_TICKS = (-30, -10, -3, -1, 0, 1, 3, 10, 30)
_LEAST_RECALL = 1e-6  # a method that recommends nothing liked has a large regret, and no infinite one
GOALS = {"median": 0.003, "p90": 0.01, "worst": 0.025}


@dataclass(frozen=True)
class Judged:
    """One cell at one ε.

    Attributes:
      cell, epsilon: which.
      losses: by method: the error, or one over Recall@20.
      ours: DPAM's default.
      ranks: whether scores are Recall@20.
    """

    cell: Cell
    epsilon: float
    losses: Mapping[str, float]
    ours: str
    ranks: bool

    def score(self, method: str) -> float:
        """The error of a method, or its Recall@20."""
        return 1.0 / self.losses[method] if self.ranks else self.losses[method]

    @property
    def best(self) -> str:
        """The method of the least loss."""
        return min(self.losses, key=lambda name: self.losses[name])

    @property
    def regret(self) -> float:
        """At least 0."""
        return self.losses[self.ours] / self.losses[self.best] - 1.0

    @property
    def margin(self) -> float:
        """Against the others alone; NaN without any."""
        others = [loss for name, loss in self.losses.items() if name != self.ours]
        return self.losses[self.ours] / min(others) - 1.0 if others else math.nan

    def gain(self, simple: Sequence[str]) -> float:
        """By how much the best method is better than the best of ``simple``; NaN where none has a score."""
        losses = [self.losses[name] for name in simple if name in self.losses]
        return 1.0 - self.losses[self.best] / min(losses) if losses else math.nan


@dataclass(frozen=True)
class Rise:
    """A cell where more ε made DPAM's default worse.

    Attributes:
      cell: its name.
      low, high: the ε, of which ``high`` is worse.
      worse: by how much, in the unit of the score, mean over seeds.
      error: the standard error of that over paired users, mean over seeds.
    """

    cell: str
    low: float
    high: float
    worse: float
    error: float

    @property
    def beyond_chance(self) -> bool:
        """By more than one standard error."""
        return self.worse > self.error


def judged(cells: Sequence[Cell], trials: Sequence[Trial], *, features: bool = True) -> list[Judged]:
    """Every cell and ε where DPAM's default and another method have a score, in the order of ``cells``.

    Args:
      cells: to judge.
      trials: scores; those of methods that spend nothing count at every ε. Methods are compared on their common seeds.
      features: False takes DPAM without public features for the default, and leaves out DPAM with them.
    """
    scores: dict[tuple[str, float], dict[str, dict[int, Trial]]] = defaultdict(lambda: defaultdict(dict))
    for trial in trials:
        if features or trial.method != WITH_FEATURES:
            scores[trial.cell, trial.epsilon][trial.method][trial.seed] = trial
    result = []
    for cell in cells:
        for epsilon in sorted({at for name, at in scores if name == cell.name and at}):
            methods = {**scores.get((cell.name, 0.0), {}), **scores[cell.name, epsilon]}
            ours = WITH_FEATURES if WITH_FEATURES in methods else PLAIN
            seeds = set.intersection(*(set(by_seed) for by_seed in methods.values()))
            if ours in methods and len(methods) > 1 and seeds:
                losses = {name: _loss([by_seed[seed] for seed in seeds]) for name, by_seed in methods.items()}
                ranks = any(map(_ranks, methods[ours].values()))
                result.append(Judged(cell, epsilon, losses, ours, ranks))
    return result


def rises(cells: Sequence[Cell], trials: Sequence[Trial]) -> list[Rise]:
    """By how much each next ε makes DPAM's default worse, negative where it is better, for cells of two ε and more."""
    result = []
    for cell in cells:
        mine = [trial for trial in trials if trial.cell == cell.name and trial.method in (PLAIN, WITH_FEATURES)]
        ours = WITH_FEATURES if any(trial.method == WITH_FEATURES for trial in mine) else PLAIN
        found: dict[float, dict[int, Trial]] = defaultdict(dict)
        for trial in mine:
            if trial.method == ours:
                found[trial.epsilon][trial.seed] = trial
        for low, high in itertools.pairwise(sorted(found)):
            if pairs := [(found[low][seed], found[high][seed]) for seed in found[low] if seed in found[high]]:
                worse = statistics.fmean(_worse(before, after) for before, after in pairs)
                error = statistics.fmean(_error(before, after) for before, after in pairs)
                result.append(Rise(cell.name, low, high, worse, error))
    return result


def summary(cells: Sequence[Judged], *, by: str) -> list[str]:
    """One line of a table in Markdown per ε, and one of all: median, p90 and worst regret, and how many are hard."""
    lines = []
    for epsilon in (*sorted({cell.epsilon for cell in cells}), None):
        here = [cell for cell in cells if epsilon in (None, cell.epsilon)]
        regrets = np.array([cell.regret for cell in here])
        figures = [100 * value for value in (np.median(regrets), np.quantile(regrets, 0.9), regrets.max())]
        worth = [
            statistics.fmean(cell.gain(simple) >= WORTH for cell in here) for simple in (SIMPLE, SIMPLE_WITH_USERS)
        ]
        lines.append(
            f"| {by} | {'all' if epsilon is None else f'{epsilon:g}'} | {len(here)} | "
            + " | ".join(f"{figure:.2f} %" for figure in figures)
            + f" | {worth[0]:.0%} | {worth[1]:.0%} |"
        )
    return lines


def report(cells: Sequence[Judged], changes: Sequence[Rise]) -> str:
    """All of it in Markdown: the summary, a line per cell and ε, and where more ε was worse by more than chance."""
    lines = [
        f"Goals: {', '.join(f'{name} {100 * goal:g} %' for name, goal in GOALS.items())}. Worth: cells where the best "
        f"method is {WORTH:.0%} better than item means or popularity, and than item means with user bias.",
        "",
        "| cells | ε | number | median | p90 | worst | worth | worth |",
        "|---|---|---|---|---|---|---|---|",
    ]
    held_out = [cell for cell in cells if cell.cell.part == HELD_OUT]
    for by, group in (("all", cells), (HELD_OUT, held_out)):
        for kind, ranks in (("", None), (", ratings", False), (", implicit", True)):
            if here := [cell for cell in group if ranks in (None, cell.ranks)]:
                lines += summary(here, by=by + kind)
    lines += [
        "",
        "| cell | part | shape | ε | DPAM | best of the others | its score | margin | better than item means |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in sorted(cells, key=lambda cell: (cell.cell.name, cell.epsilon)):
        rival = min((name for name in cell.losses if name != cell.ours), key=lambda name: cell.losses[name])
        lines.append(
            f"| {cell.cell.name} | {cell.cell.part} | {cell.cell.shape} | {cell.epsilon:g} | "
            f"{cell.score(cell.ours):.4f} | {rival} | {cell.score(rival):.4f} | {100 * cell.margin:+.2f} % | "
            f"{100 * cell.gain(SIMPLE):.1f} % |"
        )
    worse = [change for change in changes if change.beyond_chance]
    lines += ["", f"More ε is worse by more than one standard error in {len(worse)} of {len(changes)} steps."]
    lines += [
        f"- {change.cell}, ε {change.low:g} to {change.high:g}: {change.worse:.4f}, standard error {change.error:.4f}"
        for change in worse
    ]
    return "\n".join(lines)


def draw(cells: Sequence[Judged], path: Path) -> None:
    """The margin of every cell, one panel per ε, from the least to the largest; held-out cells in the accent colour.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    epsilons = sorted({cell.epsilon for cell in cells})
    figure, panels = style.figure(1, len(epsilons), width=1.5 + 3.2 * len(epsilons), height=4.2, sharey=True)
    for panel, epsilon in zip(panels, epsilons, strict=True):
        here = sorted((cell for cell in cells if cell.epsilon == epsilon), key=lambda cell: cell.margin)
        for held_out, shown in ((False, style.GREYS[1]), (True, style.OURS)):
            places = [place for place, cell in enumerate(here) if (cell.cell.part == HELD_OUT) == held_out]
            panel.plot(
                places, [100 * here[place].margin for place in places], linestyle="", marker="o", markersize=5,
                color=shown.colour, markerfacecolor=shown.colour if held_out else style.LIGHT.paper, zorder=3,
            )  # fmt: skip
        panel.axhline(0.0, color=style.LIGHT.ink, linewidth=0.8, zorder=2)
        panel.axhline(100 * GOALS["worst"], color=style.LIGHT.muted, linewidth=0.8, linestyle=(0, (4, 2)), zorder=2)
        panel.set_yscale("symlog", linthresh=1.0)
        panel.set_yticks(_TICKS, [f"{tick:+g}" if tick else "0" for tick in _TICKS])
        panel.minorticks_off()
        panel.set_xticks([])
        panel.set_xlabel(f"{len(here)} data sets")
        style.head(
            panel, f"ε = {epsilon:g}", "% worse than the best other private method" if panel is panels[0] else ""
        )
    style.note(
        figure,
        f"Filled: held out; rings: tuned on. Dashed: {100 * GOALS['worst']:g} %. Linear up to 1 %, then logarithmic.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    style.save(figure, path, title="DPAM beside the best other private method of each data set")


def _loss(trials: Sequence[Trial]) -> float:
    """The mean error over seeds; of rankings, one over the mean Recall@20."""
    mean = statistics.fmean(trial.outcome.scores[0] for trial in trials)
    return mean if not _ranks(trials[0]) else 1.0 / max(mean, _LEAST_RECALL)


def _ranks(trial: Trial) -> bool:
    return len(trial.outcome.scores) > 1


def _worse(before: Trial, after: Trial) -> float:
    change = after.outcome.scores[0] - before.outcome.scores[0]
    return -change if _ranks(after) else change


def _error(before: Trial, after: Trial) -> float:
    if before.outcome.influence is None or after.outcome.influence is None:
        return math.nan
    return difference_error(before.outcome.influence, after.outcome.influence)
