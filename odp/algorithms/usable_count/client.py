"""The vote of one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.dense.grid import Entries, encode, quantise
from odp.algorithms.dense.records import check_round
from odp.algorithms.seam import LocalData, ProgramClient
from odp.algorithms.usable_count.terms import OfExamples, Terms
from odp.protocol.wire.model import Slices

if TYPE_CHECKING:
    from odp.models.litert.trainer import ProgramTrainer


class VotingClient(ProgramClient):
    """``odp.algorithms.seam.ProgramClient`` of one task; it needs no slices and keeps no local parameters."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def run_by(self, trainer: ProgramTrainer | None) -> VotingClient:
        """This client: a vote runs no program, and yet it counts only devices that could train one.

        Raises:
          ConfigurationError: the model has a program that cannot be run here.
        """
        if isinstance(self._terms.reads, OfExamples):
            self._terms.reads.model.on_device(trainer, self._terms.reads.work)
        return self

    def empty(self, round: int) -> bytes:
        """Zeros: a vote for no place."""
        check_round(round)
        return bytes(self._terms.grid.payload_bytes)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, nothing). A device without rows votes, too: for the place that counts such devices."""
        check_round(round)
        terms = self._terms
        vote = Entries(np.zeros(1, np.int64), np.array([terms.place(data[terms.reads.table.name])]), np.ones(1))
        steps = quantise(terms.grid, vote, round=round, seeds=np.array([seed], dtype=np.uint64))
        return encode(terms.grid, steps), b""
