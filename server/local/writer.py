"""One thread that stores reports: all that wait at a moment go to the disk in one transaction.

A transaction waits for the disk, whatever it holds. So the more callers there are, the more reports share one wait, and
none of them waits for more than two.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from odp.errors import Busy, StateError
from odp.transport.logs import Log
from server.storage.reports import NewReport, ReportStorage

#: A report comes again within this time, or never: the ids of older ones are forgotten.
ID_SECONDS = 7 * 86_400.0
_MOST_TOGETHER = 256
_MOST_WAITING_BYTES = 64 * 2**20
_FORGET_SECONDS = 3600.0
_STOP_SECONDS = 10.0
_Waiting = tuple[NewReport, "Future[bool]"]


class Writer:
    """Stores reports in the order in which they come.

    Args:
      storage: where to.
      taken: called in the thread for each report that was stored and not known before, in order.
      log: where an unforeseen error goes.
      clock: seconds since the epoch.
    """

    def __init__(
        self,
        storage: ReportStorage,
        *,
        taken: Callable[[NewReport], None],
        log: Log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage, self._taken, self._log, self._clock = storage, taken, log, clock
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._stopped = False
        self._forgotten = float("-inf")
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def put(self, report: NewReport) -> Future[bool]:
        """Whether the report is new, once it is on the disk. The future raises StateError where it is not.

        Raises:
          Busy: too many bytes wait for the disk.
          StateError: the server ends.
        """
        done: Future[bool] = Future()
        with self._lock:
            if self._stopped:
                raise StateError("the server ends")
            if self._bytes and self._bytes + len(report.content) > _MOST_WAITING_BYTES:
                raise Busy("too many reports wait for the disk", 1.0, 2.0)
            self._bytes += len(report.content)
            self._queue.put((report, done))
        return done

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
            entry = self._queue.get()
            while entry is not None:
                batch.append(entry)
                if len(batch) == _MOST_TOGETHER:
                    break
                try:
                    entry = self._queue.get_nowait()
                except Empty:
                    break
            ended = entry is None
            if batch:
                self._store(batch)

    def _store(self, batch: Sequence[_Waiting]) -> None:
        reports = [report for report, _ in batch]
        try:
            new = self._storage.take(reports)
            for report, is_new in zip(reports, new, strict=True):
                if is_new:
                    self._taken(report)
            self._forget()
        except BaseException as error:
            if not isinstance(error, StateError):
                self._log.crash("reports_not_stored", error)
            for _, done in batch:
                done.set_exception(error if isinstance(error, StateError) else StateError("reports are not stored"))
        else:
            for (_, done), is_new in zip(batch, new, strict=True):
                done.set_result(is_new)
        with self._lock:
            self._bytes -= sum(len(report.content) for report in reports)

    def _forget(self) -> None:
        now = self._clock()
        if now - self._forgotten >= _FORGET_SECONDS:
            self._forgotten = now
            self._storage.forget_ids(before=now - ID_SECONDS)
