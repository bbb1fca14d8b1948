"""The desk at which devices draw rows and hand in reports: the open tasks of local trust, in memory.

The server is trusted with nothing here. What it promises is order: a report is stored before it is answered, it counts
once, and it overwrites one row, drawn at random and independently of every row that was served. No lock is held between
the two, so any number of devices may be between their draw and their report.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from odp.algorithms.local_seam import UNLIMITED, Judge, LocalReporter
from odp.errors import ContributionRefused, Refusal
from odp.transport.logs import Log
from server.local.admission import Admission
from server.local.writer import Writer
from server.storage.reports import NewReport, ReportStorage
from server.waits import Wait

_WORDS = 512


@dataclass
class _Open:
    """An open task. The writer's thread alone changes it."""

    algorithm: LocalReporter
    rows: list[bytes]
    judge: Judge
    taken: int
    admission: Admission | None
    #: Reports that were judged well and are not stored yet.
    waiting: int = 0
    #: How often each row had been overwritten when it was read from the store; of rows that were.
    overwritten: dict[int, int] = field(default_factory=dict)

    def take_in(self, changed: Mapping[int, tuple[int, bytes]], taken: int) -> None:
        """Takes in rows as (times overwritten, content), and how many reports were taken."""
        for place, (times, content) in changed.items():
            self.overwritten[place] = times
            if content != self.rows[place]:
                self.rows[place] = content
                self.judge.replace(place, content)
        self.taken = max(self.taken, taken)


@dataclass(frozen=True)
class _OfTask:
    """``server.local.writer.Judgement`` of a report to an open task."""

    task: _Open
    report: NewReport
    token: bytes
    period: int

    def refusal(self) -> Refusal | None:
        """As declared."""
        try:
            if self.task.admission is not None:
                self.task.admission.require(self.report.report_id, self.token, self.period)
            if self.task.taken + self.task.waiting >= self.task.algorithm.most_updates:
                raise ContributionRefused(Refusal.ROUND_CLOSED)
            self.task.judge.check(self.report.content)
        except ContributionRefused as error:
            return error.refusal
        self.task.waiting += 1
        return None

    def stored(self, new: bool) -> None:
        """As declared."""
        self.task.waiting -= 1
        if not new:
            return
        if self.report.place is not None:
            self.task.rows[self.report.place] = self.report.content
            self.task.judge.replace(self.report.place, self.report.content)
        self.task.taken += 1


@dataclass(frozen=True)
class _OfNone:
    """The same of a report to a task that is over."""

    why: Refusal

    def refusal(self) -> Refusal | None:
        """As declared."""
        return self.why

    def stored(self, new: bool) -> None:
        """Never called."""


class Desk:
    """The open tasks of a server; thread-safe.

    Args:
      storage: what outlives the program.
      log: where events go.
    """

    def __init__(self, storage: ReportStorage, *, log: Log) -> None:
        self._storage, self._places = storage, _Places()
        self._tasks: dict[bytes, _Open] = {}
        self._writer = Writer(storage, log=log)

    def open(self, sha256: bytes, algorithm: LocalReporter, admission: Admission | None = None) -> None:
        """Opens a stored task, with what was stored of it before; ``admission`` says whose reports it takes.

        Idempotent. Raises StateError.
        """
        if sha256 in self._tasks:
            return
        rows = self._storage.rows(sha256)
        if not rows and algorithm.row_bytes:
            self._storage.begin(sha256, algorithm.first_rows())
            rows = self._storage.rows(sha256)
        judge = algorithm.judge(rows)
        for row in rows[:1]:
            # Machine code is loaded by the first call: not by that of a device.
            with contextlib.suppress(ContributionRefused):
                judge.check(row)
        self._tasks[sha256] = _Open(algorithm, rows, judge, self._storage.count(sha256), admission)

    def close(self, sha256: bytes) -> None:
        """Ends a task: it takes no further report. Idempotent."""
        self._tasks.pop(sha256, None)

    def admission(self, sha256: bytes) -> Admission | None:
        """The tokens that an open task asks for; None where it asks for none, or is not open."""
        task = self._tasks.get(sha256)
        return None if task is None else task.admission

    def is_open(self, sha256: bytes) -> bool:
        """Whether devices can draw and report."""
        return sha256 in self._tasks

    def open_tasks(self) -> set[bytes]:
        """The tasks that are open."""
        return set(self._tasks)

    def reread(self, sha256: bytes) -> None:
        """Takes in what other servers stored of an open task. Raises StateError."""
        task = self._tasks.get(sha256)
        if task is None:
            return
        changed = self._storage.changed_rows(sha256, task.overwritten)
        taken = self._storage.count(sha256)
        self._writer.run(functools.partial(task.take_in, changed, taken))

    def is_full(self, sha256: bytes) -> bool:
        """Whether an open task has as many reports as it takes."""
        task = self._tasks.get(sha256)
        return task is not None and task.taken >= task.algorithm.most_updates

    def count(self, sha256: bytes) -> int:
        """Reports that a task took at whichever server, open or not. Raises StateError."""
        return self._storage.count(sha256)

    def waits_for(self, sha256: bytes) -> Wait | None:
        """What an open task waits for; None where it is not open."""
        task = self._tasks.get(sha256)
        if task is None:
            return None
        end = "is cancelled" if task.algorithm.most_updates == UNLIMITED else f"has {task.algorithm.most_updates:,}"
        return Wait(f"reports of devices, until it {end}: {task.taken:,} so far")

    def draw(self, sha256: bytes) -> bytes | None:
        """A row of an open task, drawn at random; empty where it has none. None: the task is not open."""
        task = self._tasks.get(sha256)
        if task is None:
            return None
        return task.rows[self._places.below(len(task.rows))] if task.rows else b""

    def report(
        self, sha256: bytes, report_id: bytes, content: bytes, *, token: bytes = b"", period: int = 0
    ) -> Future[Refusal | None] | None:
        """Takes a report, or says why not; the future is done once it is on the disk. None: the task is not open.

        It is refused as MALFORMED, OUT_OF_BOUNDS, NO_TOKEN, or ROUND_CLOSED where the task has all of its reports;
        unless a report with this id was taken before.

        Raises:
          Busy, StateError: as ``Writer.put``.
        """
        task = self._tasks.get(sha256)
        if task is None:
            return None
        place = self._places.below(len(task.rows)) if task.rows else None
        report = NewReport(sha256, report_id, place, content)
        return self._writer.put(report, _OfTask(task, report, token, period))

    def refuse(self, sha256: bytes, report_id: bytes, why: Refusal) -> Future[Refusal | None]:
        """Refuses a report to a task that is over, unless it was taken before. Raises as ``report``."""
        return self._writer.put(NewReport(sha256, report_id, None, b""), _OfNone(why))

    def summary(self, sha256: bytes, algorithm: LocalReporter) -> tuple[int, bytes]:
        """(reports, what they say) of a task, open or not. Raises StateError."""
        reports = b"" if algorithm.row_bytes else self._storage.all_reports(sha256)
        rows = self._storage.rows(sha256) or algorithm.first_rows()
        count = self._storage.count(sha256) if algorithm.row_bytes else len(reports) // algorithm.report_bytes
        return count, algorithm.summary(rows, reports)

    def stop(self) -> None:
        """Stores what waits. Idempotent."""
        self._writer.stop()


class _Places:
    """Random places that nobody can predict; thread-safe. One call of the operating system lasts for many of them."""

    def __init__(self) -> None:
        self._words: deque[int] = deque()

    def below(self, count: int) -> int:
        """A number from 0 to ``count`` - 1, below 2^32: each with equal probability up to 2^-32."""
        while True:
            try:
                word = self._words.popleft()
            except IndexError:
                self._words.extend(memoryview(os.urandom(8 * _WORDS)).cast("Q"))
                continue
            return (word * count) >> 64
