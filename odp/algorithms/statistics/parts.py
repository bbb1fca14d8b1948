"""The parts of a user's vector, one per query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from odp.errors import ConfigurationError
from odp.identity import is_normal
from odp.models.events_query import EventsTerms
from odp.models.features import checked_texts
from odp.numerics.arrays import Float64Array

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
