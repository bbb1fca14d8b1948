"""Questions whose devices report one cell each to the server alone: no enclave takes part, and no party is trusted.

A row of the server's database is the number of reports per cell, int64 little-endian [cells]; the answers are in the
sum of all rows. Several rows let several reports be counted at the same time. Devices read no row.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from odp.algorithms.capabilities import Answers, RandomizedInquiry
from odp.algorithms.coins import SourceWords, Words
from odp.algorithms.seam import Client, DeclaredRelease, LocalData, LocalRows, ModelTable, Population, Query, Server
from odp.errors import ConfigurationError, ContributionRefused, Refusal, StateError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.privacy.mechanisms.random_source import RandomSource

RELEASE = "reports"
ROWS = 16
#: A report on the wire: its cell, little-endian.
REPORT = np.dtype("<u4")
_NUMBER = np.dtype("<i8")
_NOTHING = LocalRows(np.zeros(0, np.int64), np.zeros(0))


class LocalReports(RandomizedInquiry):
    """``odp.algorithms.capabilities.RandomizedInquiry`` of tasks whose reports the server itself adds up."""

    has_rounds = False

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

    def report(self, drawn: bytes, data: LocalData, *, source: RandomSource) -> bytes:
        """The report of a device on the wire; ``drawn`` is empty."""
        return self.cell_of(data, SourceWords(source, 1)).to_bytes(REPORT.itemsize, "little")

    def empty_report(self, drawn: bytes, *, source: RandomSource) -> bytes:
        """The report of a device without data, or whose computation failed: randomised like every other."""
        nothing = {declared.name: _NOTHING for declared in self.local_data}
        return self.report(drawn, nothing, source=source)

    def rows(self) -> list[bytes]:
        """The rows of a new task: no reports."""
        return [bytes(_NUMBER.itemsize * self.cells)] * ROWS

    def serve(self, row: bytes) -> bytes:
        """What a device gets of a row: nothing."""
        return b""

    def check_report(self, report: bytes) -> None:
        """Accepts any report that a device can send.

        Raises:
          ContributionRefused: MALFORMED for a wrong length, OUT_OF_BOUNDS for no cell.
        """
        if len(report) != REPORT.itemsize:
            raise ContributionRefused(Refusal.MALFORMED)
        if int.from_bytes(report, "little") >= self.cells:
            raise ContributionRefused(Refusal.OUT_OF_BOUNDS)

    def absorb(self, row: bytes, report: bytes) -> bytes:
        """The row with one report more. Raises StateError where the row is of another task."""
        counts = self._counts(row).copy()
        counts[int.from_bytes(report, "little")] += 1
        return counts.astype(_NUMBER).tobytes()

    def answers_of_rows(self, rows: Sequence[bytes]) -> Answers:
        """The answers of all reports that ``rows`` counted. Raises StateError where a row is of another task."""
        total: Int64Array = np.zeros(self.cells, dtype=np.int64)
        for row in rows:
            total += self._counts(row)
        return self.answers_of_counts(total)

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

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        return ()

    def _counts(self, row: bytes) -> Int64Array:
        expected = _NUMBER.itemsize * self.cells
        if len(row) != expected:
            raise StateError(f"Expected a row of {expected} bytes, got {len(row)}; restore a backup")
        return np.frombuffer(row, dtype=_NUMBER).astype(np.int64)

    # There are no rounds.

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return []

    def query(self, round: int) -> Query:
        raise self._no_rounds()

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        raise self._no_rounds()

    def client(self) -> Client:
        raise self._no_rounds()

    def population(self) -> Population[Any]:
        raise self._no_rounds()

    def _no_rounds(self) -> ConfigurationError:
        return ConfigurationError(
            f"Expected a task with rounds: devices report to task {self.definition.name!r} once, to its server alone"
        )
