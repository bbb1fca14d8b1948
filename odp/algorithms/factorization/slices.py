"""A device's own items and the rows that it received of them.

Which of its items a device uses in a round: those of smallest hash of (seed, round, item).

A device that has more items than places takes a uniformly random subset, a fresh one each round. The hash orders the
items, and prefixes of that order nest: the items that a device contributes are always among the slices it fetches.

Which rows of a device the trainings of a factorization read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp.algorithms.factorization.terms import CommonTerms
from odp.algorithms.seam import EVENTS, Client, LocalData, LocalRows, LocalTable, most_rows
from odp.crypto.keyed_hash import round_hashes
from odp.errors import DataError
from odp.models.events_query import AGGREGATES, EventsTerms
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.catalogues.named import named_in
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2


def hash_order(seed: int, round: int, items: Int64Array) -> Int64Array:
    """The positions of ``items`` (distinct, int64 [k]) in the order in which the device uses them in ``round``."""
    return np.argsort(round_hashes(np.array([seed], dtype=np.uint64), round, items), kind="stable")


def within(rows: Float32Array, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> Float32Array:
    """Rows float32 [.., width] of a model with each column within its bounds, float64 [width].

    A row with a number that is not finite is zeros, brought within the bounds.
    """
    finite: Float32Array = np.where(np.isfinite(rows).all(axis=-1, keepdims=True), rows, np.float32(0))
    np.clip(finite, low.astype(np.float32), high.astype(np.float32), out=finite)
    return finite


#: The one table that devices read, by the name that clients get it under.
ROWS = "rows"


class OwnItems(Client):
    """The part of a device's client that deals with its own items.

    Args:
      terms: of the task.
      values: the range of the device's values; None where they are not read.
    """

    def __init__(self, terms: CommonTerms, *, values: tuple[float, float] | None = None) -> None:
        self._n_items = terms.items
        self._most = terms.slices_per_device
        self._values = values

    def items(self, data: LocalData) -> Int64Array:
        """The device's items, whether or not the model has them."""
        return data[ROWS].items

    def keys(self, data: LocalData, *, round: int, seed: int) -> Int64Array:
        """The device's own items, int64 ascending; where there are more than slices_per_device, a random subset.

        The items that the device contributes in this round are always among them.
        """
        return np.sort(self._in_order(data, round=round, seed=seed).items[: self._most])

    def _in_order(self, data: LocalData, *, round: int, seed: int) -> LocalRows:
        """The device's usable rows in the order of use: the first ones are contributed."""
        rows = self._usable(data)
        order = hash_order(seed, round, rows.items)
        return LocalRows(rows.items[order], rows.values[order])

    def _usable(self, data: LocalData) -> LocalRows:
        return data[ROWS].within(items=self._n_items, values=self._values)


def find_slices(slices: Slices, items: Int64Array) -> tuple[npt.NDArray[np.bool_], Int64Array]:
    """(whether each item has a slice, the slice's position where it has)."""
    if not len(slices.keys):
        return np.zeros(len(items), dtype=np.bool_), np.zeros(len(items), dtype=np.int64)
    inside = np.minimum(np.searchsorted(slices.keys, items), len(slices.keys) - 1)
    return slices.keys[inside] == items, inside


def rows_to_predict(slices: Slices, items: Int64Array) -> Float32Array:
    """The rows float32 [n, width] of ``items``, as they were received.

    Raises:
      DataError: an item has no slice.
    """
    has_slice, place = find_slices(slices, items)
    if not has_slice.all():
        missing = int((~has_slice).sum())
        raise DataError(f"Expected a slice for each item to predict: {missing} of {len(items)} have none")
    return slices.rows[place]


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
    once = happened and not definition.implicit.confidence
    aggregates = ("",) if once else tuple(name for name in AGGREGATES if name != "each")
    events = EventsTerms.of(data, aggregates=aggregates)
    # Without a catalogue, ratings beyond the model's items come last by number.
    most = most_rows(events) if named_in(definition) else most_rows(events, items=items)
    return LocalTable(ROWS, data.table, frozenset({EVENTS if happened else _RATINGS}), events, most)
