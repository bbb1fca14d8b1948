"""Client side of gRPC: TLS channels, a deadline on every call, and one-line errors instead of RpcError."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from odp.errors import Busy, CertificateError, ConfigurationError, ServiceError, ServiceUnavailable
from odp.transport import observing
from odp.transport.certificate_renewal import RenewedChannel
from odp.transport.statuses import RETRY_WINDOW, SAID_BY_SERVICE, one_line
from odp.transport.tls import TlsIdentity, check_caller, read_ca

#: What travels in pieces, and a request, which is a piece with its framing; a reply may hold a whole release.
CHUNK_BYTES = 2**20
MAX_REQUEST_BYTES = CHUNK_BYTES + 2**16
MAX_REPLY_BYTES = 32 * 2**20

#: Seconds that a caller waits: for one small message, and for a stream of a whole table.
SHORT_DEADLINE = 30.0
LONG_DEADLINE = 300.0

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # A proxy of the environment would see the connections; the parties connect directly or not at all.
    ("grpc.enable_http_proxy", 0),
    # Subchannels are pooled per process by default: a test, or a host of many devices, opens its own connection.
    ("grpc.use_local_subchannel_pool", 1),
]
# Of several addresses. Every call to them can be made twice: what changes something is known by its content or its id.
_BALANCED = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": ""},
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
    }
)
#: How gRPC words that a certificate verifies but for its time.
_NOT_AT_THIS_TIME = re.compile(r"CERTIFICATE_VERIFY_FAILED: certificate (has expired|is not yet valid)")
_KEEPALIVE = [("grpc.keepalive_time_ms", 15_000), ("grpc.keepalive_timeout_ms", 5_000)]
#: Addresses that a client takes for one service.
MOST_ADDRESSES = 16
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


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """One or more ``host:port``, separated by commas, as pairs. Raises ConfigurationError for anything else."""
    pairs = [parse_address(address) for address in text.split(",")]
    if len(set(pairs)) != len(pairs) or len(pairs) > MOST_ADDRESSES:
        raise ConfigurationError(
            f"Expected address={text[:200]!r} to be at most {MOST_ADDRESSES} different host:port with commas between"
        )
    return pairs


def addresses_in(text: str) -> tuple[str, ...]:
    """The addresses in ``a:1,b:2``, in their order; none in an empty text.

    Raises ConfigurationError where one is malformed, or comes twice.
    """
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    for address in addresses:
        parse_address(address)
    if len(set(addresses)) != len(addresses):
        raise ConfigurationError(f"Expected each address once (got {text!r})")
    return addresses


def connect(
    address: str, ca: Path | bytes, *, identity: TlsIdentity | None = None, targets: Sequence[str] = ()
) -> grpc.Channel:
    """A lazy TLS channel to ``address``, whose certificate must descend from ``ca`` (a PEM file or its bytes).

    With ``identity`` the caller shows its newest certificate, as control listeners demand.

    Where ``address`` is several, calls go to them in turn: to those that are there and report that they serve. A call
    that one did not answer goes to another. The certificate of each has to be that of the first one's name.

    ``targets`` are ``ip:port`` of one family that the name in ``address`` was resolved to: then these are connected to,
    nothing resolves the name again, and the certificate has to be the name's.

    Raises ConfigurationError for a malformed address or CA, and for a certificate that no control listener could admit;
    ServiceUnavailable where one of several names has no address.
    """
    addresses = parse_addresses(address)
    pem = ca if isinstance(ca, bytes) else read_ca(ca)
    target, options = address, _OPTIONS
    if len(addresses) > 1 and not targets:
        targets = _resolved(addresses)
    if targets:
        family = "ipv6" if targets[0].startswith("[") else "ipv4"
        target = f"{family}:{','.join(targets)}"
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", addresses[0][0].strip("[]"))]
    if len(addresses) > 1:
        # A machine that vanished is noticed before a call to it has waited for its whole deadline.
        options = [*options, ("grpc.service_config", _BALANCED), *_KEEPALIVE]
    if identity is not None:
        check_caller(identity)

        def open_as(shown: TlsIdentity) -> grpc.Channel:
            shows = grpc.ssl_channel_credentials(pem, shown.key_pem, shown.certificate_pem)
            return grpc.secure_channel(target, shows, options=options)

        return RenewedChannel(identity, open_as)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(root_certificates=pem), options=options)


def _resolved(addresses: Sequence[tuple[str, int]]) -> list[str]:
    """``ip:port`` of every address, of the family of the first one: gRPC takes no mixture."""
    resolved: list[str] = []
    family: socket.AddressFamily | None = None
    for host, port in addresses:
        try:
            answers = socket.getaddrinfo(host.strip("[]"), port, family=family or 0, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ServiceUnavailable(f"could not find an address of {host}; check the name, and the network") from error
        family = answers[0][0] if family is None else family
        hosts = [str(entry[4][0]) for entry in answers if entry[0] == family]
        resolved += [f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}" for ip in hosts]
    return list(dict.fromkeys(resolved))


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
    if (tracer := observing.tracer()) is not None:
        with tracer.call(_name_of(method)) as added:
            return _called(method, request, timeout, what, address, [*(metadata or ()), *added])
    return _called(method, request, timeout, what, address, metadata)


def _called(
    method: Callable[..., _Reply], request: object, timeout: float, what: str, address: str,
    metadata: list[tuple[str, str]] | None,
) -> _Reply:  # fmt: skip
    try:
        return method(request, timeout=timeout, metadata=metadata)
    except grpc.RpcError as error:
        raise translated(error, what=what, address=address) from error


def _name_of(method: object) -> str:
    """``/package.Service/Method`` of a stub's method."""
    name = getattr(method, "_method", "")
    return name.decode("ascii") if isinstance(name, bytes) else str(name)


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
    elif code == grpc.StatusCode.UNAVAILABLE and _NOT_AT_THIS_TIME.search(details):
        result = ServiceUnavailable(
            f"could not {what}: a TLS certificate of {address} is not valid at this time; "
            "check the clock, here and there, and have the certificate renewed"
        )
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
