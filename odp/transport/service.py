"""Server side of gRPC: TLS, health, one status code per kind of error, graceful stop."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection as grpc_reflection

from odp.errors import ConfigurationError, OdpError, StateError
from odp.refusing import UnforeseenRefusal
from odp.transport.call import Aborted
from odp.transport.certificate_renewal import server_credentials
from odp.transport.channel import parse_address
from odp.transport.connections import Connections
from odp.transport.front import Front, event_loop
from odp.transport.guard import Guard
from odp.transport.health import Health
from odp.transport.kernel_sockets import KernelSockets
from odp.transport.limits import Limits
from odp.transport.logs import Log
from odp.transport.statuses import UNFORESEEN, NotFound, Unauthenticated, status_of
from odp.transport.tls import Callers, TlsIdentity
from odp.transport.workers import Later, Promise

__all__ = [
    "Later",
    "NotFound",
    "RunningServer",
    "Unauthenticated",
    "abort",
    "answers",
    "serve",
    "servicer",
]

_GRACE_SECONDS = 5.0
_Method = TypeVar("_Method", bound=Callable[..., Any])
_Result = TypeVar("_Result")
_Servicer = TypeVar("_Servicer")


class RunningServer:
    """A serving gRPC server. ``address`` is the real one (port 0 was replaced)."""

    def __init__(
        self,
        server: grpc.aio.Server,
        front: Front,
        guard: Guard | None,
        address: str,
        status: Health,
        names: Sequence[str],
    ) -> None:
        self.address = address
        self._guard = guard
        self._server = server
        self._front = front
        self._health = status
        self._names = names
        self._stopped = threading.Event()

    def set_serving(self, serving: bool) -> None:
        """Sets whether health checks report the program as ready."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            self._health.set(name, state)

    def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Refuses new calls, lets those in flight end within ``grace`` seconds, then returns. Idempotent."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._health.end()
            if self._guard is not None:
                self._guard.stop()
            _on_loop(self._server.stop(grace))
            _on_loop(self._front.stop())


def serve(
    *,
    address: str,
    identity: TlsIdentity,
    add: Callable[[grpc.Server], None],
    service_names: Sequence[str],
    workers: int = 8,
    callers: Callers | None = None,
    limits: Limits | None = None,
    immediate: Mapping[str, Callable[[Any], bool]] = MappingProxyType({}),
    reflection: bool = False,
) -> RunningServer:
    """Starts a TLS server on ``address`` (``host:port``, port 0 for any free one).

    ``add`` registers the servicers, whose methods run on ``workers`` threads; ``service_names`` are their full names,
    for health and, where it is asked for, reflection. ``immediate`` names methods (``/package.Service/Method``) that
    the event loop runs itself for requests for which its function is true: they must not wait for anything.

    With ``callers`` this is a control listener: the TLS handshake fails for a caller without a certificate under their
    CA, and each call of a certificate without one of their names ends with UNAUTHENTICATED.

    Raises ConfigurationError when the port is taken.
    """
    host, _port = parse_address(address)
    limits = Limits() if limits is None else limits
    registry = _Registry()
    add(cast(grpc.Server, registry))
    status = Health(event_loop())
    health_pb2_grpc.add_HealthServicer_to_server(status, registry)
    if reflection:
        names = [*service_names, health.SERVICE_NAME, grpc_reflection.SERVICE_NAME]
        grpc_reflection.enable_server_reflection(names, registry)
    credentials = server_credentials(identity, None if callers is None else callers.ca_pem)

    async def start() -> tuple[grpc.aio.Server, Front, Guard | None, int]:
        connections = Connections(limits, most=limits.most_connections(), clock=time.monotonic)
        front = Front(
            registry.handlers, limits=limits, workers=workers, callers=callers, immediate=immediate, health=status,
            connections=connections,
        )  # fmt: skip
        try:
            server = grpc.aio.server(options=limits.channel_arguments())
            server.add_generic_rpc_handlers((front,))
            port = server.add_secure_port(address, credentials)
            await server.start()
        except BaseException:
            await front.stop()
            raise
        guard = Guard(event_loop(), KernelSockets(host, port), connections) if sys.platform == "linux" else None
        return server, front, guard, port

    try:
        server, front, guard, port = _on_loop(start())
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot listen on {address}: the port is in use or not allowed; give another --listen"
        ) from error
    running = RunningServer(server, front, guard, f"{host}:{port}", status, service_names)
    running.set_serving(True)
    return running


class _Registry:
    """Collects what generated code registers at a ``grpc.Server``."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.handlers.extend(handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: object) -> None:
        """The same handlers again, by name."""


#: The same error of the storage is logged once in this time, with the number of its repetitions.
_STORAGE_LOG_SECONDS = 1.0


def _on_loop(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop()).result()


def answers(log: Log) -> Callable[[_Method], _Method]:
    """Decorates a servicer method so that errors become gRPC statuses.

    An OdpError answers with its one line; anything else answers INTERNAL without a word of it and is logged, because an
    unforeseen message may hold data. The text of a StateError goes to the log, not to the caller.
    """

    # A log that has a line for every caller would fill the disk whose end it reports.
    storage: dict[str, tuple[float, int]] = {}

    def note_storage(why: str) -> None:
        now, (logged_at, repeated) = time.monotonic(), storage.get(why, (float("-inf"), 0))
        if now - logged_at < _STORAGE_LOG_SECONDS:
            storage[why] = logged_at, repeated + 1
            return
        storage.clear()
        storage[why] = now, 0
        log.error("storage_error", why=why, **({"repeated": repeated} if repeated else {}))

    def note(error: BaseException) -> None:
        if isinstance(error, StateError):
            note_storage(str(error))
        elif isinstance(error, UnforeseenRefusal):
            log.crash("unforeseen_refusal", error.__cause__ or error)
        elif not isinstance(error, OdpError):
            log.crash("internal_error", error)

    def note_failure(future: Future[Any] | Promise) -> None:
        if (error := future.exception()) is not None:
            note(error)

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def wrapper(self: object, request: object, context: grpc.ServicerContext) -> Any:
            try:
                reply = method(self, request, context)
            except (grpc.RpcError, Aborted):
                raise
            except Exception as error:
                note(error)
                if isinstance(error, OdpError):
                    abort(context, error)
                context.abort(grpc.StatusCode.INTERNAL, UNFORESEEN)
            if isinstance(reply, Later):
                reply.future.add_done_callback(note_failure)
            return reply

        return wrapper  # type: ignore[return-value]  # same signature by construction

    return decorate


def servicer(base: Callable[[], _Servicer], log: Log, methods: Mapping[str, Callable[[Any, Any], object]]) -> _Servicer:
    """A servicer of the generated class ``base``, whose errors become statuses as in ``answers``.

    Args:
      methods: for every method of the service, by its name, a function from (request, context) to the reply. Where the
        service streams, the request is an iterator of requests, and the reply one of replies.

    Raises:
      ConfigurationError: ``methods`` are not those of the service.
    """
    generated = cast("type[Any]", base)
    declared = {name for name in vars(generated) if not name.startswith("_")}
    if declared != methods.keys():
        wanted = f"Expected the methods {sorted(declared)} of {generated.__name__}"
        raise ConfigurationError(f"{wanted}, got {sorted(methods)}")

    def bound(method: Callable[[Any, Any], object]) -> Callable[[Any, Any, Any], object]:
        return answers(log)(lambda _self, request, context: method(request, context))

    made = type("Servicer", (generated,), {name: bound(method) for name, method in methods.items()})
    return cast("_Servicer", made())


def abort(context: grpc.ServicerContext, error: OdpError) -> NoReturn:
    """Ends a call with the status code and the one-line message of ``error``."""
    code, line, trailing = status_of(error)
    context.set_trailing_metadata(trailing)
    context.abort(code, line)
