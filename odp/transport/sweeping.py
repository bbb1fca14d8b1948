"""What a program does beside its calls: periodic work, pauses after failures, and the signals that stop it.

Apart from ``odp.transport.service``, so that commands are parsed without gRPC.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from odp.errors import OdpError
from odp.transport.logs import Log

#: Seconds.
DAY = 86_400.0

_SWEEP_SECONDS = 3600.0
#: 2^64 times any pause is longer than every longest one; without a bound, a float overflows after some days.
_MOST_DOUBLINGS = 64


class SweepClock:
    """The time by which a sweep erases old data: a clock that was wrong for a moment erases nothing.

    A time is believed where it was already so at the sweep before: it is never later than the time of that sweep and
    the seconds since then, on a clock that nobody sets. At the first sweep nothing is old. ``clock`` gives seconds
    since the epoch.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._before: tuple[float, float] | None = None

    def now(self) -> float:
        """An upper bound of the time, in seconds since the epoch; call it once per sweep."""
        wall, steady = self._clock(), self._monotonic()
        before, self._before = self._before, (wall, steady)
        return float("-inf") if before is None else min(wall, before[0] + (steady - before[1]))


class Sweeping:
    """Calls ``sweep`` now and every hour on a thread, until it is closed; a failed sweep is logged and retried."""

    def __init__(self, sweep: Callable[[], object], log: Log, *, every: float = _SWEEP_SECONDS) -> None:
        self._sweep = sweep
        self._log = log
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._sweep()
            except OdpError as error:
                self._log.warning("not_swept", reason=str(error))
            if self._stop.wait(self._every):
                return

    def close(self) -> None:
        """Returns when no sweep is running any more."""
        self._stop.set()
        self._thread.join()


def stop_event() -> threading.Event:
    """An event that SIGINT and SIGTERM set; call from the main thread."""
    event = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: event.set())
    return event


def pause_after(failures: int, *, first: float, longest: float) -> float:
    """Seconds to wait after ``failures`` in a row: ``first``, doubled by each failure but one, up to ``longest``."""
    return min(first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), longest)
