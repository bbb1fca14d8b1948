"""One pass over the devices of a host that have something to do, shared by its workers."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from odp.errors import OdpError
from odp.v1 import server_pb2

#: More attempts in a row that fail mean that a service is at fault and not a device.
_FAILURES_OF_A_SERVICE = 20
_LINES_PER_SWEEP = 3


@dataclass
class Sweep:
    """The devices that are left, and what became of the others.

    Attributes:
      devices: those that no worker has begun with.
      stop: set once no worker begins with another device.
      outage: why a service cannot be used, if it cannot.
      retry: when the server wants to hear from devices again, if it has nothing for them now.
    """

    devices: deque[int]
    stop: threading.Event = field(default_factory=threading.Event)
    outage: OdpError | None = None
    retry: server_pb2.RetryWindow | None = None
    settled: int = 0
    failures: int = 0
    _failures_in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> int | None:
        """A device to begin with; None where none is left, or the sweep has ended."""
        with self._lock:
            return None if self.stop.is_set() or not self.devices else self.devices.popleft()

    def end(self, *, outage: OdpError | None = None, retry: server_pb2.RetryWindow | None = None) -> None:
        """Lets no worker begin with another device."""
        with self._lock:
            self.outage = self.outage or outage
            self.retry = self.retry or retry
        self.stop.set()

    def count_settled(self) -> None:
        """A device has nothing left to do in the round."""
        with self._lock:
            self.settled += 1
            self._failures_in_a_row = 0

    def count_failure(self) -> tuple[bool, bool]:
        """A device failed; whether that is worth a line in the log, and whether it is the failure of a service."""
        with self._lock:
            self.failures += 1
            self._failures_in_a_row += 1
            return self.failures <= _LINES_PER_SWEEP, self._failures_in_a_row >= _FAILURES_OF_A_SERVICE
