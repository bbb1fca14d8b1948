"""The path of a contribution through the host: the enclave counts it, the host stores it, then acknowledges it.

Many callers share each step: one thread sends all waiting contributions to the enclave in one message, another stores
the accepted ones in one commit, while the enclave counts the next ones. A single caller never waits for others. With
other calls in progress, a step waits a few milliseconds for more, because it costs nearly as much for one as for many.

A caller need not wait: it gets a future, which is done once both steps are. Batches keep their order, so that a caller
hears that its contribution was counted before only after that one is stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from odp.errors import Refusal, StateError
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.interface import Aggregator, Refused
from trusted_aggregator.boundary.wire import host_sha256
from trusted_aggregator.host.storage import Contribution, Storage

_MOST_TOGETHER = 512
_BYTES_TOGETHER = 4 * 2**20
_ENOUGH = 48
_COMPANY_SECONDS = 0.01


class _Submission:
    """One contribution on its way."""

    __slots__ = ("answer", "future", "host_part", "request")

    def __init__(self, request: aggregator_pb2.SubmitRequest, host_part: bytes | None) -> None:
        self.request = request
        self.host_part = host_part
        self.answer: Refused | Exception | None = None
        self.future: Future[Refused | None] = Future()

    @property
    def waits_for_storage(self) -> bool:
        """Whether it was counted: now, or earlier, when its first attempt may still wait for its commit."""
        answer = self.answer
        return answer is None or (isinstance(answer, Refused) and answer.refusal is Refusal.ALREADY_CONTRIBUTED)


_Batch = list[_Submission]


class Ingest:
    """Takes contributions from many threads. ``failed`` is called once when a contribution could not be stored."""

    def __init__(self, core: Aggregator, storage: Storage, *, failed: Callable[[StateError], None]) -> None:
        self._core = core
        self._storage = storage
        self._tell_failed = failed
        self._changed = threading.Condition()
        self._waiting: _Batch = []
        self._under_way = 0  # taken from ``_waiting``, and not answered yet
        self._closing = False
        self._counted: SimpleQueue[_Batch | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._count, name="ingest-enclave", daemon=True),
            threading.Thread(target=self._store, name="ingest-storage", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: aggregator_pb2.SubmitRequest, host_part: bytes | None = None) -> Future[Refused | None]:
        """A future that is None once the contribution is counted and stored; the reason if it is refused.

        ``host_part`` is what ``request`` names by its hash; it is stored and does not go to the enclave.

        The future raises, or this does:
            StateError: the enclave is gone, or something could not be stored: the program has to stop.
        """
        mine = _Submission(request, host_part)
        with self._changed:
            if self._closing:
                raise StateError("the aggregator is stopping; try again later")
            self._waiting.append(mine)
            if len(self._waiting) in (1, _ENOUGH):
                self._changed.notify()
        return mine.future

    def close(self) -> None:
        """Completes all waiting contributions. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        for thread in self._threads:
            thread.join()

    def _count(self) -> None:
        while batch := self._next_batch():
            try:
                answers = self._core.submit_batch([submission.request for submission in batch])
                for submission, answer in zip(batch, answers, strict=True):
                    submission.answer = answer
            except Exception as error:  # whatever it is, its callers must not wait for ever
                _fail(batch, error)
            self._wake([submission for submission in batch if not submission.waits_for_storage])
            self._counted.put([submission for submission in batch if submission.waits_for_storage])
        self._counted.put(None)

    def _next_batch(self) -> _Batch:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if self._under_way and not self._closing:
                self._changed.wait_for(lambda: len(self._waiting) >= _ENOUGH or self._closing, _COMPANY_SECONDS)
            count, size = 0, 0
            while count < min(len(self._waiting), _MOST_TOGETHER) and size < _BYTES_TOGETHER:
                size += len(self._waiting[count].request.sealed_contribution)
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._under_way += len(batch)
        return batch

    def _store(self) -> None:
        last = told = False
        while not last:
            batches = [self._counted.get()]
            while not self._counted.empty():
                batches.append(self._counted.get())
            last = batches[-1] is None
            batch = [submission for each in batches if each is not None for submission in each]
            accepted = [
                Contribution(
                    each.request.task_sha256,
                    each.request.round,
                    each.request.sealed_contribution + host_sha256(each.request),
                    each.host_part,
                )
                for each in batch
                if each.answer is None
            ]
            try:
                self._storage.add(accepted)
            except StateError as error:
                _fail(batch, error)
                if not told:
                    self._tell_failed(error)
                told = True
            self._wake(batch)

    def _wake(self, batch: _Batch) -> None:
        """Notifies the callers: all answers are available."""
        with self._changed:
            self._under_way -= len(batch)
        for submission in batch:
            if isinstance(submission.answer, Exception):
                submission.future.set_exception(submission.answer)
            else:
                submission.future.set_result(submission.answer)


def _fail(batch: _Batch, error: Exception) -> None:
    for submission in batch:
        submission.answer = error
