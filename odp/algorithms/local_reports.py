"""Questions whose devices report one cell each to the server alone: no enclave takes part, and no party is trusted.

The server keeps every report; the answers are in the number of reports per cell.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import numpy as np

from odp.algorithms.capabilities import Answers, RandomizedInquiry
from odp.algorithms.local_seam import RELEASE, LocalReporter, SourceWords, Words
from odp.algorithms.seam import LocalData
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.local_charge import LocalCharge
from odp.privacy.mechanisms.random_source import RandomSource

#: A report on the wire: its cell, little-endian.
REPORT = np.dtype("<u4")
_COUNT = np.dtype("<i8")


class CellJudge:
    """Takes every report that is one of ``cells``: any honest device could have sent it."""

    def __init__(self, cells: int) -> None:
        self._cells = cells

    def check(self, report: bytes) -> None:
        """Raises ContributionRefused: MALFORMED for a wrong length, OUT_OF_BOUNDS for no cell."""
        if len(report) != REPORT.itemsize:
            raise ContributionRefused(Refusal.MALFORMED)
        if int.from_bytes(report, "little") >= self._cells:
            raise ContributionRefused(Refusal.OUT_OF_BOUNDS)

    def replace(self, place: int, report: bytes) -> None:
        """There are no rows."""
        raise NotImplementedError


class LocalReports(RandomizedInquiry, LocalReporter):
    """``odp.algorithms.capabilities.RandomizedInquiry`` of tasks whose reports the server itself adds up."""

    @property
    @abc.abstractmethod
    def cells(self) -> int:
        """Numbers that a report can be."""

    @property
    @abc.abstractmethod
    def charge(self) -> float:
        """Epsilon of one report, pure, for any two inputs of one person."""

    @abc.abstractmethod
    def cell_of(self, data: LocalData, words: Words) -> int:
        """The report of a device that holds ``data``; no rows are a case like others."""

    @abc.abstractmethod
    def answers_of_counts(self, counts: Int64Array) -> Answers:
        """The answers in the numbers of reports per cell, int64 [cells]."""

    @property
    def local_charge(self) -> LocalCharge:
        return LocalCharge(parts=(("answer", self.charge),), most=1)

    @property
    def report_bytes(self) -> int:
        return REPORT.itemsize

    def report(self, drawn_row: bytes, data: LocalData, *, source: RandomSource) -> bytes:
        if drawn_row:
            raise ConfigurationError(f"Expected nothing to be drawn (got {len(drawn_row)} bytes)")
        return self.cell_of(data, SourceWords(source, 1)).to_bytes(REPORT.itemsize, "little")

    def judge(self, rows: Sequence[bytes]) -> CellJudge:
        return CellJudge(self.cells)

    def summary(self, rows: Sequence[bytes], reports: bytes) -> bytes:
        return np.bincount(np.frombuffer(reports, dtype=REPORT), minlength=self.cells).astype(_COUNT).tobytes()

    def answers_of_summary(self, summary: bytes, *, reports: int) -> Answers:
        if len(summary) != _COUNT.itemsize * self.cells:
            raise ConfigurationError(f"Expected the counts of {self.cells} cells, got {len(summary)} bytes")
        counts = np.frombuffer(summary, dtype=_COUNT).astype(np.int64)
        if (counts < 0).any() or int(counts.sum()) != reports:
            raise ConfigurationError(f"Expected counts of {reports} reports")
        return self.answers_of_counts(counts)

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        return self.answers_of_counts(released[RELEASE].astype(np.int64))

    @property
    def fewest_users(self) -> int:
        return 1

    @property
    def most_users(self) -> int:
        return 2**40
