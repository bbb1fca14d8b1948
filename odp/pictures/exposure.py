"""What recommendations show, and who gains: exposure by popularity, and differences to a baseline by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odp.pictures import style
from odp.pictures.charts import NARROW, WIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def draw(path: str | Path, exposure: Shares, users: Gains, items: Gains, *, metric: str, title: str) -> None:
    """Writes shares above and the gains of users and items below, as one picture.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    figure, (above, middle, below) = style.figure(3, width=8.6, height=8.6, height_ratios=(5, 3, 3))
    _shares(above, exposure, narrow=False)
    _gains(middle, users, metric)
    _gains(below, items, metric)
    # One scale, so that users and items can be compared.
    low, high = zip(middle.get_ylim(), below.get_ylim(), strict=True)
    for panel in (middle, below):
        panel.set_ylim(min(low), max(high))
    _note(figure, narrow=False)
    style.save(figure, path, title=title)


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
