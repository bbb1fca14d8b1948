"""Fixed times of everything that reads a person's data: what it made leaves the device when public facts say.

How long a computation takes, and whether it ends at all, depends on the person's data. So whatever reads them gets the
same time on every device, and what it made, or nothing, is handed on when that time is over:

::

    begin            computed_at                                 due
      |  rows are read, a contribution is computed, beside       |
      |  the caller, which hears nothing of it until then        |
                       |  the contribution, or the empty one, is  |  the device sends
                       |  sealed and stored                       |

``due`` is ``fixed_seconds`` of the signed definition after ``begin``. Where a device asks for rows by key, reading them
has a time of its own, ``keys_seconds``, after which the keys leave; the other time begins when the model is there.

The devices of one host wait side by side, without a processor. What one device holds must not take the time of another
one, or a person would move more than one contribution. So a device reserves what its computation may use at its worst:

::

    PROCESS   a place with a processor and its limit of memory, from the first read until the time is over
    HERE      the next APART = worst case / SHARE_OF_TIME seconds of this machine's processor

Whatever runs a developer's program is a PROCESS, as its developer states what that computes: no worst case is trusted.

Devices of one host may work at several tasks. So each process takes a processor of the machine, and all computations
HERE together take one, or those of one task would slow those of another. They take it in the order in which they come,
and hold it until their window is over.

HERE, a computation of at most the worst case begins with nothing of an earlier one left: the n computations that began
before it had n APART seconds, and needed at most n SHARE_OF_TIME APART. So it ends within its window, however the
threads share one processor, where other work leaves SHARE_OF_TIME of it to them.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from device_runtime.round import computing_places
from device_runtime.round.computing_places import (
    PROCESS_BYTES,
    Active,
    Processors,
    processes_of_machine,
    processors_of_machine,
)
from device_runtime.round.reused_threads import ReusedThreads
from device_runtime.tasks.computing_terms import ComputingTerms, Place
from odp import _validate
from odp.algorithms.computing_time import (
    SHARE_OF_TIME,
    machine_speed,
    require_fast_enough,
)
from odp.errors import NotNow, PrivacyError, StateError, StoreUnreachable
from odp.v1 import common_pb2

#: Memory of all computations in place whose windows are open.
_BYTES_HERE = 2**29
#: Seconds between two begins, at least: what opening a store and starting a thread take.
_SHORTEST_APART = 4e-3
#: Of a computation, in which rows are read.
_SHARE_OF_READING = 0.8

_T = TypeVar("_T")
_PASSED = threading.Event()
_PASSED.set()


_threads = ReusedThreads()


def whole_time(seconds: float, finished: threading.Event) -> None:
    """Lets ``seconds`` pass, whether the computation has finished or not."""
    time.sleep(seconds)


class FixedTimes:
    """Computes for one device after another, each at its fixed time; thread-safe.

    Args:
      threads: devices that work at a time, beside any number that wait.
      wait: sleeps for a number of seconds; a test may return as soon as the computation has finished.
      monotonic: seconds that only grow.
      speed: of this machine, as ``odp.algorithms.computing_time.machine_speed``.
      processors: of this machine; by default those that this program may use.
      processes: that compute at a time; by default one for each processor, and no more than the memory holds.
      stop: set once no further computation begins.
    """

    def __init__(
        self,
        *,
        threads: int = 3,
        wait: Callable[[float, threading.Event], None] = whole_time,
        monotonic: Callable[[], float] = time.monotonic,
        speed: Callable[[], float] = machine_speed,
        processors: int | None = None,
        processes: int | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        _validate.integer(low=1, high=64, threads=threads)
        self.active = Active(threads)
        self._processors = Processors(processors or processors_of_machine())
        self._processes = threading.BoundedSemaphore(processes or processes_of_machine())
        self._wait, self.monotonic, self._speed = wait, monotonic, speed
        self._stop = threading.Event() if stop is None else stop
        self._lock = threading.Lock()
        self._next = -math.inf

    def require(self, definition: common_pb2.TaskDefinition, terms: ComputingTerms) -> None:
        """Returns if this device can compute what the task asks within its fixed time; before any data are read.

        Raises:
          PrivacyError: it is too slow, has too little memory, or cannot stop a computation.
        """
        speed = self._speed()
        if speed * terms.worst_seconds > SHARE_OF_TIME * terms.seconds:
            require_fast_enough(definition, speed)
        if terms.place is Place.PROCESS and sys.platform != "linux":
            raise PrivacyError(
                f"task {definition.name!r} computes in a process that can be stopped, which this device has on Linux "
                f"alone (this is {sys.platform}); nothing was read"
            )
        if terms.place is Place.PROCESS and terms.worst_bytes > PROCESS_BYTES:
            raise PrivacyError(
                f"task {definition.name!r} may need {terms.worst_bytes / 2**20:.0f} MiB of memory for a contribution, "
                f"and this device gives it {PROCESS_BYTES / 2**20:.0f}; nothing was read"
            )

    @contextlib.contextmanager
    def place(self, terms: ComputingTerms) -> Iterator[None]:
        """Reserves what the computations of one device use; waits until it is free.

        Its holder gives it back at a time that public facts fix: when the window of its contribution is over.

        Raises:
          NotNow: the host stops.
        """
        with contextlib.ExitStack() as reserved:
            with self.active.given_away():
                if terms.place is Place.PROCESS:
                    while not self._processes.acquire(timeout=computing_places.LOOK_SECONDS):
                        if self._stop.is_set():
                            raise _stops()
                    reserved.callback(self._processes.release)
                if not self._processors.take(terms.place, self._stop.is_set):
                    raise _stops()
                reserved.callback(self._processors.give_back, terms.place)
            yield

    def reading(self, terms: ComputingTerms) -> Window:
        """The time in which rows are read and the keys are chosen."""
        return self._begin(terms, terms.keys_seconds, terms.keys_seconds)

    def computing(self, terms: ComputingTerms) -> Window:
        """The time of a contribution."""
        return self._begin(terms, SHARE_OF_TIME * terms.seconds, terms.seconds)

    def lasting(self, seconds: float) -> Window:
        """A time for a device's own code, which begins now."""
        begin = self.monotonic()
        return Window(self, begin, begin + seconds, begin + seconds)

    def sleep(self, seconds: float, finished: threading.Event = _PASSED) -> None:
        """Waits without a processor, and without a place among the active threads."""
        if seconds > 0:
            with self.active.given_away():
                self._wait(seconds, finished)

    def _begin(self, terms: ComputingTerms, computing: float, whole: float) -> Window:
        apart = _SHORTEST_APART
        if terms.place is Place.HERE:
            processor = self._speed() * terms.worst_seconds / SHARE_OF_TIME
            apart = max(apart, processor, computing * terms.worst_bytes / _BYTES_HERE)
        with self._lock:
            begin = max(self.monotonic(), self._next)
            self._next = begin + apart
        return Window(self, begin, begin + computing, begin + whole)


def _stops() -> NotNow:
    return NotNow("this host stops; the device had not begun to compute")


class Window:
    """The time of one computation. For one thread."""

    def __init__(self, fixed_times: FixedTimes, begin: float, computed_at: float, due: float) -> None:
        self._fixed_times, self._begin, self._computed_at, self._due = fixed_times, begin, computed_at, due
        self._reading_left = (computed_at - begin) * (1 - _SHARE_OF_READING)
        self._finished = threading.Event()

    @property
    def seconds_left(self) -> float:
        """Until the end of computing; 0 after it."""
        return max(self._computed_at - self._fixed_times.monotonic(), 0.0)

    @property
    def seconds_to_read(self) -> float:
        """Until rows may be read no more; 0 after it."""
        return max(self.seconds_left - self._reading_left, 0.0)

    def reading_over(self) -> bool:
        """Whether rows may be read no more: a reader's lock would hold up the transaction of the contribution."""
        return self.seconds_to_read <= 0

    def compute(self, act: Callable[[], _T]) -> _T | None:
        """What ``act`` returns, or None where it raised, or is not there in time. Returns when the time is over.

        Raises:
          StateError: ``act`` found that the store cannot be read, which says something of the disk. Also then.
        """
        results: list[_T] = []
        failures: list[BaseException] = []

        def run() -> None:
            # Here, and not in the caller, which would first have to find a place among the active threads again.
            time.sleep(max(self._begin - self._fixed_times.monotonic(), 0.0))
            try:
                results.append(act())
            except StoreUnreachable:
                pass  # who holds the store, and for how long, may follow from the data
            except StateError as error:
                failures.append(error)
            except Exception:  # whatever it is, it follows from the data, or came too late
                pass
            except BaseException as error:  # it ends the program
                failures.append(error)
            self._finished.set()

        _threads.start(run)
        self._fixed_times.sleep(self.seconds_left, self._finished)
        if not self._finished.is_set():
            return None
        if failures:
            raise failures[0]
        return results[0] if results else None

    def attempt(self, act: Callable[[], object]) -> None:
        """Runs ``act``, whatever becomes of it. Returns when the time is over, and raises nothing."""
        with contextlib.suppress(StateError):
            self.compute(act)

    def leave(self) -> None:
        """Returns when what was made may leave."""
        self._fixed_times.sleep(self._due - self._fixed_times.monotonic())
