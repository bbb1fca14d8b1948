"""The connections of the page's server: their number, their eviction, and the limits of one request.

Anybody on this machine can open connections to a port of it. A silent or slow client must not block the person's page:

- a request is whole within ``REQUEST_SECONDS`` and ``LARGEST_REQUEST``, and its answer is read within the same time;
- at most ``MOST_CONNECTIONS`` are open, and at most ``MOST_STRANGERS`` of them have not named an address of the view,
  which only the person's browser knows;
- a new connection takes the place of the stranger that has been there for longest, or of the known one that has been
  waiting for longest. One that is being answered stays.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_CONNECTIONS = 32
MOST_STRANGERS = 24
REQUEST_SECONDS = 10.0
#: Of one request, its head and its body; several times what a browser sends.
LARGEST_REQUEST = 2**15

_EVICTION_SECONDS = 1.0


@dataclass
class _State:
    identified: bool = False
    answering: bool = False


class Connections:
    """The open connections, sorted by how long they have been waiting, longest first. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[socket.socket, _State] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        with self._changed:
            return len(self._open)

    def admit(self, connection: socket.socket) -> bool:
        """Admits a new connection, and evicts another one if needed; False if all have a request in progress."""
        with self._changed:
            strangers = sum(not state.identified for state in self._open.values())
            if strangers >= MOST_STRANGERS or len(self._open) >= MOST_CONNECTIONS:
                if (making_way := next(iter(self._waiting()), None)) is None:
                    return False
                hang_up(making_way)
                if not self._changed.wait_for(lambda: making_way not in self._open, _EVICTION_SECONDS):
                    return False
            self._open[connection] = _State()
            return True

    def recognize(self, connection: socket.socket) -> None:
        """Marks a connection as known: it named an address of the view, and its request is in progress."""
        with self._changed:
            if connection in self._open:
                self._open[connection] = _State(identified=True, answering=True)

    def rest(self, connection: socket.socket) -> None:
        """Marks a connection as idle: it waits for its next request."""
        with self._changed:
            state = self._open.get(connection)
            if state is not None and state.answering:
                state.answering = False
                self._open[connection] = self._open.pop(connection)

    def leave(self, connection: socket.socket) -> None:
        """Removes a closed connection."""
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Closes all connections, also during a request."""
        with self._changed:
            for connection in self._open:
                hang_up(connection)

    def _waiting(self) -> list[socket.socket]:
        strangers = [connection for connection, state in self._open.items() if not state.identified]
        identified = [
            connection for connection, state in self._open.items() if state.identified and not state.answering
        ]
        return strangers + identified


def hang_up(connection: socket.socket) -> None:
    """Shuts a connection down while another thread may use it; that thread then closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class RequestReader(io.RawIOBase):
    """Reads the bytes of one request at a time from a connection: ``begin`` starts the next one.

    Reading raises TimeoutError once the request's time is over, however its bytes drip in, and ends, as where the other
    side closed, once it is too long.

    Args:
      source: the connection.
      clock: seconds that never go back.
    """

    def __init__(self, source: socket.socket, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._source, self._clock = source, clock
        self.begin()

    def begin(self) -> None:
        """Starts the next request."""
        self._until = self._clock() + REQUEST_SECONDS
        self._left = LARGEST_REQUEST

    def readable(self) -> bool:
        """As io has it."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """As io has it."""
        left = self._until - self._clock()
        if left <= 0:
            raise TimeoutError
        self._source.settimeout(left)
        read = self._source.recv_into(memoryview(buffer)[: self._left]) if self._left else 0
        self._left -= read
        return read
