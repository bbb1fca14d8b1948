"""How long a device waits between two reports, also where its clock was wrong when it made the last one."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class ReportTimes:
    """What a process knows of reports whose time lies ahead. ``monotonic`` gives seconds that only grow.

    A device dates its reports by the time of day, so that they last over its restarts. A report of the future was dated
    by a clock that was wrong then, or is wrong now: the device waits for one period from when this process first sees
    it, and neither for that time nor not at all.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead: dict[Hashable, float] = {}

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
