"""Which events of a device become rows (item, value), read from a signed definition and checked: for every party."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array
from odp.v1 import events_query_pb2

#: The events of a service are its table ``events.SERVICE``.
TABLE_PREFIX = "events."
MAX_COLUMNS = 4
MAX_FILTERS = 16
MAX_EDGES = 2**12
MAX_BUCKETS = 2**24
MAX_EVENTS = 100_000
MAX_TEXT = 1024

AGGREGATES = {
    "last": events_query_pb2.EventsQuery.AGGREGATE_LAST,
    "sum": events_query_pb2.EventsQuery.AGGREGATE_SUM,
    "mean": events_query_pb2.EventsQuery.AGGREGATE_MEAN,
    "max": events_query_pb2.EventsQuery.AGGREGATE_MAX,
    "min": events_query_pb2.EventsQuery.AGGREGATE_MIN,
    "count": events_query_pb2.EventsQuery.AGGREGATE_COUNT,
    "each": events_query_pb2.EventsQuery.AGGREGATE_EACH,
}
COMPARISONS = {
    "==": events_query_pb2.EventsFilter.COMPARISON_EQUAL,
    "!=": events_query_pb2.EventsFilter.COMPARISON_NOT_EQUAL,
    ">=": events_query_pb2.EventsFilter.COMPARISON_AT_LEAST,
    "<=": events_query_pb2.EventsFilter.COMPARISON_AT_MOST,
    ">": events_query_pb2.EventsFilter.COMPARISON_ABOVE,
    "<": events_query_pb2.EventsFilter.COMPARISON_BELOW,
}
_AGGREGATE_NAMES = {number: name for name, number in AGGREGATES.items()}
_COMPARISON_NAMES = {number: name for name, number in COMPARISONS.items()}
_ORDERED = (">=", "<=", ">", "<")


class Holder(Protocol):
    """A message that names a table of rows, and may say how they are made of events."""

    @property
    def table(self) -> str:
        """Its name."""

    @property
    def events(self) -> events_query_pb2.EventsQuery:
        """The query, where there is one."""

    def HasField(self, field_name: Literal["events"]) -> bool:
        """Whether there is one."""


@dataclass(frozen=True)
class Filter:
    """``column`` ``comparison`` ``constant``: ==, !=, or for numbers >=, <=, >, <."""

    column: str
    comparison: str
    constant: float | str | bool


@dataclass(frozen=True)
class EventsTerms:
    """An ``odp.v1.EventsQuery``, checked; fields as there. ``aggregate`` is empty where an item counts once.

    ``edges`` is float64 [bins + 1], or None.
    """

    service: str
    type: str
    item_columns: tuple[str, ...]
    buckets: int
    edges: Float64Array | None
    value_column: str
    aggregate: str
    filters: tuple[Filter, ...]
    max_age_seconds: int
    most_events: int

    @classmethod
    def of(cls, holder: Holder, *, aggregates: tuple[str, ...]) -> EventsTerms | None:
        """The events that the message ``holder`` reads; None where its table is none of events.

        ``aggregates`` are those that make sense for what it asks; an empty one stands for "an item counts once".

        Raises:
          ConfigurationError: a table of events without a query, a query for another table, or a field out of range.
        """
        table, has_events = holder.table, holder.HasField("events")
        if has_events is not table.startswith(TABLE_PREFIX):
            raise ConfigurationError(
                f"Expected table={table!r} to be events.SERVICE with a query of events, and only with one"
            )
        if not has_events:
            return None
        query = holder.events
        service = table.removeprefix(TABLE_PREFIX)
        columns = tuple(query.item_columns)
        if not 1 <= len(columns) <= MAX_COLUMNS:
            raise ConfigurationError(f"Expected 1 to {MAX_COLUMNS} item columns (got {len(columns)})")
        _validate.identifier(table=table, service=service, type=query.type)
        for column in (*columns, *filter(None, [query.value_column])):
            _validate.identifier(column=column)
        _validate.integer(low=0, high=MAX_BUCKETS, buckets=query.buckets)
        if query.buckets and query.edges:
            raise ConfigurationError("Expected buckets or edges of the item, not both")
        if len(columns) > 1 and not query.buckets:
            raise ConfigurationError(
                f"Expected buckets for a cross of {len(columns)} columns: they are hashed together"
            )
        aggregate = _AGGREGATE_NAMES.get(query.aggregate, "" if query.aggregate == 0 else "?")
        if aggregate not in aggregates:
            names = ", ".join(name or "none" for name in aggregates)
            raise ConfigurationError(f"Expected aggregate={aggregate or 'none'!r} of the events to be one of {names}")
        if query.value_column and aggregate in ("", "count"):
            raise ConfigurationError(f"Expected no value={query.value_column!r} of events where nothing reads a value")
        if len(query.filters) > MAX_FILTERS:
            raise ConfigurationError(f"Expected at most {MAX_FILTERS} filters of events (got {len(query.filters)})")
        _validate.integer(low=0, high=2**40, max_age_seconds=query.max_age_seconds)
        _validate.integer(low=1, high=MAX_EVENTS, most_events=query.most_events)
        return cls(
            service, query.type, columns, query.buckets, _edges(query.edges), query.value_column, aggregate,
            tuple(_filter(query_filter) for query_filter in query.filters), query.max_age_seconds, query.most_events,
        )  # fmt: skip


def _edges(data: bytes) -> Float64Array | None:
    if not data:
        return None
    if len(data) % 8 or not 2 <= len(data) // 8 <= MAX_EDGES:
        raise ConfigurationError(f"Expected 2 to {MAX_EDGES} edges of the item column (got {len(data)} bytes)")
    edges = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        raise ConfigurationError("Expected the edges of the item column to be finite and ascending")
    return edges


def _filter(message: events_query_pb2.EventsFilter) -> Filter:
    _validate.identifier(column=message.column)
    if (comparison := _COMPARISON_NAMES.get(message.comparison)) is None:
        raise ConfigurationError(
            f"Expected the filter of {message.column!r} to compare by one of {' '.join(COMPARISONS)}"
        )
    if (kind := message.WhichOneof("constant")) is None:
        raise ConfigurationError(f"Expected the filter of {message.column!r} to have a constant")
    constant: float | str | bool = getattr(message, kind)
    if kind == "number":
        _validate.finite(number=message.number)
    elif comparison in _ORDERED:
        raise ConfigurationError(
            f"Expected the filter {message.column} {comparison} to have a number: others are not ordered"
        )
    if isinstance(constant, str) and len(constant) > MAX_TEXT:
        raise ConfigurationError(
            f"Expected the filter of {message.column!r} to have a text of {MAX_TEXT} characters at most"
        )
    return Filter(message.column, comparison, constant)
