"""Which rows of a device the trainings of a factorization read."""

from __future__ import annotations

from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.seam import EVENTS, LocalTable, most_rows
from odp.models.events_query import AGGREGATES, EventsTerms
from odp.protocol.catalogues.named import named_in
from odp.v1 import common_pb2

MOST_ITEMS = 2**24
_RATINGS = "ratings"


def own_table(definition: common_pb2.TaskDefinition, *, items: int) -> LocalTable:
    """The table that a task reads: ratings, or things that happened, of a model with that number of ``items``.

    Raises:
      ConfigurationError: its query of events is not valid.
    """
    happened = definition.WhichOneof("local_data") == "implicit"
    data = definition.implicit if happened else definition.data
    # By item: ratings have one row of each.
    aggregates = ("",) if happened else tuple(name for name in AGGREGATES if name != "each")
    events = EventsTerms.of(data, aggregates=aggregates)
    # Without a catalogue, ratings beyond the model's items come last by number.
    most = most_rows(events) if named_in(definition) else most_rows(events, items=items)
    return LocalTable(ROWS, data.table, frozenset({EVENTS if happened else _RATINGS}), events, most)
