"""Which devices of a host still have something to do: what each settled or declined, who rests, who is left out.

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
        self._settled: dict[Key, bytearray] = {}
        self._declined: dict[Key, bytearray] = {}
        self._declined_tasks: set[bytes] = set()
        self._aside = bytearray(len(devices))
        # When each device that rests is looked at again, by the clock; 0 for the others.
        self._resting = array("d", bytes(8 * len(devices)))
        self._rests_told: set[tuple[str, ...]] = set()

    def pending(self, key: Key) -> list[int]:
        """Devices that may still take part in a round."""
        count = len(self._devices)
        with self._lock:
            settled = self._settled.get(key, bytearray(count))
            declined = self._declined.get(key, bytearray(count))
            aside, resting = bytes(self._aside), self._resting[:]
        return [
            device
            for place, device in enumerate(self._devices)
            if not (settled[place] or declined[place] or aside[place] or resting[place])
        ]

    def settle(self, key: Key, device: int) -> None:
        """Notes that a device has nothing left to do in a round."""
        with self._lock:
            self._settled.setdefault(key, bytearray(len(self._devices)))[self._place(device)] = 1

    def has_settled(self, key: Key, device: int) -> bool:
        """Whether a device has nothing left to do in a round."""
        with self._lock:
            entry = self._settled.get(key)
            return entry is not None and entry[self._place(device)] == 1

    def decline(self, key: Key, device: int) -> bool:
        """Notes that a device will not take part in a round; True for the first device that declines the task."""
        with self._lock:
            first = key[0] not in self._declined_tasks
            self._declined_tasks.add(key[0])
            self._declined.setdefault(key, bytearray(len(self._devices)))[self._place(device)] = 1
            return first

    def set_aside(self, device: int) -> None:
        """Leaves a device out until the next start: asking it again would give the same failure."""
        with self._lock:
            self._aside[self._place(device)] = 1

    def let_rest(self, device: int, error: NotNow) -> bool:
        """Lets a device rest for a while; True where its reason is the first of its kind since a device woke."""
        with self._lock:
            self._resting[self._place(device)] = max(self._clock(), 0.0) + REST_SECONDS
            telling = error.names not in self._rests_told
            self._rests_told.add(error.names)
            return telling

    def wake(self, device: int) -> bool:
        """Lets a device work again; True for the first that wakes since one was told to rest."""
        with self._lock:
            place = self._place(device)
            telling = self._resting[place] != 0.0 and bool(self._rests_told)
            self._resting[place] = 0.0
            if telling:
                self._rests_told.clear()
            return telling

    def due(self) -> list[int]:
        """Devices that rested for long enough to be looked at again."""
        with self._lock:
            now = self._clock()
            return [self._devices[place] for place, until in enumerate(self._resting) if 0.0 < until <= now]

    def until_due(self) -> float | None:
        """Seconds until the first is looked at again, where all devices rest that are not left out; else None."""
        with self._lock:
            left = [until for until, aside in zip(self._resting, self._aside, strict=True) if not aside]
            return min(left) - self._clock() if left and all(left) else None

    def _place(self, device: int) -> int:
        return device - self._devices.start
