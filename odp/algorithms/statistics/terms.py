"""The numbers of one statistics task, read from its definition and checked: one source for every party.

A user's vector is the concatenation of one part per query, each scaled so that its own L2 bound becomes
``sqrt(share) * clip``. The shares sum to 1, so the whole keeps ``clip``, and noise of one standard deviation on all
numbers is one joint Gaussian event (rule P8) in which query k has ``mu_k^2 = share_k mu^2``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.algorithms.dense.grid import Entries, Grid
from odp.algorithms.dense.records import Records, check_question
from odp.algorithms.statistics.parts import HistogramPart, MeanPart, Part, check_labels, vectors
from odp.errors import ConfigurationError
from odp.models.events_query import AGGREGATES, EventsTerms
from odp.numerics.arrays import Float64Array
from odp.v1 import common_pb2, statistics_pb2

RELEASE = "statistics"

MAX_QUERIES = 64
MAX_BINS = 2**22
MAX_EDGES = 2**12
MAX_RECORDS = 2**16
# Numbers that a user's vector is divided by: smaller ones could make one that is not finite.
_LEAST_CLIP, _LARGEST_CLIP = 1e-9, 1e9
_NARROWEST = 1e-9

COLUMNS = {
    "item": statistics_pb2.StatisticsQuery.COLUMN_ITEM,
    "value": statistics_pb2.StatisticsQuery.COLUMN_VALUE,
}
COUNTINGS = {
    "users": statistics_pb2.HistogramQuery.COUNTING_USERS,
    "records": statistics_pb2.HistogramQuery.COUNTING_RECORDS,
    "shares": statistics_pb2.HistogramQuery.COUNTING_SHARES,
}
_COLUMN_NAMES = {number: name for name, number in COLUMNS.items()}
_COUNTING_NAMES = {number: name for name, number in COUNTINGS.items()}


@dataclass(frozen=True)
class Terms:
    """A :class:`odp.v1.TaskDefinition` with statistics, checked."""

    parts: tuple[Part, ...]
    grid: Grid

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task asks for no statistics, or a field is missing, out of range, or of training.
        """
        check_question(definition, "statistics")
        message = definition.statistics
        check_queries(message.queries)
        _validate.within(low=_LEAST_CLIP, high=_LARGEST_CLIP, clip=message.dense.clip)
        parts, offset = [], 0
        for query in message.queries:
            column, kind = kind_of(query)
            scale = math.sqrt(query.share) * message.dense.clip / kind.bound
            events = EventsTerms.of(query, aggregates=tuple(AGGREGATES))
            parts.append(Part(query.name, query.table, column, kind, offset, scale, events))
            offset += kind.size
        return cls(tuple(parts), Grid.of(message.dense, definition.cohort, size=offset))

    @property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """The labels of items by the names of the queries, each of which reads rows of its own."""
        return {part.name: part.item_labels for part in self.parts}

    def vectors(self, records: Mapping[str, Records]) -> Entries:
        """The entries of every user's vector, within the bounds of their parts up to float rounding."""
        return vectors(self.parts, records)


def check_queries(queries: Sequence[statistics_pb2.StatisticsQuery]) -> None:
    """Returns if there are few enough queries, of distinct names, whose shares sum to 1. Raises ConfigurationError."""
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise ConfigurationError(f"Expected 1 to {MAX_QUERIES} queries (got {len(queries)})")
    names = [query.name for query in queries]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"Expected distinct names of queries (got {', '.join(names)})")
    for query in queries:
        _validate.identifier(name=query.name, table=query.table)
        _validate.positive(share=query.share)
    total = math.fsum(query.share for query in queries)
    if not math.isclose(total, 1.0, abs_tol=1e-9):
        raise ConfigurationError(f"Expected the shares of all queries to sum to 1 (got {total!r})")


def kind_of(query: statistics_pb2.StatisticsQuery) -> tuple[str, HistogramPart | MeanPart]:
    """(column, part) of a query. Raises ConfigurationError where a number of it is missing or out of range."""
    column = _COLUMN_NAMES.get(query.column, "")
    if (kind := query.WhichOneof("kind")) == "mean":
        mean = query.mean
        if column != "value":
            raise ConfigurationError(f"Expected column={column!r} of the mean {query.name!r} to be value")
        _validate.within(low=-1e12, high=1e12, mean_low=mean.low, mean_high=mean.high)
        if not mean.low < mean.high or mean.high - mean.low < _NARROWEST:
            raise ConfigurationError(
                f"Expected low={mean.low!r} of the mean {query.name!r} to be below high={mean.high!r}, by "
                f"{_NARROWEST:g} at least"
            )
        _validate.integer(max_records=mean.max_records, low=1, high=MAX_RECORDS)
        return column, MeanPart(mean.low, mean.high, mean.max_records)
    if kind != "histogram":
        raise ConfigurationError(f"Expected the query {query.name!r} to be a histogram or a mean")
    histogram = query.histogram
    if column not in COLUMNS:
        raise ConfigurationError(f"Expected column of the histogram {query.name!r} to be one of item, value")
    _validate.integer(bins=histogram.bins, low=1, high=MAX_BINS)
    edges = None
    if column == "value":
        edges = _edges(query.name, histogram)
    elif histogram.edges:
        raise ConfigurationError(f"Expected the histogram {query.name!r} of items to have bins and no edges")
    if (counting := _COUNTING_NAMES.get(histogram.counting)) is None:
        raise ConfigurationError(
            f"Expected counting of the histogram {query.name!r} to be one of {', '.join(COUNTINGS)}"
        )
    _validate.within(low=_LEAST_CLIP, high=_LARGEST_CLIP, clip=histogram.clip)
    labels: tuple[str, ...] = ()
    if histogram.labels:
        labels = check_labels(list(histogram.labels), where=f"labels of the histogram {query.name!r}")
        if len(labels) != histogram.bins or query.events.buckets:
            raise ConfigurationError(
                f"Expected the histogram {query.name!r} to have one label for each of its {histogram.bins} bins, and "
                f"none with events in buckets (got {len(labels)} labels)"
            )
    return column, HistogramPart(histogram.bins, edges, counting, histogram.clip, labels)


def _edges(name: str, histogram: statistics_pb2.HistogramQuery) -> Float64Array:
    if histogram.bins >= MAX_EDGES or len(histogram.edges) != 8 * (histogram.bins + 1):
        raise ConfigurationError(
            f"Expected the histogram {name!r} of values to have bins + 1 edges, {MAX_EDGES} at most "
            f"(got {len(histogram.edges)} bytes for bins={histogram.bins})"
        )
    edges = np.frombuffer(histogram.edges, dtype="<f8").astype(np.float64)
    if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        raise ConfigurationError(f"Expected the edges of the histogram {name!r} to be finite and ascending")
    return edges
