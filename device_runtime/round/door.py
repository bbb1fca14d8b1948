"""The one door between a person's data and what leaves the device: it opens at times that public facts fix.

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
    TRAINER   the one place of the trainer, as long: its developer states what it computes, so no worst case is trusted
    HERE      the next APART = worst case / SHARE_OF_TIME seconds of this machine's processor

Devices of one host may work at several tasks. So each process and each training takes a processor of the machine, and
all computations HERE together take one, or those of one task would slow those of another. They take it in the order in
which they come, and hold it until their window is over. A training reads and encodes its rows in the host's process,
whose threads share one interpreter: it goes on beside no computation HERE, however many processors there are.

HERE, a computation of at most the worst case begins with nothing of an earlier one left: the n computations that began
before it had n APART seconds, and needed at most n SHARE_OF_TIME APART. So it ends within its window, however the
threads share one processor, where other work leaves SHARE_OF_TIME of it to them.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from device_runtime.tasks.computing_terms import ComputingTerms, Place
from odp import _validate
from odp.algorithms.computing_time import (
    SHARE_OF_TIME,
    machine_speed,
    require_fast_enough,
)
from odp.errors import NotNow, PrivacyError, StateError, StoreUnreachable
from odp.models.computing_cost import MOST_BYTES
from odp.v1 import common_pb2

#: Memory of a process that computes one contribution, beside that of the program itself.
PROCESS_BYTES = int(MOST_BYTES)
#: Memory of all computations in place whose windows are open.
_BYTES_HERE = 2**29
#: The memory that a container has.
_CONTAINER_BYTES = Path("/sys/fs/cgroup/memory.max")
#: How often a device that waits for a place looks whether its host stops.
_LOOK_SECONDS = 0.5
#: Seconds between two begins, at least: what opening a store and starting a thread take.
_SHORTEST_APART = 4e-3
#: Of a computation, in which rows are read.
_SHARE_OF_READING = 0.8

_T = TypeVar("_T")
_PASSED = threading.Event()
_PASSED.set()


class _Threads:
    """Runs each act at once, on an idle thread or on a new one: one that takes too long delays no other act.

    Idle threads are used again, as the memory of a new one costs more than most computations.
    """

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[Callable[[], object]]] = deque()

    def start(self, act: Callable[[], object]) -> None:
        """Begins ``act``, which raises nothing."""
        try:
            acts = self._idle.pop()
        except IndexError:
            acts = SimpleQueue()
            threading.Thread(target=self._work, args=(acts,), name="computing", daemon=True).start()
        acts.put(act)

    def _work(self, acts: SimpleQueue[Callable[[], object]]) -> None:
        while True:
            acts.get()()  # its result is held by nothing else than its window
            self._idle.append(acts)


_threads = _Threads()
# Of the computation that a thread runs: the algorithm between it and a trainer of networks knows nothing of time.
_here = threading.local()


def seconds_left() -> float:
    """Until the end of the computation that this thread runs, 0 after it; infinity outside of one."""
    window: Window | None = getattr(_here, "window", None)
    return math.inf if window is None else window.seconds_left


class Active:
    """At most ``threads`` threads work at a time; one that waits for a fixed time gives its place to another."""

    def __init__(self, threads: int) -> None:
        self._places = threading.Semaphore(threads)
        self._mine = threading.local()

    def __enter__(self) -> None:
        self._places.acquire()
        self._mine.held = True

    def __exit__(self, *error: object) -> None:
        self._mine.held = False
        self._places.release()

    @contextlib.contextmanager
    def given_away(self) -> Iterator[None]:
        """Frees the place of this thread, if it holds one, for the time within."""
        if not getattr(self._mine, "held", False):
            yield
            return
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


class _Processors:
    """A machine's processors, which computations take in the order in which they come; thread-safe.

    Each computation elsewhere has one of its own. Those HERE have one together: the first takes it, and the last one
    frees it. None joins them while a computation that came earlier waits, which would wait for ever otherwise.
    Computations HERE and trainings exclude each other.
    """

    def __init__(self, number: int) -> None:
        self._free, self._here, self._trainings = number, 0, 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    def take(self, place: Place, is_over: Callable[[], bool]) -> bool:
        """Whether a processor became free before ``is_over``, which is asked now and then."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while not self._changed.wait_for(lambda: self._waiting[0] is turn and self._fits(place), _LOOK_SECONDS):
                    if is_over():
                        return False
                self._free -= self._needs(place)
                self._here += place is Place.HERE
                self._trainings += place is Place.TRAINER
                return True
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

    def give_back(self, place: Place) -> None:
        """After ``take``."""
        with self._changed:
            self._here -= place is Place.HERE
            self._trainings -= place is Place.TRAINER
            self._free += self._needs(place)
            self._changed.notify_all()

    def _fits(self, place: Place) -> bool:
        excluded = {Place.HERE: self._trainings, Place.TRAINER: self._here}.get(place, 0)
        return not excluded and self._free >= self._needs(place)

    def _needs(self, place: Place) -> int:
        """0 for a computation HERE beside another one, and else 1."""
        return 0 if place is Place.HERE and self._here else 1


def processors_of_machine() -> int:
    """Processors that this program may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def processes_of_machine() -> int:
    """Processes, each of ``PROCESS_BYTES``, that the processors and the memory of this machine hold; at least one."""
    if sys.platform != "linux":
        return 1  # where none can be stopped, and so none is started
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # "max", or no such file
        memory = min(memory, int(_CONTAINER_BYTES.read_text()))
    return max(1, min(processors_of_machine(), memory // PROCESS_BYTES))


def whole_time(seconds: float, finished: threading.Event) -> None:
    """Lets ``seconds`` pass, whether the computation has finished or not."""
    time.sleep(seconds)


class Door:
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
        places = {Place.PROCESS: processes or processes_of_machine(), Place.TRAINER: 1}
        self._processors = _Processors(processors or processors_of_machine())
        self._places = {place: threading.BoundedSemaphore(number) for place, number in places.items()}
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
                if (places := self._places.get(terms.place)) is not None:
                    while not places.acquire(timeout=_LOOK_SECONDS):
                        if self._stop.is_set():
                            raise _stops()
                    reserved.callback(places.release)
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

    def __init__(self, door: Door, begin: float, computed_at: float, due: float) -> None:
        self._door, self._begin, self._computed_at, self._due = door, begin, computed_at, due
        self._reading_left = (computed_at - begin) * (1 - _SHARE_OF_READING)
        self._finished = threading.Event()

    @property
    def seconds_left(self) -> float:
        """Until the end of computing; 0 after it."""
        return max(self._computed_at - self._door.monotonic(), 0.0)

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
            _here.window = self
            # Here, and not in the caller, which would first have to find a place among the active threads again.
            time.sleep(max(self._begin - self._door.monotonic(), 0.0))
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
        self._door.sleep(self.seconds_left, self._finished)
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
        self._door.sleep(self._due - self._door.monotonic())
