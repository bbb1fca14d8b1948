"""DPAM on one device: which slices it wants, what it contributes, what it predicts. Imports numpy alone."""

from __future__ import annotations

import numpy as np

from odp.algorithms.alternating import OwnItems, find_slices, rows_to_predict
from odp.algorithms.dpam import codec, userside
from odp.algorithms.dpam.terms import COUNTS_ROUND, FIRST_FACTOR_ROUND, GLOBALS_TABLE, Terms
from odp.algorithms.seam import Float64Array, Int64Array, LocalRatings, Slices
from odp.v1 import common_pb2


class DpamClient(OwnItems):
    """``odp.algorithms.seam.Client`` of one task.

    Args:
      definition: the task that the device verified.

    Raises:
      ConfigurationError: the definition is no valid DPAM task.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = Terms.of(definition)
        super().__init__(self._terms)

    def contribute(self, slices: Slices, data: LocalRatings, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, local parameters): the latter are the user's bias and row, float64 [1 + rank], little-endian.

        Own items without a slice take no part. In the round of counts no slice is needed.

        Raises:
          DataError: an item is out of range.
        """
        terms, order = self._terms, self._order(data, round=round, seed=seed)
        items, values = data.items[order], data.values[order]
        if round == COUNTS_ROUND:
            counted = userside.counted(terms, items[None], np.ones((1, len(items)), dtype=np.bool_))
            return codec.encode(terms, round, counted)[0], np.zeros(1, dtype="<f8").tobytes()
        batch = _batch(slices, items, values)
        local = userside.solve(terms, batch, _ridges(slices), rank=terms.rank_of(round))
        payload = codec.encode(terms, round, userside.contributions(terms, batch, local, round=round))[0]
        return payload, np.concatenate((local.bias, local.row[0])).astype("<f8").tobytes()

    def predict(self, slices: Slices, data: LocalRatings, items: Int64Array) -> Float64Array:
        """Predicted values float64 [n], personalised on those of ``data`` whose item has a slice; not clamped.

        Raises:
          DataError: an item of ``data`` is out of range, or one of ``items`` has no slice.
        """
        self._check(data)
        rows = rows_to_predict(slices, items)
        rank = self._terms.rank if slices.version >= FIRST_FACTOR_ROUND else 0
        batch = _batch(slices, data.items, data.values)
        local = userside.solve(self._terms, batch, _ridges(slices), rank=rank)
        return userside.predict(self._terms, local, np.zeros(len(items), dtype=np.int64), rows)


def _batch(slices: Slices, items: Int64Array, values: Float64Array) -> userside.Batch:
    found, place = find_slices(slices, items)
    return userside.Batch(
        items=items[found][None],
        values=values[found].astype(np.float64)[None],
        mask=np.ones((1, int(found.sum())), dtype=np.bool_),
        rows=slices.rows[place[found]].astype(np.float64)[None],
    )


def _ridges(slices: Slices) -> Float64Array:
    return np.asarray(slices.dense[GLOBALS_TABLE][0], dtype=np.float64)
