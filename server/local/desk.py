"""The desk at which devices draw rows and hand in reports: the open tasks of local trust, in memory.

The server is trusted with nothing here. What it promises is order: a report is stored before it is answered, it counts
once, and it overwrites one row, drawn at random and independently of every row that was served. No lock is held between
the two, so any number of devices may be between their draw and their report.

One thread judges reports and stores them: all that wait at a moment go to the disk in one transaction, which waits for
the disk, whatever it holds. So the more callers there are, the more reports share one wait. And since one thread alone
judges and changes rows, there is nothing to lock.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from odp.algorithms.local_seam import UNLIMITED, Judge, LocalReporter
from odp.errors import Busy, ContributionRefused, Refusal, StateError
from odp.transport.logs import Log
from odp.transport.sweeping import SweepClock
from server.local.admission import Admission
from server.storage.reports import NewReport, Reports
from server.waits import Wait

_WORDS = 512
#: A report comes again within this time, or never: the ids of older ones are forgotten.
ID_SECONDS = 7 * 86_400.0
#: Between two transactions; a report waits for so long at most before its own.
GATHER_SECONDS = 0.02
_MOST_TOGETHER = 256
_MOST_WAITING_BYTES = 64 * 2**20
# What a waiting report takes besides its content.
_OVERHEAD = 1024
_FORGET_SECONDS = 3600.0
_STOP_SECONDS = 10.0


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
class Judgement:
    """What is done with one report, by the writer's thread alone.

    Attributes:
      report: to be stored.
      task: the open task that it is for; None where that is over.
      token, period: as the device showed them.
      over: why a task that is over takes no report.
    """

    report: NewReport
    task: _Open | None = None
    token: bytes = b""
    period: int = 0
    over: Refusal | None = None

    def refusal(self) -> Refusal | None:
        """Why the report is not taken, unless it was taken before; None: it is."""
        if self.task is None:
            return self.over or Refusal.ROUND_CLOSED
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
        """Called after a report that is taken was stored; ``new`` is False where it was stored before, or failed."""
        if self.task is None:
            return
        self.task.waiting -= 1
        if new and self.report.place is not None:
            self.task.rows[self.report.place] = self.report.content
            self.task.judge.replace(self.report.place, self.report.content)
        self.task.taken += int(new)


class Desk:
    """The open tasks of a server; thread-safe.

    Args:
      storage: what outlives the program.
      log: where events go.
    """

    def __init__(self, storage: Reports, *, log: Log) -> None:
        self._storage, self._places = storage, _Places()
        self._tasks: dict[bytes, _Open] = {}
        self._writer = Writer(storage, log=log)

    def open(self, sha256: bytes, algorithm: LocalReporter, admission: Admission | None = None) -> None:
        """Opens a stored task, with what was stored of it before; ``admission`` says whose reports it takes.

        Idempotent. Raises StateError.
        """
        if sha256 in self._tasks:
            return
        if not (rows := self._storage.rows(sha256)) and algorithm.row_bytes:
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
        if (task := self._tasks.get(sha256)) is None:
            return
        changed = self._storage.changed_rows(sha256, task.overwritten)
        self._writer.run(functools.partial(task.take_in, changed, self._storage.count(sha256)))

    def is_full(self, sha256: bytes) -> bool:
        """Whether an open task has as many reports as it takes."""
        task = self._tasks.get(sha256)
        return task is not None and task.taken >= task.algorithm.most_updates

    def count(self, sha256: bytes) -> int:
        """Reports that a task took at whichever server, open or not. Raises StateError."""
        return self._storage.count(sha256)

    def waits_for(self, sha256: bytes) -> Wait | None:
        """What an open task waits for; None where it is not open."""
        if (task := self._tasks.get(sha256)) is None:
            return None
        end = "is cancelled" if task.algorithm.most_updates == UNLIMITED else f"has {task.algorithm.most_updates:,}"
        return Wait(f"reports of devices, until it {end}: {task.taken:,} so far")

    def draw(self, sha256: bytes) -> bytes | None:
        """A row of an open task, drawn at random; empty where it has none. None: the task is not open."""
        if (task := self._tasks.get(sha256)) is None:
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
        if (task := self._tasks.get(sha256)) is None:
            return None
        place = self._places.below(len(task.rows)) if task.rows else None
        return self._writer.put(Judgement(NewReport(sha256, report_id, place, content), task, token, period))

    def refuse(self, sha256: bytes, report_id: bytes, why: Refusal) -> Future[Refusal | None]:
        """Refuses a report to a task that is over, unless it was taken before. Raises as ``report``."""
        return self._writer.put(Judgement(NewReport(sha256, report_id, None, b""), over=why))

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


@dataclass(frozen=True)
class _Waiting:
    judgement: Judgement
    done: Future[Refusal | None] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return _OVERHEAD + len(self.judgement.report.content)


class Writer:
    """Judges and stores reports in the order in which they come.

    Args:
      storage: where to.
      log: where an unforeseen error goes.
    """

    def __init__(self, storage: Reports, *, log: Log) -> None:
        self._storage, self._log = storage, log
        self._queue: SimpleQueue[_Waiting | Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._stopped = False
        self._forgotten = self._began = float("-inf")
        self._sweeps = SweepClock()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def put(self, judgement: Judgement) -> Future[Refusal | None]:
        """Why a report is not taken; None once it is on the disk. The future raises StateError where it cannot be.

        Raises:
          Busy: too many bytes wait for the disk.
          StateError: the server ends.
        """
        waiting = _Waiting(judgement)
        with self._lock:
            if self._stopped:
                raise StateError("the server ends")
            if self._bytes and self._bytes + waiting.size > _MOST_WAITING_BYTES:
                raise Busy("too many reports wait for the disk", 1.0, 2.0)
            self._bytes += waiting.size
            self._queue.put(waiting)
        return waiting.done

    def run(self, change: Callable[[], None]) -> None:
        """Has the writer's thread make a change of rows, in its turn; ``change`` must not raise."""
        with self._lock:
            if not self._stopped:
                self._queue.put(change)

    def stop(self) -> None:
        """Stores what waits, and ends the thread. Idempotent."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        ended = False
        while not ended:
            batch: list[_Waiting] = []
            changes: list[Callable[[], None]] = []
            entry = self._queue.get()
            # What comes within a moment shares one transaction: its price is nearly the same for one report and for 50.
            time.sleep(max(self._began + GATHER_SECONDS - time.monotonic(), 0.0))
            self._began = time.monotonic()
            while entry is not None:
                if not isinstance(entry, _Waiting):
                    # Rows change between two batches, not within one.
                    changes.append(entry)
                else:
                    batch.append(entry)
                if len(batch) == _MOST_TOGETHER:
                    break
                try:
                    entry = self._queue.get_nowait()
                except Empty:
                    break
            ended = entry is None
            for change in changes:
                change()
            if batch:
                self._answer(batch)

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        try:
            answers = self._stored(batch)
            self._forget()
        except BaseException as error:
            if not isinstance(error, StateError):
                self._log.crash("reports_not_stored", error)
            for waiting in batch:
                waiting.done.set_exception(
                    error if isinstance(error, StateError) else StateError("reports are not stored")
                )
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.done.set_result(answer)
        with self._lock:
            self._bytes -= sum(entry.size for entry in batch)

    def _stored(self, batch: Sequence[_Waiting]) -> list[Refusal | None]:
        answers = [entry.judgement.refusal() for entry in batch]
        taken = [entry for entry, refusal in zip(batch, answers, strict=True) if refusal is None]
        new = [False] * len(taken)
        try:
            new = self._storage.take([entry.judgement.report for entry in taken])
        finally:
            for waiting, is_new in zip(taken, new, strict=True):
                waiting.judgement.stored(is_new)
        for place, waiting in enumerate(batch):
            # Rows go on changing: one that was taken may be unlike them when it comes again.
            report = waiting.judgement.report
            if answers[place] is not None and self._storage.has(report.task_sha256, report.report_id):
                answers[place] = None
        return answers

    def _forget(self) -> None:
        if time.monotonic() - self._forgotten >= _FORGET_SECONDS:
            self._forgotten = time.monotonic()
            self._storage.forget_ids(before=self._sweeps.now() - ID_SECONDS)
