"""Work that a program does now and every hour, beside what it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from odp.errors import OdpError
from odp.transport.logs import Log

#: Seconds.
DAY = 86_400.0

_SWEEP_SECONDS = 3600.0


class Sweeping:
    """Calls ``sweep`` now and every hour, on a thread, until it is closed; one that fails is logged and tried again."""

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
        """Returns when no sweep runs any more."""
        self._stop.set()
        self._thread.join()
