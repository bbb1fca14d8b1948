"""The age of open rounds, by a clock that nobody can set.

The time of day may be set back, and then a round that closes by it stays open for the difference; set ahead, it closes
early. So a round's age is measured on the monotonic clock. That one begins anew with each boot: of a round that an
earlier process opened, the first look takes what the time of day says since then, from nothing to the whole time.
"""

from __future__ import annotations

from collections.abc import Callable

_Key = tuple[bytes, int]


class RoundClock:
    """Ages of rounds, in seconds. ``clock`` gives seconds since the epoch."""

    def __init__(self, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._began: dict[_Key, float] = {}

    def opened(self, task_sha256: bytes, round: int) -> None:
        """Marks a round as open from now on."""
        self._began[task_sha256, round] = self._monotonic()

    def age(self, task_sha256: bytes, round: int, *, opened: float, most: float) -> float:
        """Seconds since a round was opened, at ``opened`` by the clock; of one of an earlier process, at first look
        no less than 0 and no more than ``most``.
        """
        now = self._monotonic()
        if (task_sha256, round) not in self._began:
            self._began[task_sha256, round] = now - min(max(self._clock() - opened, 0.0), most)
        return now - self._began[task_sha256, round]

    def closed(self, task_sha256: bytes, round: int) -> None:
        """Removes a round."""
        self._began.pop((task_sha256, round), None)
