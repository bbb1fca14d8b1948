"""Pruning beside the host's work: a few stores at a time, each at most once an hour."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from device_runtime.round.fixed_times import FixedTimes
from device_runtime.round.verification import FOLDER
from device_runtime.store.retention import Retention, prune, prune_records, records_needed
from device_runtime.store.store import Store
from odp.errors import OdpError
from odp.transport.logs import Log

HOUR_SECONDS = 3600.0
_STORES_PER_STEP = 32
# At a start: whoever makes a host start sees that it has old rows, and no more than that (N6).
_START_SECONDS = 1.0
#: For what was begun, after the last row that a step begins with: to overwrite the largest row, and to commit a few.
END_SECONDS = 1.0
# Of an app's call in which stores are pruned, and of a pause, at least.
_FIXED_SECONDS = 2.0
_LONG_PAUSE_SECONDS = 1.5


class Housekeeping:
    """Prunes all stores of a state folder again and again, also those of devices that the host does not run.

    Args:
      folder: the state folder.
      retention: how long rows and records stay.
      log: where it says what was forgotten.
      durable: see ``Store.open``.
      clock: seconds since the epoch.
      monotonic: seconds that only grow.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        *,
        log: Log,
        durable: bool = True,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self.retention = retention
        self._log, self._durable, self._clock, self._monotonic = log, durable, clock, monotonic
        self._next = -math.inf
        self._lock = threading.Lock()
        self._stores: deque[Path] = deque()
        self._needed: set[str] = set()
        self._whole = True
        self._deleted = 0

    def step(self, *, seconds: float = _START_SECONDS) -> None:
        """Prunes the next few stores; returns at once if all of them were pruned in the last hour. Thread-safe.

        After ``seconds`` it begins with no further row, and ends within ``END_SECONDS``. A store that cannot be opened
        is skipped; no record is deleted in that hour.
        """
        end = self._monotonic() + seconds
        with self._lock:
            if self._stores or self._is_due():
                self._step(lambda: self._monotonic() >= end)

    def step_in_fixed_time(self) -> None:
        """Does a step, once an hour, and returns after two seconds: an app that takes the time learns nothing."""
        # Whether rows are left of the last hour depends on the data.
        if self._is_due():
            FixedTimes().lasting(_FIXED_SECONDS).attempt(lambda: self.step(seconds=_FIXED_SECONDS - END_SECONDS))

    def _is_due(self) -> bool:
        return self._monotonic() >= self._next

    def _step(self, over: Callable[[], bool]) -> None:
        if self._is_due():
            self._next = self._monotonic() + HOUR_SECONDS
            if not self._stores:
                self._stores.extend(sorted(self._folder.glob("devices/*/*.sqlite")))
                self._needed, self._whole, self._deleted = set(), True, 0
        for _ in range(min(_STORES_PER_STEP, len(self._stores))):
            if over():
                return
            # One that is not finished comes again after the others.
            if self._tidied(self._stores[0], over):
                self._stores.popleft()
            else:
                self._stores.rotate(-1)
        if not self._stores:
            self._end()

    def _tidied(self, path: Path, over: Callable[[], bool]) -> bool:
        """Whether nothing is left to do in a store, or nothing can be done."""
        try:
            with Store.open(path, durable=self._durable) as store:
                now = self._clock()
                self._deleted += prune(store, self.retention, now=now, over=over)
                self._needed |= records_needed(store, self.retention, now=now)
        except OdpError:
            self._whole = False
            return True
        return not over()

    def _end(self) -> None:
        records = 0
        # What a store that was set aside needs is not known.
        if self._whole and not any(self._folder.glob("devices/*/*.damaged")):
            try:
                records = prune_records(self._folder / FOLDER, self._needed, self.retention, now=self._clock())
            except OdpError as error:
                self._log.warning("records_not_pruned", reason=str(error))
        if self._deleted or records:
            self._log.event("expired_rows_deleted", rows=self._deleted, records=records)


class Pauses:
    """Pauses of a host, in which its stores are pruned.

    How long that takes depends on the data. A pause is as long without it, so neither the next call nor the end of the
    host shows it.

    Args:
      wait: sleeps for some seconds and returns True when the host is to stop.
      clock: seconds that only grow.
      housekeeping: what prunes; None prunes nothing.
    """

    def __init__(
        self, wait: Callable[[float], bool], *, clock: Callable[[], float], housekeeping: Housekeeping | None
    ) -> None:
        self._wait, self._clock, self._housekeeping = wait, clock, housekeeping

    def wait(self, seconds: float) -> bool:
        """Lets ``seconds`` pass; True where the host is to stop."""
        end = self._clock() + seconds
        if self._housekeeping is not None and seconds >= _LONG_PAUSE_SECONDS:
            self._housekeeping.step(seconds=seconds - END_SECONDS)
        return self._wait(max(end - self._clock(), 0.0))
