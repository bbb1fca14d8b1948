"""Gradients of an item table from implicit feedback on one device: contribution and scores. Imports numpy alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odp.algorithms.factorization.slices import OwnItems, find_slices, rows_to_predict
from odp.algorithms.implicit.terms import FACTOR_COLUMNS
from odp.algorithms.implicit.userside import confidence_of, usable_rows
from odp.algorithms.implicit_gradients import userside
from odp.algorithms.implicit_gradients.terms import as_read, terms_of
from odp.algorithms.item_gradients import codec
from odp.algorithms.item_gradients.terms import MASSES_ROUND
from odp.algorithms.item_gradients.userside import Entries, masses
from odp.algorithms.seam import LocalData, LocalRows
from odp.models.reasons import Reasons
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2


class ImplicitGradientClient(OwnItems):
    """``odp.algorithms.seam.Client`` of one task; the values of local data are not read.

    Args:
      definition: the task that the device verified.

    Raises:
      ConfigurationError: the definition is no valid task of this kind.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = terms_of(definition)
        confidence_of(as_read(definition))  # which has none: items count once
        super().__init__(self._terms.model)

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Raises ConfigurationError where the root of a model does not hold up every solve."""
        userside.common_part(self._terms, dense)

    def empty(self, round: int) -> bytes:
        """No item, and rows of zeros."""
        return codec.empty_payload(self._terms, round)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, local parameters): the latter are the user's row, float64 [1 + rank], little-endian.

        Items that the model does not have, and own items without a slice, take no part; in the round of masses no
        slice is needed.

        Raises:
          ConfigurationError: as ``check_model``.
        """
        terms, held = self._terms, self._in_order(data, round=round, seed=seed)
        if round == MASSES_ROUND:
            sent = masses(terms, Entries.of(held, np.zeros((len(held.items), 0))))
            return codec.encode(terms, round, sent)[0], np.zeros(1 + terms.width, dtype="<f8").tobytes()
        common = userside.common_part(terms, slices.dense)
        sent, rows = userside.contributions(terms, _entries(slices, held), common)
        return codec.encode(terms, round, sent)[0], rows[0].astype("<f8").tobytes()

    def predict(self, slices: Slices, data: LocalData, items: Int64Array) -> Float64Array:
        """Scores float64 [n], personalised on those of ``data`` whose item has a slice: only their order means much.

        Without any such item they are the popularity.

        Raises:
          DataError: one of ``items`` has no slice.
          ConfigurationError: as ``check_model``.
        """
        rows = usable_rows(rows_to_predict(slices, items)).astype(np.float64)
        return np.asarray(rows[:, FACTOR_COLUMNS:] @ self.linear(slices, data))

    def reasons(self, slices: Slices, data: LocalData, items: Int64Array) -> Reasons:
        """What each own item adds to ``predict``; nothing where that is the popularity. Raises as that."""
        rows = usable_rows(rows_to_predict(slices, items)).astype(np.float64)
        entries = _entries(slices, self._usable(data))
        return Reasons(entries.items, userside.shares(entries, userside.common_part(self._terms, slices.dense), rows))

    def on_scale(self, values: Float64Array) -> Float64Array:
        """The same: scores have no scale."""
        return values

    def linear(self, slices: Slices, data: LocalData) -> Float64Array:
        """The row float64 [1 + rank] of :meth:`predict`. Raises ConfigurationError as ``check_model``."""
        entries = _entries(slices, self._usable(data))
        return np.asarray(userside.scoring_rows(entries, userside.common_part(self._terms, slices.dense))[0])


def _entries(slices: Slices, held: LocalRows) -> Entries:
    has_slice, place = find_slices(slices, held.items)
    return Entries.of(held.where(has_slice), usable_rows(slices.rows[place[has_slice]]).astype(np.float64))
