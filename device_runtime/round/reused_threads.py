"""Threads of computations, which are used again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue


class ReusedThreads:
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
