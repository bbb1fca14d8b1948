"""Back-pressure: a few calls at work, a bounded queue, and a retry window for all other callers.

A fleet that wakes at once is no error. A caller that finds the queue full gets a retry window: each window follows the
one before at the rate of the service, so that the fleet returns spread out and not at once again. The window is
metadata of a RESOURCE_EXHAUSTED status; its reader draws a moment of it from its own randomness.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Protocol, TypeVar

from odp import _validate
from odp.errors import Busy, OdpError

#: Maximum wait of a caller in the queue; then it gets a retry window.
LONGEST_IN_QUEUE = 10.0
#: Upper limit of a retry window: a minute is soon enough to retry.
LONGEST_WINDOW = 60.0
#: So often a caller comes back before it reports.
MOST_TRIES = 10

#: A stream that waits for its caller loses its turn to others below this rate, in bytes per second, after this time.
SLOWEST_RATE = 2.0**16
SLOW_SECONDS = 2.0

_SHORTEST_WINDOW = 0.1
# The first guess of what a turn takes, and the weight of the newest turn in the later ones.
_FIRST_GUESS, _WEIGHT = 0.2, 0.2
_Result = TypeVar("_Result")


class Progress(Protocol):
    """The progress of a stream that holds a turn."""

    @property
    def waits_for_caller(self) -> bool:
        """Whether the stream waits for its caller to send or read."""

    @property
    def bytes_moved(self) -> int:
        """Bytes that its caller has sent and read."""

    def end(self, error: OdpError) -> None:
        """Ends the stream with ``error``."""


class RetryWindows:
    """Retry times for callers, spaced at the rate of the service.

    ``at_once`` callers are served at a time. Not thread-safe.
    """

    def __init__(self, *, at_once: int, clock: Callable[[], float]) -> None:
        self._at_once, self._clock = at_once, clock
        self._seconds = _FIRST_GUESS
        # The end of the retry times that callers already have.
        self._promised = 0.0

    def took(self, seconds: float) -> None:
        """Records that a caller was served in ``seconds``."""
        self._seconds += _WEIGHT * (max(0.0, seconds) - self._seconds)

    def busy(self, text: str, *, waiting: int) -> Busy:
        """The error for a caller with ``waiting`` others before it."""
        now, each = self._clock(), self._seconds / self._at_once
        ahead = now + (waiting + 1) * each
        self._promised = min(max(self._promised, ahead) + each, now + LONGEST_WINDOW)
        low = min(max(self._promised - now, _SHORTEST_WINDOW), LONGEST_WINDOW / 2)
        return Busy(text, low, 2 * low)


@dataclass
class _Holder:
    progress: Progress | None
    since: float
    bytes_before: int
    ended: bool = False


class Backpressure:
    """At most ``at_once`` callers work and ``waiting`` wait, in order of arrival; thread-safe.

    A caller that finds no turn gets that of a stream whose own caller is too slow (``SLOWEST_RATE``), if there is one.
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
        self._holders: list[_Holder] = []
        self._queue: list[threading.Event] = []
        self._windows = RetryWindows(at_once=at_once, clock=clock)

    @contextlib.contextmanager
    def admitted(self, progress: Progress | None = None) -> Iterator[None]:
        """One caller's turn; waits for it in the queue. With ``progress``, a slow caller can lose it again.

        Raises:
          Busy: the queue is full, or the turn did not come in time; it says when to come back.
        """
        self._enter()
        holder = _Holder(progress, self._clock(), 0 if progress is None else progress.bytes_moved)
        with self._lock:
            self._holders.append(holder)
        try:
            yield
        finally:
            self._leave(holder)

    def _enter(self) -> None:
        with self._lock:
            if self._working < self._at_once and not self._queue:
                self._working += 1
                return
            if not self._end_a_slow_one() and len(self._queue) >= self._most_waiting:
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

    def _end_a_slow_one(self) -> bool:
        """Ends the slowest of the streams that are too slow; returns whether there was one."""
        now = self._clock()
        slow = [
            (rate, holder.progress, holder)
            for holder in self._holders
            if holder.progress is not None
            and not holder.ended
            and holder.progress.waits_for_caller
            and now - holder.since >= SLOW_SECONDS
            and (rate := (holder.progress.bytes_moved - holder.bytes_before) / (now - holder.since)) < SLOWEST_RATE
        ]
        if not slow:
            return False
        _, progress, holder = min(slow, key=lambda stream: stream[0])
        holder.ended = True
        progress.end(self._busy())
        return True

    def _leave(self, holder: _Holder) -> None:
        with self._lock:
            self._holders.remove(holder)
            self._windows.took(self._clock() - holder.since)
            if self._queue:
                # The place goes to the one who waited longest, without being free in between.
                self._queue.pop(0).set()
            else:
                self._working -= 1

    def _busy(self) -> Busy:
        return self._windows.busy(self._text, waiting=len(self._queue))


def _never(seconds: float) -> bool:
    return threading.Event().wait(seconds)


@dataclass(frozen=True)
class Patience:
    """The client's handling of retry windows: it waits for a random moment of each, at most ``tries`` times.

    ``wait`` sleeps for some seconds and returns True if the caller has to stop; ``uniform`` draws a number
    between two bounds.
    """

    tries: int = MOST_TRIES
    wait: Callable[[float], bool] = _never
    uniform: Callable[[float, float], float] = field(default_factory=lambda: SystemRandom().uniform)

    def call(self, attempt: Callable[[], _Result]) -> _Result:
        """Calls ``attempt`` again after each window. Raises Busy after the last try, or if the caller has to stop."""
        for _ in range(self.tries - 1):
            try:
                return attempt()
            except Busy as error:
                if self.wait(self.moment(error)):
                    raise
        return attempt()

    def moment(self, error: Busy) -> float:
        """Seconds until the next attempt: a random moment of the window."""
        low = min(error.low_seconds, LONGEST_WINDOW)
        return self.uniform(low, min(max(error.high_seconds, low), LONGEST_WINDOW))

    def stream(self, start: Callable[[], Iterator[_Result]]) -> Iterator[_Result]:
        """The replies of a stream, started again if it is refused before its first reply.

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
