"""How long a device waits between two reports, and how old one is, also where its clock was wrong when it made it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


def seconds_awake_or_not() -> float:
    """Seconds that only grow, those included for which the machine slept, where its system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class ReportTimes:
    """What a process knows of the times of reports. ``monotonic`` gives seconds that only grow, also in a sleep.

    A device dates its reports by the time of day, so that they last over its restarts. A report of the future was dated
    by a clock that was wrong then, or is wrong now: the device waits for one period from when this process first sees
    it, and neither for that time nor not at all.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead: dict[Hashable, float] = {}
        self._made: dict[Hashable, float] = {}

    def made(self, report: Hashable) -> None:
        """Notes that this process made a report now."""
        self._made[report] = self._monotonic()

    def answered(self, report: Hashable) -> None:
        """Forgets a report. Idempotent."""
        self._made.pop(report, None)

    def age(self, report: Hashable, *, dated: float, now: float) -> float:
        """Seconds since a report was made: exact in the process that made it, and else what the time of day says.

        ``dated`` and ``now`` are seconds since the epoch.
        """
        made = self._made.get(report)
        return abs(now - dated) if made is None else self._monotonic() - made

    def left(self, report: Hashable, *, last: float, between: float, now: float) -> float:
        """Seconds until the report after ``report`` is due, at most ``between``; 0 or less if it is due.

        Args:
          report: names the last one, among all devices and tasks of the process.
          last: its time, in seconds since the epoch; minus infinity where there is none.
          between: seconds between two.
          now: seconds since the epoch.
        """
        if last <= now:
            self._ahead.pop(report, None)
            return between - (now - last)
        return between - (self._monotonic() - self._ahead.setdefault(report, self._monotonic()))
