"""The declared query of the one round: which reports are accepted, how they are counted, and what that costs.

The shuffler is this query inside the aggregator's enclave. It strips all of a contribution but its report, waits for
the cohort's minimum, and releases how many reports each cell has. These numbers are a function of the multiset of the
reports, and the multiset is what a uniformly random order of them shows: a permutation would add nothing. No noise is
added. Whatever a dishonest device sends, it is one report, which moves two numbers by one at most.

Guarantee: docs/local-privacy.md, "Shuffling", for the least number of honest reports that the definition names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odp.algorithms.declared import ShuffledCounts
from odp.algorithms.local_statistics.terms import REPORT
from odp.algorithms.seam import refusals_one_by_one
from odp.algorithms.shuffled_statistics.terms import RELEASE, Terms
from odp.errors import Refusal
from odp.numerics.arrays import Int64Array

# Comparisons at once of an oblivious sum: bounds its memory.
_COMPARED = 2**22


class ReportsQuery:
    """``odp.algorithms.seam.Query`` of one task."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.payload_bytes = REPORT.itemsize
        self.maximum = terms.maximum
        self.releases = (ShuffledCounts(RELEASE, (terms.reports.cells,), 1.0, terms.charge),)

    def check(self, payload: bytes) -> None:
        """Raises ContributionRefused as ``ReportTerms.check``."""
        self._terms.reports.check(payload)

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of each."""
        return refusals_one_by_one(self.check, payloads)

    def new_sum(self, *, oblivious: bool = False) -> ReportsSum:
        """An empty count."""
        return ReportsSum(self._terms.reports.cells, oblivious=oblivious)


class ReportsSum:
    """How many reports each cell has; ``add`` trusts that its input was checked."""

    def __init__(self, cells: int, *, oblivious: bool) -> None:
        self.count = 0
        self._counts = np.zeros(cells, dtype=np.int64)
        self._oblivious = oblivious

    def add(self, payloads: Sequence[bytes]) -> None:
        """Counts checked reports."""
        cells = np.frombuffer(b"".join(payloads), dtype=REPORT)
        if self._oblivious:
            self._compare(cells)
        else:
            self._counts += np.bincount(cells, minlength=len(self._counts))
        self.count += len(payloads)

    def totals(self) -> dict[str, Int64Array]:
        """Reports per cell, int64 [cells]."""
        return {RELEASE: self._counts.copy()}

    def _compare(self, cells: np.ndarray) -> None:
        """Every report with every cell: what is read and written follows from the number of reports alone."""
        cell_numbers = np.arange(len(self._counts), dtype=REPORT)
        at_once = max(1, _COMPARED // len(cell_numbers))
        for start in range(0, len(cells), at_once):
            self._counts += (cells[start : start + at_once, None] == cell_numbers).sum(axis=0)
