"""Ends hostile connections of a listener while it runs: looks at its sockets some times per second.

``connections`` decides, ``kernel_sockets`` carries it out. The guard has a thread of its own: gRPC works for hostile
connections on the event loop's, too, and can hold it for seconds. gRPC's own threads read and decrypt for strangers, as
fast as these send; they yield the processor to the program's, which judge strangers and answer everybody else.

A look that fails is logged, and the next one tries again: a guard that ended would leave the listener without bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import sys
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
#: The same after a look that ended a connection, and the least: others of its kind may be waiting for their turn. Such
#: looks are no more than connections that are ended, each of which cost its sender's address a wait.
_AT_ONCE = 0.001
#: How long another thread may hold the interpreter's lock when the guard wants it: a look takes it many times.
_SWITCH_SECONDS = 0.0005
#: How often the descriptors are counted between two looks with nothing suspect: gRPC reads what a new one sends as
#: fast as it comes.
_COUNTS = 5
#: The shares of a processor that looking may take, whatever the number of connections: as above.
_SHARE_SOON, _SHARE_LATER = 0.2, 0.03
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
        self._stopped = threading.Event()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch. Idempotent."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause = step = _LATER
        while not self._wait(pause, step):
            began = time.thread_time()  # a machine that is busy with an attack must not slow the looks
            try:
                busy, ended = self._look(pause)
            except Exception as error:
                busy, ended = True, False
                if self._is_due("connections_not_watched"):
                    why = error.strerror if isinstance(error, OSError) else type(error).__name__
                    self._log.error("connections_not_watched", why=why, where=places(error))
            took = time.thread_time() - began
            soon = max(_SOON, took / _SHARE_SOON)
            if ended:
                soon = max(_AT_ONCE, took)
            pause = soon if busy else max(_LATER, took / _SHARE_LATER)
            step = pause if busy else max(_LATER / _COUNTS, soon)
            self._trim()  # it can take a second after an attack, which must not put off the next look

    def _wait(self, pause: float, step: float) -> bool:
        """Until the next look is due, or a count sees that a connection may have come; whether the watch has ended.

        Descriptors are counted each ``step`` seconds.
        """
        before, left = self._sockets.descriptors(), pause
        while left > 0.0:
            if self._stopped.wait(min(step, left)):
                return True
            if self._sockets.descriptors() > before:
                break
            left -= step
        return False

    def _look(self, pause: float) -> tuple[bool, bool]:
        verdict = self._connections.judge(self._sockets.connections, resident=_resident(), pause=pause)
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
        return verdict.busy, bool(verdict.ended)

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
