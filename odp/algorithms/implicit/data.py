"""What a developer says of the items that a task on implicit feedback reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odp._validate import strict_keywords
from odp.models.events import Events, table_of

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.v1 import common_pb2

_TABLE = "events"


@strict_keywords
@dataclass(frozen=True)
class ImplicitData:
    """Items that the device saw, used or bought, in its local store: no opinions, so every item counts once.

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
        """Returns: values are not read."""

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes the wire form into a definition."""
        definition.implicit.table = table_of(self.table, self.events, default=_TABLE)
        if self.events is not None:
            definition.implicit.events.CopyFrom(self.events.to_proto(aggregate=""))
