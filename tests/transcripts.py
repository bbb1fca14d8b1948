"""What a device says to the outside and hears from it, call by call: a recorder for its channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc


class Transcript(
    grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor
):
    """Calls in their order: method, bytes of the requests, status, bytes of the replies."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...], str, tuple[int, ...]]] = []

    def over(self, connect: Callable[..., grpc.Channel]) -> Callable[..., grpc.Channel]:
        """``connect`` with every call of its channels recorded."""
        return lambda *given, **options: grpc.intercept_channel(connect(*given, **options), self)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        call = continuation(details, request)
        code = call.code()
        replies = (call.result().ByteSize(),) if code is grpc.StatusCode.OK else ()
        self._add(details, (request.ByteSize(),), code, replies)
        return call

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        call = continuation(details, request)
        replies: list[int] = []

        def read() -> Iterator[Any]:
            for reply in call:
                replies.append(reply.ByteSize())
                yield reply
            self._add(details, (request.ByteSize(),), call.code(), tuple(replies))

        return read()

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        sizes: list[int] = []

        def counted() -> Iterator[Any]:
            for request in requests:
                sizes.append(request.ByteSize())
                yield request

        call = continuation(details, counted())
        code = call.code()
        self._add(details, tuple(sizes), code, (call.result().ByteSize(),) if code is grpc.StatusCode.OK else ())
        return call

    def _add(self, details: Any, sent: tuple[int, ...], code: Any, received: tuple[int, ...]) -> None:
        # A signature of evidence may be a byte longer or shorter than the one before, whoever asked for it.
        known = () if details.method.endswith("/GetEvidence") else received
        self.calls.append((details.method, sent, code.name, known))
