"""Control listeners over real TLS: callers without a certificate, or with a wrong one, are refused."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError, ServiceError, ServiceUnavailable
from odp.transport.channel import call, connect
from odp.transport.service import RunningServer, serve
from odp.transport.tls import Callers, TlsIdentity, caller_name, development_identity, uri_names

METHOD = "/odp.test.Control/Do"


class World:
    """A control listener that admits ``odp:server``, and certificates for programs that call it."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.own = self.identity("aggregator")
        self.callers = Callers(self.own.ca_pem, (caller_name("server"), caller_name("distributor")))
        self.calls = 0
        handler = grpc.method_handlers_generic_handler(
            "odp.test.Control", {"Do": grpc.unary_unary_rpc_method_handler(self._do)}
        )
        self.running: RunningServer = serve(
            address="127.0.0.1:0",
            identity=self.own,
            add=lambda server: server.add_generic_rpc_handlers((handler,)),
            service_names=["odp.test.Control"],
            callers=self.callers,
        )
        stack.callback(self.running.stop, 0.0)

    def _do(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        return request

    def identity(self, role: str, *, ca: str = "ca") -> TlsIdentity:
        with StateFolder.open(self._folder / f"{role}-{ca}", role) as state:
            return development_identity(state, self._folder / ca)

    def reissued(self, identity: TlsIdentity, **changes: object) -> TlsIdentity:
        """``identity`` with its certificate signed once more by the CA, after ``changes``."""
        ca_key = serialization.load_pem_private_key((self._folder / "ca" / "ca.key").read_bytes(), None)
        old = x509.load_pem_x509_certificate(identity.certificate_pem)
        now = datetime.datetime.now(datetime.UTC)
        new = (
            x509.CertificateBuilder()
            .subject_name(old.subject)
            .issuer_name(old.issuer)
            .public_key(old.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(changes.get("since", now - datetime.timedelta(days=2)))
            .not_valid_after(changes.get("until", now + datetime.timedelta(days=2)))
            .add_extension(x509.SubjectAlternativeName(changes.get("names", _names(old))), critical=False)
        )
        usages = changes.get("usages", [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        if usages:
            new = new.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return replace(
            identity,
            certificate_pem=new.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        )

    def ask(self, identity: TlsIdentity | None) -> bytes:
        channel = self._stack.enter_context(connect(self.running.address, self.own.ca_pem, identity=identity))
        return self.ask_over(channel)

    def ask_over(self, channel: grpc.Channel) -> bytes:
        return call(
            channel.unary_unary(METHOD), b"hello", timeout=10.0, what="open the round", address=self.running.address
        )

    def ask_unchecked(self, identity: TlsIdentity) -> bytes:
        """As an attacker asks, whose program does not look at its own certificate first."""
        credentials = grpc.ssl_channel_credentials(self.own.ca_pem, identity.key_pem, identity.certificate_pem)
        return self.ask_over(self._stack.enter_context(grpc.secure_channel(self.running.address, credentials)))


def _names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


@pytest.fixture
def world(tmp_path: Path, stack: contextlib.ExitStack) -> World:
    return World(tmp_path, stack)


@pytest.mark.parametrize("role", ["server", "distributor"])
def test_a_certificate_with_a_listed_name_is_admitted(world: World, role: str) -> None:
    assert world.ask(world.identity(role)) == b"hello"


def test_without_a_certificate_no_call_reaches_the_listener(world: World) -> None:
    with pytest.raises(ServiceUnavailable):
        world.ask(None)
    assert world.calls == 0


def test_a_certificate_of_another_ca_is_refused_whatever_it_names(world: World) -> None:
    with pytest.raises(ServiceUnavailable):
        world.ask(world.identity("server", ca="elsewhere"))
    assert world.calls == 0


def test_a_certificate_under_the_right_ca_with_another_name_is_unauthenticated_with_one_line(world: World) -> None:
    with pytest.raises(ServiceError) as caught:
        world.ask(world.identity("witness"))
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert str(caught.value) == (
        "could not open the round: this listener admits odp:server or odp:distributor; "
        "the caller's certificate names odp:witness"
    )
    assert world.calls == 0


def test_a_name_that_is_no_uri_counts_for_nothing(world: World) -> None:
    """A CA that vouches for DNS names alone must not vouch for a role by one that looks like it."""
    disguised = world.reissued(world.identity("server"), names=[x509.DNSName("odp:server"), x509.DNSName("localhost")])
    with pytest.raises(ServiceError) as caught:
        world.ask_unchecked(disguised)
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert world.calls == 0


def test_an_expired_certificate_is_refused(world: World) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    with pytest.raises(ServiceUnavailable):
        world.ask(world.reissued(world.identity("server"), until=yesterday))
    assert world.calls == 0


def test_a_certificate_for_servers_alone_is_no_clients(world: World) -> None:
    old = world.reissued(world.identity("server"), usages=[ExtendedKeyUsageOID.SERVER_AUTH])
    with pytest.raises(ServiceUnavailable):
        world.ask_unchecked(old)
    assert world.calls == 0
    with pytest.raises(ConfigurationError, match=r"not for clients.*extendedKeyUsage=serverAuth,clientAuth"):
        world.ask(old)


def test_a_program_that_calls_others_is_told_what_its_own_certificate_lacks(world: World) -> None:
    nameless = world.reissued(world.identity("server"), names=[x509.DNSName("localhost")])
    with pytest.raises(ConfigurationError, match=r"no URI name odp:ROLE.*subjectAltName=URI:odp:server"):
        world.ask(nameless)
    anything = world.reissued(world.identity("server"), usages=[])
    assert world.ask(anything) == b"hello"


def test_health_of_a_control_listener_needs_the_same_certificate(world: World) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    def check(role: str) -> int:
        with connect(world.running.address, world.own.ca_pem, identity=world.identity(role)) as channel:
            return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10.0).status

    assert check("server") == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        check("witness")
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_an_empty_list_of_callers_and_a_broken_ca_are_refused_at_once(world: World) -> None:
    with pytest.raises(ConfigurationError, match="Expected names of callers"):
        Callers(world.own.ca_pem, ())
    with pytest.raises(ConfigurationError, match="not a PEM certificate"):
        Callers(b"garbage", ("odp:server",))


@pytest.mark.parametrize("lacks", ["name", "usage"])
def test_a_stored_development_certificate_that_lacks_something_is_replaced(
    world: World, lacks: str, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    state = stack.enter_context(StateFolder.open(tmp_path / "old", "server"))
    before = development_identity(state, tmp_path / "ca")
    changes = (
        {"names": [x509.DNSName("localhost")]} if lacks == "name" else {"usages": [ExtendedKeyUsageOID.SERVER_AUTH]}
    )
    state.write_atomically("tls.pem", world.reissued(before, **changes).certificate_pem)
    after = development_identity(state, tmp_path / "ca")
    assert uri_names(x509.load_pem_x509_certificate(after.certificate_pem)) == ["odp:server"]
    assert world.ask(after) == b"hello"
    assert development_identity(state, tmp_path / "ca") == after
