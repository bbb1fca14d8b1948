"""What computations of devices reserve of their machine: processors, processes with their memory, active threads."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from device_runtime.tasks.computing_terms import Place
from odp.models.computing_cost import MOST_BYTES

#: Memory of a process that computes one contribution, beside that of the program itself.
PROCESS_BYTES = int(MOST_BYTES)
#: The memory that a container has.
_CONTAINER_BYTES = Path("/sys/fs/cgroup/memory.max")
#: How often a device that waits for a place looks whether its host stops.
LOOK_SECONDS = 0.5


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


class Processors:
    """A machine's processors, which computations take in the order in which they come; thread-safe.

    Each computation elsewhere has one of its own. Those HERE have one together: the first takes it, and the last one
    frees it. None joins them while a computation that came earlier waits, which would wait for ever otherwise.
    """

    def __init__(self, number: int) -> None:
        self._free, self._here = number, 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    def take(self, place: Place, is_over: Callable[[], bool]) -> bool:
        """Whether a processor became free before ``is_over``, which is asked now and then."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while not self._changed.wait_for(
                    lambda: self._waiting[0] is turn and self._free >= self._needs(place), LOOK_SECONDS
                ):
                    if is_over():
                        return False
                self._free -= self._needs(place)
                self._here += place is Place.HERE
                return True
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

    def give_back(self, place: Place) -> None:
        """After ``take``."""
        with self._changed:
            self._here -= place is Place.HERE
            self._free += self._needs(place)
            self._changed.notify_all()

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
