"""Ends hostile connections of a listener while it runs: looks at its sockets some times per second, as bytes arrive.

``connections`` decides, ``kernel_sockets`` carries it out. The guard has a thread of its own: gRPC works for hostile
connections on the event loop's, too, and can hold it for seconds. gRPC's own threads read and decrypt for strangers, as
fast as these send; they yield the processor to the program's, which judge strangers and answer everybody else.

::

    resting   nothing that the last look saw can change a verdict   until something arrives, or for ``_REST`` seconds
    looking   something arrived, or a verdict is pending            the next look follows after a pause

A look that fails is logged, and the next one tries again: a guard that ended would leave the listener without bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import select
import threading
import time
from collections import Counter
from pathlib import Path

from odp.refusing import places
from odp.transport.connections import Connections
from odp.transport.kernel_sockets import KernelSockets, give_memory_back
from odp.transport.logs import Log

_TASKS, _MEMORY = Path("/proc/self/task"), Path("/proc/self/statm")
_PAGE = resource.getpagesize()
#: Seconds between two looks: while a connection is new or suspect, and otherwise.
_SOON, _LATER = 0.005, 0.05
#: The shares of a processor that looking may take, whatever the number of connections: as above.
_SHARE_SOON, _SHARE_LATER = 0.2, 0.03
#: Seconds between two looks where nothing arrives.
_REST = 1.0
_LOG_SECONDS = 10.0
#: After an ended connection, until what such connections cost is given back to the system: first, and last, since gRPC
#: frees it for seconds. Each time is twice as late as the one before.
_TRIM_SECONDS, _LAST_TRIM_SECONDS = 0.5, 16.0
#: How gRPC names its threads, and how much nicer to others they are than the program's; 19 is the most.
_OF_GRPC, _NICENESS, _RENICE_SECONDS = frozenset({"event_engine", "lifeguard"}), 5, 1.0


def _resident() -> int:
    return int(_MEMORY.read_text().split()[1]) * _PAGE


class Guard:
    """Watches the connections of one listener from its creation to ``stop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sockets: KernelSockets, connections: Connections) -> None:
        self._loop, self._sockets, self._connections = loop, sockets, connections
        self._log = Log("listener")
        self._ended: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        self._kept_out: list[str] = []
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS
        self._reniced: set[str] = set()
        self._renice_at = float("-inf")
        self._trim_after = _TRIM_SECONDS
        self._trim_at: float | None = None
        # The kernel reports each arrival once, and gRPC, which reads the same sockets, hears of it as before.
        self._arrivals = select.epoll()
        self._watched: set[int] = set()
        self._end_rest = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._arrivals.register(self._end_rest, select.EPOLLIN)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch. Idempotent."""
        if not self._stopped.is_set():
            self._stopped.set()
            os.eventfd_write(self._end_rest, 1)
            self._thread.join()
            self._arrivals.close()
            os.close(self._end_rest)

    def _run(self) -> None:
        pause, rest = _LATER, False
        while not self._stopped.wait(pause):
            began = time.thread_time()  # a machine that is busy with an attack must not slow the looks
            try:
                arrived = bool(self._arrivals.poll(_REST if rest else 0.0))
                busy, settled = self._look(pause)
                # One more look after an arrival: a connection has no descriptor while it is being accepted.
                rest = settled and not arrived
            except Exception as error:
                busy, rest = True, False
                if self._is_due("connections_not_watched"):
                    why = error.strerror if isinstance(error, OSError) else type(error).__name__
                    self._log.error("connections_not_watched", why=why, where=places(error))
            took = time.thread_time() - began
            pause = max(_SOON, took / _SHARE_SOON) if busy else max(_LATER, took / _SHARE_LATER)
            self._trim()  # it can take a second after an attack, which must not put off the next look

    def _look(self, pause: float) -> tuple[bool, bool]:
        """Whether to look again soon, and whether the next look would see the same if nothing arrived until then."""
        verdict = self._connections.judge(self._sockets.connections(), resident=_resident(), pause=pause)
        if verdict.busy:
            self._loop.call_soon_threadsafe(self._connections.turned)
        for id in verdict.ended:
            self._sockets.abort(id)
        kept_out = self._connections.kept_out()
        if kept_out != self._kept_out:
            dropped = self._sockets.drop_new(kept_out)
            self._kept_out = kept_out
            if dropped < len(kept_out) and self._is_due("addresses_not_kept_out"):
                self._log.warning("addresses_not_kept_out", addresses=len(kept_out) - dropped)
        self._ended.update(verdict.ended.values())
        now = time.monotonic()
        if verdict.ended:
            self._trim_after = _TRIM_SECONDS
            self._trim_at = min(self._trim_at or math.inf, now + _TRIM_SECONDS)
        if self._ended and self._is_due("connections_ended"):
            for why, number in self._ended.items():
                self._log.warning("connections_ended", why=why, connections=number, addresses_kept_out=len(kept_out))
            self._ended.clear()
        if now >= self._renice_at:
            self._renice_at = now + _RENICE_SECONDS
            self._renice()
        watched = self._watch()
        unfinished = kept_out or self._ended or self._trim_at is not None
        return verdict.busy, watched and verdict.settled and not unfinished

    def _watch(self) -> bool:
        """Has the kernel report arrivals; returns whether it reports those of all connections to come."""
        descriptors = self._sockets.descriptors()
        self._watched &= descriptors.keys()
        for id in descriptors.keys() - self._watched:
            with contextlib.suppress(OSError):  # closed meanwhile, or the kernel watches no more for this user
                self._arrivals.register(descriptors[id], select.EPOLLIN | select.EPOLLET)
                self._watched.add(id)
        return self._watched == descriptors.keys() and not self._sockets.accepting()

    def _trim(self) -> None:
        if self._trim_at is not None and time.monotonic() >= self._trim_at:
            give_memory_back()
            self._trim_after *= 2
            self._trim_at = time.monotonic() + self._trim_after if self._trim_after <= _LAST_TRIM_SECONDS else None

    def _is_due(self, event: str) -> bool:
        """Whether to log ``event`` now: once in ``_LOG_SECONDS``."""
        now = time.monotonic()
        if now - self._logged.get(event, float("-inf")) <= _LOG_SECONDS:
            return False
        self._logged[event] = now
        return True

    def _renice(self) -> None:
        threads = {task.name for task in _TASKS.iterdir()}
        for thread in threads - self._reniced:
            with contextlib.suppress(OSError):  # the thread has ended
                if (_TASKS / thread / "comm").read_text().strip() in _OF_GRPC:
                    os.setpriority(os.PRIO_PROCESS, int(thread), self._niceness)
        self._reniced = threads
