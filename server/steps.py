"""Threads for the steps of tasks, one task in each: a task that waits does not delay the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

#: Tasks wait for each other only if this number of them waits for an answer at once.
MOST_THREADS = 32


class StepThreads:
    """Runs steps, one at a time per task. The threads are daemons: a program may end while one waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: SimpleQueue[tuple[bytes, Callable[[], object]] | None] = SimpleQueue()
        self._running: set[bytes] = set()
        self._threads = 0
        self._stopped = False

    def run(self, task: bytes, step: Callable[[], object]) -> bool:
        """Starts ``step``, which must not raise; False if a step of ``task`` is running, or after ``stop``."""
        with self._changed:
            if self._stopped or task in self._running:
                return False
            self._running.add(task)
            if len(self._running) > self._threads < MOST_THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="task", daemon=True).start()
        self._queue.put((task, step))
        return True

    def stop(self, timeout: float) -> None:
        """Starts no more steps; returns when all steps have ended, or after ``timeout`` seconds. Idempotent."""
        with self._changed:
            if not self._stopped:
                self._stopped = True
                for _ in range(self._threads):
                    self._queue.put(None)
            self._changed.wait_for(lambda: not self._running, timeout)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            task, step = job
            try:
                step()
            finally:
                with self._changed:
                    self._running.discard(task)
                    self._changed.notify_all()
