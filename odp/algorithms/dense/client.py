"""A vector on one device. Imports numpy alone."""

from __future__ import annotations

import numpy as np

from odp.algorithms.dense.grid import encode, quantise
from odp.algorithms.dense.records import Records, VectorTerms, check_round
from odp.algorithms.seam import Client, LocalData, LocalRows
from odp.protocol.wire.model import Slices


class VectorClient(Client):
    """``odp.algorithms.seam.Client`` of one task; it needs no slices and keeps no local parameters."""

    def __init__(self, terms: VectorTerms) -> None:
        self._terms = terms

    def empty(self, round: int) -> bytes:
        """Zeros."""
        check_round(round)
        return bytes(self._terms.grid.payload_bytes)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, nothing). A device without records contributes zeros, as if it were absent."""
        check_round(round)
        vector = self._terms.vectors({name: _records(rows) for name, rows in data.items()})
        entries = quantise(self._terms.grid, vector, round=round, seeds=np.array([seed], dtype=np.uint64))
        return encode(self._terms.grid, entries), b""


def _records(data: LocalRows) -> Records:
    return Records(np.zeros(len(data.items), dtype=np.int64), data.items, data.values, users=1)
