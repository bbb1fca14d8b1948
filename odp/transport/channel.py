"""Client side of gRPC: TLS channels, a deadline on every call, and one-line errors instead of RpcError."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from odp.errors import Busy, CertificateError, ConfigurationError, ServiceError, ServiceUnavailable
from odp.transport.certificates import RenewedChannel
from odp.transport.statuses import RETRY_WINDOW, SAID_BY_SERVICE, one_line
from odp.transport.tls import TlsIdentity, check_caller, read_ca

#: What travels in pieces, and a request, which is a piece with its framing; a reply may hold a whole release.
CHUNK_BYTES = 2**20
MAX_REQUEST_BYTES = CHUNK_BYTES + 2**16
MAX_REPLY_BYTES = 32 * 2**20

#: Seconds that a caller waits: for one small message, and for a stream of a whole table.
SHORT_DEADLINE = 30.0
LONG_DEADLINE = 300.0

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # A proxy of the environment would see the connections; the parties connect directly or not at all.
    ("grpc.enable_http_proxy", 0),
    # Subchannels are pooled per process by default: a test, or a host of many devices, opens its own connection.
    ("grpc.use_local_subchannel_pool", 1),
]
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_WINDOW = re.compile(r"([0-9]{1,7})-([0-9]{1,7})")
_UNFORESEEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_Reply = TypeVar("_Reply")


def parse_address(address: str) -> tuple[str, int]:
    """``host:port`` as a pair. Raises ConfigurationError for anything else."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[2]) > 65535:
        raise ConfigurationError(f"Expected address={address!r} to be host:port, for example 127.0.0.1:7200")
    return match[1], int(match[2])


def connect(
    address: str, ca: Path | bytes, *, identity: TlsIdentity | None = None, targets: Sequence[str] = ()
) -> grpc.Channel:
    """A lazy TLS channel to ``address``, whose certificate must descend from ``ca`` (a PEM file or its bytes).

    With ``identity`` the caller shows its newest certificate, as control listeners demand.

    ``targets`` are ``ip:port`` of one family that the name in ``address`` was resolved to: then these are connected to,
    nothing resolves the name again, and the certificate has to be the name's.

    Raises ConfigurationError for a malformed address or CA, and for a certificate that no control listener could admit.
    """
    host, _port = parse_address(address)
    pem = ca if isinstance(ca, bytes) else read_ca(ca)
    if identity is not None:
        check_caller(identity)

        def open_as(shown: TlsIdentity) -> grpc.Channel:
            shows = grpc.ssl_channel_credentials(pem, shown.key_pem, shown.certificate_pem)
            return grpc.secure_channel(address, shows, options=_OPTIONS)

        return RenewedChannel(identity, open_as)
    credentials = grpc.ssl_channel_credentials(root_certificates=pem)
    if not targets:
        return grpc.secure_channel(address, credentials, options=_OPTIONS)
    family = "ipv6" if targets[0].startswith("[") else "ipv4"
    options = [*_OPTIONS, ("grpc.ssl_target_name_override", host)]
    return grpc.secure_channel(f"{family}:{','.join(targets)}", credentials, options=options)


def call(
    method: Callable[..., _Reply],
    request: object,
    *,
    timeout: float,
    what: str,
    address: str,
    metadata: list[tuple[str, str]] | None = None,
) -> _Reply:
    """Calls a unary method (or starts a stream) with a deadline.

    Raises ServiceUnavailable when nobody answers in time, Busy when the other party gives a retry window,
    CertificateError when the certificate is wrong, and ServiceError with the other party's one-line explanation
    otherwise; ``what`` completes the sentence "could not ..".
    """
    try:
        return method(request, timeout=timeout, metadata=metadata)
    except grpc.RpcError as error:
        raise translated(error, what=what, address=address) from error


def read_stream(replies: Iterator[_Reply], *, what: str, address: str) -> Iterator[_Reply]:
    """The replies of a stream, with the errors of ``call``."""
    try:
        yield from replies
    except grpc.RpcError as error:
        raise translated(error, what=what, address=address) from error


def translated(error: Any, *, what: str, address: str) -> ServiceError:
    """The ServiceError for a grpc.RpcError, with its ``code`` and whether it was ``unforeseen``."""
    code = error.code() if callable(getattr(error, "code", None)) else grpc.StatusCode.UNKNOWN
    details = one_line(error.details() or "") if callable(getattr(error, "details", None)) else ""
    window = _retry_window(error) if code == grpc.StatusCode.RESOURCE_EXHAUSTED else None
    if window is not None:
        result: ServiceError = Busy(f"could not {what}: {details}", *window)
    elif code == grpc.StatusCode.UNAVAILABLE and _said_by_service(error):
        result = ServiceUnavailable(f"could not {what}: {details}")
    elif code == grpc.StatusCode.DEADLINE_EXCEEDED:
        result = ServiceUnavailable(f"could not {what}: {address} did not answer in time; try again")
    elif code == grpc.StatusCode.UNAVAILABLE and "CERTIFICATE_VERIFY_FAILED" in details:
        result = CertificateError(
            f"could not {what}: the TLS certificate of {address} does not descend from the given CA; "
            "give the right --ca file"
        )
    elif code == grpc.StatusCode.UNAVAILABLE and "Hostname Verification" in details:
        result = CertificateError(
            f"could not {what}: the TLS certificate of {address} is for other names; "
            "give the address that it names, or serve with a certificate for this one"
        )
    elif code == grpc.StatusCode.UNAVAILABLE and "SSL_ERROR" in details:
        result = ServiceUnavailable(f"could not {what}: {address} does not speak TLS; check the address")
    elif code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        result = ServiceUnavailable(
            f"could not {what}: nobody answers at {address}; check the address, and that the service runs"
        )
    else:
        result = ServiceError(f"could not {what}: {details or code.name}")
        result.unforeseen = code in _UNFORESEEN and not _said_by_service(error)
    result.code = code
    return result


def _said_by_service(error: Any) -> bool:
    return SAID_BY_SERVICE in _trailing(error)


def _retry_window(error: Any) -> tuple[float, float] | None:
    """(low, high) seconds from the other party's text; None if it is no retry window."""
    match = _WINDOW.fullmatch(str(_trailing(error).get(RETRY_WINDOW, "")))
    if match is None or int(match[1]) > int(match[2]):
        return None
    return int(match[1]) / 1e3, int(match[2]) / 1e3


def _trailing(error: Any) -> dict[str, str | bytes]:
    trailing = error.trailing_metadata() if callable(getattr(error, "trailing_metadata", None)) else None
    return dict(trailing or ())
