"""The steps of tasks: whom they involve, the threads in which they run, and the spans around them.

Each task has one thread, so that a task that waits does not delay the others.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from odp.transport import observing
from odp.transport.logs import short
from server.clients import AggregatorClient, Distributor
from server.fetched_values import FetchedValues
from server.leading import Leads
from server.local.steps import LocalSteps
from server.populations import Populations
from server.storage import TaskRecord, VersionRecord
from server.token_keys import TokenKeys
from server.transparency import LogKeeper

#: Tasks wait for each other only if this number of them waits for an answer at once.
MOST_THREADS = 32
_Result = TypeVar("_Result")


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


def traced(name: str) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """A step of (task, version, ..) within a span, which says the task and the round."""

    def decorate(step: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(step)
        def within(driver: Any, task: TaskRecord, version: VersionRecord, *rest: Any) -> _Result:
            with observing.span(name, task=short(task.sha256), round=version.version):
                return step(driver, task, version, *rest)

        return within

    return decorate


@dataclass(frozen=True, kw_only=True)
class Parties:
    """Whom the steps of a task involve.

    Attributes:
      distributor, aggregator: the control listeners of the two enclaves' hosts.
      signing_key: gives the attested key of the aggregator's enclave; None: releases are not verified here.
      keeper: logs what a task does before anything follows from it; None logs nothing.
      populations: those of the tasks; None founds and checks nothing.
      tokens: gives the token keys of rounds; None gives none.
      values: those of releases that are too long for one message; None knows none.
      local: takes the steps of tasks of local trust; None has none of them.
      leads: says which tasks this server leads; None: all, as it is alone.
      lagging: whether one of several distributors lacks a model, and should get it now.
    """

    distributor: Distributor
    aggregator: AggregatorClient
    signing_key: Callable[[], bytes] | None = None
    keeper: LogKeeper | None = None
    populations: Populations | None = None
    tokens: TokenKeys | None = None
    values: FetchedValues | None = None
    local: LocalSteps | None = None
    leads: Leads | None = None
    lagging: Callable[[], bool] = lambda: False
