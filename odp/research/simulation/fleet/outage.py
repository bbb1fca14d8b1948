"""How a host of a simulated fleet waits for services that do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from odp.errors import ServiceError, ServiceUnavailable
from odp.transport.logs import Log
from odp.transport.sweeping import pause_after

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class Outage:
    """Services that do not answer: one line, growing pauses, and another line when they do.

    Args:
      most_seconds: after which they are given up.
    """

    def __init__(
        self, log: Log, stop: threading.Event, *, most_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._stop, self._most, self._monotonic = log, stop, most_seconds, monotonic
        self._failures, self._since = 0, 0.0

    def wait(self, error: ServiceUnavailable) -> None:
        """Waits before the next attempt. Raises ServiceError after too long a time."""
        if not self._failures:
            self._since = self._monotonic()
            self._log.warning("outage", reason=str(error))
        elif self._monotonic() - self._since > self._most:
            raise ServiceError(f"a service did not answer for {self._most:.0f} s: {error}") from error
        self._failures += 1
        self._stop.wait(pause_after(self._failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))

    def over(self) -> None:
        """Notes an answer."""
        if self._failures:
            self._failures = 0
            self._log.event("outage_over")
