"""The desk at which devices draw rows and hand in reports: the open tasks of local trust, in memory.

The server is trusted with nothing here. What it promises is order: a report is stored before it is answered, it counts
once, and it overwrites one row, drawn at random and independently of every row that was served. No lock is held between
the two, so any number of devices may be between their draw and their report.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from odp.algorithms.local_seam import UNLIMITED, Judge, LocalReporter
from odp.errors import ContributionRefused, Refusal
from odp.transport.logs import Log
from server.local.admission import Admission
from server.local.writer import Writer
from server.storage.reports import NewReport, ReportStorage
from server.waits import Wait


@dataclass
class _Open:
    """An open task. ``rows``, ``judge`` and ``taken`` are changed by the writer's thread under ``lock``."""

    algorithm: LocalReporter
    rows: list[bytes]
    judge: Judge
    taken: int
    admission: Admission | None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Desk:
    """The open tasks of a server; thread-safe.

    Args:
      storage: what outlives the program.
      log: where events go.
      clock: seconds since the epoch.
    """

    def __init__(
        self,
        storage: ReportStorage,
        *,
        log: Log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._tasks: dict[bytes, _Open] = {}
        self._writer = Writer(storage, taken=self._taken, log=log, clock=clock)

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
        self._tasks[sha256] = _Open(algorithm, rows, algorithm.judge(rows), self._storage.count(sha256), admission)

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

    def is_full(self, sha256: bytes) -> bool:
        """Whether an open task has as many reports as it takes."""
        task = self._tasks.get(sha256)
        return task is not None and task.taken >= task.algorithm.most_updates

    def count(self, sha256: bytes) -> int:
        """Reports that a task took, open or not. Raises StateError."""
        task = self._tasks.get(sha256)
        return self._storage.count(sha256) if task is None else task.taken

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
        return task.rows[secrets.randbelow(len(task.rows))] if task.rows else b""

    def report(
        self, sha256: bytes, report_id: bytes, content: bytes, *, token: bytes = b"", period: int = 0
    ) -> Future[bool] | None:
        """Takes a report; the future is done once it is on the disk. None: the task is not open.

        Raises:
          ContributionRefused: MALFORMED, OUT_OF_BOUNDS, NO_TOKEN, or ROUND_CLOSED where the task has all of its
            reports; unless a report with this id was taken before.
          Busy, StateError: as ``Writer.put``.
        """
        task = self._tasks.get(sha256)
        if task is None:
            return None
        try:
            if task.admission is not None:
                task.admission.require(report_id, token, period)
            with task.lock:
                if task.taken >= task.algorithm.most_updates:
                    raise ContributionRefused(Refusal.ROUND_CLOSED)
                task.judge.check(content)
        except ContributionRefused:
            # Rows go on changing: one that was taken may be unlike them when it comes again.
            if not self._storage.has(sha256, report_id):
                raise
            known: Future[bool] = Future()
            known.set_result(False)
            return known
        place = secrets.randbelow(len(task.rows)) if task.rows else None
        return self._writer.put(NewReport(sha256, report_id, place, content))

    def summary(self, sha256: bytes, algorithm: LocalReporter) -> tuple[int, bytes]:
        """(reports, what they say) of a task, open or not. Raises StateError."""
        kept = b"" if algorithm.row_bytes else self._storage.kept(sha256)
        rows = self._storage.rows(sha256) or algorithm.first_rows()
        count = self._storage.count(sha256) if algorithm.row_bytes else len(kept) // algorithm.report_bytes
        return count, algorithm.summary(rows, kept)

    def stop(self) -> None:
        """Stores what waits. Idempotent."""
        self._writer.stop()

    def _taken(self, report: NewReport) -> None:
        task = self._tasks.get(report.task_sha256)
        if task is None:
            return
        with task.lock:
            task.taken += 1
            if report.place is not None:
                task.rows[report.place] = report.content
                task.judge.replace(report.place, report.content)
