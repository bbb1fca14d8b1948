"""The parts of a user's vector, one per query."""

from __future__ import annotations

import math
from dataclasses import dataclass

from odp.models.events_query import EventsTerms
from odp.numerics.arrays import Float64Array


@dataclass(frozen=True)
class HistogramPart:
    """What a user adds to each bin: see ``odp.Histogram``. ``edges`` float64 [bins + 1] of values, None of items."""

    bins: int
    edges: Float64Array | None
    counting: str
    clip: float

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
    def place(self) -> slice:
        """Where the part stands in the vector."""
        return slice(self.offset, self.offset + self.kind.size)
