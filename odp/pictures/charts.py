"""Charts that several results share: methods side by side, error and ε by round, groups of users, several runs.

What recommendations show, and who gains: exposure by popularity, and differences to a baseline by group.

Error and ε over the trainings of a schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odp.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches: of a picture on a phone, and of one on a larger screen.
NARROW, WIDE = 4.1, 9.6


@dataclass(frozen=True)
class Course:
    """A metric and ε by round.

    Attributes:
      rounds: numbers, as a terminal shows them.
      values: of the metric after each; None where it was not measured.
      epsilon: spent after each; None without noise.
    """

    rounds: Sequence[int]
    values: Sequence[float | None]
    epsilon: Sequence[float | None]


def methods(scores: Mapping[str, float], *, metric: str, lower_is_better: bool, width: float = WIDE) -> Figure:
    """A dot per method on one axis, the best on top; the line from each dot ends at our method.

    Args:
      scores: by name or stored key, see ``style.look``; what is no baseline is ours.
      metric: what the axis measures.
      lower_is_better: so that the least is the best.
      width: in inches.
    """
    order = sorted(scores, key=lambda name: scores[name], reverse=not lower_is_better)
    figure, (panel,) = style.figure(width=width, height=1.3 + 0.4 * len(order))
    looks = [style.look(name) for name in order]
    ours = next((scores[name] for name, shown in zip(order, looks, strict=True) if shown.ours), None)
    if ours is not None:
        panel.axvline(ours, color=style.LIGHT.accent, linewidth=0.9, linestyle=(0, (1, 2)))
    for place, (name, shown) in enumerate(zip(order, looks, strict=True)):
        value = scores[name]
        if ours is not None:
            panel.plot([ours, value], [place, place], color=style.LIGHT.grid, linewidth=2.5, zorder=1)
        panel.plot(
            [value], [place], "o" if shown.ours else shown.marker, color=shown.colour, zorder=4,
            markersize=10 if shown.ours else 7,
            markerfacecolor=shown.colour if shown.ours else style.LIGHT.paper, markeredgewidth=1.4,
        )  # fmt: skip
        style.label(panel, place, f"{value:.3f}", colour=shown.colour, bold=shown.ours, line=False)
    panel.set_yticks(range(len(order)), [_folded(shown.name, width) for shown in looks])
    for text, shown in zip(panel.get_yticklabels(), looks, strict=True):
        text.set(color=shown.colour, fontsize=style.BODY if shown.ours else style.SMALL,
                 fontweight="bold" if shown.ours else "normal")  # fmt: skip
    panel.set_ylim(len(order) - 0.4, -0.6)
    panel.margins(x=0.08)
    panel.locator_params(axis="x", nbins=5)
    panel.grid(visible=False, axis="y")
    panel.grid(visible=True, axis="x")
    panel.set_xlabel(f"{metric}; {'further left' if lower_is_better else 'further right'} is better")
    return figure


def _folded(name: str, width: float) -> str:
    """Two lines of a long name in a narrow picture."""
    if width > NARROW or len(name) < 18:
        return name
    middle = min((place for place, sign in enumerate(name) if sign == " "), key=lambda at: abs(at - len(name) / 2))
    return f"{name[:middle]}\n{name[middle + 1 :]}"


def by_round(
    course: Course,
    *,
    name: str,
    metric: str,
    levels: Mapping[str, float],
    budget: float | None,
    width: float = WIDE,
) -> Figure:
    """The metric by round above, with methods that have no rounds as levels, and ε by round below.

    Args:
      course: of our method.
      name: of it.
      metric: with what is better, for the head of the panel.
      levels: of baselines, by name or stored key.
      budget: ε of the task; None or infinity without noise.
      width: in inches.
    """
    spends = all(value is not None for value in course.epsilon) and bool(course.epsilon)
    narrow = width <= NARROW
    figure, panels = style.figure(
        1 + spends, width=width, height=5.6 if spends else 3.8, sharex=True, height_ratios=(5, 2) if spends else (1,)
    )
    above = panels[0]
    measured = [(at, value) for at, value in zip(course.rounds, course.values, strict=True) if value is not None]
    if measured:
        rounds, values = zip(*measured, strict=True)
        style.line(above, rounds, values, style.OURS, text=f"{name}  {values[-1]:.3f}")
    for method, value in levels.items():
        shown = style.look(method)
        style.level(above, value, shown, text=f"{_folded(shown.name, width)}  {value:.3f}")
    style.head(above, "", metric)
    if spends:
        _spent(panels[1], course, budget)
    panels[-1].set_xlabel("round")
    style.whole_numbers(panels[-1])
    if narrow:
        above.locator_params(axis="y", nbins=6)
    return figure


def _spent(panel: Axes, course: Course, budget: float | None) -> None:
    spent = [value or 0.0 for value in course.epsilon]
    panel.fill_between(course.rounds, spent, color=style.LIGHT.soft, alpha=0.35, linewidth=0)
    style.line(panel, course.rounds, spent, style.OURS, text=f"ε spent  {spent[-1]:.3g}")
    if budget is not None and budget < float("inf"):
        style.level(panel, budget, style.GREYS[1], text=f"budget  {budget:g}")
    panel.set_ylim(0.0, 1.12 * max(*spent, budget if budget is not None and budget < float("inf") else 0.0))
    style.head(panel, "", "ε so far, per user")


def groups(
    names: Sequence[str],
    values: Sequence[float | None],
    *,
    group: str,
    metric: str,
    reference: Sequence[float | None] = (),
    reference_name: str = "",
    width: float = WIDE,
) -> Figure:
    """Dots of a metric by group, in order, and those of a reference beside them; the axis shows the differences."""
    figure, (panel,) = style.figure(width=width, height=3.4)
    for shown, row, text in (
        (style.GREYS[0], reference, reference_name),
        (style.OURS, values, "this model"),
    ):
        measured = [(place, value) for place, value in enumerate(row) if value is not None]
        if measured:
            places, heights = zip(*measured, strict=True)
            style.line(panel, places, heights, shown, text=text)
    if reference:
        for place, (ours, other) in enumerate(zip(values, reference, strict=True)):
            if ours is not None and other is not None:
                panel.plot([place, place], [ours, other], color=style.LIGHT.grid, linewidth=3, zorder=1)
    panel.set_xticks(range(len(names)), names)
    panel.margins(x=0.08, y=0.15)
    panel.set_xlabel(group)
    style.head(panel, "", metric)
    return figure


def reliability(levels: Sequence[float], covered: Sequence[float], *, width: float = WIDE) -> Figure:
    """What ranges cover against what they say, beside the diagonal on which both are the same."""
    figure, (panel,) = style.figure(width=width, height=3.8)
    ends = [100.0 * min(levels), 100.0 * max(levels)]
    panel.fill_between(
        ends, [end - 2.0 for end in ends], [end + 2.0 for end in ends], color=style.LIGHT.soft, alpha=0.35
    )
    style.line(panel, ends, ends, replace(style.GREYS[1], marker=""), text="as stated, ± 2")
    places, heights = [100.0 * level for level in levels], [100.0 * share for share in covered]
    style.line(panel, places, heights, style.OURS, text="this model")
    panel.set_xlabel("level of the ranges, %")
    style.head(panel, "", "test ratings within their range, %")
    return figure


def runs(courses: Mapping[str, Course], *, metric: str, width: float = WIDE) -> Figure:
    """The metric by round of several runs, each named beside its end; the first is in the accent colour."""
    figure, (panel,) = style.figure(width=width, height=4.4)
    looks = (style.OURS, *style.GREYS)
    last = max((number for course in courses.values() for number in course.rounds), default=0)
    for number, (name, course) in enumerate(courses.items()):
        measured = [(at, value) for at, value in zip(course.rounds, course.values, strict=True) if value is not None]
        if measured:
            shown = replace(looks[min(number, 1 + (number - 1) % (len(looks) - 1))], name=name)
            rounds, values = zip(*measured, strict=True)
            panel.plot([rounds[-1], last], [values[-1]] * 2, color=style.LIGHT.grid, linewidth=2, zorder=1)
            style.line(panel, rounds, values, shown, text=f"{_folded(name, width)}  {values[-1]:.3f}")
    style.head(panel, "", metric)
    panel.set_xlabel("round")
    style.whole_numbers(panel)
    return figure


#: Below every picture of a simulation's figures.
SIMULATED = "simulated: evaluated on the data without noise, not a private release"


@dataclass(frozen=True)
class Shares:
    """Shares in percent by fifth of the items, the least popular first.

    Attributes:
      names: of the fifths, such as the range of their counts.
      model, baseline: of the places on lists.
      liked: of what people liked among held-out items; None where there is none.
      baseline_name: key or name of the baseline.
    """

    names: Sequence[str]
    model: Sequence[float]
    baseline: Sequence[float]
    liked: Sequence[float | None]
    baseline_name: str


@dataclass(frozen=True)
class Gains:
    """How much better than a baseline each group is off, above 0 where it gains; None where nothing is known."""

    names: Sequence[str]
    values: Sequence[float | None]
    group: str


def shares(exposure: Shares, *, width: float = WIDE) -> Figure:
    """Lines of the shares; the nearer the model's is to what people liked, the less it follows popularity."""
    narrow = width <= NARROW
    figure, (panel,) = style.figure(width=width, height=3.6 if narrow else 3.4)
    _shares(panel, exposure, narrow=narrow)
    _note(figure, narrow=narrow)
    return figure


def gains(users: Gains, items: Gains, *, metric: str, width: float = WIDE) -> Figure:
    """Bars of both groups beside each other, below each other in a narrow picture."""
    narrow = width <= NARROW
    figure, panels = style.figure(
        2 if narrow else 1, 1 if narrow else 2, width=width, height=5.6 if narrow else 3.2, sharey=not narrow
    )
    for panel, group in zip(panels, (users, items), strict=True):
        _gains(panel, group, metric)
    _note(figure, narrow=narrow)
    return figure


def _note(figure: Figure, *, narrow: bool) -> None:
    style.note(figure, SIMULATED.replace("noise, ", "noise,\n") if narrow else SIMULATED)


def _shares(panel: Axes, exposure: Shares, *, narrow: bool) -> None:
    places = list(range(len(exposure.names)))
    liked = [(place, value) for place, value in enumerate(exposure.liked) if value is not None]
    if liked:
        where, values = zip(*liked, strict=True)
        style.line(panel, where, values, style.GREYS[0], text="liked")
    name = style.look(exposure.baseline_name).name
    style.line(panel, places, exposure.baseline, style.GREYS[1], text=name.replace(" + ", "\n+ ") if narrow else name)
    style.line(panel, places, exposure.model, style.OURS, text="this model")
    panel.set_xticks(places, [span.replace("–", "–\n") if narrow else span for span in exposure.names])
    panel.set_ylim(bottom=0.0)
    panel.margins(x=0.08)
    panel.set_xlabel("noisy count of the item")
    style.head(
        panel, "", "places on lists, in %" if narrow else "places on lists, and held-out items that were liked, in %"
    )


def _gains(panel: Axes, group: Gains, metric: str) -> None:
    measured = [(place, value) for place, value in enumerate(group.values) if value is not None]
    for place, value in measured:
        colour = style.LIGHT.accent if value >= 0 else style.LIGHT.strong
        panel.bar([place], [value], width=0.6, color=colour, zorder=3)
        panel.annotate(
            f"{value:+.3f}", (place, value), (0.0, 3.0 if value >= 0 else -3.0), textcoords="offset points",
            ha="center", va="bottom" if value >= 0 else "top", color=colour, fontsize=style.SMALL,
        )  # fmt: skip
    panel.axhline(0.0, color=style.LIGHT.muted, linewidth=0.9, zorder=4)
    panel.set_xticks(range(len(group.names)), list(group.names))
    panel.margins(y=0.18)
    panel.set_xlabel(group.group)
    style.head(panel, "", metric)


_SMOOTHED = 4


def draw_retraining(
    path: str | Path,
    errors: Mapping[str, Sequence[float]],
    *,
    epsilon: Sequence[float],
    budget: float,
    reference: Sequence[float],
    title: str,
) -> None:
    """Draws test RMSE of each way to retrain above, as the mean of four trainings, and ε of the first below.

    Args:
      path: of the picture.
      errors: test RMSE by training, by the name of the way; the first is ours.
      epsilon: spent after each training, per user; infinite without noise, and then not drawn.
      budget: of the lifetime.
      reference: test RMSE of each user's own mean.
      title: of the file.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    spends = bool(np.isfinite(epsilon).all())
    figure, panels = style.figure(
        1 + spends, width=8.6, height=5.4 if spends else 3.6, sharex=True, height_ratios=(5, 2) if spends else (1,)
    )
    above = panels[0]
    looks = (style.OURS, *style.GREYS)
    for (name, values), shown in zip({**errors, "each user's own mean": reference}.items(), looks, strict=False):
        places, means = _smooth(values)
        style.line(above, places, means, replace(shown, name=name), text=f"{name}  {means[-1]:.3f}")
    style.head(above, "", f"test RMSE, mean of {_SMOOTHED} trainings, lower is better")
    if spends:
        below = panels[1]
        below.fill_between(range(len(epsilon)), list(epsilon), color=style.LIGHT.soft, alpha=0.35, linewidth=0)
        style.line(below, list(range(len(epsilon))), list(epsilon), style.OURS, text=f"ε spent  {epsilon[-1]:.3g}")
        style.level(below, budget, style.GREYS[1], text=f"budget  {budget:g}")
        below.set_ylim(0.0, 1.15 * max(budget, *epsilon))
        style.head(below, "", "ε of all trainings so far, per user")
    panels[-1].set_xlabel("training")
    style.whole_numbers(panels[-1])
    style.save(figure, path, title=title)


def _smooth(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means of the last ``_SMOOTHED`` values, of fewer at the beginning; and where they stand."""
    array = np.asarray(values, dtype=np.float64)
    means = [float(np.nanmean(array[max(0, end - _SMOOTHED) : end])) for end in range(1, len(array) + 1)]
    return list(range(len(array))), means
