"""Certificates that end: said in time, replaced while programs run, and one clear line where one has ended."""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError
from odp.transport import tls
from odp.transport.certificate_renewal import Renewal, look
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.service import RunningServer, serve
from odp.transport.tls import Callers, TlsIdentity, development_identity, ends_at, load_identity

SECONDS = 60.0
DAY = 86_400.0


class Issuer:
    """A CA, and the files of a program whose certificates it issues."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = monkeypatch
        self.issue(days=100.0)

    def issue(self, *, days: float) -> TlsIdentity:
        """Writes a certificate for so many days, as an operator does: key and certificate, one after the other."""
        with self.patch.context() as patch, StateFolder.open(self.folder / f"made-{days}", "server") as state:
            patch.setattr(tls, "_VALID_DAYS", 3650)
            tls._development_ca(self.folder / "ca")
            patch.setattr(tls, "_VALID_DAYS", days)
            made = development_identity(state, self.folder / "ca")
        (self.folder / "key.pem").write_bytes(made.key_pem)
        (self.folder / "cert.pem").write_bytes(made.certificate_pem)
        return made

    def load(self) -> TlsIdentity:
        return load_identity(
            certificate=self.folder / "cert.pem", key=self.folder / "key.pem", ca=self.folder / "ca" / "ca.pem"
        )


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Issuer:
    return Issuer(tmp_path, monkeypatch)


@pytest.fixture
def listener(issuer: Issuer) -> Iterator[RunningServer]:
    """A control listener: both ends show certificates."""
    identity = issuer.load()
    server = serve(
        address="127.0.0.1:0", identity=identity, add=lambda _: None, service_names=[],
        callers=Callers(identity.ca_pem, ("odp:server",)),
    )  # fmt: skip
    yield server
    server.stop(0.0)


def ask(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status


def shown_by(server: RunningServer, identity: TlsIdentity) -> bytes:
    """The certificate that a listener shows in a new handshake."""
    import socket
    import ssl

    context = ssl.create_default_context(cadata=identity.ca_pem.decode("ascii"))
    context.load_cert_chain(identity.files["certificate"], identity.files["key"])
    host, port = server.address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True) or b""


def der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)


def test_r251_a_listener_shows_the_certificate_that_its_files_have_without_a_restart(
    issuer: Issuer, listener: RunningServer
) -> None:
    before = issuer.load()
    assert shown_by(listener, before) == der(before.certificate_pem)
    after = issuer.issue(days=200.0)
    assert after.certificate_pem != before.certificate_pem
    assert shown_by(listener, before) == der(after.certificate_pem)


def test_r251_files_that_do_not_fit_together_yet_change_nothing(issuer: Issuer, listener: RunningServer) -> None:
    before = issuer.load()
    new = issuer.issue(days=200.0)
    (issuer.folder / "cert.pem").write_bytes(before.certificate_pem)
    # The key alone is new: whoever connects now is shown what was shown before.
    renewal = Renewal(before)
    assert renewal.newer() is None
    (issuer.folder / "cert.pem").write_bytes(b"half of")
    assert renewal.newer() is None
    (issuer.folder / "cert.pem").write_bytes(new.certificate_pem)
    assert shown_by(listener, issuer.load()) == der(new.certificate_pem)


def test_r251_a_caller_shows_its_newest_certificate_on_a_channel_that_it_has(
    issuer: Issuer, listener: RunningServer
) -> None:
    identity = issuer.load()
    with connect(listener.address, identity.ca_pem, identity=identity) as channel:
        assert ask(channel) == health_pb2.HealthCheckResponse.SERVING
        first = channel.current()
        issuer.issue(days=200.0)
        assert ask(channel) == health_pb2.HealthCheckResponse.SERVING
        assert channel.current() is not first


@pytest.mark.parametrize("which", ["cert.pem", "ca/ca.pem"])
def test_r251_a_certificate_that_has_expired_ends_the_start_with_one_line(
    issuer: Issuer, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_VALID_DAYS", -0.5)
    if which == "cert.pem":
        issuer.issue(days=-0.5)
    else:
        (issuer.folder / "ca" / "ca.pem").write_bytes(
            tls._self_signed(serialization.load_pem_private_key((issuer.folder / "ca" / "ca.key").read_bytes(), None))
            .public_bytes(serialization.Encoding.PEM)
        )  # fmt: skip
    with pytest.raises(
        ConfigurationError, match=rf"{which} expired at 20\d\d-.*; replace it by a new certificate"
    ) as error:
        issuer.load()
    assert "\n" not in str(error.value)


def test_r251_an_expired_development_ca_ends_the_start_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateFolder.open(tmp_path / "state", "server") as state:
        with monkeypatch.context() as patch:
            patch.setattr(tls, "_VALID_DAYS", -0.5)
            tls._development_ca(state.path("ca"))
        with pytest.raises(ConfigurationError, match=r"development CA in .* expired at .*; remove that folder"):
            development_identity(state)


def test_r251_a_certificate_is_warned_of_from_30_days_before_its_end(issuer: Issuer) -> None:
    identity = issuer.load()
    ends = ends_at(identity.certificate_pem)
    for days, said in ((31.0, ""), (29.5, "days=29"), (0.5, "days=0")):
        text = io.StringIO()
        look(identity, Log("server", stream=text), now=ends - days * DAY)
        assert said in text.getvalue()
        assert ("certificate_expires" in text.getvalue()) == bool(said), days
    issuer.issue(days=200.0)
    text = io.StringIO()
    look(identity, Log("server", stream=text), now=ends - DAY)
    assert text.getvalue() == "", "what is shown now is the new one"


def test_r251_a_development_certificate_is_replaced_30_days_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateFolder.open(tmp_path / "state", "server") as state:
        tls._development_ca(state.path("ca"))
        with monkeypatch.context() as patch:
            patch.setattr(tls, "_VALID_DAYS", 29.0)
            soon = development_identity(state)
        text = io.StringIO()
        renewal = Renewal(soon)
        look(soon, Log("server", stream=text), now=ends_at(soon.certificate_pem) - 28 * DAY)
        found = renewal.newer()
        assert found is not None
        assert ends_at(found.certificate_pem) > ends_at(soon.certificate_pem) + 365 * DAY
        assert found.ca_pem == soon.ca_pem
        assert text.getvalue() == ""


@pytest.mark.parametrize("which", ["ca", "certificate"])
def test_r289_a_clock_that_was_ahead_when_certificates_were_made_ends_the_start_or_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A certificate of the future is shown to nobody who believes it: nothing would say why nobody connects."""
    with StateFolder.open(tmp_path / "state", "server") as state:
        if which == "certificate":
            tls._development_ca(state.path("ca"))
        with monkeypatch.context() as patch:
            patch.setattr(tls, "_CLOCK_SKEW", -datetime.timedelta(days=300))
            if which == "ca":
                tls._development_ca(state.path("ca"))
            else:
                made = development_identity(state)
        if which == "certificate":
            assert development_identity(state).certificate_pem != made.certificate_pem
            return
        with pytest.raises(
            ConfigurationError, match=r"CA in .* is valid from 20.* on, and it is 20.* here; check the clock"
        ) as error:
            development_identity(state)
        assert "\n" not in str(error.value)
