"""grpc.health.v1 for a listener: ``Check`` by a worker, ``Watch`` on the event loop, without a thread per caller.

Clients with several addresses watch each: a program that reports NOT_SERVING gets no further calls of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from odp.errors import ConfigurationError

#: The method that ``Front`` hands to ``changes``.
WATCH = "/grpc.health.v1.Health/Watch"
_Status = health_pb2.HealthCheckResponse


class Health(health.HealthServicer):  # type: ignore[misc]  # grpcio-health-checking has no types
    """The states of a program's services. ``set`` is thread-safe; ``changes`` belongs to the event loop ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._watching: set[asyncio.Event] = set()

    def Watch(self, request: object, context: grpc.ServicerContext, send_response_callback: object = None) -> NoReturn:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the event loop answers this")

    def set(self, service: str, status: int) -> None:
        """Sets the state of a service; those who watch it are told."""
        super().set(service, status)
        self._loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """Reports everything as NOT_SERVING from now on, and ends every watch."""
        self.enter_graceful_shutdown()
        self._loop.call_soon_threadsafe(self._wake)

    async def changes(self, message: bytes) -> AsyncGenerator[bytes, None]:
        """The state of the service that a request names, now and after each change, until the program ends.

        Raises ConfigurationError where ``message`` is no request.
        """
        try:
            service = health_pb2.HealthCheckRequest.FromString(message).service
        except DecodeError:
            raise ConfigurationError("the request is not a message of this method") from None
        changed = asyncio.Event()
        self._watching.add(changed)
        try:
            before: int | None = None
            while True:
                changed.clear()
                with self._lock:
                    status = self._server_status.get(service, _Status.SERVICE_UNKNOWN)
                    over = self._gracefully_shutting_down
                if status != before:
                    yield _Status(status=status).SerializeToString()
                before = status
                if over:
                    return
                await changed.wait()
        finally:
            self._watching.discard(changed)

    def _wake(self) -> None:
        for changed in self._watching:
            changed.set()
