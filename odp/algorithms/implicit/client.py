"""DPAM on implicit feedback on one device: its slices, its contribution, its scores. Imports numpy alone."""

from __future__ import annotations

import numpy as np

from odp.algorithms.factorization.slices import OwnItems, find_slices, rows_to_predict
from odp.algorithms.implicit import codec, userside
from odp.algorithms.implicit.terms import COUNTS_ROUND, FACTOR_COLUMNS, Terms
from odp.algorithms.seam import LocalData, LocalRows
from odp.models.reasons import Reasons
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2


class ImplicitClient(OwnItems):
    """``odp.algorithms.seam.Client`` of one task; without a confidence, the values of local data are not read.

    Args:
      definition: the task that the device verified.

    Raises:
      ConfigurationError: the definition is no valid task on implicit data.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = Terms.of(definition)
        self._confidence = userside.confidence_of(definition)
        super().__init__(self._terms, values=(0.0, userside.MOST_COUNT) if self._confidence else None)

    def empty(self, round: int) -> bytes:
        """No item, and a row of zeros."""
        return codec.empty_payload(self._terms, round)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, local parameters): the latter are the user's row, float64 [rank], little-endian.

        Items that the model does not have, and own items without a slice, take no part; in the round of counts no
        slice is needed.
        """
        terms, held = self._terms, self._in_order(data, round=round, seed=seed)
        if round == COUNTS_ROUND:
            counted = userside.counted(terms, held.items[None], np.ones((1, len(held.items)), dtype=np.bool_))
            return codec.encode(terms, round, counted)[0], np.zeros(terms.rank, dtype="<f8").tobytes()
        batch = self._batch(slices, held)
        row = userside.user_rows(batch)
        payload = codec.encode(terms, round, userside.contributions(terms, batch, row))[0]
        return payload, row[0].astype("<f8").tobytes()

    def predict(self, slices: Slices, data: LocalData, items: Int64Array) -> Float64Array:
        """Scores float64 [n], personalised on those of ``data`` whose item has a slice: only their order means much.

        Without any such item they are the released popularity.

        Raises:
          DataError: one of ``items`` has no slice.
        """
        rows = userside.usable_rows(rows_to_predict(slices, items)).astype(np.float64)
        person_weights = self.linear(slices, data)
        if not person_weights.any():
            return userside.popularity(self._terms, rows, version=slices.version)
        return np.asarray(rows[:, FACTOR_COLUMNS:] @ person_weights)

    def reasons(self, slices: Slices, data: LocalData, items: Int64Array) -> Reasons:
        """What each own item adds to ``predict``; nothing where that is the popularity. Raises as that."""
        rows = userside.usable_rows(rows_to_predict(slices, items)).astype(np.float64)
        batch = self._batch(slices, self._usable(data))
        return Reasons(batch.items[0], userside.shares(batch, rows))

    def on_scale(self, values: Float64Array) -> Float64Array:
        """The same: scores have no scale."""
        return values

    def linear(self, slices: Slices, data: LocalData) -> Float64Array:
        """The row float64 [rank] of :meth:`predict`; 0 without items."""
        return np.asarray(userside.user_rows(self._batch(slices, self._usable(data)))[0])

    def _batch(self, slices: Slices, held: LocalRows) -> userside.Batch:
        has_slice, place = find_slices(slices, held.items)
        return userside.Batch(
            items=held.items[has_slice][None],
            mask=np.ones((1, int(has_slice.sum())), dtype=np.bool_),
            rows=userside.usable_rows(slices.rows[place[has_slice]]).astype(np.float64)[None],
            confidence=userside.confidences(held.values[has_slice][None], self._confidence),
        )
