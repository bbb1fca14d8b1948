"""Back-pressure: a few calls at work, a few more in a queue, and a retry window for everybody else.

A fleet that wakes at once is no error. Whoever finds the queue full is told when to come back: every one of them gets a
place in time of its own behind the others that were told, at the rate at which the service gets on, so that the fleet
comes back spread out and not at once again. The window is metadata of a RESOURCE_EXHAUSTED status; its reader draws a
moment of it from its own randomness.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import SystemRandom
from typing import TypeVar

from odp import _validate
from odp.errors import Busy

#: A caller in the queue waits so long at most; then it is told to come back.
LONGEST_IN_QUEUE = 10.0
#: Nobody is told to come back later than this, whatever it was told by: a minute is soon enough to ask again.
LONGEST_WINDOW = 60.0
#: So often a caller comes back before it reports.
MOST_TRIES = 10

_SHORTEST_WINDOW = 0.1
# The first guess of what a turn takes, and the weight of the newest turn in the later ones.
_FIRST_GUESS, _WEIGHT = 0.2, 0.2
_Result = TypeVar("_Result")


class Turns:
    """At most ``at_once`` callers work and ``waiting`` wait, first come first served; thread-safe.

    ``what`` completes "the distributor is busy with other ..". ``clock`` gives seconds that only grow.

    Raises:
      ConfigurationError: a number is out of its range.
    """

    def __init__(
        self,
        *,
        at_once: int,
        waiting: int,
        service: str,
        what: str,
        longest: float = LONGEST_IN_QUEUE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _validate.integer(low=1, high=2**16, at_once=at_once)
        _validate.integer(low=0, high=2**16, waiting=waiting)
        self._at_once, self._most_waiting = at_once, waiting
        self._text = f"the {service} is busy with other {what}; try again in a moment"
        self._longest = longest
        self._clock = clock
        self._lock = threading.Lock()
        self._working = 0
        self._queue: list[threading.Event] = []
        self._seconds = _FIRST_GUESS
        # Up to when the moments are taken that callers were told to come back at.
        self._told = 0.0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One caller's turn; waits for it in the queue.

        Raises:
          Busy: the queue is full, or the turn did not come in time; it says when to come back.
        """
        self._enter()
        started = self._clock()
        try:
            yield
        finally:
            self._leave(self._clock() - started)

    def _enter(self) -> None:
        with self._lock:
            if self._working < self._at_once and not self._queue:
                self._working += 1
                return
            if len(self._queue) >= self._most_waiting:
                raise self._busy()
            mine = threading.Event()
            self._queue.append(mine)
        if mine.wait(self._longest):
            return
        with self._lock:
            if mine.is_set():  # it came between the end of the wait and this lock
                return
            self._queue.remove(mine)
            raise self._busy()

    def _leave(self, seconds: float) -> None:
        with self._lock:
            self._seconds += _WEIGHT * (max(0.0, seconds) - self._seconds)
            if self._queue:
                # The place goes to the one who waited longest, without being free in between.
                self._queue.pop(0).set()
            else:
                self._working -= 1

    def _busy(self) -> Busy:
        now, each = self._clock(), self._seconds / self._at_once
        ahead = now + (len(self._queue) + 1) * each
        self._told = min(max(self._told, ahead) + each, now + LONGEST_WINDOW)
        low = min(max(self._told - now, _SHORTEST_WINDOW), LONGEST_WINDOW / 2)
        return Busy(self._text, low, 2 * low)


def _never(seconds: float) -> bool:
    return threading.Event().wait(seconds)


@dataclass(frozen=True)
class Patience:
    """How a caller takes a retry window: it waits for a random moment of it, at most ``tries`` times.

    ``wait`` sleeps for some seconds and returns True where the caller was told to stop; ``uniform`` draws a number
    between two bounds.
    """

    tries: int = MOST_TRIES
    wait: Callable[[float], bool] = _never
    uniform: Callable[[float, float], float] = field(default_factory=lambda: SystemRandom().uniform)

    def call(self, attempt: Callable[[], _Result]) -> _Result:
        """``attempt`` again after each window. Raises Busy once the tries are used up, or the caller is to stop."""
        for _ in range(self.tries - 1):
            try:
                return attempt()
            except Busy as error:
                if self.wait(self.moment(error)):
                    raise
        return attempt()

    def moment(self, error: Busy) -> float:
        """Seconds from now at which to come back: a random moment of the window."""
        low = min(error.low_seconds, LONGEST_WINDOW)
        return self.uniform(low, min(max(error.high_seconds, low), LONGEST_WINDOW))

    def stream(self, start: Callable[[], Iterator[_Result]]) -> Iterator[_Result]:
        """The replies of a stream, started again where it was refused before its first reply.

        Raises Busy as ``call``.
        """

        def begun() -> tuple[list[_Result], Iterator[_Result]]:
            replies = start()
            first = next(replies, _NOTHING)
            return ([] if isinstance(first, _Nothing) else [first]), replies

        first, rest = self.call(begun)
        yield from first
        yield from rest


class _Nothing:
    pass


_NOTHING = _Nothing()
