"""Recommendations of a device as a terminal shows them: a prediction, and its range where one was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from device_runtime import Recommendation


def listed(
    recommendation: Recommendation, names: Sequence[str] | None, keys: Sequence[str] | None = None
) -> dict[str, Any]:
    """Plain values: ``recommendations``, each with ``low`` and ``high`` beside the ``level`` where there are ranges.

    ``ratings_left_out`` counts the person's own ratings of items that the model does not know.
    """
    fields = ("item", "score", "low", "high")
    rows: list[dict[str, Any]] = [dict(zip(fields, row, strict=False)) for row in recommendation.rows()]
    for row, item in zip(rows, recommendation.items.tolist(), strict=True):
        row["item"] = item
    for column, texts in (("name", names), ("key", keys)):
        for row, text in zip(rows, texts or (), strict=False):
            row[column] = text
    level = {} if recommendation.ranges is None else {"level": recommendation.ranges.level}
    return {**level, "recommendations": rows, "ratings_left_out": recommendation.left_out}


def notes_of(recommendation: Recommendation) -> list[str]:
    """What to know of recommendations before they are read."""
    from device_runtime.view.shown_items import left_out_note

    return [left_out_note(recommendation.left_out)] if recommendation.left_out else []


def table_of(recommendation: Recommendation, names: Sequence[str] | None, *, title: str) -> Table:
    """A row per item: a value of the declared range, or a score that only ranks.

    A range says in its head how often it covers the person's own value.
    """
    from rich.table import Table
    from rich.text import Text

    ranges = recommendation.ranges
    head = [] if ranges is None else [f"{100 * ranges.level:g} times in 100 within"]
    shown = Table("", "item", "predicted value" if recommendation.values else "score", *head, title=title)
    for rank, (item, score, *ends) in enumerate(recommendation.rows()):
        name = str(item) if names is None else names[rank]
        # A title may hold what a terminal's markup would take for a style.
        shown.add_row(str(rank + 1), Text(name), f"{score:.2f}", *([f"{ends[0]:.2f} to {ends[1]:.2f}"] if ends else []))
    return shown
