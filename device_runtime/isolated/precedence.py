"""A contribution comes before a developer's code in the store: in one process, for one device.

A handler that sees private data may read and write the device's store while the device takes part. SQLite has a reader
hold up a commit, and a commit hold up all, so a handler that reads for long where it finds what it looks for would
delay the upload, and tell the developer's server a bit without any noise.

So the handlers' statements end once a participation takes the store, and begin anew when it is over. What cannot be
interrupted, the commit of what one call may write, has ``COMMIT_SECONDS`` to end. They are the same on every device.

::

    taken     COMMIT_SECONDS     ..      a window of computing            ..     over
      |  a commit may end  | the device |  lent: handlers go on  | COMMIT  | the device |
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

#: For a commit of what one call of a handler may write, on a slow disk.
COMMIT_SECONDS = 0.25


_T = TypeVar("_T")


class Interruptible(Protocol):
    """A store whose statements can be ended."""

    def end_when(self, over: Callable[[], bool]) -> None:
        """Ends statements, also one under way, once ``over`` is true; they raise TimeoutError then."""


class Precedence:
    """Whether a device takes part now, for the handlers of its service. Thread-safe.

    Args:
      monotonic: seconds that only grow.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._taken, self._lent_until = 0, -math.inf

    @contextlib.contextmanager
    def taken(self, sleep: Callable[[float], None] = lambda seconds: None) -> Iterator[None]:
        """Keeps handlers from the store within; ``sleep`` lets the time pass in which their last commit ends."""
        with self._changed:
            self._taken += 1
        try:
            sleep(COMMIT_SECONDS)
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def lent(self, seconds: float) -> Iterator[None]:
        """Lets handlers go on within, for ``seconds`` but for the time of a commit at their end: they are public."""
        with self._changed:
            self._lent_until = self._monotonic() + seconds - COMMIT_SECONDS
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._lent_until = -math.inf

    def holds(self) -> bool:
        """Whether no handler may use the store now."""
        return self._taken > 0 and self._monotonic() >= self._lent_until

    def in_turn(self, store: Interruptible, act: Callable[[], _T]) -> tuple[_T, float]:
        """Runs ``act``, which uses ``store``, once the device takes no part, and anew where it takes part meanwhile.

        Returns what it returns, and the seconds that it waited. ``act`` may leave no part of its work behind.
        """
        waited = 0.0
        while True:
            begin = self._monotonic()
            with self._changed:
                while self.holds():
                    self._changed.wait()
            waited += self._monotonic() - begin
            store.end_when(self.holds)
            try:
                return act(), waited
            except TimeoutError:
                continue
            finally:
                store.end_when(lambda: False)
