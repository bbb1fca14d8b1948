"""A running program: its address, how it ends, and the first failure that must end it."""

from __future__ import annotations

import contextlib
import threading

from odp.errors import StateError
from odp.transport import observing
from odp.transport.logs import Log
from odp.transport.sweeping import stop_event

_POLL_SECONDS = 0.2


class Failure:
    """The first failure that must end the program: it could not store something, or a part that it depends on has
    ended.
    """

    def __init__(self, log: Log) -> None:
        self.happened = threading.Event()
        self.error: StateError | None = None
        self._log = log
        self._lock = threading.Lock()

    def __call__(self, error: StateError) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
                self._log.error("failed", why=str(error))
        self.happened.set()


class Running:
    """A program that serves at ``address`` (host:port, port 0 was replaced); clients pin ``ca_pem``.

    ``control_address`` is its control listener's; empty where it has none.

    Args:
        closing: closes what the program holds, in the reverse order of its start; taken over.
        failure: ends the program when something happens to it.
    """

    def __init__(
        self,
        *,
        address: str,
        ca_pem: bytes,
        closing: contextlib.ExitStack,
        log: Log,
        failure: Failure | None = None,
        control_address: str = "",
    ) -> None:
        self.address = address
        self.control_address = control_address
        self.ca_pem = ca_pem
        self._closing = closing
        self._log = log
        self._failure = failure if failure is not None else Failure(log)
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def wait(self, event: threading.Event | None = None) -> None:
        """Blocks until ``event`` (default: SIGINT or SIGTERM), ``stop`` or a failure, then stops.

        Call from the main thread. Raises StateError where something could not be stored (disk full) or the enclave is
        gone: a new start goes on from what was stored.
        """
        end = event if event is not None else stop_event()
        # Waiting in slices lets the signal handler run.
        while not (end.wait(_POLL_SECONDS) or self._stopped.is_set() or self._failure.happened.is_set()):
            pass
        observing.drain()
        self.stop()
        if self._failure.error is not None:
            raise self._failure.error

    def stop(self) -> None:
        """Ends calls in flight, stops serving and frees the state folder. Idempotent."""
        with self._lock:
            if not self._stopped.is_set():
                self._closing.close()
                self._stopped.set()
                self._log.event("stopped")
