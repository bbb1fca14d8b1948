"""The time of a server's last call about each task, so that the host can erase idle tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from odp.transport.sweeping import DAY, SweepClock
from trusted_aggregator.host.storage import Storage

#: Days after which a task that no server asks about is forgotten, with its open rounds.
IDLE_DAYS = 30.0

_NOTE_SECONDS = 3600.0


class IdleTasks:
    """Records work on tasks. ``clock`` gives seconds since the epoch, ``monotonic`` seconds that never go back."""

    def __init__(
        self,
        storage: Storage,
        *,
        idle_seconds: float = IDLE_DAYS * DAY,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._sweeps = SweepClock(clock=clock, monotonic=monotonic)
        self._noted: dict[bytes, float] = {}

    def resume(self, tasks: Iterable[bytes]) -> None:
        """Records the start of work on tasks that have no record."""
        for task in tasks:
            self._storage.note_work(task, self._clock(), unless_noted=True)

    def note(self, task: bytes) -> None:
        """Records that a server works on a task; rounded to the hour, since a server calls several times a second."""
        now = self._clock()
        if not 0 <= now - self._noted.get(task, float("-inf")) < _NOTE_SECONDS:
            self._storage.note_work(task, now)
            self._noted[task] = now

    def forget(self, task: bytes) -> None:
        """Drops the record of a task that is over."""
        self._storage.forget_work(task)
        self._noted.pop(task, None)

    def overdue(self) -> list[bytes]:
        """Tasks that no server asked about for too long."""
        return self._storage.idle(self._sweeps.now() - self._idle_seconds)
