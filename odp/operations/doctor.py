"""Examines a whole deployment from outside: by what every program shows to anybody, and by folders on this machine.

- The metrics endpoint of a program shows its version, its clock and its disk.
- The state folder of a program on this machine: who may read it, its disk, and whether it is whole.
- The listener of a program, as anybody reaches it: TLS, health, evidence of its enclave, its log.

Each check makes one line.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

import odp
from odp.errors import AttestationError, OdpError, ServiceError, ServiceUnavailable
from odp.transport.channel import SHORT_DEADLINE, call, connect, parse_address
from odp.transport.statuses import one_line
from odp.trust.enclave.chip_end import ADVICE, WARN_DAYS, chain_ends
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import verify_fresh
from odp.trust.log.checkpoint import CLOCK_SKEW_SECONDS, verify_checkpoint
from odp.trust.log.sources import LogServer
from odp.v1 import attestation_pb2, attestation_pb2_grpc

State = Literal["ok", "warning", "failure", "not examined"]


@dataclass(frozen=True)
class Finding:
    """One check of one program, endpoint or folder.

    Attributes:
        subject: which one, for people.
        check: what was looked at.
        state: what came out.
        told: what was seen.
        todo: what to do about it; empty where all is well.
    """

    subject: str
    check: str
    state: State
    told: str
    todo: str = ""


#: Seconds that a program's clock may be apart from the one here: more is a warning, and above a minute a failure.
CLOCK_SECONDS = 5.0
_CLOCK_FAILS = 60.0
_SCRAPE_SECONDS = 5.0
_MOST_BYTES = 4 * 2**20
_LEAST_FREE = 2**30


@dataclass(frozen=True)
class Scraped:
    """What an endpoint answered: ``samples`` by name, with labels; ``date`` is the header, empty without one."""

    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
    date: str

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of the one sample ``name``; none where there is none."""
        samples = self.samples.get(name, ())
        return samples[0][0] if samples else {}

    def value(self, name: str) -> float | None:
        """The value of the one sample ``name``."""
        samples = self.samples.get(name, ())
        return samples[0][1] if samples else None


def scrape(address: str) -> Scraped:
    """Reads the endpoint ``address`` (host:port), of which nothing is trusted.

    Raises ServiceUnavailable where it does not answer, ServiceError where the answer is none of a program of ODP.
    """
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=_SCRAPE_SECONDS)
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        connection.request("GET", "/metrics")
        reply = connection.getresponse()
        text = reply.read(_MOST_BYTES).decode("utf-8")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((dict(sample.labels), float(sample.value)))
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnavailable(f"no metrics at {address}: {one_line(str(error))}") from error
    except ValueError as error:
        raise ServiceError(f"{address} answered something else than metrics: {one_line(str(error))}") from error
    finally:
        connection.close()
    if reply.status != http.client.OK or "odp_info" not in samples:
        raise ServiceError(f"{address} is no program of ODP")
    return Scraped(samples, reply.getheader("Date", ""))


def examine_metrics(address: str, *, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """The findings of the endpoint ``address`` (`--metrics` of a program)."""
    subject = f"metrics {address}"
    started = clock()
    try:
        scraped = scrape(address)
    except ServiceError as error:
        yield Finding(
            subject, "reachable", "failure", str(error),
            "start the program with --metrics at this address, or look at its log",
        )  # fmt: skip
        return
    here, labels = (started + clock()) / 2, scraped.labels("odp_info")
    subject = f"{labels.get('program', 'program')} (metrics {address})"
    yield _version(subject, labels.get("version", ""))
    yield _clock(subject, scraped.date, here)
    yield _disk(subject, scraped.value("odp_disk_free_bytes"))


def _version(subject: str, version: str) -> Finding:
    if version != odp.__version__:
        return Finding(
            subject, "version", "warning", f"{one_line(version)}; this command is {odp.__version__}",
            "run the same version everywhere; enclaves change as docs/operations.md says",
        )  # fmt: skip
    return Finding(subject, "version", "ok", version)


def _clock(subject: str, date: str, here: float) -> Finding:
    try:
        apart = parsedate_to_datetime(date).timestamp() - here
    except ValueError:
        return Finding(subject, "clock", "not examined", "the answer had no date")
    # A date has whole seconds.
    apart = 0.0 if -1.0 <= apart <= 0.0 else apart
    if abs(apart) <= CLOCK_SECONDS:
        return Finding(subject, "clock", "ok", "as the one here")
    return Finding(
        subject, "clock", "failure" if abs(apart) > _CLOCK_FAILS else "warning",
        f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the one here", "set both clocks (NTP)",
    )  # fmt: skip


def _disk(subject: str, free: float | None, *, full: float = 0.0) -> Finding:
    """The disk of a program, or of a folder; below ``full`` bytes it is a failure."""
    if free is None:
        return Finding(subject, "disk", "not examined", "it tells nothing of its disk")
    if free < _LEAST_FREE:
        return Finding(
            subject, "disk", "failure" if free < full else "warning", f"{free / 2**20:,.0f} MiB free",
            "free some space: below 16 MiB nothing starts",
        )  # fmt: skip
    return Finding(subject, "disk", "ok", f"{free / 2**30:,.1f} GiB free")


_FULL = 16 * 2**20
_ROLE = "format"


def examine_folder(folder: Path) -> Iterator[Finding]:
    """The findings of a state folder."""
    subject = f"folder {folder}"
    try:
        mode = folder.stat().st_mode
        role = (folder / _ROLE).read_text(encoding="utf-8", errors="replace")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding(
            subject, "state", "failure", f"it cannot be read: {error.strerror or error}",
            "give the --state folder of a program, and run this as its account",
        )  # fmt: skip
        return
    yield Finding(subject, "state", "ok", one_line(role.strip()))
    if stat.S_IMODE(mode) & 0o077:
        yield Finding(
            subject, "permissions", "failure", f"others may enter it (mode {stat.S_IMODE(mode):o})",
            f"chmod 700 {folder}; if others did read it, replace its keys",
        )  # fmt: skip
    else:
        yield Finding(subject, "permissions", "ok", "its owner alone")
    yield _disk(subject, free, full=_FULL)


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


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Where the parts of a deployment are.

    Attributes:
        programs: role -> ``host:port`` of the listeners for everybody.
        ca: PEM bytes from which their certificates descend.
        reference_values: what devices pin; None: neither enclaves nor the log are examined.
        metrics: ``host:port`` of the endpoints of `--metrics`.
        folders: state folders on this machine.
    """

    programs: Mapping[str, Sequence[str]]
    ca: bytes
    reference_values: ReferenceValues | None = None
    metrics: Sequence[str] = ()
    folders: Sequence[Path] = field(default=())


def examine(deployment: Deployment, *, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """All findings, program by program, as they come; each takes a bounded time."""
    values = deployment.reference_values
    for role, addresses in deployment.programs.items():
        for address in addresses:
            yield from examine_listener(role, address, deployment.ca, values, now=clock())
    for address in deployment.metrics:
        yield from examine_metrics(address, clock=clock)
    for folder in deployment.folders:
        yield from examine_folder(folder)
