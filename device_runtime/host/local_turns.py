"""When each device of a host may report to a task of local trust again.

Kept in memory; after a restart each device looks into its store once, and makes no call where it is not due.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Sequence

_MOST_TASKS = 64
#: A device whose person's limits decline a task looks at it again after this time.
DECLINED_SECONDS = 3600.0


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
        due = self._due.get(task)
        if due is None:
            if len(self._due) >= _MOST_TASKS:
                # A server may name any number of tasks: what is forgotten is read from the stores again.
                self._due.pop(next(iter(self._due)))
            due = self._due[task] = array("d", [-math.inf]) * len(self._devices)
        return due
