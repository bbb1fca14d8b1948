"""Recommendations of a device as a terminal shows them: a prediction, and its range where one was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from device_runtime import Recommendation


def listed(found: Recommendation, names: Sequence[str] | None) -> dict[str, Any]:
    """Plain values: ``recommendations``, each with ``low`` and ``high`` beside the ``level`` where there are ranges."""
    keys = ("item", "score", "low", "high")
    rows: list[dict[str, Any]] = [dict(zip(keys, row, strict=False)) for row in found.rows()]
    for row, item in zip(rows, found.items.tolist(), strict=True):
        row["item"] = item
    for row, name in zip(rows, names or (), strict=False):
        row["name"] = name
    level = {} if found.ranges is None else {"level": found.ranges.level}
    return {**level, "recommendations": rows}


def table_of(found: Recommendation, names: Sequence[str] | None, *, title: str) -> Table:
    """A row per item. A range says in its head how often it covers the person's own value."""
    from rich.table import Table

    ranges = found.ranges
    head = [] if ranges is None else [f"{100 * ranges.level:g} times in 100 within"]
    shown = Table("", "item", "predicted value", *head, title=title)
    for rank, (item, score, *ends) in enumerate(found.rows()):
        name = str(item) if names is None else names[rank]
        shown.add_row(str(rank + 1), name, f"{score:.2f}", *([f"{ends[0]:.2f} to {ends[1]:.2f}"] if ends else []))
    return shown
