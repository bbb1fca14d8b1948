"""What a developer says of the ratings that a task reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odp._validate import strict_keywords, within
from odp.errors import ConfigurationError, DataError
from odp.models.events import Events, table_of

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.v1 import common_pb2

_TABLE = "ratings"


@strict_keywords
@dataclass(frozen=True)
class RatingsData:
    """Explicit ratings of items in the device's local store.

    Attributes:
      table: Name of the local table of (item, value).
      low, high: Declared range; a device refuses a value outside of it, and clamps one that is made of events.
      events: Makes the ratings of events instead, as the task says: see ``odp.Events``; without a table.
    """

    table: str = _TABLE
    low: float = 1.0
    high: float = 5.0
    events: Events | None = None

    def __post_init__(self) -> None:
        table_of(self.table, self.events, default=_TABLE)
        within(low=-1e6, high=1e6, data_low=self.low, data_high=self.high)
        if not self.low < self.high:
            raise ConfigurationError(f"Expected low={self.low!r} to be below high={self.high!r}")

    def check(self, ratings: Ratings) -> None:
        """Raises DataError where a value is outside of the declared range."""
        if not (self.low <= ratings.values.min() and ratings.values.max() <= self.high):
            raise DataError(
                f"the data set {ratings.name!r} holds values outside the task's bounds "
                f"low={self.low}, high={self.high}; "
                "set the bounds that the data declares"
            )

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes the wire form into a definition."""
        data = definition.data
        data.table = table_of(self.table, self.events, default=_TABLE)
        data.low, data.high = self.low, self.high
        if self.events is not None:
            data.events.CopyFrom(self.events.to_proto(aggregate="count" if self.events.value is None else "last"))
