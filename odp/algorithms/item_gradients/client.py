"""Gradients of an item table on one device: what it contributes. It reads and predicts as a device of DPAM.

Imports numpy alone.
"""

from __future__ import annotations

import numpy as np

from odp.algorithms.dpam.client import DpamClient
from odp.algorithms.dpam.userside import ridges, usable_rows
from odp.algorithms.factorization.slices import find_slices
from odp.algorithms.item_gradients import codec, userside
from odp.algorithms.item_gradients.terms import MASSES_ROUND, as_read, terms_of
from odp.algorithms.seam import LocalData
from odp.protocol.wire.model import Slices
from odp.v1 import common_pb2


class ItemGradientClient(DpamClient):
    """``odp.algorithms.seam.Client`` of one task.

    Args:
      definition: the task that the device verified.

    Raises:
      ConfigurationError: the definition is no valid task of this kind.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._trained = terms_of(definition)
        super().__init__(as_read(definition))

    def empty(self, round: int) -> bytes:
        """No item, and a row of zeros."""
        return codec.empty_payload(self._trained, round)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """As DPAM's, with the local parameters of this method: values are clamped, and items without a slice left out.

        In the round of masses no slice is needed.

        Raises:
          ConfigurationError: as ``check_model``.
        """
        terms, held = self._trained, self._in_order(data, round=round, seed=seed)
        if round == MASSES_ROUND:
            everything = userside.Entries.of(held, np.zeros((len(held.items), 0)))
            return codec.encode(terms, round, userside.masses(terms, everything))[0], np.zeros(1, dtype="<f8").tobytes()
        has_slice, place = find_slices(slices, held.items)
        rows = usable_rows(terms.model, slices.rows[place[has_slice]]).astype(np.float64)
        entries = userside.Entries.of(held.where(has_slice), rows)
        sent, local = userside.contributions(terms, entries, ridges(terms.model, slices.dense))
        return codec.encode(terms, round, sent)[0], local[0].astype("<f8").tobytes()
