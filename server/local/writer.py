"""One thread that judges reports and stores them: all that wait at a moment go to the disk in one transaction.

A transaction waits for the disk, whatever it holds. So the more callers there are, the more reports share one wait. And
since one thread alone judges and changes rows, there is nothing to lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from odp.errors import Busy, Refusal, StateError
from odp.transport.logs import Log
from odp.transport.sweeping import SweepClock
from server.storage.reports import NewReport, ReportStorage

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


class Judgement(Protocol):
    """What is done with one report, by the writer's thread alone."""

    def refusal(self) -> Refusal | None:
        """Why the report is not taken, unless it was taken before; None: it is."""
        ...

    def stored(self, new: bool) -> None:
        """Called after a report that is taken was stored; ``new`` is False where it was stored before, or failed."""
        ...


@dataclass(frozen=True)
class _Waiting:
    report: NewReport
    judgement: Judgement
    done: Future[Refusal | None] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return _OVERHEAD + len(self.report.content)


class Writer:
    """Judges and stores reports in the order in which they come.

    Args:
      storage: where to.
      log: where an unforeseen error goes.
    """

    def __init__(self, storage: ReportStorage, *, log: Log) -> None:
        self._storage, self._log = storage, log
        self._queue: SimpleQueue[_Waiting | Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._stopped = False
        self._forgotten = self._began = float("-inf")
        self._sweeps = SweepClock()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def put(self, report: NewReport, judgement: Judgement) -> Future[Refusal | None]:
        """Why a report is not taken; None once it is on the disk. The future raises StateError where it cannot be.

        Raises:
          Busy: too many bytes wait for the disk.
          StateError: the server ends.
        """
        waiting = _Waiting(report, judgement)
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
            new = self._storage.take([entry.report for entry in taken])
        finally:
            for waiting, is_new in zip(taken, new, strict=True):
                waiting.judgement.stored(is_new)
        for place, waiting in enumerate(batch):
            # Rows go on changing: one that was taken may be unlike them when it comes again.
            if answers[place] is not None and self._storage.has(waiting.report.task_sha256, waiting.report.report_id):
                answers[place] = None
        return answers

    def _forget(self) -> None:
        if time.monotonic() - self._forgotten >= _FORGET_SECONDS:
            self._forgotten = time.monotonic()
            self._storage.forget_ids(before=self._sweeps.now() - ID_SECONDS)
