"""The enclave's writes on their way to the disk, in the order in which the enclave made them.

A change holds the only turn from the call to the enclave until its answer is stored. If storing fails, the enclave is
ahead of its files: no further change starts, and the program stops. If the enclave could not put in force what is
stored (its platform's disk was full), the next turn begins with that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from odp.errors import StateError
from trusted_aggregator.boundary.interface import Aggregator
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.state.records import SealedRecord


class Changes:
    """A queue of changes. ``failed`` is called when a write could not be stored: the program has to stop."""

    def __init__(self, core: Aggregator, storage: Storage, *, failed: Callable[[StateError], None]) -> None:
        self._core = core
        self._storage = storage
        self._tell_failed = failed
        self._lock = threading.Lock()
        self._failure: StateError | None = None
        self._is_unsettled = False
        #: Grows with every change: what was read of the enclave before may be out of date.
        self.version = 0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Held during a call to the enclave and the storing of its answer.

        Raises StateError where something could not be stored before, or still cannot be put in force.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._is_unsettled:
                self._commit()
            yield

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

    def store(self, writes: Sequence[SealedRecord]) -> None:
        """Makes writes durable, with their pieces first, within a turn. Raises StateError if that fails."""
        try:
            for record in writes:
                if record.pieces and record.data is not None:
                    pieces = (self._core.take_piece(record.key, number) for number in range(record.pieces))
                    self._storage.write_pieces(record.data, pieces)
            self._storage.apply(writes)
        except StateError as error:
            self._failure = error
            self._tell_failed(error)
            raise
        self.version += 1

    def settle(self, writes: Sequence[SealedRecord]) -> None:
        """Stores writes as ``store``, and puts them in force. Raises StateError also if another enclave was faster."""
        self.store(writes)
        self._commit()

    def _commit(self) -> None:
        self._is_unsettled = True
        self._core.commit()
        self._is_unsettled = False
        self.version += 1
