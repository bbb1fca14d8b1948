"""The reception of calls: an event loop receives them without a thread per caller, and a few threads work on them.

Every call is admitted at its headers, and its request is received in one of a bounded number of places
(``dispatcher``). Then it waits for one of a few worker threads (``dispatcher``), which runs the servicer method. A
stream holds its thread while it reads, within the time limit of a message. What is sent waits on the loop until its
caller reads it.

A call that loses its place ends with RESOURCE_EXHAUSTED and a retry window. One that is too slow ends with
DEADLINE_EXCEEDED.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any

import grpc
import grpc.aio
import uvloop
from google.protobuf.message import DecodeError

from odp.errors import ConfigurationError, OdpError, ServiceUnavailable
from odp.transport import observing
from odp.transport.call import END, Call, Requests
from odp.transport.connections import Connections
from odp.transport.dispatcher import Dispatcher, Reception
from odp.transport.health import WATCH, Health
from odp.transport.limits import Limits
from odp.transport.statuses import TooSlow, Unauthenticated, status_of
from odp.transport.tls import Callers
from odp.transport.workers import Later

_SWEEP_SECONDS = 0.25


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, on a thread of its own.

    gRPC completes the calls of all loops of a process in one queue, so that a second loop would only wake the first.
    """
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rpc-loop", daemon=True).start()
    return loop


class _Method:
    """A servicer's method of any of gRPC's four kinds, with its parser and its serializer."""

    def __init__(self, handler: Any, immediate: Callable[[Any], bool] | None) -> None:
        self.immediate = immediate
        kinds = [
            "stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)
        ]
        self.behaviour: Callable[[Any, Call], Any] = getattr(handler, "_".join(kinds))
        self.streams_requests: bool = handler.request_streaming
        self.streams_replies: bool = handler.response_streaming
        self._deserialize = handler.request_deserializer
        self._serialize = handler.response_serializer

    def parse(self, message: bytes) -> Any:
        """The message. Raises ConfigurationError if the bytes are no message of the method."""
        if self._deserialize is None:
            return message
        try:
            return self._deserialize(message)
        except DecodeError:
            raise ConfigurationError("the request is not a message of this method") from None

    def reply(self, request: Any, call: Call) -> Any:
        """The bytes of the reply to ``request``, now or later, or the iterator of replies."""
        reply = self.behaviour(request, call)
        if isinstance(reply, Later):
            return Later(reply.future, lambda result: self._bytes(reply.reply(result)))
        return iter(reply) if self.streams_replies else self._bytes(reply)

    def next(self, replies: Iterator[Any]) -> Any:
        """The bytes of the next reply; ``END`` after the last."""
        reply = next(replies, END)
        return END if reply is END else self._bytes(reply)

    def _bytes(self, reply: Any) -> bytes:
        data: bytes = reply if self._serialize is None else self._serialize(reply)
        return data


class Front(grpc.GenericRpcHandler):
    """The listener's part for the calls of ``handlers``; runs on ``event_loop()`` only."""

    def __init__(
        self,
        handlers: list[grpc.GenericRpcHandler],
        *,
        limits: Limits,
        workers: int,
        callers: Callers | None,
        immediate: Mapping[str, Callable[[Any], bool]],
        health: Health,
        connections: Connections,
    ) -> None:
        self._connections = connections
        self._immediate = immediate
        self._health = health
        self._loop = event_loop()
        self._limits = limits
        self._callers = callers
        self._handlers = handlers
        self._methods: dict[str, Any] = {}
        self._dispatcher = Dispatcher(self._loop, limits, workers=workers)
        self._reception = Reception(self._loop, limits, self._dispatcher.busy)
        # When a call has to be over, and when its caller has to have sent or read something: the earliest first.
        self._calls: dict[Call, float] = {}
        self._waiting: dict[Call, float] = {}
        self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Ends the threads; no call is left."""
        self._timer.cancel()
        self._dispatcher.stop()

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None if there is none."""
        name = handler_call_details.method
        if name not in self._methods:
            handler = next(filter(None, (each.service(handler_call_details) for each in self._handlers)), None)
            if handler is None:
                return None
            handler_of_name = (
                self._watching() if name == WATCH else self._handler(name, _Method(handler, self._immediate.get(name)))
            )
            self._methods[name] = handler_of_name
        return self._methods[name]

    def _handler(self, name: str, method: _Method) -> Any:
        if self._callers is not None:
            # Known programs alone: a stranger must not begin or join traces.
            method.behaviour = _within_trace(name, method.behaviour)

        async def unary(_requests: object, context: Any) -> Any:
            return await self._answer(name, context, lambda call: self._begin(method, call, context))

        async def each(_requests: object, context: Any) -> None:
            await self._answer(name, context, lambda call: self._send_all(method, call, context))

        # For gRPC every method takes a stream of requests: it then hears of a call at its headers.
        if method.streams_replies:
            return grpc.stream_stream_rpc_method_handler(each)
        return grpc.stream_unary_rpc_method_handler(unary)

    def _watching(self) -> Any:
        async def each(_requests: object, context: Any) -> None:
            await self._answer(WATCH, context, lambda call: self._watch(call, context))

        return grpc.stream_stream_rpc_method_handler(each)

    async def _watch(self, call: Call, context: Any) -> None:
        """Tells a caller the state of the program for as long as a call may last; then the caller asks again."""
        message = await self._first(call, context)
        async with contextlib.aclosing(self._health.changes(message)) as states:
            async for state in states:
                await context.write(state)

    async def _answer(self, name: str, context: Any, work: Callable[[Call], Awaitable[Any]]) -> Any:
        """The result of ``work`` for a call, or the status of its error."""
        began = self._loop.time()
        call = Call(context, self._loop, self._connections)
        progress = call.progress
        admitted = False
        self._calls[call] = self._loop.time() + self._limits.call_seconds
        try:
            self._admit(context)
            admitted = True
            reply = await work(call)
            if call.code() in (None, grpc.StatusCode.OK):
                if observing.observed():
                    observing.call_ended(name, "OK", self._loop.time() - began)
                progress.answered += 1
                return reply
            status = call.status()
        except asyncio.CancelledError:
            if call.ended is None:
                raise  # its caller is gone, or the listener stops
            status = status_of(call.ended)
        except OdpError as error:
            status = status_of(error)
        except Exception:  # answers() has logged what nobody foresaw
            status = call.status()
        finally:
            del self._calls[call]
            progress.calls -= 1
            call.over()
        if observing.observed():
            observing.call_ended(name, status[0].name, self._loop.time() - began)
        progress.answered += admitted
        return await context.abort(*status)

    async def _begin(self, method: _Method, call: Call, context: Any) -> Any:
        """The reply of the servicer method, or the iterator of its replies."""
        message = await self._first(call, context)
        if method.streams_requests:
            feed = _Feed(call, lambda: self._receive(call, context), self._loop)
            requests = Requests(message, feed.want, self._loop, method.parse)
            return await self._dispatcher.run(call, lambda: method.reply(requests, call))
        if method.immediate is not None:
            request = method.parse(message)
            if method.immediate(request):
                return await self._dispatcher.run_here(lambda: method.reply(request, call), size=len(message))
        return await self._dispatcher.run(call, lambda: method.reply(method.parse(message), call), size=len(message))

    async def _first(self, call: Call, context: Any) -> Any:
        """The first message of a call, received in a place."""
        # Plain statements here and in ``_receive``: managers of contexts would take a tenth of a short call's time.
        try:
            await self._reception.enter(call)
            message = await self._receive(call, context)
        finally:
            self._reception.leave(call)
        if message is END:
            raise ConfigurationError("the call ended before its request")
        return message

    async def _send_all(self, method: _Method, call: Call, context: Any) -> None:
        replies = await self._begin(method, call, context)
        while (reply := await self._dispatcher.run(call, lambda: method.next(replies))) is not END:
            self._waiting[call] = self._loop.time() + self._limits.message_seconds
            call.waits_for_caller = True
            try:
                await context.write(reply)
            finally:
                call.waits_for_caller = False
                self._waiting.pop(call, None)
            call.bytes_moved += len(reply)

    def _admit(self, context: Any) -> None:
        if self._callers is not None:
            shown = context.auth_context().get("x509_pem_cert", [b""])
            if (refusal := self._callers.refusal(shown[0])) is not None:
                raise Unauthenticated(refusal)

    async def _receive(self, call: Call, context: Any) -> Any:
        """The next message of a call; ``END`` after the last, or if its caller has disconnected."""
        self._waiting[call] = self._loop.time() + self._limits.message_seconds
        call.waits_for_caller = True
        progress = call.progress
        progress.expected += 1
        try:
            message = await context.read()
        finally:
            progress.expected -= 1
            call.waits_for_caller = False
            self._waiting.pop(call, None)
        if message is grpc.aio.EOF:
            return END
        progress.messages += 1
        progress.message_bytes += len(message)
        call.bytes_moved += len(message)
        return message

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        now, limits = self._loop.time(), self._limits
        for call in _due(self._waiting, now):
            call.end_now(TooSlow(f"the caller sent or read nothing for {limits.message_seconds:g} s"))
        for call in _due(self._calls, now):
            call.end_now(TooSlow(f"the call took longer than {limits.call_seconds:g} s"))
        self._dispatcher.refuse_overdue()


class _Feed:
    """Further messages of a stream, read when its worker thread wants one."""

    def __init__(self, call: Call, receive: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> None:
        self._call, self._receive, self._loop = call, receive, loop
        self._reading: tuple[asyncio.Task[None], SimpleQueue[Any]] | None = None
        call.add_callback(self._close)

    def want(self, answer: SimpleQueue[Any]) -> None:
        """Puts the next message, ``END`` or an OdpError into ``answer``."""
        if self._call.is_active():
            self._reading = self._loop.create_task(self._read(answer)), answer
        else:
            answer.put(self._call.ended or ServiceUnavailable("the caller has disconnected"))

    async def _read(self, answer: SimpleQueue[Any]) -> None:
        message: Any = ServiceUnavailable("the caller has disconnected")
        with contextlib.suppress(Exception):  # of a call that ended meanwhile
            message = await self._receive()
        answer.put(message)

    def _close(self) -> None:
        if self._reading is not None:
            task, answer = self._reading
            task.cancel()
            answer.put(self._call.ended or ServiceUnavailable("the caller has disconnected"))


def _within_trace(name: str, behaviour: Callable[[Any, Call], Any]) -> Callable[[Any, Call], Any]:
    def traced(request: Any, call: Call) -> Any:
        if (tracer := observing.tracer()) is None:
            return behaviour(request, call)
        with tracer.serve(name, call.invocation_metadata()):
            return behaviour(request, call)

    return traced


def _due(until: dict[Call, float], now: float) -> list[Call]:
    """The calls whose time is up, in the order of their times."""
    due = []
    for call, moment in until.items():
        if moment > now:
            break
        due.append(call)
    return due
