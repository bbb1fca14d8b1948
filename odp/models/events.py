"""How a developer has a task's examples made of the events that apps wrote on the devices.

Example::

    data = odp.RatingsData(
        low=0, high=10,
        events=odp.Events(service="music", type="play", item="track", aggregate="count", where=["seconds >= 30"]),
    )

The query stands in the signed task, so another feature needs another task and no change on any device.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.models.events_query import (
    AGGREGATES,
    COMPARISONS,
    MAX_BUCKETS,
    MAX_COLUMNS,
    MAX_EDGES,
    MAX_EVENTS,
    MAX_FILTERS,
    TABLE_PREFIX,
)

if TYPE_CHECKING:
    from odp.v1 import events_query_pb2

_WHERE = re.compile(r"\s*([a-z0-9][a-z0-9_.-]*)\s*(==|!=|>=|<=|>|<)\s*(.+?)\s*")
_DAY_SECONDS = 24 * 3600
_LONGEST_DAYS = 36_500.0
_USUAL_EVENTS = 10_000


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of one type, turned into rows (item, value).

    Attributes:
      service: whose events; as a table, ``events.SERVICE`` (a person may keep tasks from it by that name).
      type: of the events.
      item: the column that says which item a row is of: whole numbers; or several, a cross, which needs ``buckets``.
      value: the column of numbers that a row's value is made of; None counts 1 per event.
      aggregate: how several events of one item become one row: "last", "sum", "mean", "max", "min", "count"; for
        statistics also "each", a row per event. Default: "last" with a value, "count" without, "each" for statistics;
        implicit data have none.
      buckets: hashes the item's columns into items 0 .. buckets - 1; any text, number or truth value will do.
      edges: divides the item's column of numbers into bins; item i is bin i, outside of all there is no row.
      where: conditions that an event meets: ``"seconds >= 30"``, ``'genre == "rock"'``, ``"live != true"``.
      days: only events of the last ``days`` days, by the device's clock; None is of any time.
      most_events: at most this many events, the newest.

    Raises:
      ConfigurationError: a value is out of range, or a condition is malformed.
    """

    service: str
    type: str
    item: str | Sequence[str]
    value: str | None = None
    aggregate: str | None = None
    buckets: int | None = None
    edges: Sequence[float] | None = None
    where: Sequence[str] = ()
    days: float | None = None
    most_events: int = _USUAL_EVENTS

    def __post_init__(self) -> None:
        """Checks what does not depend on what the events are for."""
        _validate.identifier(service=self.service, type=self.type, table=self.table)
        if not isinstance(self.item, str):
            object.__setattr__(self, "item", tuple(self.item))
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise ConfigurationError(f"Expected item to be 1 to {MAX_COLUMNS} columns (got {len(self.columns)})")
        for column in self.columns:
            _validate.identifier(item=column)
        if self.value is not None:
            _validate.identifier(value=self.value)
        if self.aggregate is not None:
            _validate.one_of(AGGREGATES, aggregate=self.aggregate)
        if self.buckets is not None:
            _validate.integer(low=1, high=MAX_BUCKETS, buckets=self.buckets)
        elif len(self.columns) > 1:
            raise ConfigurationError(f"Expected buckets with item={self.item!r}: a cross is hashed into buckets")
        if self.edges is not None:
            if self.buckets is not None:
                raise ConfigurationError(f"Expected buckets={self.buckets!r} or edges, not both")
            edges = tuple(float(edge) for edge in self.edges)
            if not 2 <= len(edges) <= MAX_EDGES or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
                raise ConfigurationError(f"Expected edges to be 2 to {MAX_EDGES} finite numbers, ascending")
            object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "where", (self.where,) if isinstance(self.where, str) else tuple(self.where))
        if len(self.where) > MAX_FILTERS:
            raise ConfigurationError(f"Expected where to have at most {MAX_FILTERS} conditions (got {len(self.where)})")
        for condition in self.where:
            _condition(condition)
        if self.days is not None:
            _validate.within(low=1.0 / _DAY_SECONDS, high=_LONGEST_DAYS, days=self.days)
        _validate.integer(low=1, high=MAX_EVENTS, most_events=self.most_events)

    @property
    def table(self) -> str:
        """The name of the local table, as people limit it."""
        return f"{TABLE_PREFIX}{self.service}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the item."""
        return (self.item,) if isinstance(self.item, str) else tuple(self.item)

    def to_proto(self, *, aggregate: str) -> events_query_pb2.EventsQuery:
        """The wire form; ``aggregate`` is the default where none was given, "" where an item counts once."""
        from odp.v1 import events_query_pb2

        used = aggregate if self.aggregate is None else self.aggregate
        if aggregate == "" and (self.aggregate is not None or self.value is not None):
            raise ConfigurationError(
                f"Expected no aggregate={self.aggregate!r} and no value={self.value!r} of implicit events: an item "
                "counts once"
            )
        return events_query_pb2.EventsQuery(
            type=self.type,
            item_columns=self.columns,
            buckets=0 if self.buckets is None else self.buckets,
            edges=b"" if self.edges is None else np.asarray(self.edges, dtype="<f8").tobytes(),
            value_column=self.value or "",
            aggregate=AGGREGATES[used] if used else events_query_pb2.EventsQuery.AGGREGATE_UNSPECIFIED,
            filters=[_condition(condition) for condition in self.where],
            max_age_seconds=0 if self.days is None else max(1, round(self.days * _DAY_SECONDS)),
            most_events=self.most_events,
        )


def table_of(table: str, events: Events | None, *, default: str) -> str:
    """The table that a description of data names: that of its events, where it has some.

    Raises:
      ConfigurationError: it names events and a table of its own, or a table of events without them.
    """
    _validate.identifier(table=table)
    if events is None:
        if table.startswith(TABLE_PREFIX):
            raise ConfigurationError(f"Expected table={table!r} to come with events=odp.Events(..)")
        return table
    if not isinstance(events, Events):
        raise ConfigurationError(f"Expected events to be an odp.Events, got a {type(events).__name__}")
    if table not in (default, events.table):
        raise ConfigurationError(f"Expected no table={table!r} with events: it is {events.table!r}")
    return events.table


def _condition(text: str) -> events_query_pb2.EventsFilter:
    """A comparison of a column with a constant, as text."""
    from odp.v1 import events_query_pb2

    matched = _WHERE.fullmatch(text) if isinstance(text, str) else None
    wrong = ConfigurationError(f"Expected where={text!r} to be COLUMN COMPARISON CONSTANT, as 'seconds >= 30'")
    if matched is None:
        raise wrong
    column, comparison, constant_text = matched.groups()
    _validate.identifier(column=column)
    try:
        constant = json.loads(constant_text)
        finite = not isinstance(constant, (int, float)) or bool(np.isfinite(float(constant)))
    except (ValueError, OverflowError, RecursionError):
        raise wrong from None
    message = events_query_pb2.EventsFilter(column=column, comparison=COMPARISONS[comparison])
    match constant:
        case bool():
            message.truth = constant
        case str():
            message.text = constant
        case int() | float() if finite:
            message.number = constant
        case _:
            raise wrong
    if message.WhichOneof("constant") != "number" and comparison not in ("==", "!="):
        raise ConfigurationError(f"Expected where={text!r} to compare by == or !=: only numbers are ordered")
    return message
