"""Errors as gRPC statuses: one code per kind of error, and one line that is safe for strangers.

The line is bounded and printable and contains no path: any stranger may call. If the detail is only for the operator,
the line refers to the program's log.
"""

from __future__ import annotations

import re

import grpc

from odp.crypto.signing import SignatureError
from odp.errors import (
    AttestationError,
    Busy,
    ConfigurationError,
    DiskFull,
    EnrolmentError,
    OdpError,
    OutOfResources,
    PrivacyError,
    ServiceUnavailable,
    StateError,
    StoreUnreachable,
    TransparencyError,
)

#: Trailing metadata of a status that a service chose itself; without it, the status is gRPC's own (nobody answered).
SAID_BY_SERVICE = "odp-error"
#: Trailing metadata of RESOURCE_EXHAUSTED: when to come back, in milliseconds from now, as ``LOW-HIGH``.
RETRY_WINDOW = "odp-retry-ms"
LONGEST_LINE = 400

#: The public text of an unforeseen error, and of one about the operator's files.
UNFORESEEN = "internal error; see the service's log"
_STORAGE = "the service cannot use its storage; see its log"
_NO_RESOURCES = "this service is short of memory, threads or open files; try again later"
_DISK_FULL = "disk full at this service; try again when it has space; nothing was lost"
# From the root on, and not the path of a URL or a fraction.
_PATH = re.compile(r"(?<![\w.:/])(?:/[\w.~+@%=-]+)+/?")

Metadata = tuple[tuple[str, str], ...]


class NotFound(OdpError):
    """The named thing does not exist at this service (gRPC NOT_FOUND)."""


class Unauthenticated(OdpError):
    """The caller did not authenticate: by the operator's token, or by a certificate (gRPC UNAUTHENTICATED)."""


class TooSlow(OdpError):
    """The caller did not send, or read, within the service's time limit (gRPC DEADLINE_EXCEEDED)."""


def status_of(error: OdpError) -> tuple[grpc.StatusCode, str, Metadata]:
    """Code, line and trailing metadata of the status for an error."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    said: Metadata = ((SAID_BY_SERVICE, "1"),)
    if isinstance(error, Busy):
        said += ((RETRY_WINDOW, f"{round(1e3 * error.low_seconds)}-{round(1e3 * error.high_seconds)}"),)
    return code, public_line(error), said


def public_line(error: OdpError) -> str:
    """The public text of ``error``. A StateError is about the operator's files: its text stays in the log."""
    if isinstance(error, DiskFull):
        return _DISK_FULL
    if isinstance(error, OutOfResources):
        return _NO_RESOURCES
    if isinstance(error, StateError):
        return _STORAGE
    return without_paths(one_line(str(error)))


def one_line(text: str) -> str:
    """``text`` as one short line without control characters."""
    words = " ".join(text[: 2 * LONGEST_LINE].split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:LONGEST_LINE]


def without_paths(line: str) -> str:
    """``line`` without absolute paths."""
    return _PATH.sub("(path)", line)


_CODES: list[tuple[type[OdpError], grpc.StatusCode]] = [
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (TooSlow, grpc.StatusCode.DEADLINE_EXCEEDED),
    (SignatureError, grpc.StatusCode.PERMISSION_DENIED),
    (EnrolmentError, grpc.StatusCode.PERMISSION_DENIED),
    (ConfigurationError, grpc.StatusCode.INVALID_ARGUMENT),
    (PrivacyError, grpc.StatusCode.FAILED_PRECONDITION),
    (TransparencyError, grpc.StatusCode.FAILED_PRECONDITION),
    (AttestationError, grpc.StatusCode.FAILED_PRECONDITION),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ServiceUnavailable, grpc.StatusCode.UNAVAILABLE),
    (StoreUnreachable, grpc.StatusCode.UNAVAILABLE),
    (OutOfResources, grpc.StatusCode.UNAVAILABLE),
]
