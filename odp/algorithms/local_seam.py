"""Tasks whose devices report to the server alone: each report is private by itself, so no party is trusted.

There is no enclave and there are no rounds. The server does one of two things with a report, as the algorithm says:

- it has rows, of which a device draws one at random, and each report becomes the content of a random row;
- it has none, devices draw nothing, and it keeps every report.

Where the coins of reports come from: the operating system on a device, each user's seed in a simulation.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.seam import Algorithm, Client, LocalData, LocalRows, ModelTable, Population, Query, Server
from odp.crypto.keyed_hash import fraction_of, key_of, keyed_hash
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array, UInt64Array
from odp.privacy.local_charge import LocalCharge
from odp.privacy.local_events import LARGEST_LOCAL_EPSILON, LocalReport
from odp.privacy.mechanisms.random_source import RandomSource
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.algorithms.capabilities import Answers

#: What a release of reports is called.
RELEASE = "reports"
#: One message each way holds a row or a report.
LARGEST_REPORT = 2**20
#: Reports of one device to one task: the device's ledger has a line for each.
MOST_REPORTS = 2**10
#: Of the reports of a task: it goes on until it is cancelled.
UNLIMITED = 2**50
_NOTHING = LocalRows(np.zeros(0, np.int64), np.zeros(0))


class Judge(Protocol):
    """Which reports a server takes, given the rows that it has. For one thread at a time."""

    def check(self, report: bytes) -> None:
        """Returns if the report is taken.

        Raises:
          ContributionRefused: MALFORMED for a wrong length, OUT_OF_BOUNDS for content that no honest device sends, or
            hardly ever.
        """

    def replace(self, place: int, report: bytes) -> None:
        """Notes that a report, which was taken, is the content of the row ``place`` now."""


class LocalReporter(Algorithm):
    """The capability of tasks whose devices report to the server alone."""

    has_rounds = False
    reads_model = False
    samples = False

    @property
    @abc.abstractmethod
    def local_charge(self) -> LocalCharge:
        """What a report costs its device, and how many it sends."""

    @property
    @abc.abstractmethod
    def report_bytes(self) -> int:
        """Length of every report."""

    @property
    def row_bytes(self) -> int:
        """Length of every row; 0 where devices draw none."""
        return 0

    @property
    def seconds_between(self) -> int:
        """Seconds between two reports of one device, at least."""
        return 0

    @property
    def most_updates(self) -> int:
        """Reports after which the task is finished."""
        return UNLIMITED

    @abc.abstractmethod
    def report(self, drawn_row: bytes, data: LocalData, *, source: RandomSource) -> bytes:
        """What a device sends that drew the row ``drawn_row``. Length and kind do not depend on ``data``.

        Raises:
          ConfigurationError: ``drawn_row`` is no row of the task, whatever the device holds.
        """

    def empty_report(self, drawn_row: bytes, *, source: RandomSource) -> bytes:
        """The report of a device without data, or whose computation failed: random like every other.

        Raises:
          ConfigurationError: as ``report``.
        """
        return self.report(drawn_row, {declared.name: _NOTHING for declared in self.local_data}, source=source)

    def first_rows(self) -> list[bytes]:
        """The rows before any report: equal wherever they are made."""
        return []

    @abc.abstractmethod
    def judge(self, rows: Sequence[bytes]) -> Judge:
        """Which reports are taken beside ``rows``, which follow from ``first_rows`` and reports."""

    @abc.abstractmethod
    def summary(self, rows: Sequence[bytes], reports: bytes) -> bytes:
        """What the developer is told: of the rows, or of all reports that the server kept, one after the other."""

    @abc.abstractmethod
    def answers_of_summary(self, summary: bytes, *, reports: int) -> Answers:
        """What the developer reads in a summary after that many reports.

        Raises:
          ConfigurationError: it is no summary of the task.
        """

    def check_for_devices(self) -> None:
        self.check()
        charge, definition = self.local_charge, self.definition
        for name in ("cohort", "broadcast"):
            if definition.HasField(name):
                raise ConfigurationError(
                    f"Expected no {name} in task {definition.name!r}: its reports go to the server alone, "
                    "without rounds"
                )
        if definition.privacy != common_pb2.PrivacyTerms(epsilon=definition.privacy.epsilon):
            raise ConfigurationError(
                f"Expected privacy of task {definition.name!r} to have an epsilon alone: a report is "
                "private without delta"
            )
        if not charge.most * charge.parts[0][1] <= definition.privacy.epsilon * (1 + 1e-12):
            raise ConfigurationError(
                f"Expected epsilon={definition.privacy.epsilon!r} of task {definition.name!r} to be at least that of "
                f"{charge.most} reports of {charge.parts[0][1]!r}"
            )
        if not charge.lifetime <= LARGEST_LOCAL_EPSILON:
            raise ConfigurationError(
                f"Expected reports of epsilon {charge.lifetime:g} in a device's life to be at most "
                f"{LARGEST_LOCAL_EPSILON:g}: lower epsilon or the number of reports"
            )
        LocalReport(RELEASE, charge.epsilon)  # what a device charges: it refuses an epsilon out of its range
        if charge.most > MOST_REPORTS:
            raise ConfigurationError(f"Expected at most {MOST_REPORTS} reports of a device (got {charge.most})")
        if max(self.report_bytes, self.row_bytes) > LARGEST_REPORT:
            raise ConfigurationError(
                f"Expected reports of at most {LARGEST_REPORT} bytes (got {self.report_bytes}): one message holds it"
            )

    # There are no rounds.

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        return ()

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
            f"Expected a task with rounds: devices of task {self.definition.name!r} report to its server alone"
        )


_WORD = 2**64


class Words(Protocol):
    """Uniform 64-bit words for many users at once, independent between users and between labels."""

    def words(self, purpose: int, attempt: int = 0) -> UInt64Array:
        """One word per user, uint64 [users], for a use that no other call has: (``purpose``, ``attempt``)."""


class SourceWords:
    """``Words`` of a stream of secret random numbers: each call reads its own."""

    def __init__(self, source: RandomSource, users: int) -> None:
        self._source = source
        self._users = users

    def words(self, purpose: int, attempt: int = 0) -> UInt64Array:
        """uint64 [users]."""
        return self._source.words(self._users)


class HashedWords:
    """``Words`` of simulated users: a hash of each user's seed, which protects nobody and depends on no other user."""

    def __init__(self, seeds: UInt64Array) -> None:
        self._seeds = seeds

    def words(self, purpose: int, attempt: int = 0) -> UInt64Array:
        """uint64 [users]."""
        return keyed_hash(key_of("coins of reports", purpose, attempt), self._seeds)


def fractions(words: Words, purpose: int) -> Float64Array:
    """Uniform numbers in [0, 1), float64 [users]."""
    return fraction_of(words.words(purpose))


def below(words: Words, purpose: int, high: int) -> Int64Array:
    """Uniform whole numbers from 0 to ``high`` - 1, int64 [users]; by rejection, so exactly uniform."""
    random_words = words.words(purpose)
    excess = _WORD % high
    attempt = 0
    while excess and (refused := random_words >= np.uint64(_WORD - excess)).any():
        attempt += 1
        random_words = np.where(refused, words.words(purpose, attempt), random_words)
    return (random_words % np.uint64(high)).astype(np.int64)
