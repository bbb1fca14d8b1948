"""TLS identities: from given certificates, or from a development CA that is created on first start.

Development CA: one EC P-256 root per CA folder, and one certificate per program for ``localhost``, 127.0.0.1, ::1 and
the program's name, the URI ``odp:<role>``. It exists so that a first run needs no set-up and still speaks TLS; its root
is trusted by nobody else.

A program shows the same certificate where it calls another program's control listener, which admits names and not
addresses (``Callers``).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from odp._system.files.private_files import open_private, private_folder
from odp._system.files.state_folder import StateFolder, state_errors, write_atomically
from odp._system.posix import fcntl
from odp.errors import ConfigurationError

CA_FILE = "ca.pem"
_CA_KEY_FILE = "ca.key"
_VALID_DAYS = 3650
_CLOCK_SKEW = datetime.timedelta(days=1)
#: Before the end of a certificate: from then on it is warned of, and one of the development CA replaced.
WARN_SECONDS = 30 * 86_400.0


_BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True)
class TlsIdentity:
    """A program's certificate chain and key, and the CA that its clients pin; all PEM bytes.

    ``files`` are where they were read from: "certificate", "key" and "ca". ``source`` reads them again; None where they
    cannot change.
    """

    certificate_pem: bytes
    key_pem: bytes
    ca_pem: bytes
    files: Mapping[str, Path] = field(default_factory=dict, compare=False)
    source: Callable[[], TlsIdentity] | None = field(default=None, compare=False)

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes whenever certificate or key are written again."""
        stamps = []
        for path in (self.files[name] for name in ("certificate", "key") if name in self.files):
            try:
                status = path.stat()
            except OSError:
                continue
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(stamps)


@dataclass(frozen=True)
class Callers:
    """The admitted callers of a control listener: certificates under ``ca_pem`` with one of ``names`` as a URI name.

    Raises:
      ConfigurationError: there is no name, or ``ca_pem`` is not a certificate.
    """

    ca_pem: bytes
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigurationError("Expected names of callers, got none; a listener that admits nobody is useless")
        try:
            x509.load_pem_x509_certificate(self.ca_pem)
        except ValueError as error:
            raise ConfigurationError("the CA of a control listener's callers is not a PEM certificate") from error

    def refusal(self, certificate_pem: bytes) -> str | None:
        """Why a caller is refused, as one line; None if it is admitted.

        Its chain, its dates and its key were checked by the TLS handshake.
        """
        try:
            names = uri_names(x509.load_pem_x509_certificate(certificate_pem))
        except ValueError:
            return "the caller's certificate cannot be read"
        if not set(names).isdisjoint(self.names):
            return None
        named = ", ".join(names) if names else "nobody"
        return f"this listener admits {' or '.join(self.names)}; the caller's certificate names {named}"


def caller_name(role: str) -> str:
    """The URI name that the certificate of a program of kind ``role`` has: ``odp:server``."""
    return f"odp:{role}"


def uri_names(certificate: x509.Certificate) -> list[str]:
    """The URIs among a certificate's subject alternative names. Raises ValueError if they are malformed."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def check_caller(identity: TlsIdentity) -> None:
    """Raises ConfigurationError unless control listeners of other programs can admit ``identity``."""
    certificate = x509.load_pem_x509_certificate(identity.certificate_pem)
    if not any(name.startswith(caller_name("")) for name in uri_names(certificate)):
        raise ConfigurationError(
            "the certificate of --certificate has no URI name odp:ROLE, which other programs check; "
            "issue it with subjectAltName=URI:odp:server (or the role of this program)"
        )
    if not _allows(certificate, ExtendedKeyUsageOID.CLIENT_AUTH):
        raise ConfigurationError(
            "the certificate of --certificate is not for clients, and this program calls others with it; "
            "issue it with extendedKeyUsage=serverAuth,clientAuth"
        )


def identity_for(
    state: StateFolder, *, certificate: Path | None, key: Path | None, ca: Path | None, ca_folder: Path | None
) -> TlsIdentity:
    """The identity of the three given files, or one under the development CA without any.

    Raises ConfigurationError where some are given and some are not, or one is wrong.
    """
    if certificate is not None and key is not None and ca is not None:
        return load_identity(certificate=certificate, key=key, ca=ca)
    check_files(certificate=certificate, key=key, ca=ca)
    return development_identity(state, ca_folder)


def check_files(*, certificate: Path | None, key: Path | None, ca: Path | None) -> None:
    """Raises ConfigurationError unless all three files are given, or none."""
    if len({certificate is None, key is None, ca is None}) > 1:
        raise ConfigurationError("Expected certificate, key and ca together, or none of them; give all three files")


def load_identity(*, certificate: Path, key: Path, ca: Path) -> TlsIdentity:
    """Reads and checks given files. Raises ConfigurationError, which names a missing, malformed or wrong file."""
    certificate_pem, key_pem, ca_pem = (_read(path) for path in (certificate, key, ca))
    loaded = _parse_certificate(certificate, certificate_pem)
    _require_valid(certificate, loaded)
    _require_valid(ca, _parse_certificate(ca, ca_pem))
    private = _parse_key(key, key_pem)
    if _spki(private.public_key()) != _spki(loaded.public_key()):
        raise ConfigurationError(f"{key} is not the key of {certificate}; give a matching --key and --certificate")
    return TlsIdentity(
        certificate_pem,
        key_pem,
        ca_pem,
        files={"certificate": certificate, "key": key, "ca": ca},
        source=lambda: load_identity(certificate=certificate, key=key, ca=ca),
    )


def ends_at(pem: bytes) -> float:
    """The end of a certificate's validity, in seconds since the epoch."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def utc(seconds: float) -> str:
    """A time in UTC for people."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _require_valid(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.datetime.now(datetime.UTC)
    ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    if now >= ends:
        raise ConfigurationError(
            f"{path} expired at {utc(ends.timestamp())}; replace it by a new certificate, then start"
        )
    if now < begins:
        raise ConfigurationError(
            f"{path} is valid from {utc(begins.timestamp())} on, and it is {utc(now.timestamp())} here; check the clock"
        )


def read_ca(path: Path) -> bytes:
    """The PEM bytes of a CA file. Raises ConfigurationError if it is missing or no certificate."""
    pem = _read(path)
    _parse_certificate(path, pem)
    return pem


def development_identity(state: StateFolder, ca_folder: Path | None = None) -> TlsIdentity:
    """An identity under the development CA of ``ca_folder`` (default: ``<state>/ca``), created on first start.

    Its name is that of ``state.role``. A stored certificate that lacks something, is not valid yet, or ends within 30
    days is replaced.

    Raises ConfigurationError where the CA has expired, or is not valid yet: whoever pinned it has to pin another one.
    """
    folder = ca_folder if ca_folder is not None else state.path("ca")
    ca_certificate, ca_key = _development_ca(folder)
    begins, ended = ca_certificate.not_valid_before_utc, ca_certificate.not_valid_after_utc
    if (now := datetime.datetime.now(datetime.UTC)) >= ended:
        raise ConfigurationError(
            f"the development CA in {folder} expired at {utc(ended.timestamp())}; remove that folder, start again, and "
            f"give devices and developers the new {CA_FILE}"
        )
    if now < begins:
        raise ConfigurationError(
            f"the development CA in {folder} is valid from {utc(begins.timestamp())} on, and it is "
            f"{utc(now.timestamp())} here; check the clock. If the clock was wrong when the CA was "
            f"made, remove that folder, start again, and give devices and developers the new {CA_FILE}"
        )
    attributes: dict[str, Any] = {
        "files": {"certificate": state.path("tls.pem"), "key": state.path("tls.key"), "ca": folder / CA_FILE},
        "source": lambda: development_identity(state, ca_folder),
    }
    ca_pem = ca_certificate.public_bytes(serialization.Encoding.PEM)
    stored_certificate, stored_key = state.read("tls.pem"), state.read("tls.key")
    name = caller_name(state.role)
    if stored_certificate and stored_key and _usable(stored_certificate, stored_key, ca_certificate, name):
        return TlsIdentity(stored_certificate, stored_key, ca_pem, **attributes)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _issue(state.role, key, ca_certificate, ca_key)
    key_pem = _key_pem(key)
    certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
    state.write_atomically("tls.key", key_pem)
    state.write_atomically("tls.pem", certificate_pem)
    return TlsIdentity(certificate_pem, key_pem, ca_pem, **attributes)


def _development_ca(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    with state_errors(folder):
        private_folder(folder, marker=CA_FILE)
        lock = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        # Several programs may start at once on one CA folder: the first makes the CA, the others wait for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / CA_FILE).exists():
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _self_signed(key)
            with state_errors(folder):
                write_atomically(folder / _CA_KEY_FILE, _key_pem(key))
                write_atomically(folder / CA_FILE, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
        certificate = _parse_certificate(folder / CA_FILE, _read(folder / CA_FILE))
        private = _parse_key(folder / _CA_KEY_FILE, _read(folder / _CA_KEY_FILE))
    finally:
        os.close(lock)
    if not isinstance(private, ec.EllipticCurvePrivateKey) or _spki(private.public_key()) != _spki(
        certificate.public_key()
    ):
        raise ConfigurationError(
            f"{folder}: {_CA_KEY_FILE} is not the key of {CA_FILE}; remove the folder to make a new CA"
        )
    return certificate, private


def _builder(subject: str) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = "ODP development CA"
    return (
        _builder(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _issue(
    role: str, key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
        x509.UniformResourceIdentifier(caller_name(role)),
    ]
    return (
        _builder(f"odp {role}")
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(_BOTH_ENDS), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _usable(certificate_pem: bytes, key_pem: bytes, ca: x509.Certificate, name: str) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        certificate.verify_directly_issued_by(ca)
        # A kill between the two writes leaves a new key beside an old certificate.
        matching = _spki(serialization.load_pem_private_key(key_pem, password=None).public_key()) == _spki(
            certificate.public_key()
        )
        complete = name in uri_names(certificate) and all(_allows(certificate, usage) for usage in _BOTH_ENDS)
    except Exception:  # any failure means that a new certificate is needed, whatever the reason
        return False
    now = datetime.datetime.now(datetime.UTC)
    left = certificate.not_valid_after_utc - now
    in_time = certificate.not_valid_before_utc <= now and left.total_seconds() >= WARN_SECONDS
    return matching and complete and in_time


def _allows(certificate: x509.Certificate, usage: x509.ObjectIdentifier) -> bool:
    try:
        return usage in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:  # a certificate that names no usage is for all
        return True


def _parse_certificate(path: Path, pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a PEM certificate") from error


def _parse_key(path: Path, pem: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path} is not an unencrypted PEM private key") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; check the path") from error


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _spki(key: object) -> bytes:
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]  # every public key type has it; the union of types does not say so
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded
