"""The devices of a host that still have something to do: which have settled or declined, rest, or are left out.

``Roster`` and ``LocalTurns`` are in memory, a few bytes per device and round, so that a device with nothing to do costs
nothing. What a device sent is known from its store, and read from there at a start. A ``Sweep`` is one pass over the
devices that have something to do, shared by the host's workers.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from odp.errors import NotNow, OdpError
from odp.v1 import server_pb2

#: How long a device rests before its person's decisions and its conditions are looked at again.
REST_SECONDS = 30.0

#: A task and a round of it.
Key = tuple[bytes, int]
#: The same with the key of an opening of the round, where it has several: devices settle each by itself.
Opening = tuple[bytes, int] | tuple[bytes, int, bytes]
#: In the place of a round: no device settles or declines it.
NO_ROUND = -1
_MOST_TASKS = 64
#: A device whose person's limits decline a task looks at it again after this time.
DECLINED_SECONDS = 3600.0
#: More attempts in a row that fail mean that a service is at fault and not a device.
_FAILURES_OF_A_SERVICE = 20
_LINES_PER_SWEEP = 3


class Roster:
    """The devices of one host; shared by its workers.

    Args:
      devices: their numbers.
      clock: seconds that only grow.
    """

    def __init__(self, devices: range, *, clock: Callable[[], float]) -> None:
        self._devices, self._clock = devices, clock
        self._lock = threading.Lock()
        self._settled: dict[Opening, bytearray] = {}
        self._declined: dict[Key, bytearray] = {}
        self._declined_tasks: set[bytes] = set()
        self._aside = bytearray(len(devices))
        # When each device that rests is looked at again, by the clock; 0 for the others.
        self._resting = array("d", bytes(8 * len(devices)))
        self._rests_told: set[tuple[str, ...]] = set()

    def pending(self, key: Opening) -> list[int]:
        """Devices that may still take part in a round."""
        count = len(self._devices)
        with self._lock:
            settled = self._settled.get(key, bytearray(count))
            declined = self._declined.get(key[:2], bytearray(count))
            aside, resting = bytes(self._aside), self._resting[:]
        return [
            device
            for place, device in enumerate(self._devices)
            if not (settled[place] or declined[place] or aside[place] or resting[place])
        ]

    def settle(self, key: Opening, device: int) -> None:
        """Records that a device has nothing left to do in a round."""
        with self._lock:
            self._settled.setdefault(key, bytearray(len(self._devices)))[self._place(device)] = 1

    def has_settled(self, key: Opening, device: int) -> bool:
        """Whether a device has nothing left to do in a round."""
        with self._lock:
            entry = self._settled.get(key)
            return entry is not None and entry[self._place(device)] == 1

    def decline(self, key: Key, device: int) -> bool:
        """Records that a device declines a round; True for the first device that declines the task."""
        with self._lock:
            first = key[0] not in self._declined_tasks
            self._declined_tasks.add(key[0])
            self._declined.setdefault(key, bytearray(len(self._devices)))[self._place(device)] = 1
            return first

    def set_aside(self, device: int) -> None:
        """Leaves a device out until the next start: another attempt would fail in the same way."""
        with self._lock:
            self._aside[self._place(device)] = 1

    def let_rest(self, device: int, error: NotNow) -> bool:
        """Lets a device rest for a while; True if no other device has rested for this reason since a device woke."""
        with self._lock:
            self._resting[self._place(device)] = max(self._clock(), 0.0) + REST_SECONDS
            telling = error.names not in self._rests_told
            self._rests_told.add(error.names)
            return telling

    def wake(self, device: int) -> bool:
        """Lets a device work again; True for the first device that wakes after one was put to rest."""
        with self._lock:
            place = self._place(device)
            telling = self._resting[place] != 0.0 and bool(self._rests_told)
            self._resting[place] = 0.0
            if telling:
                self._rests_told.clear()
            return telling

    def due(self) -> list[int]:
        """Devices whose rest is over: their conditions are due for another check."""
        with self._lock:
            now = self._clock()
            return [self._devices[place] for place, until in enumerate(self._resting) if 0.0 < until <= now]

    def until_due(self) -> float | None:
        """Seconds until the next check of a resting device; None unless all devices rest that are not left out."""
        with self._lock:
            left = [until for until, aside in zip(self._resting, self._aside, strict=True) if not aside]
            return min(left) - self._clock() if left and all(left) else None

    def _place(self, device: int) -> int:
        return device - self._devices.start


class LocalTurns:
    """The turns of the devices of one host; shared by its workers.

    Args:
      devices: their numbers.
      clock: seconds that only grow.
    """

    def __init__(self, devices: range, *, clock: Callable[[], float]) -> None:
        self._devices, self._clock = devices, clock
        self._lock = threading.Lock()
        self._due: dict[bytes, array[float]] = {}

    def pending(self, task: bytes, among: Sequence[int]) -> list[int]:
        """The devices of ``among`` that may report now."""
        now = self._clock()
        with self._lock:
            due = self._of(task)
            return [device for device in among if due[device - self._devices.start] <= now]

    def wait(self, task: bytes, device: int, seconds: float) -> None:
        """Notes that a device may report after ``seconds``; infinite: never again."""
        with self._lock:
            self._of(task)[device - self._devices.start] = self._clock() + seconds

    def next(self, task: bytes) -> float:
        """Seconds until the first device may report, at least 0; infinite where none ever will."""
        with self._lock:
            return max(min(self._of(task)) - self._clock(), 0.0)

    def _of(self, task: bytes) -> array[float]:
        if (due := self._due.get(task)) is None:
            if len(self._due) >= _MOST_TASKS:
                # A server may name any number of tasks: what is forgotten is read from the stores again.
                self._due.pop(next(iter(self._due)))
            due = self._due[task] = array("d", [-math.inf]) * len(self._devices)
        return due


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
