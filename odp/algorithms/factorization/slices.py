"""A device's own items and the rows that it received of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp.algorithms.factorization.subset import hash_order
from odp.algorithms.factorization.terms import CommonTerms
from odp.algorithms.seam import LocalData, LocalRows
from odp.errors import DataError
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.wire.model import Slices


def within(rows: Float32Array, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> Float32Array:
    """Rows float32 [.., width] of a model with each column within its bounds, float64 [width].

    A row with a number that is not finite is zeros, brought within the bounds.
    """
    finite: Float32Array = np.where(np.isfinite(rows).all(axis=-1, keepdims=True), rows, np.float32(0))
    np.clip(finite, low.astype(np.float32), high.astype(np.float32), out=finite)
    return finite


#: The one table that devices read, by the name that clients get it under.
ROWS = "rows"


class OwnItems:
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
