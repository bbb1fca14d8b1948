"""What reading a device's rows takes: where the cost of every algorithm begins."""

from __future__ import annotations

from collections.abc import Sequence

from odp.algorithms.seam import LocalTable
from odp.models.computing_cost import (
    BASE_SECONDS,
    COLUMN_SECONDS,
    EVENT_SECONDS,
    EXAMPLE_SECONDS,
    FILTER_SECONDS,
    NUMBER_BYTES,
    RATING_SECONDS,
    ROW_BYTES,
    ComputingCost,
    Product,
)


def reading_cost(
    tables: Sequence[LocalTable], *, row_seconds: float = 0.0, most_examples: int = 0
) -> ComputingCost:  # fmt: skip
    """The cost of a contribution that reads ``tables``, and works for ``row_seconds`` on each row.

    ``most_examples`` is the definition's number that ``LocalTable.most_rows`` of labelled examples follows from.
    """
    caps: dict[str, int] = {}
    products, memory = [Product(BASE_SECONDS)], []
    for table in tables:
        rows, names = float(table.most_rows), []
        if table.label or table.events is not None:
            name = "most_examples" if table.label else "most_events"
            names = [name if len(tables) == 1 else f"{name} of {table.name}"]
            caps[names[0]] = most_examples if table.label else table.most_rows
            rows /= caps[names[0]]
        products.append(Product(rows * (_row_seconds(table) + row_seconds), *names))
        numbers = sum(feature.size for feature in table.features.values())
        memory.append(Product(rows * (ROW_BYTES + NUMBER_BYTES * numbers), *names))
    return ComputingCost(caps, tuple(products), tuple(memory))


def _row_seconds(table: LocalTable) -> float:
    if table.label:
        return EXAMPLE_SECONDS + sum(feature.seconds for feature in table.features.values())
    if table.events is None:
        return RATING_SECONDS
    further = len(table.events.item_columns) - 1 + (table.events.buckets > 0)
    return EVENT_SECONDS + COLUMN_SECONDS * further + FILTER_SECONDS * len(table.events.filters)
