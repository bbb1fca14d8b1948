"""A report on one device. Imports numpy alone."""

from __future__ import annotations

from odp.algorithms.dense.records import check_round
from odp.algorithms.local_seam import SourceWords
from odp.algorithms.seam import Client, LocalData
from odp.algorithms.shuffled_statistics.terms import Terms
from odp.privacy.mechanisms.random_source import RandomSource
from odp.protocol.wire.model import Slices


class ReportsClient(Client):
    """``odp.algorithms.seam.Client`` of one task; it needs no slices and keeps no local parameters.

    Every coin is of ``source``: a report must not follow from the device's seed, which is one for all rounds.
    """

    def __init__(self, terms: Terms, source: RandomSource | None = None) -> None:
        self._reports = terms.reports
        self._source = source or RandomSource()

    def empty(self, round: int) -> bytes:
        """The randomised report of a device without data: nobody can tell it from others."""
        check_round(round)
        return self._reports.empty(SourceWords(self._source, 1))

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(report, nothing)."""
        check_round(round)
        return self._reports.report(data, SourceWords(self._source, 1)), b""
