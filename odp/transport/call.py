"""One call as a servicer method sees it: its caller, its messages so far, and how to end it.

A servicer method runs on a worker thread while the call itself lives on the event loop's. What is here is safe from
both, unless it says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, NoReturn

import grpc

from odp.errors import OdpError, ServiceUnavailable
from odp.transport.backpressure import Backpressure
from odp.transport.connections import Connections
from odp.transport.fairness import address_of
from odp.transport.statuses import UNFORESEEN, one_line, without_paths

#: What follows the last message of a stream.
END = object()


class Aborted(Exception):
    """A servicer method ended its call with its own status."""


class Call(grpc.ServicerContext):
    """The ``context`` of servicer methods.

    Attributes:
      connection: the TLS connection that the call came over, as ``ipv4:127.0.0.1:40312``.
      address: the address that limits count for the caller (``address_of``).
      progress: what the calls of this connection have done; for the loop's thread only.
      ended: why the call was ended here, while that is under way.
      waits_for_caller: whether nothing happens until the caller sends or reads something.
      bytes_moved: what the caller has sent and read.
    """

    def __init__(self, context: Any, loop: asyncio.AbstractEventLoop, connections: Connections) -> None:
        """On the loop's thread, inside the task that answers the call."""
        self.connection: str = context.peer()
        self.address = address_of(self.connection)
        self.progress = connections.begin(self.connection)
        self.ended: OdpError | None = None
        self.waits_for_caller = False
        self.bytes_moved = 0
        self._context = context
        self._loop = loop
        self._task = asyncio.current_task(loop)
        self._over = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._trailing: Any = ()
        self._code: grpc.StatusCode | None = None
        self._details = ""

    # How the call goes on

    def end(self, error: OdpError) -> None:
        """Ends the call with ``error``, in any state. This does not interrupt a servicer method that works on it."""
        self._loop.call_soon_threadsafe(self.end_now, error)

    def end_now(self, error: OdpError) -> None:
        """As ``end``. On the loop's thread only."""
        if self.ended is None and not self._over and self._task is not None:
            self.ended = error
            self._task.cancel()

    def over(self) -> None:
        """The call has ended, for any reason: runs the callbacks. On the loop's thread only."""
        with self._lock:
            self._over = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def status(self) -> tuple[grpc.StatusCode, str, Any]:
        """The code, line and trailing metadata of the servicer method, or those of an unforeseen error."""
        if self._code is None:
            return grpc.StatusCode.INTERNAL, UNFORESEEN, ()
        return self._code, without_paths(one_line(self._details)), self._trailing

    # grpc.ServicerContext

    def is_active(self) -> bool:
        return not self._over and self.ended is None

    def time_remaining(self) -> Any:
        """Seconds until the caller's deadline; None if it set none."""
        return self._context.time_remaining()

    def cancel(self) -> bool:
        self.end(ServiceUnavailable("the service ended the call"))
        return True

    def add_callback(self, callback: Callable[[], object]) -> bool:
        """Calls ``callback`` on the loop's thread when the call has ended; False if it has ended already."""
        with self._lock:
            if not self._over:
                self._callbacks.append(callback)
            return not self._over

    def invocation_metadata(self) -> Any:
        return self._context.invocation_metadata()

    def peer(self) -> str:
        return self.connection

    def peer_identities(self) -> None:
        """Names of a certificate are checked by the listener (``Callers``), before a servicer method is called."""

    def peer_identity_key(self) -> None:
        """See ``peer_identities``."""

    def auth_context(self) -> dict[str, Any]:
        return {}

    def send_initial_metadata(self, initial_metadata: Any) -> NoReturn:
        raise NotImplementedError("replies have no initial metadata")

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Any:
        return self._trailing

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self._code, self._details = code, details
        raise Aborted(details)

    def abort_with_status(self, status: Any) -> NoReturn:
        self.set_trailing_metadata(status.trailing_metadata)
        self.abort(status.code, status.details)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def details(self) -> str:
        return self._details


def progress(context: grpc.ServicerContext) -> Call | None:
    """The progress of a servicer method's stream (``backpressure.Progress``); None outside of a listener."""
    return context if isinstance(context, Call) else None


def hold_turn(backpressure: Backpressure, context: grpc.ServicerContext) -> None:
    """``backpressure.admitted`` from now on to the end of a call that answers with a stream. Raises Busy.

    A callback of the call ends the turn, and not the stream's iterator: one that nobody started has no end.
    """
    permit = contextlib.ExitStack()
    permit.enter_context(backpressure.admitted(progress(context)))
    if not context.add_callback(permit.close):
        permit.close()


class Requests(Iterator[Any]):
    """The messages of a stream for the worker thread that reads them: the first is available, the thread waits for the
    others.

    Raises:
      OdpError: the call has ended: its caller is gone, or did not send in time.
    """

    def __init__(
        self,
        first: bytes,
        want: Callable[[SimpleQueue[Any]], None],
        loop: asyncio.AbstractEventLoop,
        parse: Callable[[bytes], Any],
    ) -> None:
        """``want`` is called on the loop's thread; it puts a message, ``END`` or an OdpError into the queue."""
        self._first: bytes | None = first
        self._want, self._loop, self._parse = want, loop, parse
        self._ended = False

    def __next__(self) -> Any:
        if self._first is not None:
            message, self._first = self._first, None
            return self._parse(message)
        if self._ended:
            raise StopIteration
        answer: SimpleQueue[Any] = SimpleQueue()
        self._loop.call_soon_threadsafe(self._want, answer)
        if (answer_message := answer.get()) is END:
            self._ended = True
            raise StopIteration
        if isinstance(answer_message, OdpError):
            raise answer_message
        return self._parse(answer_message)
