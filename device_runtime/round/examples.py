"""The examples for a task: the rows of the device's own tables that its signed definition asks for, nothing else.

A task names a table. ``events.SERVICE`` is made of that service's events, as the definition's query of events says:
which type, which columns, which conditions, how several events of one item become one row. A table of labelled examples
has the features and the label that the definition names. Any other name is the device's table of (item, value).

A developer's code that makes examples sees private data. How long it runs, how many rows it makes, and whether it
fails, must not show in what the device does next. So it gets the same public time on every device and in every round
(``fixed_times.py``), and its rows another one, which follows from the most rows that the task may read. Rows not
stored by then are not stored at all. Where the code fails, dies, answers nonsense or takes too long, the examples that
it made earlier stay as they were: they are the person's data as much as new ones, and what is computed of them is
private and charged in any case.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from device_runtime.isolated.precedence import Precedence
from device_runtime.round.fixed_times import FixedTimes, Window
from device_runtime.store.database import Database
from device_runtime.store.keyed_ratings import numbered_ratings, ratings_by_id
from device_runtime.store.reader import beside
from device_runtime.store.store import Store
from device_runtime.tasks.local_assignment import Offered
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import EVENTS, MOST_RATINGS, LocalData, LocalRows, LocalTable
from odp.crypto import domains
from odp.identity import LabelledItems
from odp.models.events_query import EventsTerms, Filter
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.catalogues.catalogue import NumberedKeys
from odp.v1 import common_pb2

_SCALARS = "('integer', 'real', 'text', 'true', 'false')"
_NUMBERS = "('integer', 'real')"
_SQL = {"==": "=", "!=": "<>", ">=": ">=", "<=": "<=", ">": ">", "<": "<"}
#: A longer text is no word of any task; one long text would make an array of as many characters per row.
_LONGEST_TEXT = 64
#: Characters of an item's column: a longer text is the key of no catalogue, and gives no row.
_LONGEST_ITEM = 1024
_EMPTY = LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64))
#: For rows to be stored: at least, and for each that the task may read.
STORE_SECONDS, ROW_SECONDS = 1.0, 5e-5


def examples(
    store: Store, definition: common_pb2.TaskDefinition, *, now: float, catalogue: NumberedKeys | None = None
) -> LocalData:
    """What a task's algorithm declared that it reads, for a definition that was checked; any items and any values.

    ``now`` is in seconds since the epoch. Of a task that names a ``catalogue``, items are the numbers of its keys: what
    the device knows by number alone takes no part, since a number says nothing once the items change.

    Raises:
      StateError: the store cannot be read.
    """
    ratings_by_labels: dict[tuple[str, ...], LocalRows] = {}
    rows_by_name: dict[str, LocalRows] = {}
    for declared in algorithm_for(definition).local_data:
        if declared.events is not None and declared.text:
            rows_by_name[declared.name] = texts(store, declared.events, now=now)
            continue
        if declared.events is not None:
            named = LabelledItems(declared.labels) if declared.labels else catalogue
            rows_by_name[declared.name] = events(store, declared.events, now=now, catalogue=named)
            continue
        if declared.label:
            table = store.examples(declared.table)
            rows_by_name[declared.name] = table.read(
                declared.features, label=declared.label, classes=declared.classes, most=declared.most_rows
            )
            continue
        if declared.labels not in ratings_by_labels:
            ratings_by_labels[declared.labels] = _ratings(store, catalogue, declared)
        rows = ratings_by_labels[declared.labels]
        rows_by_name[declared.name] = rows if declared.table != EVENTS else _happened(rows)
    return rows_by_name


def _ratings(store: Store, catalogue: NumberedKeys | None, declared: LocalTable) -> LocalRows:
    most = declared.most_rows
    if catalogue is None and declared.by_id:
        return ratings_by_id(store, labels=declared.labels, most=most)
    # What the task does not know: ratings by number where it names a catalogue, else those by key.
    rows = store.ratings(most=most) if catalogue is None else numbered_ratings(store, catalogue, most=most)
    others = "keyed_ratings" if catalogue is None else "ratings"
    unread = rows.unread + _rows_in(store, others, most=most)
    if catalogue is None and most < MOST_RATINGS:
        # Only the model's number of items bounds these rows: those after them are of items that it does not have.
        unread += _rows_in(store, "ratings", most=MOST_RATINGS) - len(rows.items)
    return replace(rows, unread=unread)


def _rows_in(store: Store, table: str, *, most: int) -> int:
    return int(store.value(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?)", (most,)))


def _happened(rows: LocalRows) -> LocalRows:
    happened = rows.where(rows.values > 0)
    return replace(happened, unread=rows.unread + len(rows.values) - len(happened.values))


def most_asked(definition: common_pb2.TaskDefinition, *, service: str, type: str) -> int:
    """The most events of a type of a service that a task, whose definition was checked, reads; 0: it reads none."""
    event_terms = (declared.events for declared in algorithm_for(definition).local_data)
    most = (
        terms.most_events
        for terms in event_terms
        if terms is not None and (terms.service, terms.type) == (service, type)
    )
    return max(most, default=0)


def events(database: Database, terms: EventsTerms, *, now: float, catalogue: NumberedKeys | None = None) -> LocalRows:
    """The rows that a query of events gives: by item ascending and distinct, or for "each" in the order of the events.

    Values are 1 per event where the query names no column for them, and are not clamped. A sum that is not finite gives
    no row. With a ``catalogue``, the item's column has keys: texts, or whole numbers, which are keys as text.

    Raises:
      StateError: the store cannot be read.
    """
    keyed = catalogue is not None and not terms.buckets and terms.edges is None
    if not (rows := _rows(database, terms, now, kinds="('text', 'integer')" if keyed else "")):
        return _EMPTY
    columns = list(zip(*rows, strict=True))
    values = np.array(columns[0], dtype=np.float64)
    if keyed and catalogue is not None:
        items = catalogue.places([str(key) for key in columns[1]])
        valid = items >= 0
    else:
        items, valid = _items(terms, columns[1:])
    items, values = items[valid], values[valid]
    made = LocalRows(items, values) if terms.aggregate == "each" else _aggregated(items, values, terms.aggregate)
    return replace(made, unread=int((~valid).sum()) + made.unread)


def texts(database: Database, terms: EventsTerms, *, now: float) -> LocalRows:
    """The texts of the one item column of a query of events, as the feature "text"; each has item 0 and value 1.

    Raises:
      StateError: the store cannot be read.
    """
    contents = [text for _, text in _rows(database, terms, now, kinds="('text')", cut=True)]
    size = len(contents)
    return LocalRows(np.zeros(size, np.int64), np.ones(size), {"text": np.array(contents, dtype=np.str_)})


def _rows(
    database: Database, terms: EventsTerms, now: float, *, kinds: str = "", cut: bool = False
) -> list[tuple[Any, ...]]:
    """(value, item columns ..) of the events that are asked for, oldest first; not those with a longer item than any.

    ``kinds`` are the JSON types of an item's columns in SQL, where the query itself does not say them. ``cut`` gives
    texts up to the longest that is a word of a task.
    """
    arguments: list[object] = []
    selected = ["1.0"]
    conditions = ["service = ?", "type = ?", "typeof(data) = 'text'"]
    if terms.value_column:
        selected = ["json_extract(data, ?)"]
        arguments.append(_path(terms.value_column))
    # What is hashed is the JSON text of a scalar, so that 1, "1" and true differ.
    extract = "data -> ?" if terms.buckets else "json_extract(data, ?)"
    for column in terms.item_columns:
        selected.append(f"substr({extract}, 1, {_LONGEST_TEXT})" if cut else extract)
        arguments.append(_path(column))
    arguments += [terms.service, terms.type]
    if terms.max_age_seconds:
        conditions.append("time >= ?")
        arguments.append(now - terms.max_age_seconds)
    if terms.value_column:
        conditions.append(f"json_type(data, ?) IN {_NUMBERS}")
        arguments.append(_path(terms.value_column))
    kinds = kinds or (_SCALARS if terms.buckets else _NUMBERS if terms.edges is not None else "('integer')")
    for column in terms.item_columns:
        conditions.append(f"json_type(data, ?) IN {kinds}")
        arguments.append(_path(column))
        if not cut:
            conditions.append(f"length({extract}) <= {_LONGEST_ITEM}")
            arguments.append(_path(column))
    for row_filter in terms.filters:
        condition, filter_arguments = _condition(row_filter)
        conditions.append(condition)
        arguments += filter_arguments
    rows = database.all(
        f"SELECT {', '.join(selected)} FROM events WHERE {' AND '.join(conditions)} "
        "ORDER BY time DESC, id DESC LIMIT ?",
        (*arguments, terms.most_events),
    )
    rows.reverse()
    return rows


def _condition(row_filter: Filter) -> tuple[str, list[object]]:
    """SQL that holds where the column has a value of the constant's kind that compares so."""
    path = _path(row_filter.column)
    if isinstance(row_filter.constant, bool):
        wanted = row_filter.constant is (row_filter.comparison == "==")
        return "json_type(data, ?) = ?", [path, "true" if wanted else "false"]
    kinds = "('text')" if isinstance(row_filter.constant, str) else _NUMBERS
    return (
        f"json_type(data, ?) IN {kinds} AND json_extract(data, ?) {_SQL[row_filter.comparison]} ?",
        [path, path, row_filter.constant],
    )


def _path(column: str) -> str:
    # A column's name has no quotes: it is checked to be [a-z0-9_.-].
    return f'$."{column}"'


def _items(terms: EventsTerms, columns: Sequence[Sequence[Any]]) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """(items, which of them are some) of each row."""
    if terms.buckets:
        bucket_by_key: dict[tuple[str, ...], int] = {}
        keys = list(zip(*columns, strict=True))
        for key in keys:
            if key not in bucket_by_key:
                bucket_by_key[key] = bucket_of(key, terms.buckets)
        return np.array([bucket_by_key[key] for key in keys], dtype=np.int64), np.ones(len(keys), dtype=bool)
    if terms.edges is None:
        # A whole number beyond 64 bits comes out of SQLite as a float; no model has such an item.
        whole = np.array([isinstance(item, int) for item in columns[0]], dtype=bool)
        return np.array([item if isinstance(item, int) else -1 for item in columns[0]], dtype=np.int64), whole
    numbers = np.array(columns[0], dtype=np.float64)
    bins = np.searchsorted(terms.edges, numbers, side="right") - 1
    bins[numbers == terms.edges[-1]] = len(terms.edges) - 2
    return bins.astype(np.int64), (bins >= 0) & (numbers <= terms.edges[-1])


def bucket_of(columns: Sequence[str], buckets: int) -> int:
    """The item of a cross of columns, given as JSON text: as ``EventsQuery`` of the protocol says, on every device."""
    digest = hashlib.sha256(domains.EVENTS_BUCKET + b"\0")
    for text in columns:
        data = text.encode()
        digest.update(struct.pack("<I", len(data)) + data)
    return int.from_bytes(digest.digest()[:8], "little") % buckets


def _aggregated(items: Int64Array, values: Float64Array, aggregate: str) -> LocalRows:
    aggregated: Float64Array
    distinct, place, count = np.unique(items, return_inverse=True, return_counts=True)
    size = len(distinct)
    match aggregate:
        case "" | "count":
            aggregated = count.astype(np.float64) if aggregate else np.ones(size)
        case "last":
            # The last place of each item, counted from the end.
            _, first = np.unique(items[::-1], return_index=True)
            aggregated = values[::-1][first]
        case "max" | "min":
            extreme = np.maximum if aggregate == "max" else np.minimum
            aggregated = np.full(size, -np.inf if aggregate == "max" else np.inf)
            extreme.at(aggregated, place, values)
        case _:
            aggregated = np.bincount(place, weights=values, minlength=size).astype(np.float64)
            if aggregate == "mean":
                aggregated = aggregated / count
    finite = np.isfinite(aggregated)
    return LocalRows(distinct[finite], aggregated[finite], unread=int((~finite).sum()))


class ExampleMaker(Protocol):
    """A device's own code that makes examples."""

    def most_asked(self, work: Offered) -> int:
        """The most examples of this code that the task reads: a function of its definition alone. 0: it reads none."""

    def make(self, path: Path, work: Offered) -> Sequence[Any]:
        """The examples of the device whose store lies at ``path``. In any thread; may raise anything."""

    def keep(self, store: Store, made: Sequence[Any]) -> None:
        """Puts them in the place of earlier ones, in one transaction; may raise anything, and stores nothing then."""


@dataclass(frozen=True, kw_only=True)
class MadeExamples:
    """Runs ``maker`` for ``code_seconds``, and stores what it made in a time that follows from the task.

    ``precedence`` keeps the other handlers of the developer's code from the store while the device takes part.
    """

    maker: ExampleMaker
    code_seconds: float
    precedence: Precedence = field(default_factory=Precedence)

    def make(self, store: Store, work: Offered, fixed_times: FixedTimes) -> None:
        """Makes the examples that the task of ``work`` may read; returns when the time is over, and raises nothing."""
        if not (most := self.maker.most_asked(work)):
            return
        storing = STORE_SECONDS + ROW_SECONDS * most
        window = fixed_times.lasting(self.code_seconds + storing)
        path, key = store.path, store.key

        def late() -> bool:
            # The other half is for the disk, which cannot be interrupted.
            return window.seconds_left <= storing / 2

        def run(window: Window = window) -> bool:
            made = self.maker.make(path, work)
            with beside(path, key, over=late) as examples_store, examples_store.transaction():
                self.maker.keep(examples_store, made[-most:])
                if late():
                    raise TimeoutError
            return True

        with self.precedence.lent(self.code_seconds):
            window.attempt(run)
