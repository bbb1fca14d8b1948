"""A fixed time for a developer's program that trains on private data, from the model of a round to the contribution.

How long a training takes, and whether it ends at all, depends on the person's data: on how many examples there are, and
on whatever a hostile program looks for in them. So the device sends at a time that follows from public numbers:

::

    the model is there   seconds                                    + send_seconds
      |  data are read, the program trains, in a thread of its own  |  sealed and stored  |  the device sends
      |  what is not there by then is the empty contribution        |  the rest of the time  |

The time is the same for a device that has trained, has no examples, has a program that failed, or rests after failures.
It is the person's setting, and at most a quarter of ``round_seconds`` of the signed task: a round must not end while
its devices wait.

One contribution may run its program several times, as an evaluation does. All of its calls have this one time, and what
runs the program asks for the rest of it (:func:`seconds_left`): a program that ran on would take time from the next
round, and so show what it found.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from device_runtime.round.made_examples import whole_time
from odp import _validate

#: A server takes a round for quiet, and closes it, when no device has come for 90 s; they ask every 60 s.
PROGRAM_SECONDS = 20.0
MOST_PROGRAM_SECONDS = 600.0
_SHARE_OF_ROUND = 1 / 4

_T = TypeVar("_T")
# Of the contribution that a thread computes: the algorithm between a turn and its trainer knows nothing of time.
_here = threading.local()


def seconds_left() -> float:
    """Until the end of training of the contribution that this thread computes, 0 after it; infinity in no turn."""
    turn: Turn | None = getattr(_here, "turn", None)
    return math.inf if turn is None else turn.seconds_left


@dataclass(frozen=True, kw_only=True)
class ProgramTime:
    """The time of developers' programs on this device.

    Args:
      seconds: from the model of a round to the end of training.
      send_seconds: in which what was computed is sealed and stored.
      wait: sleeps for a number of seconds; a test may return as soon as the training has finished.
      monotonic: seconds that only grow.

    Raises:
      ConfigurationError: ``seconds`` is out of range.
    """

    seconds: float = PROGRAM_SECONDS
    send_seconds: float = 1.0
    wait: Callable[[float, threading.Event], None] = whole_time
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        _validate.within(low=1.0, high=MOST_PROGRAM_SECONDS, program_seconds=self.seconds)

    def begin(self, *, round_seconds: int) -> Turn:
        """The time of one contribution, which begins now; ``round_seconds`` are those of the signed task."""
        return Turn(self, min(self.seconds, round_seconds * _SHARE_OF_ROUND))


class Turn:
    """The time of one contribution. For one thread."""

    def __init__(self, owner: ProgramTime, seconds: float) -> None:
        self._owner = owner
        self._computed_at = owner.monotonic() + seconds
        self._finished = threading.Event()

    @property
    def seconds_left(self) -> float:
        """Until the end of training; 0 after it."""
        return max(self._computed_at - self._owner.monotonic(), 0.0)

    def compute(self, act: Callable[[], _T], *, otherwise: Callable[[], _T]) -> _T:
        """What ``act`` returns; that of ``otherwise`` where it is not there in time. Returns when the time is over.

        Raises what ``act`` raised, also then.
        """
        results: list[_T] = []
        errors: list[Exception] = []

        def run() -> None:
            _here.turn = self
            try:
                results.append(act())
            except Exception as error:
                errors.append(error)
            self._finished.set()

        threading.Thread(target=run, name="program", daemon=True).start()
        self._wait_until(self._computed_at)
        if not self._finished.is_set():
            return otherwise()
        if errors:
            raise errors[0]
        return results[0]

    def finish(self) -> None:
        """Returns when the device may send."""
        self._wait_until(self._computed_at + self._owner.send_seconds)

    def _wait_until(self, end: float) -> None:
        self._owner.wait(max(end - self._owner.monotonic(), 0.0), self._finished)
