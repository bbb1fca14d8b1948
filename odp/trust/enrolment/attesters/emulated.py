"""Emulated device attestation: the protocol of a vendor that attests devices, without any protection.

A statement is a JWT (``odp.crypto.jwt``) that the device's own key signs, under a certificate of the vendor for that
key, as with App Attest. Its claims are a verdict of the form of Play Integrity's, which also says
``"emulated": true``::

    {"requestDetails": {"requestPackageName": "odp.device_runtime", "nonce": "..", "timestampMillis": "1750000000000"},
     "appIntegrity": {"appRecognitionVerdict": "PLAY_RECOGNIZED", "packageName": "odp.device_runtime"},
     "deviceIntegrity": {"deviceRecognitionVerdict": ["MEETS_DEVICE_INTEGRITY"]},
     "keyId": "..", "emulated": true}

The vendor is a private key in a folder. Who can read that folder makes as many devices as they like, so an issuer
accepts this kind only where its operator names such a vendor's root.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, SignatureAlgorithmOID

from odp._system.files.state_folder import made_once
from odp.crypto import domains, jwt
from odp.errors import ConfigurationError, EnrolmentError, StateError
from odp.trust.enrolment.attesters.seam import LARGEST_STATEMENT, device_name

KIND = "emulated"
ROOT_FILE = "vendor.pem"

_PACKAGE = "odp.device_runtime"
_APP, _DEVICE = "PLAY_RECOGNIZED", "MEETS_DEVICE_INTEGRITY"
_KEY_FILE = "vendor.key"
_ORGANIZATION = "ODP emulated vendor: no protection"
# Clocks of devices and issuers differ; the nonce, not the clock, is what makes a statement fresh.
_CLOCK_SKEW_SECONDS = 300
_BACKDATED = datetime.timedelta(days=1)
_VALID = datetime.timedelta(days=25 * 365)
_CURVE = ec.SECP256R1()


class EmulatedVendor:
    """A vendor of emulated devices. Issuers pin ``root_pem``."""

    def __init__(
        self, root: x509.Certificate, key: ec.EllipticCurvePrivateKey, clock: Callable[[], float] = time.time
    ) -> None:
        self._root, self._key, self._clock = root, key, clock

    @classmethod
    def open(cls, folder: Path, *, clock: Callable[[], float] = time.time) -> EmulatedVendor:
        """The vendor in ``folder``, created on first use. Raises StateError if its files cannot be used."""
        data = made_once(folder / _KEY_FILE, lambda: _pem(ec.generate_private_key(_CURVE)))
        try:
            key = serialization.load_pem_private_key(data, password=None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError("another kind of key")
            pem = made_once(
                folder / ROOT_FILE, lambda: _root(key, clock()).public_bytes(serialization.Encoding.PEM), mode=0o644
            )
            root = x509.load_pem_x509_certificate(pem)
            if root.public_key() != key.public_key():
                raise ValueError("the root of another key")
        except (ValueError, TypeError) as error:
            raise StateError(f"{folder} holds no emulated vendor; remove it, and a new one is made") from error
        return cls(root, key, clock)

    @property
    def root_pem(self) -> bytes:
        """The vendor's certificate."""
        return self._root.public_bytes(serialization.Encoding.PEM)

    def device(self, secret: bytes) -> EmulatedAttester:
        """The device whose key follows from ``secret`` (32 bytes, its own); the same device for the same secret."""
        seed = hmac.digest(secret, domains.EMULATED_DEVICE, "sha512")
        key = ec.derive_private_key(1 + int.from_bytes(seed, "big") % (_CURVE.group_order - 1), _CURVE)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ODP emulated device")])
        now = self._clock()
        certificate = _certificate(name, key.public_key(), self._root.subject, self._key, ca=False, now=now)
        chain = tuple(link.public_bytes(serialization.Encoding.DER) for link in (certificate, self._root))
        return EmulatedAttester(chain, key, self._clock)


@dataclass(frozen=True)
class EmulatedAttester:
    """An emulated device: the chain of its key (DER), and the key."""

    chain: tuple[bytes, ...]
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    clock: Callable[[], float] = time.time
    kind: str = KIND

    def attest(self, nonce: bytes) -> bytes:
        return jwt.write_token(
            {
                "requestDetails": {
                    "requestPackageName": _PACKAGE,
                    "nonce": jwt.base64url(nonce),
                    "timestampMillis": str(int(1e3 * self.clock())),
                },
                "appIntegrity": {"appRecognitionVerdict": _APP, "packageName": _PACKAGE},
                "deviceIntegrity": {"deviceRecognitionVerdict": [_DEVICE]},
                "keyId": jwt.base64url(hashlib.sha256(_spki(self.key.public_key())).digest()),
                "emulated": True,
            },
            chain=self.chain,
            key=self.key,
            algorithm=jwt.ES256,
        ).encode("ascii")


class EmulatedVerifier:
    """Accepts devices of the vendors of ``roots`` (PEM). Raises ConfigurationError if one is no vendor's root."""

    kind = KIND

    def __init__(self, *roots: bytes) -> None:
        try:
            self._roots = [x509.load_pem_x509_certificate(pem) for pem in roots]
        except ValueError as error:
            raise ConfigurationError("the root of an emulated vendor is not a PEM certificate") from error
        if not self._roots:
            raise ConfigurationError("Expected the root of at least one emulated vendor")

    def verify(self, statement: bytes, nonce: bytes, *, now: float) -> bytes:
        try:
            if len(statement) > LARGEST_STATEMENT:
                raise jwt.Malformed(f"it is longer than {LARGEST_STATEMENT} bytes")
            token = jwt.read_token(statement.decode("ascii"), jwt.ES256)
            key = self._certified(token.chain, now)
            if not jwt.signature_is_valid(token, key):
                raise jwt.Malformed("its signature is not that of its device")
            _check_verdict(token.claims, nonce, key, now)
        except jwt.Malformed as error:
            raise EnrolmentError(f"the device's statement does not count: {error}") from None
        except UnicodeDecodeError:
            raise EnrolmentError("the device's statement does not count: it is not ASCII") from None
        return device_name(KIND, _spki(key))

    def _certified(self, chain: tuple[bytes, ...], now: float) -> ec.EllipticCurvePublicKey:
        try:
            device, *above = (x509.load_der_x509_certificate(der) for der in chain)
            if (root := next((pinned for pinned in self._roots if [pinned] == above), None)) is None:
                raise jwt.Malformed("its vendor is not one that this issuer accepts")
            device.verify_directly_issued_by(root)
            key = device.public_key()
            certifies = device.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            born, dies = (moment.timestamp() for moment in (device.not_valid_before_utc, device.not_valid_after_utc))
        except jwt.Malformed:
            raise
        except Exception as error:
            # Hostile bytes go through a large parser; whatever it raises, the statement does not count.
            raise jwt.Malformed(f"its certificates do not lead to its vendor ({type(error).__name__})") from error
        if (
            certifies
            or device.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA256
            or not isinstance(key, ec.EllipticCurvePublicKey)
            or not isinstance(key.curve, ec.SECP256R1)
        ):
            raise jwt.Malformed("its first certificate is not that of a device")
        if not born <= now <= dies:
            raise jwt.Malformed("the certificate of the device is not valid at this time")
        return key


def _check_verdict(claims: dict[str, Any], nonce: bytes, key: ec.EllipticCurvePublicKey, now: float) -> None:
    details, app, device = (
        jwt.object_claim(claims, name) for name in ("requestDetails", "appIntegrity", "deviceIntegrity")
    )
    if not hmac.compare_digest(jwt.bytes_claim(details, "nonce", range(32, 33)), nonce):
        raise jwt.Malformed("it is about another challenge, round or request")
    milliseconds = jwt.text_claim(details, "timestampMillis")
    if not (milliseconds.isdecimal() and abs(now - int(milliseconds) / 1e3) <= _CLOCK_SKEW_SECONDS):
        raise jwt.Malformed(f"its time is not within {_CLOCK_SKEW_SECONDS} s of this issuer's clock")
    packages = jwt.text_claim(details, "requestPackageName"), jwt.text_claim(app, "packageName")
    if packages != (_PACKAGE, _PACKAGE) or jwt.text_claim(app, "appRecognitionVerdict") != _APP:
        raise jwt.Malformed(f"it is not of the app {_PACKAGE}")
    verdicts = device.get("deviceRecognitionVerdict")
    if not isinstance(verdicts, list) or _DEVICE not in verdicts:
        raise jwt.Malformed(f"the device does not have the verdict {_DEVICE}")
    if jwt.bytes_claim(claims, "keyId", range(32, 33)) != hashlib.sha256(_spki(key)).digest():
        raise jwt.Malformed("it names another key than the one that signed it")
    if not jwt.truth_claim(claims, "emulated"):
        raise jwt.Malformed("it lacks the claim that it is emulated")


def _root(key: ec.EllipticCurvePrivateKey, now: float) -> x509.Certificate:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, "ODP emulated vendor"),
        ]
    )
    return _certificate(name, key.public_key(), name, key, ca=True, now=now)


def _certificate(
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
    now: float,
) -> x509.Certificate:
    start = datetime.datetime.fromtimestamp(now, datetime.UTC) - _BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _VALID)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
