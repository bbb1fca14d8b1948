"""The devices of a host that still have something to do: which have settled or declined, rest, or are left out.

Kept in memory, a few bytes per device and round, so that a device with nothing to do costs nothing; what a device sent
is known from its store, and read from there at a start.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable

from odp.errors import NotNow

#: How long a device rests before its person's decisions and its conditions are looked at again.
REST_SECONDS = 30.0

#: A task and a round of it.
Key = tuple[bytes, int]
#: The same with the key of an opening of the round, where it has several: devices settle each by itself.
Opening = tuple[bytes, int] | tuple[bytes, int, bytes]
#: In the place of a round: no device settles or declines it.
NO_ROUND = -1


class Roster:
    """The devices of one host; shared by its workers.

    Args:
      devices: their numbers.
      clock: seconds that only grow.
    """

    def __init__(self, devices: range, *, clock: Callable[[], float]) -> None:
        self._devices = devices
        self._clock = clock
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
