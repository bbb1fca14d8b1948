"""The runtime's side of calls to one process of a service: it hands over a call, answers reads and gets the reply."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from typing import Any

from device_runtime.isolated.limits import CallLimits, Reason
from device_runtime.isolated.precedence import Precedence
from device_runtime.isolated.process import until
from device_runtime.isolated.reads import Reader
from device_runtime.isolated.replies import Reply, Unacceptable, reply_of
from device_runtime.isolated.stores import ServiceStore
from odp._system.sandbox.frames import frame, receive_frame
from odp.errors import ConfigurationError, DataError
from odp.isolated import Handler
from odp.isolated.worker import LARGEST_INPUT


class Conversation:
    """Calls to one process, one after another; for one thread.

    Args:
      channel: to the process.
      limits: of every call.
      precedence: keeps reads from the store while the device takes part; the time of a call stands still then.
      trace: a callback for the error output of the process.
    """

    def __init__(
        self, channel: socket.socket, limits: CallLimits, *, precedence: Precedence | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._channel, self._limits, self._trace = channel, limits, trace
        self._precedence = Precedence() if precedence is None else precedence
        self._ready = False

    def reply(self, handler: Handler, store: ServiceStore, call: bytes, *, end: float) -> Reply:
        """What the handler returned by ``end`` of the monotonic clock, checked; ``call`` is of ``call_of``.

        Raises:
          Unacceptable: it failed, is late, or its answer is not allowed; the process is of no use any more.
        """
        try:
            return self._replied(handler, store, call, end=end)
        except TimeoutError:
            raise Unacceptable(Reason.DEADLINE) from None
        except ConfigurationError:
            raise Unacceptable(Reason.MALFORMED) from None
        except OSError:
            raise Unacceptable(Reason.ENDED) from None

    def _replied(self, handler: Handler, store: ServiceStore, call: bytes, *, end: float) -> Reply:
        most, waited = self._limits.output_bytes, 0.0

        def remaining() -> float:
            return until(end + waited)()

        if not self._ready:
            ready = receive_frame(self._channel, most=most, remaining=remaining, hostile=True)
            if ready != {"ready": True}:
                raise self._failure(ready, Reason.NOT_LOADED)
            self._ready = True
        self._channel.settimeout(remaining())
        self._channel.sendall(call)
        reader = Reader(handler, store, self._limits)
        while True:
            message = receive_frame(self._channel, most=most, remaining=remaining, hostile=True)
            if message is None or not message.keys() & {"read", "done"}:
                raise self._failure(message, Reason.RAISED)
            if "done" in message:
                return reply_of(handler, message["done"])
            answer, more = self._precedence.in_turn(store, functools.partial(reader.answer, message))
            waited += more
            self._channel.settimeout(remaining())
            self._channel.sendall(answer)

    def _failure(self, message: Mapping[str, Any] | None, reason: Reason) -> Exception:
        """The error for a call that ended without an answer."""
        if message is None:
            return ConnectionError("the process ended")
        if set(message) != {"failed"} or not isinstance(message["failed"], str):
            return Unacceptable(Reason.MALFORMED)
        if self._trace is not None:
            self._trace(
                "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in message["failed"])
            )
        return Unacceptable(reason)


def call_of(handler: Handler, handler_input: Mapping[str, Any]) -> bytes:
    """The message that calls a handler. Raises DataError where its input is not JSON, or too long."""
    try:
        return frame({"call": handler.value, "input": handler_input}, most=LARGEST_INPUT)
    except (TypeError, ValueError, RecursionError):
        # What a JSON library says quotes the value, which is private.
        raise DataError(
            f"Expected the input of {handler.value} to be JSON values of at most {LARGEST_INPUT} bytes"
        ) from None
