"""The parts of a user's vector, one per query.

From records to scaled vectors, for one user or for many: the same arithmetic on a device and in a simulation.

Every sum runs over one user's records in their order, so that a user's numbers do not depend on who else is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.grid import Entries
from odp.algorithms.dense.records import Records
from odp.algorithms.seam import EVENTS
from odp.errors import ConfigurationError
from odp.identity import is_normal
from odp.models.events_query import EventsTerms
from odp.models.features import checked_texts
from odp.numerics.arrays import Float64Array, Int64Array

MOST_LABELS = 2**12


def check_labels(labels: Sequence[str], *, where: str) -> tuple[str, ...]:
    """The names of bins. Raises ConfigurationError unless they are few distinct short texts in normal form C."""
    if len(labels) > MOST_LABELS:
        raise ConfigurationError(f"Expected at most {MOST_LABELS:,} {where} (got {len(labels):,})")
    names = checked_texts(labels, where, least=1)
    if not all(map(is_normal, names)):
        raise ConfigurationError(f"Expected {where} to be in Unicode normal form C")
    return names


@dataclass(frozen=True)
class HistogramPart:
    """What a user adds to each bin: see ``odp.Histogram``. ``edges`` float64 [bins + 1] of values, None of items."""

    bins: int
    edges: Float64Array | None
    counting: str
    clip: float
    labels: tuple[str, ...] = ()

    def item_labels(self, events: EventsTerms | None) -> tuple[str, ...]:
        """The ids of the bins' items; none where bins are numbers or ranges, of values or of ``events``."""
        return () if self.edges is not None or (events is not None and events.edges is not None) else self.labels

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return self.bins

    @property
    def bound(self) -> float:
        """L2 bound of the part before it is scaled."""
        return self.clip


@dataclass(frozen=True)
class MeanPart:
    """A user's weighted mean and its weight: see ``odp.Mean``."""

    low: float
    high: float
    max_records: int

    @property
    def size(self) -> int:
        """The sum, then the weight."""
        return 2

    @property
    def bound(self) -> float:
        """L2 bound of the part before it is scaled: |mean| <= 1 and 1, times the weight."""
        return math.sqrt(2.0) * self.max_records

    @property
    def middle(self) -> float:
        """What becomes 0."""
        return 0.5 * (self.low + self.high)

    @property
    def half(self) -> float:
        """What becomes 1, from the middle."""
        return 0.5 * (self.high - self.low)


@dataclass(frozen=True)
class Part:
    """One query: numbers ``offset .. offset + size - 1`` of the vector, each in units of ``scale``."""

    name: str
    table: str
    column: str
    kind: HistogramPart | MeanPart
    offset: int
    scale: float
    events: EventsTerms | None = None

    @property
    def item_labels(self) -> tuple[str, ...]:
        """The ids of the items that the query is about, where its bins are labelled items."""
        return self.kind.item_labels(self.events) if isinstance(self.kind, HistogramPart) else ()

    @property
    def place(self) -> slice:
        """Where the part stands in the vector."""
        return slice(self.offset, self.offset + self.kind.size)


def vectors(parts: Sequence[Part], records: Mapping[str, Records]) -> Entries:
    """The entries of every user's vector, in data units, within the bounds of their parts up to float rounding.

    ``records`` are the rows of each query, by its name.
    """
    entries_of_parts = [_part(part, records[part.name]) for part in parts]
    return Entries(
        np.concatenate([entries.user for entries in entries_of_parts]),
        np.concatenate([entries.place for entries in entries_of_parts]),
        np.concatenate([entries.value for entries in entries_of_parts]),
    )


def _part(part: Part, records: Records) -> Entries:
    entries = entries_of(part.kind, records_read(part.table, records))
    return Entries(entries.user, entries.place + part.offset, np.multiply(entries.value, part.scale))


def records_read(table: str, records: Records) -> Records:
    """Of the table "events", those of what happened: with a value above 0."""
    if table != EVENTS or (records.value > 0).all():
        return records
    happened = records.value > 0
    return Records(records.user[happened], records.item[happened], records.value[happened], records.users)


def entries_of(kind: HistogramPart | MeanPart, records: Records) -> Entries:
    """The entries of one query in its own units, before they are moved and scaled to their part of the vector.

    Of a histogram, they are ordered by user, then by bin. Of a mean, the sums of all users, then their weights.
    """
    return _mean(kind, records) if isinstance(kind, MeanPart) else _histogram(kind, records)


def _histogram(kind: HistogramPart, records: Records) -> Entries:
    bins, inside = bins_of(kind, records.item, records.value)
    cells, count = np.unique(records.user[inside] * np.int64(kind.bins) + bins[inside], return_counts=True)
    user, place = cells // kind.bins, cells % kind.bins
    match kind.counting:
        case "users":
            value = np.ones(len(cells))
        case "records":
            value = count.astype(np.float64)
        case _:
            value = count / np.bincount(user, weights=count, minlength=records.users)[user]
    return Entries(user, place, value * _shrink(user, value, kind.clip, records.users))


def bins_of(kind: HistogramPart, item: Int64Array, value: Float64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """(the bin of each record, int64 [n]; whether it is one of the histogram's, bool [n])."""
    if kind.edges is None:
        return item, (item >= 0) & (item < kind.bins)
    bins = np.searchsorted(kind.edges, value, side="right") - 1
    bins[value == kind.edges[-1]] = kind.bins - 1
    return bins, (bins >= 0) & (bins < kind.bins) & (value <= kind.edges[-1])


def _mean(kind: MeanPart, records: Records) -> Entries:
    finite = np.isfinite(records.value)
    user = records.user[finite]
    moved = np.clip((records.value[finite] - kind.middle) / kind.half, -1.0, 1.0)
    total = np.bincount(user, weights=moved, minlength=records.users)
    count = np.bincount(user, minlength=records.users)
    users = np.flatnonzero(count)
    weight = np.minimum(count[users], kind.max_records).astype(np.float64)
    mean = total[users] / count[users]
    return Entries(
        np.concatenate([users, users]),
        np.repeat(np.arange(2, dtype=np.int64), len(users)),
        np.concatenate([weight * mean, weight]),
    )


def _shrink(user: Int64Array, value: Float64Array, clip: float, users: int) -> npt.NDArray[np.float64]:
    """Factor of each entry, so that no user's vector is longer than ``clip``."""
    length = np.sqrt(np.bincount(user, weights=np.square(value), minlength=users))
    return np.minimum(1.0, clip / np.maximum(length, clip))[user]
