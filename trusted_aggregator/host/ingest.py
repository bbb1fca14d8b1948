"""The path of a contribution through the host: the enclave counts it, the host stores it, then acknowledges it.

Many callers share each step: one thread sends all waiting contributions to the enclave in one message, another stores
the accepted ones in one commit, while the enclave counts the next ones. A single caller never waits for others. With
other calls in progress, a step waits a few milliseconds for more, because it costs nearly as much for one as for many;
a large contribution waits for nobody.

A caller need not wait: it gets a promise, which is settled once both steps are done. Batches keep their order, so that
a caller hears that its contribution was counted before only after that one is stored.

What comes between the closing of a round and its charge in force is refused without a signature, and its device would
charge itself. So it is asked about again once the charge is in force: then the enclave signs. If the round stays open
after all, the contribution counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from odp.errors import Refusal, StateError
from odp.transport.workers import Promise
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Refused, SealedContribution
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.storage import Storage

_MOST_TOGETHER = 512
_BYTES_TOGETHER = 4 * 2**20
_ENOUGH = 24
_ENOUGH_BYTES = 2**18
_COMPANY_SECONDS = 0.01
#: How often the enclave is asked about a contribution whose refusal a change under way may make final.
MOST_ASKED = 4
# Such contributions that wait for a change.
_MOST_HELD, _MOST_HELD_BYTES = 1024, 2**25
_UNDECIDED = frozenset({Refusal.ROUND_CLOSED, Refusal.WRONG_ROUND, Refusal.TASK_ABANDONED})


def is_undecided(answer: object) -> bool:
    """Whether an enclave's answer to a contribution is a refusal that a change under way may make final."""
    return isinstance(answer, Refused) and not answer.signature and answer.refusal in _UNDECIDED


class _Waiting:
    """A contribution whose caller waits."""

    __slots__ = ("answer", "asked", "contribution", "future")

    def __init__(self, contribution: SealedContribution) -> None:
        self.contribution = contribution
        self.answer: Refused | Exception | None = None
        self.asked = 0
        self.future = Promise()

    @property
    def waits_for_storage(self) -> bool:
        """Whether it was counted: now, or earlier, when its first attempt may still wait for its commit."""
        answer = self.answer
        return answer is None or (isinstance(answer, Refused) and answer.refusal is Refusal.ALREADY_CONTRIBUTED)

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        return len(self.contribution.sealed) + len(self.contribution.host_part or b"")


_Batch = list[_Waiting]


class Ingest:
    """Takes contributions from many threads. ``failed`` is called once when a contribution could not be stored.

    ``changes`` are those of the same enclave; without them, no refusal is asked about again.
    """

    def __init__(
        self,
        core: AggregatorCalls,
        storage: Storage,
        *,
        failed: Callable[[StateError], None],
        changes: Changes | None = None,
    ) -> None:
        self._core, self._storage, self._changes = core, storage, changes
        self._held = self._held_bytes = 0
        self._tell_failed = failed
        self._changed = threading.Condition()
        self._waiting: _Batch = []
        self._waiting_bytes = 0
        self._under_way = 0  # taken from ``_waiting``, and not answered yet
        self._closing = False
        self._counted: SimpleQueue[_Batch | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._count, name="ingest-enclave", daemon=True),
            threading.Thread(target=self._store, name="ingest-storage", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, contribution: SealedContribution) -> Promise:
        """A promise that is None once the contribution is counted and stored; the reason if it is refused.

        The promise raises, or this does:
            StateError: the enclave is gone, or something could not be stored: the program has to stop.
        """
        mine = _Waiting(contribution)
        with self._changed:
            if self._closing:
                raise StateError("the aggregator is stopping; try again later")
            self._append(mine)
        return mine.future

    def _append(self, mine: _Waiting) -> None:
        """Puts it into the queue; its lock is held."""
        self._waiting.append(mine)
        size = len(mine.contribution.sealed)
        self._waiting_bytes += size
        if len(self._waiting) in (1, _ENOUGH) or self._waiting_bytes - size < _ENOUGH_BYTES <= self._waiting_bytes:
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """The number of contributions that are not answered yet."""
        return len(self._waiting) + self._under_way

    def close(self) -> None:
        """Completes all waiting contributions. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        for thread in self._threads:
            thread.join()

    def _count(self) -> None:
        while batch := self._next_batch():
            since = 0 if self._changes is None else self._changes.decisions
            try:
                answers = self._core.submit_batch([waiting.contribution for waiting in batch])
                for waiting, answer in zip(batch, answers, strict=True):
                    waiting.answer = answer
            except Exception as error:  # whatever it is, its callers must not wait for ever
                _fail(batch, error)
            refused = [waiting for waiting in batch if not waiting.waits_for_storage]
            counted = [waiting for waiting in batch if waiting.waits_for_storage]
            self._wake([each for each in refused if not is_undecided(each.answer) or not self._hold(each, since)])
            self._counted.put(counted)
        self._counted.put(None)

    def _hold(self, waiting: _Waiting, since: int) -> bool:
        """Whether the enclave is asked again, after a change that was under way when it refused."""
        if self._changes is None or waiting.asked >= MOST_ASKED:
            return False
        with self._changed:
            if self._held >= _MOST_HELD or self._held_bytes + waiting.size > _MOST_HELD_BYTES:
                return False
            self._count_held(waiting, 1)
        # From here on, another thread may have it.
        if self._changes.after(since, lambda: self._again(waiting)):
            return True
        with self._changed:
            self._count_held(waiting, -1)
        return False

    def _again(self, waiting: _Waiting) -> None:
        with self._changed:
            self._count_held(waiting, -1)
            waiting.asked += 1
            if not self._closing:
                self._under_way -= 1
                self._append(waiting)
                return
        self._wake([waiting])

    def _count_held(self, waiting: _Waiting, sign: int) -> None:
        self._held += sign
        self._held_bytes += sign * waiting.size

    def _next_batch(self) -> _Batch:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if self._under_way and not self._closing:
                self._changed.wait_for(self._has_enough, _COMPANY_SECONDS)
            count, size = 0, 0
            while count < min(len(self._waiting), _MOST_TOGETHER) and size < _BYTES_TOGETHER:
                size += len(self._waiting[count].contribution.sealed)
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._waiting_bytes -= size
            self._under_way += len(batch)
        return batch

    def _has_enough(self) -> bool:
        return len(self._waiting) >= _ENOUGH or self._waiting_bytes >= _ENOUGH_BYTES or self._closing

    def _store(self) -> None:
        last = reported = False
        while not last:
            batches = [self._counted.get()]
            while not self._counted.empty():
                batches.append(self._counted.get())
            last = batches[-1] is None
            batch = [waiting for each in batches if each is not None for waiting in each]
            try:
                self._storage.add([each.contribution for each in batch if each.answer is None])
            except Exception as error:  # whatever it is, its callers must not wait for ever
                failure = error if isinstance(error, StateError) else _unforeseen(error)
                _fail(batch, failure)
                if not reported:
                    self._tell_failed(failure)
                reported = True
            self._wake(batch)

    def _wake(self, batch: _Batch) -> None:
        """Notifies the callers: all answers are available."""
        with self._changed:
            self._under_way -= len(batch)
        for waiting in batch:
            if isinstance(waiting.answer, Exception):
                waiting.future.set_exception(waiting.answer)
            else:
                waiting.future.set_result(waiting.answer)


def _unforeseen(error: Exception) -> StateError:
    return StateError(f"contributions could not be stored ({type(error).__name__}); start the program again")


def _fail(batch: _Batch, error: Exception) -> None:
    for waiting in batch:
        waiting.answer = error
