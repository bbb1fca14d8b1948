"""What a developer says of the items that a task on implicit feedback reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odp._validate import strict_keywords
from odp.errors import DataError
from odp.models.events import Events, table_of

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.v1 import common_pb2

_TABLE = "events"


@strict_keywords
@dataclass(frozen=True)
class ImplicitData:
    """Items that the device saw, used or bought, in its local store: no opinions, so every item counts once.

    Of a table of values, rows above 0 say that something happened.

    It goes with ``training=odp.ImplicitDPAM()``.

    Attributes:
      table: Name of the local table of items.
      events: Takes the items of events instead, as the task says: see ``odp.Events``; without value and aggregate.
    """

    table: str = _TABLE
    events: Events | None = None

    def __post_init__(self) -> None:
        table_of(self.table, self.events, default=_TABLE)

    def check(self, ratings: Ratings) -> None:
        """Raises DataError where a value is 0 or less: such a row does not say that something happened."""
        silent = int((ratings.values <= 0).sum())
        if silent:
            raise DataError(
                f"{silent:,} rows of data set {ratings.name!r} have a value of 0 or less, which does not say 'seen': "
                "load the table with implicit=True, or leave them out with ratings.take(ratings.values > 0)"
            )

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes the wire form into a definition."""
        definition.implicit.table = table_of(self.table, self.events, default=_TABLE)
        if self.events is not None:
            definition.implicit.events.CopyFrom(self.events.to_proto(aggregate=""))
