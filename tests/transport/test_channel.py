"""Channels: whatever goes wrong on the way is one line that says what to do."""

from __future__ import annotations

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from odp.errors import BudgetExceeded, CertificateError, ConfigurationError, OdpError, ServiceError, ServiceUnavailable
from odp.transport.channel import call, connect, parse_address, read_stream
from odp.transport.service import serve

WHAT = "do it"


def _error(service, method=None, address=None, timeout=10.0) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        call(method or service.method(), b"x", timeout=timeout, what=WHAT, address=address or service.address)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_call_over_tls_answers(service) -> None:
    assert call(service.method(), b"hello", timeout=10.0, what=WHAT, address=service.address) == b"hello"


def test_a_server_of_another_ca_is_refused_with_a_sentence_about_the_ca(service, other_ca: bytes) -> None:
    error = _error(service, service.method(ca=other_ca))
    assert isinstance(error, ServiceUnavailable)
    assert str(error) == (
        f"could not do it: the TLS certificate of {service.address} does not descend from the given CA; "
        "give the right --ca file"
    )


@pytest.mark.parametrize("days", [(-10, -5), (5, 10)])
def test_r439_a_certificate_of_another_time_is_no_strangers(days: tuple[int, int]) -> None:
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = (now + datetime.timedelta(days=each) for each in days)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key_pem, certificate)]))
    server.start()
    try:
        with connect(f"localhost:{port}", certificate) as channel:
            error = _error(None, channel.unary_unary("/odp/Any"), f"localhost:{port}")
    finally:
        server.stop(0.0)
    assert isinstance(error, ServiceUnavailable)
    assert not isinstance(error, CertificateError)
    assert f"a TLS certificate of localhost:{port} is not valid at this time; check the clock" in str(error)


def test_a_certificate_for_other_names_is_said_to_be_one(service) -> None:
    """The development certificate names localhost and its addresses, not 127.0.0.2."""
    everywhere = serve(address="0.0.0.0:0", identity=service.identity, add=lambda _: None, service_names=[])
    address = everywhere.address.replace("0.0.0.0", "127.0.0.2")
    try:
        error = _error(service, service.method(address=address), address)
    finally:
        everywhere.stop(0.0)
    assert isinstance(error, ServiceUnavailable)
    assert f"the TLS certificate of {address} is for other names" in str(error)


def test_a_server_without_tls_is_said_to_be_one(service, plain_port: int) -> None:
    address = f"127.0.0.1:{plain_port}"
    error = _error(service, service.method(address=address), address)
    assert str(error) == f"could not do it: {address} does not speak TLS; check the address"


def test_a_port_where_nobody_listens_is_said_to_be_one(service) -> None:
    service.running.stop(0.0)
    error = _error(service)
    assert isinstance(error, ServiceUnavailable)
    assert str(error) == (
        f"could not do it: nobody answers at {service.address}; check the address, and that the service runs"
    )
    assert error.code is grpc.StatusCode.UNAVAILABLE


def test_an_answer_that_does_not_come_in_time_is_unavailable(service) -> None:
    released = threading.Event()

    def wait(request: bytes, _: object) -> bytes:
        released.wait(20)
        return request

    service.behave = wait
    try:
        error = _error(service, timeout=0.3)
    finally:
        released.set()
    assert isinstance(error, ServiceUnavailable)
    assert "did not answer in time" in str(error)


def test_what_a_service_says_of_itself_is_passed_on_also_when_it_is_unavailable(service) -> None:
    def busy(*_: object) -> bytes:
        raise ServiceUnavailable("the distributor is busy with other downloads; try again in a moment")

    service.behave = busy
    error = _error(service)
    assert isinstance(error, ServiceUnavailable)
    assert str(error) == "could not do it: the distributor is busy with other downloads; try again in a moment"


def test_a_refusal_keeps_its_line_and_its_code(service) -> None:
    def refuse(*_: object) -> bytes:
        raise BudgetExceeded("spent 7.5 of 8")

    service.behave = refuse
    error = _error(service)
    assert not isinstance(error, ServiceUnavailable)
    assert str(error) == "could not do it: spent 7.5 of 8"
    assert error.code is grpc.StatusCode.FAILED_PRECONDITION


def test_hostile_details_become_one_short_printable_line(service) -> None:
    def shout(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "two\nlines \x1b[2J\x07 " + "x" * 5000)

    service.behave = shout
    message = str(_error(service))
    assert message.isprintable()
    assert len(message) < 500
    assert "two lines" in message


def test_a_stream_that_breaks_is_translated_too() -> None:
    def replies():
        yield 1
        raise _Fake(grpc.StatusCode.NOT_FOUND, "model ab is not known")

    stream = read_stream(replies(), what=WHAT, address="a:1")
    assert next(stream) == 1
    with pytest.raises(ServiceError, match="could not do it: model ab is not known") as caught:
        next(stream)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("address", "pair"),
    [("127.0.0.1:7200", ("127.0.0.1", 7200)), ("[::1]:0", ("[::1]", 0)), ("a-b.example:65535", ("a-b.example", 65535))],
)
def test_addresses_are_host_and_port(address: str, pair: tuple[str, int]) -> None:
    assert parse_address(address) == pair


@pytest.mark.parametrize(
    "address", ["", "7200", "host", "host:", "host:65536", "host:1:2", "a b:1", "unix:/tmp/x", "dns:///a:1", "a:1\n"]
)
def test_anything_else_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"to be host:port, for example 127.0.0.1:7200"):
        parse_address(address)


def test_a_ca_file_that_is_none_is_named(tmp_path) -> None:
    (tmp_path / "ca.pem").write_text("hello")
    with pytest.raises(OdpError, match=r"ca.pem is not a PEM certificate"):
        connect("127.0.0.1:1", tmp_path / "ca.pem")
    with pytest.raises(OdpError, match=r"cannot read .*nothing.pem"):
        connect("127.0.0.1:1", tmp_path / "nothing.pem")


class _Fake(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details
