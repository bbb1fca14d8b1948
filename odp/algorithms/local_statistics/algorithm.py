"""Local reports as the platform sees them: no enclave takes part, and no party is trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from odp.algorithms.capabilities import Answers, RandomizedInquiry
from odp.algorithms.dense.records import check_question
from odp.algorithms.local_statistics.terms import MOST_LOCAL_CELLS, ReportTerms
from odp.algorithms.local_statistics.words import SourceWords
from odp.algorithms.seam import (
    Client,
    DeclaredRelease,
    LocalData,
    LocalTable,
    ModelTable,
    Population,
    Query,
    Server,
)
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.privacy.events import Event, LocalReport
from odp.privacy.mechanisms.random_source import RandomSource

RELEASE = "reports"
#: Rows that share the counting: more let more reports be counted at the same time.
ROWS = 16
_NUMBER = np.dtype("<i8")


class TaskAlgorithm(RandomizedInquiry):
    """``odp.algorithms.capabilities.RandomizedInquiry`` of tasks whose reports the server itself adds up.

    A row of the server's database is the number of reports per cell, int64 little-endian [cells]; the answers are in
    the sum of all rows. Devices read no row.
    """

    def terms(self) -> ReportTerms:
        """The definition, read and checked."""
        check_question(self.definition, "local_statistics")
        if self.definition.privacy.delta:
            raise ConfigurationError(
                f"Expected delta={self.definition.privacy.delta!r} to be 0: a report is private without it"
            )
        found = ReportTerms.of(self.definition.local_statistics.reports)
        if found.epsilon > self.definition.privacy.epsilon:
            raise ConfigurationError(
                f"Expected reports of epsilon {found.epsilon!r} to be within the task's "
                f"epsilon={self.definition.privacy.epsilon!r}"
            )
        if found.cells > MOST_LOCAL_CELLS:
            raise ConfigurationError(
                f"Expected reports of at most {MOST_LOCAL_CELLS:,} cells without an enclave (got {found.cells:,}): "
                "ask for fewer bins"
            )
        return found

    @property
    def resolved(self) -> Message:
        return self.definition.local_statistics

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return self.terms().local_data

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        return ()

    @property
    def fewest_users(self) -> int:
        return 1

    def check(self) -> None:
        self.terms()

    # What a device and the server do with one report.

    @property
    def charge(self) -> float:
        """Epsilon of one report, pure, for any two inputs of one person."""
        return self.terms().epsilon

    def report(self, drawn: bytes, data: LocalData, *, source: RandomSource) -> bytes:
        """The report of a device that holds ``data``; none is a case like others. ``drawn`` is empty."""
        return self.terms().report(data, SourceWords(source, 1))

    def empty_report(self, drawn: bytes, *, source: RandomSource) -> bytes:
        """The report of a device without data, or whose computation failed: randomised like every other."""
        return self.terms().empty(SourceWords(source, 1))

    def rows(self) -> list[bytes]:
        """The rows of a new task: no reports."""
        return [bytes(_NUMBER.itemsize * self.terms().cells)] * ROWS

    def serve(self, row: bytes) -> bytes:
        """What a device gets of a row: nothing."""
        return b""

    def check_report(self, report: bytes) -> None:
        """Raises ContributionRefused as ``ReportTerms.check``."""
        self.terms().check(report)

    def absorb(self, row: bytes, report: bytes) -> bytes:
        """The row with one report more. Raises StateError where the row is of another task."""
        counts = self._counts(row).copy()
        counts[int.from_bytes(report, "little")] += 1
        return counts.astype(_NUMBER).tobytes()

    def answers_of_rows(self, rows: Sequence[bytes]) -> Answers:
        """The answers of all reports that ``rows`` counted. Raises StateError where a row is of another task."""
        total: Int64Array = np.zeros(self.terms().cells, dtype=np.int64)
        for row in rows:
            total += self._counts(row)
        return self._answers(total)

    def _counts(self, row: bytes) -> Int64Array:
        expected = _NUMBER.itemsize * self.terms().cells
        if len(row) != expected:
            raise StateError(f"Expected a row of {expected} bytes, got {len(row)}; restore a backup")
        return np.frombuffer(row, dtype=_NUMBER).astype(np.int64)

    def _answers(self, counts: Int64Array) -> Answers:
        from odp.algorithms.local_statistics.results import answers_of

        terms = self.terms()
        return answers_of(terms, counts, epsilon=terms.epsilon, delta=0.0)

    # A simulation.

    def exact(self, ratings: Ratings) -> Answers:
        from odp.algorithms.local_statistics.results import exact_answers

        return exact_answers(self.terms(), ratings, delta=0.0)

    def simulated(self, ratings: Ratings, *, seeds: npt.NDArray[np.uint64]) -> tuple[Answers, tuple[Event, ...]]:
        from odp.algorithms.local_statistics.population import counts_of

        terms = self.terms()
        return self._answers(counts_of(terms, ratings, seeds=seeds)), (LocalReport(RELEASE, terms.epsilon),)

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        return self._answers(released[RELEASE].astype(np.int64))

    # There are no rounds.

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return []

    def query(self, round: int) -> Query:
        raise _no_rounds(self.definition.name)

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        raise _no_rounds(self.definition.name)

    def client(self) -> Client:
        raise _no_rounds(self.definition.name)

    def population(self) -> Population[Ratings]:
        raise _no_rounds(self.definition.name)


def _no_rounds(name: str) -> ConfigurationError:
    return ConfigurationError(f"Expected a task with rounds: devices report to task {name!r} once, to its server alone")
