"""Examines a program through its listener, as anybody could: TLS, health, evidence of its enclave, its log."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odp.errors import AttestationError, OdpError
from odp.operations.findings import Finding
from odp.transport.channel import SHORT_DEADLINE, call, connect, parse_address
from odp.transport.statuses import one_line
from odp.trust.enclave.chip_end import ADVICE, WARN_DAYS, chain_ends
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import verify_fresh
from odp.trust.log.checkpoint import CLOCK_SKEW_SECONDS, verify_checkpoint
from odp.trust.log.sources import LogServer
from odp.v1 import attestation_pb2, attestation_pb2_grpc

#: Days before its end from which a certificate is warned about: programs log it from 30 days before.
CERTIFICATE_DAYS = 14.0
#: Seconds after which a log stands still: a server signs it again after a minute.
LOG_SECONDS = 300.0
#: Programs whose enclaves devices verify; the root of a tree verifies the leaves, and opens no round without.
ENCLAVES = ("distributor", "aggregator")
_SECONDS = 5.0
_DAY = 86_400.0


def examine_listener(
    role: str, address: str, ca: bytes, reference_values: ReferenceValues | None, *, now: float
) -> Iterator[Finding]:
    """The findings of the program of ``role`` at ``address``; of one that cannot be reached, one failure."""
    subject = f"{role} {address}"
    tls = _certificate(subject, address, ca, now)
    yield tls
    if tls.state == "failure":
        return
    with connect(address, ca) as channel:
        health = _health(subject, channel)
        yield health
        if health.state == "failure":
            return
        if role in ENCLAVES:
            yield _evidence(subject, role, address, channel, reference_values, now)
        if role == "server":
            yield from _log(subject, address, channel, reference_values, now)


def _certificate(subject: str, address: str, ca: bytes, now: float) -> Finding:
    host, port = parse_address(address)
    context = ssl.create_default_context(cadata=ca.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), port), timeout=_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        return Finding(
            subject, "certificate", "failure", f"it is not accepted: {one_line(error.verify_message)}",
            "put a valid certificate into the files of --certificate and --key, or give the right --ca",
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return Finding(
            subject, "reachable", "failure", f"no TLS connection: {one_line(_reason(error))}",
            "start the program, or look at its log; then at firewalls between here and there",
        )  # fmt: skip
    ends = x509.load_der_x509_certificate(shown or b"").not_valid_after_utc
    days = (ends.timestamp() - now) / _DAY
    validity = f"valid until {ends:%Y-%m-%d}"
    if days < CERTIFICATE_DAYS:
        return Finding(
            subject, "certificate", "warning", f"{validity}: {max(days, 0):.0f} days",
            "put the next certificate and key into the same files; no restart is needed",
        )  # fmt: skip
    return Finding(subject, "certificate", "ok", validity)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _health(subject: str, channel: grpc.Channel) -> Finding:
    try:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
    except grpc.RpcError as error:
        return Finding(
            subject, "health", "failure", f"no answer: {one_line(str(getattr(error, 'details', str)()))}",
            "look at the program's log; it may be busy or hang",
        )  # fmt: skip
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        return Finding(
            subject, "health", "failure", "it says that it does not serve",
            "it drains, or has lost its database or disk: its log says which",
        )  # fmt: skip
    return Finding(subject, "health", "ok", "serving")


def _evidence(
    subject: str, role: str, address: str, channel: grpc.Channel, values: ReferenceValues | None, now: float
) -> Finding:
    if values is None:
        return Finding(
            subject, "enclave", "not examined", "no reference values", "give --reference-values, as devices have them"
        )
    stub = attestation_pb2_grpc.AttestationServiceStub(channel)

    shown: list[str] = []

    def ask(nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        request = attestation_pb2.GetEvidenceRequest(nonce=nonce)
        reply: attestation_pb2.GetEvidenceResponse = call(
            stub.GetEvidence, request, timeout=SHORT_DEADLINE, what="ask for evidence", address=address
        )
        shown.append(reply.token)
        return reply

    try:
        enclave = verify_fresh(ask, role=role, reference_values=values, clock=lambda: now)
        ends = chain_ends(shown[-1])
    except OdpError as error:
        advice = "start the code that was endorsed, or give devices new reference values"
        if isinstance(error, AttestationError) and error.reason == Reason.CHAIN_EXPIRED:
            advice = ADVICE
        return Finding(subject, "enclave", "failure", str(error), f"devices refuse it: {advice}")
    days = (ends - now) / _DAY
    if days < WARN_DAYS:
        accepted = f"accepted, but the certificate of its chip ends in {days:.0f} days"
        return Finding(subject, "enclave", "warning", accepted, ADVICE)
    return Finding(subject, "enclave", "ok", f"accepted, image {enclave.image_digest[:23]}")


def _log(
    subject: str, address: str, channel: grpc.Channel, values: ReferenceValues | None, now: float
) -> Iterator[Finding]:
    if values is None or values.log is None:
        yield Finding(
            subject, "log", "not examined", "no log is pinned", "give --reference-values that name the log and its key"
        )
        return
    try:
        verified = verify_checkpoint(LogServer(channel, address).note(), values.log)
    except OdpError as error:
        yield Finding(
            subject, "log", "failure", str(error), "devices send nothing: `odp audit verify` says more; see operations"
        )
        return
    size = f"{verified.checkpoint.size:,} entries"
    if verified.time is None:
        yield Finding(subject, "log", "failure", f"{size}, signed at no stated time", "start a current server")
        return
    age = now - verified.time
    signed = datetime.fromtimestamp(verified.time, UTC)
    if age < -CLOCK_SKEW_SECONDS:
        yield Finding(
            subject, "clock", "failure",
            f"its log is signed {-age:.0f} s in the future, at {signed:%Y-%m-%d %H:%M:%S} UTC",
            "set the clocks of both machines (NTP): more than a minute apart, devices refuse the log",
        )  # fmt: skip
    elif age > LOG_SECONDS:
        yield Finding(
            subject, "log", "failure", f"{size}, last signed {age:.0f} s ago: it stands still, or the clocks are apart",
            "look at the server's log: it signs every minute, and waits for its witnesses; compare the clocks",
        )  # fmt: skip
    else:
        yield Finding(subject, "log", "ok", f"{size}, signed {max(age, 0):.0f} s ago")
