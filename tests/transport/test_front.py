"""Calls of all kinds through a real listener: who stalls holds no thread for long, and who does not read, none."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from odp.errors import OdpError
from odp.transport.channel import connect
from odp.transport.limits import Limits
from odp.transport.logs import Log
from odp.transport.service import answers, serve
from odp.transport.statuses import TooSlow
from odp.transport.tls import TlsIdentity

SECONDS = 60.0
PIECE = bytes(2**18)
WORKERS = 2


class Served:
    """A listener with two threads: ``Echo``, ``Endless`` replies, and ``Count`` of the messages of a stream."""

    def __init__(self, identity: TlsIdentity, stack: contextlib.ExitStack, *, message_seconds: float = 1.0) -> None:
        self.begun = threading.Semaphore(0)
        self.ended: SimpleQueue[OdpError] = SimpleQueue()
        self.over = threading.Semaphore(0)
        self.sent = 0
        served = self

        class Methods:
            @answers(Log("test", stream=io.StringIO()))
            def echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
                return request

            @answers(Log("test", stream=io.StringIO()))
            def endless(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
                context.add_callback(served.over.release)
                return self._pieces()

            def _pieces(self) -> Iterator[bytes]:
                for _ in range(10_000):
                    served.sent += 1
                    yield PIECE

            @answers(Log("test", stream=io.StringIO()))
            def count(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
                served.begun.release()
                try:
                    number = sum(1 for _ in requests)
                except OdpError as error:
                    served.ended.put(error)
                    raise
                finally:
                    served.over.release()
                return str(number).encode()

        methods = Methods()
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(methods.echo),
            "Endless": grpc.unary_stream_rpc_method_handler(methods.endless),
            "Count": grpc.stream_unary_rpc_method_handler(methods.count),
        }
        self.running = serve(
            address="127.0.0.1:0",
            identity=identity,
            add=lambda server: server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler("odp.test.Test", handlers),)
            ),
            service_names=["odp.test.Test"],
            workers=WORKERS,
            limits=Limits(message_seconds=message_seconds, call_seconds=60.0),
        )
        stack.callback(self.running.stop, 0.0)
        self._identity, self._stack = identity, stack

    def channel(self) -> grpc.Channel:
        return self._stack.enter_context(connect(self.running.address, self._identity.ca_pem))

    def answers(self) -> bool:
        call: Any = self.channel().unary_unary("/odp.test.Test/Echo")
        return bool(call(b"x", timeout=SECONDS) == b"x")


@pytest.fixture
def served(identity: TlsIdentity, stack: contextlib.ExitStack) -> Served:
    return Served(identity, stack)


def test_replies_that_nobody_reads_hold_no_thread_and_end_in_time(served: Served) -> None:
    calls = [served.channel().unary_stream("/odp.test.Test/Endless")(b"", timeout=SECONDS) for _ in range(6)]
    for call in calls:
        next(call)
    assert served.answers(), "six callers do not read on, and there are two threads"
    for _ in calls:  # a call that is not cut off yet would be read to its end
        assert served.over.acquire(timeout=SECONDS), "cut off"
    # What was made for callers that do not read is what fits into windows and buffers, not all of it.
    assert served.sent < 6 * 100
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_stream_that_stalls_in_the_middle_gives_its_thread_back(served: Served) -> None:
    end = threading.Event()

    def stalled() -> Iterator[bytes]:
        yield b"one"
        end.wait(SECONDS)

    count = served.channel().stream_unary("/odp.test.Test/Count")
    calls = [count.future(stalled(), timeout=SECONDS) for _ in range(WORKERS)]
    for _ in calls:
        assert served.begun.acquire(timeout=SECONDS)
    assert served.answers(), "all threads were taken"
    for call in calls:
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    end.set()
    # A caller may hear of its end before the thread that worked for it does.
    for _ in calls:
        assert isinstance(served.ended.get(timeout=SECONDS), TooSlow)


def test_a_caller_that_goes_away_in_the_middle_gives_its_thread_back(
    identity: TlsIdentity, stack: contextlib.ExitStack
) -> None:
    served = Served(identity, stack, message_seconds=600.0)
    end = threading.Event()

    def stalled() -> Iterator[bytes]:
        yield b"one"
        end.wait(SECONDS)

    call = served.channel().stream_unary("/odp.test.Test/Count").future(stalled(), timeout=SECONDS)
    assert served.begun.acquire(timeout=SECONDS)
    call.cancel()
    # To gRPC it may look like the end of the stream.
    assert served.over.acquire(timeout=SECONDS)
    end.set()


def test_a_stream_of_many_messages_arrives_whole(identity: TlsIdentity, stack: contextlib.ExitStack) -> None:
    served = Served(identity, stack, message_seconds=600.0)
    count: Any = served.channel().stream_unary("/odp.test.Test/Count")
    assert count(iter([PIECE] * 50), timeout=SECONDS) == b"50"


def test_a_request_beyond_the_limit_is_refused(served: Served) -> None:
    call: Any = served.channel().unary_unary("/odp.test.Test/Echo")
    with pytest.raises(grpc.RpcError) as caught:
        call(bytes(2**21), timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "odp-retry-ms" not in dict(caught.value.trailing_metadata() or ())
