"""Statements of the emulated vendor: what counts, and that nothing else does."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings, strategies as st

from odp.crypto import jwt
from odp.errors import ConfigurationError, EnrolmentError, StateError
from odp.trust.enrolment.attesters.emulated import ROOT_FILE, EmulatedAttester, EmulatedVendor, EmulatedVerifier

NOW = 1_790_000_000.0
NONCE = bytes(range(32))


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> EmulatedVendor:
    return EmulatedVendor.open(tmp_path_factory.mktemp("vendor"), clock=lambda: NOW)


@pytest.fixture
def device(vendor: EmulatedVendor) -> EmulatedAttester:
    return vendor.device(b"d" * 32)


@pytest.fixture
def verifier(vendor: EmulatedVendor) -> EmulatedVerifier:
    return EmulatedVerifier(vendor.root_pem)


def claims_of(statement: bytes) -> dict[str, Any]:
    payload = statement.split(b".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    return found


def refused(verifier: EmulatedVerifier, statement: bytes, *, nonce: bytes = NONCE, now: float = NOW) -> str:
    with pytest.raises(EnrolmentError) as error:
        verifier.verify(statement, nonce, now=now)
    text = str(error.value)
    assert text.isprintable()
    assert len(text) < 200
    return text


def test_a_genuine_statement_names_its_device_the_same_each_time(
    vendor: EmulatedVendor, device: EmulatedAttester, verifier: EmulatedVerifier
) -> None:
    name = verifier.verify(device.attest(NONCE), NONCE, now=NOW)
    assert len(name) == 32
    again = vendor.device(b"d" * 32)
    assert verifier.verify(again.attest(bytes(32)), bytes(32), now=NOW + 60) == name
    other = vendor.device(b"e" * 32)
    assert verifier.verify(other.attest(NONCE), NONCE, now=NOW) != name


def test_a_statement_has_the_form_of_a_vendors_verdict_and_says_that_it_is_emulated(device: EmulatedAttester) -> None:
    claims = claims_of(device.attest(NONCE))
    assert claims["emulated"] is True
    assert claims["deviceIntegrity"] == {"deviceRecognitionVerdict": ["MEETS_DEVICE_INTEGRITY"]}
    assert claims["requestDetails"]["nonce"] == jwt.base64url(NONCE)
    assert claims["requestDetails"]["timestampMillis"] == "1790000000000"
    assert set(claims) == {"requestDetails", "appIntegrity", "deviceIntegrity", "keyId", "emulated"}


def test_statements_of_all_devices_have_nearly_one_length(vendor: EmulatedVendor) -> None:
    """The lengths of DER signatures in the certificates differ by a few bytes, by chance alone."""
    lengths = {len(vendor.device(bytes([number]) * 32).attest(NONCE)) for number in range(20)}
    assert max(lengths) - min(lengths) <= 16


def test_a_statement_about_something_else_or_of_another_time_does_not_count(
    device: EmulatedAttester, verifier: EmulatedVerifier
) -> None:
    statement = device.attest(NONCE)
    assert "another challenge" in refused(verifier, statement, nonce=bytes(32))
    for moved in (-301, 301):
        assert "clock" in refused(verifier, statement, now=NOW + moved)
    for moved in (-300, 300):
        verifier.verify(statement, NONCE, now=NOW + moved)


def test_a_vendor_that_was_not_named_counts_for_nothing(tmp_path: Path, verifier: EmulatedVerifier) -> None:
    stranger = EmulatedVendor.open(tmp_path / "vendor", clock=lambda: NOW)
    assert "vendor" in refused(verifier, stranger.device(b"d" * 32).attest(NONCE))
    # Nor with the right root beside a certificate of the wrong one.
    mixed = stranger.device(b"d" * 32)
    chain = (mixed.chain[0], x509.load_pem_x509_certificate(_pem_of(verifier)).public_bytes(serialization.Encoding.DER))
    assert "do not lead to its vendor" in refused(
        verifier, EmulatedAttester(chain, mixed.key, lambda: NOW).attest(NONCE)
    )


def _pem_of(verifier: EmulatedVerifier) -> bytes:
    return verifier._roots[0].public_bytes(serialization.Encoding.PEM)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another package": lambda claims: claims["requestDetails"].update(requestPackageName="org.example"),
    "another app": lambda claims: claims["appIntegrity"].update(packageName="org.example"),
    "unrecognised app": lambda claims: claims["appIntegrity"].update(appRecognitionVerdict="UNRECOGNIZED_VERSION"),
    "no verdict": lambda claims: claims.pop("deviceIntegrity"),
    "an empty verdict": lambda claims: claims["deviceIntegrity"].update(deviceRecognitionVerdict=[]),
    "a weaker verdict": lambda claims: claims["deviceIntegrity"].update(
        deviceRecognitionVerdict=["MEETS_BASIC_INTEGRITY"]
    ),
    "a verdict that is no list": lambda claims: claims["deviceIntegrity"].update(
        deviceRecognitionVerdict="MEETS_DEVICE_INTEGRITY"
    ),
    "another key": lambda claims: claims.update(keyId=jwt.base64url(bytes(32))),
    "no key": lambda claims: claims.pop("keyId"),
    "not emulated": lambda claims: claims.update(emulated=False),
    "emulated as text": lambda claims: claims.update(emulated="true"),
    "no nonce": lambda claims: claims["requestDetails"].pop("nonce"),
    "a time that is no number": lambda claims: claims["requestDetails"].update(timestampMillis="soon"),
    "a time as a number": lambda claims: claims["requestDetails"].update(timestampMillis=1_790_000_000_000),
    "digits of another script": lambda claims: claims["requestDetails"].update(timestampMillis="١٧٩٠٠٠٠٠٠٠٠٠٠"),
    "a huge time": lambda claims: claims["requestDetails"].update(timestampMillis="9" * 256),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_verdict_that_says_anything_else_does_not_count(
    device: EmulatedAttester, verifier: EmulatedVerifier, change: Callable[[dict[str, Any]], object]
) -> None:
    """The device's own key signs it: even so."""
    claims = claims_of(device.attest(NONCE))
    change(claims)
    refused(verifier, jwt.write_token(claims, chain=device.chain, key=device.key, algorithm=jwt.ES256).encode())


@pytest.fixture(scope="module")
def statement(vendor: EmulatedVendor) -> bytes:
    return vendor.device(b"d" * 32).attest(NONCE)


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_no_changed_byte_of_a_statement_counts(
    vendor: EmulatedVendor, statement: bytes, place: int, change: int
) -> None:
    changed = bytearray(statement)
    changed[place % len(changed)] ^= change
    refused(EmulatedVerifier(vendor.root_pem), bytes(changed))


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_no_statement(vendor: EmulatedVendor, data: bytes) -> None:
    refused(EmulatedVerifier(vendor.root_pem), data)


def test_a_statement_that_is_too_long_is_not_read(verifier: EmulatedVerifier) -> None:
    assert "longer" in refused(verifier, b"A" * 20_000)


def _certificate(
    vendor: EmulatedVendor,
    key: Any,
    *,
    ca: bool = False,
    days: tuple[int, int] = (-1, 1),
    algorithm: hashes.HashAlgorithm | None = None,
    constraints: bool = True,
) -> bytes:
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "device")]))
        .issuer_name(vendor._root.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(moment + datetime.timedelta(days=days[0]))
        .not_valid_after(moment + datetime.timedelta(days=days[1]))
    )
    if constraints:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    return builder.sign(vendor._key, algorithm or hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def test_a_certificate_of_another_kind_is_none_of_a_device(vendor: EmulatedVendor, verifier: EmulatedVerifier) -> None:
    root = vendor._root.public_bytes(serialization.Encoding.DER)
    key = ec.generate_private_key(ec.SECP256R1())

    def attested(certificate: bytes) -> bytes:
        return EmulatedAttester((certificate, root), key, lambda: NOW).attest(NONCE)

    verifier.verify(attested(_certificate(vendor, key)), NONCE, now=NOW)
    for certificate in (
        _certificate(vendor, key, ca=True),
        _certificate(vendor, key, days=(1, 2)),
        _certificate(vendor, key, days=(-2, -1)),
        _certificate(vendor, key, algorithm=hashes.SHA384()),
        _certificate(vendor, key, constraints=False),
        _certificate(vendor, ec.generate_private_key(ec.SECP384R1())),
        _certificate(vendor, ec.generate_private_key(ec.SECP256R1())),
        root,
        b"x",
    ):
        refused(verifier, attested(certificate))
    # Two links below the vendor, or the root alone.
    good = _certificate(vendor, key)
    for chain in ((good, good, root), (root, root), (good, good)):
        refused(verifier, EmulatedAttester(chain, key, lambda: NOW).attest(NONCE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "vendor"


def test_a_vendor_stays_the_same_and_its_key_is_its_owners(folder: Path) -> None:
    first = EmulatedVendor.open(folder)
    assert EmulatedVendor.open(folder).root_pem == first.root_pem == (folder / ROOT_FILE).read_bytes()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "vendor.key").stat().st_mode & 0o777 == 0o600


def test_a_vendor_whose_files_do_not_belong_together_is_refused(folder: Path, tmp_path: Path) -> None:
    EmulatedVendor.open(folder)
    EmulatedVendor.open(tmp_path / "other")
    (folder / ROOT_FILE).write_bytes((tmp_path / "other" / ROOT_FILE).read_bytes())
    with pytest.raises(StateError, match="no emulated vendor"):
        EmulatedVendor.open(folder)
    (folder / "vendor.key").write_bytes(b"junk")
    with pytest.raises(StateError, match="no emulated vendor"):
        EmulatedVendor.open(folder)


def test_a_verifier_needs_roots_that_are_certificates(vendor: EmulatedVendor) -> None:
    for roots in ((), (b"junk",), (vendor.root_pem, b"")):
        with pytest.raises(ConfigurationError):
            EmulatedVerifier(*roots)


def test_no_key_is_in_a_repr(device: EmulatedAttester) -> None:
    assert "PrivateKey" not in repr(device)
