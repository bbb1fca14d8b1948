"""The enclave's writes on their way to the disk, in the order in which the enclave made them.

A change holds the only turn from the call to the enclave until its answer is stored. If storing fails, the enclave is
ahead of its files: no further change starts, and the program stops. If the enclave could not put in force what is
stored (its platform's disk was full), the next turn begins with that.

What an enclave says during a turn may be about a change that is not in force yet. Who wants to hear what becomes of it
is called back by ``after``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from odp.errors import StateError
from odp.v1 import aggregator_enclave_pb2, enclave_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.host.storage import Storage


class Changes:
    """A queue of changes. ``failed`` is called when a write could not be stored: the program has to stop."""

    def __init__(self, core: AggregatorCalls, storage: Storage, *, failed: Callable[[StateError], None]) -> None:
        self._core, self._storage, self._tell_failed = core, storage, failed
        self._lock = threading.Lock()
        self._failure: StateError | None = None
        self._is_unsettled = False
        #: Grows with every change: what was read of the enclave before may be out of date.
        self.version = 0
        #: Grows when a change is in force, and when a turn ends.
        self.decisions = 0
        self._watching = threading.Lock()
        self._turns = 0
        self._awaiting: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Held during a call to the enclave and the storing of its answer.

        Raises StateError where something could not be stored before, or still cannot be put in force.
        """
        with self._lock:
            with self._watching:
                self._turns += 1
            try:
                if self._failure is not None:
                    raise self._failure
                if self._is_unsettled:
                    self._commit()
                yield
            finally:
                with self._watching:
                    self._turns -= 1
                self._decided()

    def after(self, since: int, then: Callable[[], object]) -> bool:
        """Calls ``then`` once a change is in force or a turn ends; at once if ``decisions`` is not ``since`` any more.

        ``then`` must neither wait nor raise. False, and no call, where no turn is under way.
        """
        with self._watching:
            if self.decisions == since:
                if self._turns:
                    self._awaiting.append(then)
                return bool(self._turns)
        then()
        return True

    def wait_after(self, since: int, *, timeout: float) -> bool:
        """Waits for what ``after`` calls back for, at most ``timeout`` seconds; False where there is none."""
        called = threading.Event()
        return self.after(since, called.set) and called.wait(timeout)

    def _decided(self) -> None:
        with self._watching:
            self.decisions += 1
            awaiting, self._awaiting = self._awaiting, []
        for then in awaiting:
            then()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Lets other changes run during a change; this one continues afterwards.

        Raises StateError where something could not be stored meanwhile.
        """
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            if self._failure is not None:
                raise self._failure

    def store(self, writes: Iterable[enclave_pb2.SealedRecord]) -> None:
        """Makes writes durable, with their pieces first, within a turn. Raises StateError if that fails."""
        records = wire.writes_of(writes)
        try:
            for record in records:
                if record.pieces and record.data is not None:
                    takes = (
                        aggregator_enclave_pb2.TakePiece(key=record.key, number=number)
                        for number in range(record.pieces)
                    )
                    self._storage.write_pieces(record.data, (self._core.take_piece(take).data for take in takes))
            self._storage.apply(records)
        except StateError as error:
            self._failure = error
            self._tell_failed(error)
            raise
        self.version += 1

    def settle(self, writes: Iterable[enclave_pb2.SealedRecord]) -> None:
        """Stores writes as ``store``, and puts them in force. Raises StateError also if another enclave was faster."""
        self.store(writes)
        self._commit()

    def _commit(self) -> None:
        self._is_unsettled = True
        self._core.commit(aggregator_enclave_pb2.CommitWrites())
        self._is_unsettled = False
        self.version += 1
        self._decided()
