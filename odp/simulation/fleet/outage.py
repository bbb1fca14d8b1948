"""How a host of a simulated fleet waits for services that do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from odp.errors import ServiceError, ServiceUnavailable
from odp.transport.logs import Log

#: The first and the longest pause.
_PAUSES = (0.2, 5.0)


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
        first, longest = _PAUSES
        self._stop.wait(min(first * 2.0**self._failures, longest))
        self._failures = min(self._failures + 1, 16)

    def over(self) -> None:
        """Notes an answer."""
        if self._failures:
            self._failures = 0
            self._log.event("outage_over")
