"""Server side of gRPC: TLS, health, reflection, one status code per kind of error, graceful stop."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NoReturn, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from odp.crypto.signing import SignatureError
from odp.errors import (
    AttestationError,
    Busy,
    ConfigurationError,
    EnrolmentError,
    OdpError,
    PrivacyError,
    ServiceUnavailable,
    TransparencyError,
)
from odp.transport.channel import MAX_MESSAGE_BYTES, MAX_REPLY_BYTES, RETRY_WINDOW, SAID_BY_SERVICE, parse_address
from odp.transport.logs import Log
from odp.transport.tls import Callers, TlsIdentity

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_REPLY_BYTES),
    # Two programs on one port would each get half of the connections: the second must fail instead.
    ("grpc.so_reuseport", 0),
]
_GRACE_SECONDS = 5.0
_Method = TypeVar("_Method", bound=Callable[..., Any])


class NotFound(OdpError):
    """The named thing does not exist at this service (gRPC NOT_FOUND)."""


class Unauthenticated(OdpError):
    """The caller did not show the operator's token (gRPC UNAUTHENTICATED)."""


class RunningServer:
    """A serving gRPC server. ``address`` is the real one (port 0 was replaced)."""

    def __init__(self, server: grpc.Server, address: str, status: health.HealthServicer, names: Sequence[str]) -> None:
        self.address = address
        self._server = server
        self._health = status
        self._names = names
        self._stopped = threading.Event()

    def set_serving(self, serving: bool) -> None:
        """Tells health checks whether the program can work now."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            self._health.set(name, state)

    def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Refuses new calls, lets those in flight end within ``grace`` seconds, then returns. Idempotent."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._health.enter_graceful_shutdown()
            self._server.stop(grace).wait()


def serve(
    *,
    address: str,
    identity: TlsIdentity,
    add: Callable[[grpc.Server], None],
    service_names: Sequence[str],
    workers: int = 8,
    callers: Callers | None = None,
) -> RunningServer:
    """Starts a TLS server on ``address`` (``host:port``, port 0 for any free one).

    ``add`` registers the servicers; ``service_names`` are their full names, for health and reflection. With ``callers``
    this is a control listener: the TLS handshake fails for a caller without a certificate under their CA, and each call
    of a certificate without one of their names ends with UNAUTHENTICATED.

    Raises ConfigurationError when the port is taken.
    """
    host, _port = parse_address(address)
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rpc"),
        options=_OPTIONS,
        interceptors=[] if callers is None else [_Admitting(callers)],
    )
    add(server)
    status = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    reflection.enable_server_reflection([*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    credentials = grpc.ssl_server_credentials(
        [(identity.key_pem, identity.certificate_pem)],
        root_certificates=None if callers is None else callers.ca_pem,
        require_client_auth=callers is not None,
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot listen on {address}: the port is in use or not allowed; give another --listen"
        ) from error
    if port == 0:
        raise ConfigurationError(
            f"cannot listen on {address}: the port is in use or not allowed; give another --listen"
        )
    server.start()
    running = RunningServer(server, f"{host}:{port}", status, service_names)
    running.set_serving(True)
    return running


class _Admitting(grpc.ServerInterceptor):
    """Refuses the calls of certificates that are under the right CA and have none of the right names."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        kind = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        method = getattr(handler, kind)

        def admitted(request: object, context: grpc.ServicerContext) -> Any:
            shown: Any = context.auth_context().get("x509_pem_cert", [b""])
            refusal = self._callers.refusal(shown[0])
            if refusal is not None:
                abort(context, Unauthenticated(refusal))
            return method(request, context)

        return getattr(grpc, f"{kind}_rpc_method_handler")(
            admitted, handler.request_deserializer, handler.response_serializer
        )


def stop_event() -> threading.Event:
    """An event that SIGINT and SIGTERM set; call from the main thread."""
    event = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: event.set())
    return event


def answers(log: Log) -> Callable[[_Method], _Method]:
    """Decorates a servicer method so that errors become gRPC statuses.

    An OdpError answers with its one line; anything else answers INTERNAL without a word of it and is logged, because an
    unforeseen message may hold data.
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def wrapper(self: object, request: object, context: grpc.ServicerContext) -> Any:
            try:
                return method(self, request, context)
            except OdpError as error:
                abort(context, error)
            except grpc.RpcError:
                raise
            except Exception as error:
                if context.code() is not None:  # type: ignore[attr-defined]  # grpcio's context has it; its stubs do not
                    raise  # context.abort raised it: the status is set already
                log.crash("internal_error", error)
                context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log says where")

        return wrapper  # type: ignore[return-value]  # same signature by construction

    return decorate


def abort(context: grpc.ServicerContext, error: OdpError) -> NoReturn:
    """Ends a call with the status code of ``error`` and its one line."""
    code = next(
        (code for kind, code in _CODES if isinstance(error, kind)),
        grpc.StatusCode.INTERNAL,
    )
    said: tuple[tuple[str, str], ...] = ((SAID_BY_SERVICE, "1"),)
    if isinstance(error, Busy):
        said += ((RETRY_WINDOW, f"{round(1e3 * error.low_seconds)}-{round(1e3 * error.high_seconds)}"),)
    context.set_trailing_metadata(said)
    context.abort(code, str(error))
    raise error


_CODES: list[tuple[type[OdpError], grpc.StatusCode]] = [
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (SignatureError, grpc.StatusCode.PERMISSION_DENIED),
    (EnrolmentError, grpc.StatusCode.PERMISSION_DENIED),
    (ConfigurationError, grpc.StatusCode.INVALID_ARGUMENT),
    (PrivacyError, grpc.StatusCode.FAILED_PRECONDITION),
    (TransparencyError, grpc.StatusCode.FAILED_PRECONDITION),
    (AttestationError, grpc.StatusCode.FAILED_PRECONDITION),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ServiceUnavailable, grpc.StatusCode.UNAVAILABLE),
]
