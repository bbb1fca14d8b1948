"""The certificate chain of a platform: root (ARK) -> intermediate (ASK) -> chip (VCEK), P-384 and SHA-384 throughout.

The names are AMD SEV-SNP's: the ARK is what a verifier pins, the VCEK is the chip's key that signs evidence. ``issue``
makes a chain for the emulated platform and marks its root as emulated; ``verify`` accepts a chain down from a pinned
root. Exactly three levels exist, so there is no path building and no room for a certificate in between.

The chip's certificate names the chip and the versions of the firmware that its key stands for (its TCB), in the
extensions that AMD defines: another firmware has another key, so neither can be claimed without being certified.

Source: RFC 5280 section 6, restricted; AMD publication 57230 (VCEK certificates).
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Mapping, Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, SignatureAlgorithmOID

from odp import _validate
from odp.errors import AttestationError, ConfigurationError
from odp.refusing import require_resources
from odp.trust.enclave.evidence import Reason

EMULATED_ORGANIZATION = "ODP emulated platform: no hardware protection"

# A platform whose clock runs a little ahead must not issue evidence that looks unborn to everybody else.
_BACKDATED_SECONDS = 24 * 3600
_AUTHORITY_SECONDS = 25 * 365 * 24 * 3600
_CHIP_SECONDS = 7 * 365 * 24 * 3600
_EXTENSIONS = (x509.BasicConstraints, x509.KeyUsage)

CHIP_ID_BYTES = 64
_AMD = "1.3.6.1.4.1.3704.1"
_CHIP_ID = x509.ObjectIdentifier(f"{_AMD}.4")
_TCB = {
    "boot_loader": x509.ObjectIdentifier(f"{_AMD}.3.1"),
    "tee": x509.ObjectIdentifier(f"{_AMD}.3.2"),
    "snp": x509.ObjectIdentifier(f"{_AMD}.3.3"),
    "microcode": x509.ObjectIdentifier(f"{_AMD}.3.8"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tcb:
    """Security versions of a platform's firmware, 0 to 255 each; a fixed hole raises one of them.

    Raises:
        ConfigurationError: a version is out of range.
    """

    boot_loader: int
    tee: int
    snp: int
    microcode: int

    def __post_init__(self) -> None:
        _validate.integer(low=0, high=255, **dataclasses.asdict(self))

    def below(self, minimum: Mapping[str, int]) -> str | None:
        """The first component that is below its minimum, or None."""
        return next((name for name in TCB_COMPONENTS if getattr(self, name) < minimum.get(name, 0)), None)


TCB_COMPONENTS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(Tcb))
#: What a newly made emulated platform says it runs.
EMULATED_TCB = Tcb(boot_loader=1, tee=1, snp=1, microcode=1)


@dataclasses.dataclass(frozen=True)
class IssuedChain:
    """A new chain and its chip key.

    Attributes:
        certificates: DER: chip (VCEK), intermediate (ASK), root (ARK).
        key: the chip's private key; secret.
        tcb: the firmware that the chip's certificate names.
    """

    certificates: tuple[bytes, bytes, bytes]
    key: ec.EllipticCurvePrivateKey
    tcb: Tcb


@dataclasses.dataclass(frozen=True)
class VerifiedChain:
    """A chain down from a pinned root.

    Attributes:
        key: the chip's public key.
        emulated: whether its root is marked as emulated.
        expires: seconds since the epoch at which the first of its certificates expires.
        tcb: the firmware that the chip's key stands for.
        chip_id: 64 bytes, one per chip.
        serials: serial numbers of its certificates, hex without leading zeros: what revocation names.
    """

    key: ec.EllipticCurvePublicKey
    emulated: bool
    expires: float
    tcb: Tcb
    chip_id: bytes
    serials: tuple[str, ...]


def issue(*, now: float, tcb: Tcb = EMULATED_TCB) -> IssuedChain:
    """Makes a root, an intermediate and a chip, each with a fresh key; the keys of the two authorities are dropped.

    So nobody, the platform included, can ever certify a second chip under the same root.

    Args:
        now: seconds since the epoch; the chip's certificate lasts seven years from here.
        tcb: the firmware that the chip's certificate names; its chip id is random.
    """
    ark_key, ask_key, chip_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(3))
    # Roots differ in name, so that a verifier that pins many finds the right one.
    serial = x509.random_serial_number()
    ark_name, ask_name, chip_name = (_name(f"ODP-EMULATED {kind} {serial:x}"[:64]) for kind in ("ARK", "ASK", "VCEK"))
    ark = _certify(ark_name, ark_key.public_key(), ark_name, ark_key, now=now, seconds=_AUTHORITY_SECONDS, depth=1)
    ask = _certify(ask_name, ask_key.public_key(), ark_name, ark_key, now=now, seconds=_AUTHORITY_SECONDS, depth=0)
    chip = _certify(
        chip_name, chip_key.public_key(), ask_name, ask_key, now=now, seconds=_CHIP_SECONDS, depth=None,
        also=_chip_extensions(tcb, os.urandom(CHIP_ID_BYTES)),
    )  # fmt: skip
    chip_der, ask_der, ark_der = (found.public_bytes(serialization.Encoding.DER) for found in (chip, ask, ark))
    return IssuedChain((chip_der, ask_der, ark_der), chip_key, tcb)


def verify(chain: Sequence[bytes], *, roots: Sequence[str], now: float) -> VerifiedChain:
    """Checks a chain against pinned roots: names, signatures, curves, basic constraints, key usage, validity.

    Args:
        chain: DER certificates: chip, intermediate and, if the platform sends it along, the root.
        roots: pinned root certificates, PEM. None pinned: nothing is accepted.
        now: seconds since the epoch.

    Raises:
        AttestationError: ``wrong_root``, ``chain_invalid`` or ``chain_expired``.
        ConfigurationError: a pinned root is not a certificate.
    """
    pinned = [read_root(pem) for pem in roots]
    try:
        chip, ask, *sent = (x509.load_der_x509_certificate(der) for der in chain)
        root = _find_root(ask, sent, pinned)
        _check_authority(root, depth=1)
        _check_authority(ask, depth=0)
        _check_chip(chip)
        # The root's own signature proves nothing: it is trusted because it is pinned.
        ask.verify_directly_issued_by(root)
        chip.verify_directly_issued_by(ask)
        key, tcb, chip_id = _p384(chip), tcb_of(chip), _chip_id_of(chip)
        serials = tuple(f"{certificate.serial_number:x}" for certificate in (chip, ask, root))
        organization = root.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        expires = min(certificate.not_valid_after_utc.timestamp() for certificate in (chip, ask, root))
        born = max(certificate.not_valid_before_utc.timestamp() for certificate in (chip, ask, root))
    except AttestationError:
        raise
    except (InvalidSignature, ValueError, TypeError):
        raise _invalid("a certificate cannot be read, or was not signed by the one above it") from None
    except Exception as error:
        require_resources(error, "read a certificate")
        # Hostile bytes go through a large parser; whatever it raises, the chain is not accepted.
        raise _invalid(f"a certificate cannot be read ({type(error).__name__})") from error
    if not born <= now <= expires:
        raise AttestationError(
            Reason.CHAIN_EXPIRED, "a certificate of the platform is not valid at this time; check the clock"
        )
    emulated = any(attribute.value == EMULATED_ORGANIZATION for attribute in organization)
    return VerifiedChain(key, emulated, expires, tcb, chip_id, serials)


def tcb_of(chip: x509.Certificate) -> Tcb:
    """The firmware that a chip's certificate names.

    Raises:
        AttestationError: ``chain_invalid``, where a version is missing, is no DER integer, or is out of range.
    """
    try:
        return Tcb(**{name: _small_integer(_extension(chip, oid)) for name, oid in _TCB.items()})
    except ConfigurationError:
        raise _invalid("the certificate of the chip names no firmware versions from 0 to 255") from None


def _chip_id_of(chip: x509.Certificate) -> bytes:
    found = _extension(chip, _CHIP_ID)
    if len(found) != CHIP_ID_BYTES:
        raise _invalid(f"the certificate of the chip does not name the chip by {CHIP_ID_BYTES} bytes")
    return found


def _extension(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> bytes:
    try:
        found = certificate.extensions.get_extension_for_oid(oid).value
    except x509.ExtensionNotFound:
        raise _invalid("the certificate of the chip does not name the chip and its firmware") from None
    return found.value if isinstance(found, x509.UnrecognizedExtension) else b""


def _small_integer(der: bytes) -> int:
    # INTEGER of one value byte, or of two where the first only keeps the sign.
    content = der[2:]
    if der[:2] not in (b"\x02\x01", b"\x02\x02") or len(content) != der[1]:
        raise ConfigurationError("Expected a DER integer")
    return int.from_bytes(content, "big", signed=True)


def _chip_extensions(tcb: Tcb, chip_id: bytes) -> list[x509.UnrecognizedExtension]:
    found = []
    for name, oid in _TCB.items():
        version = getattr(tcb, name)
        content = version.to_bytes(1 if version < 128 else 2, "big")
        found.append(x509.UnrecognizedExtension(oid, bytes([2, len(content)]) + content))
    return [*found, x509.UnrecognizedExtension(_CHIP_ID, chip_id)]


def read_root(pem: str) -> x509.Certificate:
    """The pinned root certificate in ``pem``.

    Raises:
        ConfigurationError: not one PEM certificate with a P-384 key.
    """
    try:
        found = x509.load_pem_x509_certificates(pem.encode("ascii"))
        usable = len(found) == 1 and isinstance(found[0].public_key(), ec.EllipticCurvePublicKey)
    except (ValueError, UnsupportedAlgorithm):
        usable = False
    if not usable:
        raise ConfigurationError(
            "Expected every root of the reference values to be one PEM certificate with a P-384 key"
        )
    return found[0]


def _find_root(ask: x509.Certificate, sent: list[x509.Certificate], pinned: list[x509.Certificate]) -> x509.Certificate:
    if sent:
        candidates = [root for root in pinned if root == sent[0]]
    else:
        candidates = [root for root in pinned if _issued(ask, root)]
    if not candidates:
        raise AttestationError(Reason.WRONG_ROOT, "the platform's root certificate is not one of the pinned roots")
    return candidates[0]


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    if certificate.issuer != issuer.subject:
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _check_authority(certificate: x509.Certificate, *, depth: int) -> None:
    constraints, usage = _extensions(certificate)
    if (
        not constraints.ca
        or constraints.path_length is None
        or constraints.path_length > depth
        or not usage.key_cert_sign
    ):
        raise _invalid("a certificate that issues others may not do so")


def _check_chip(certificate: x509.Certificate) -> None:
    constraints, usage = _extensions(certificate)
    if constraints.ca or usage.key_cert_sign or not usage.digital_signature:
        raise _invalid("the certificate of the chip is not one that signs evidence")


def _extensions(certificate: x509.Certificate) -> tuple[x509.BasicConstraints, x509.KeyUsage]:
    if certificate.version != x509.Version.v3:
        raise _invalid("a certificate is not X.509 version 3")
    if certificate.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        raise _invalid("a certificate is not signed with ECDSA and SHA-384")
    _p384(certificate)
    extensions = certificate.extensions
    if any(extension.critical and not isinstance(extension.value, _EXTENSIONS) for extension in extensions):
        raise _invalid("a certificate has a critical extension that is not understood")
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    if not constraints.critical or not usage.critical:
        raise _invalid("a certificate's basic constraints or key usage are not critical")
    return constraints.value, usage.value


def _p384(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise _invalid("a certificate's key is not on P-384")
    return key


def _certify(
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    now: float,
    seconds: float,
    depth: int | None,
    also: Sequence[x509.ExtensionType] = (),
) -> x509.Certificate:
    start = datetime.datetime.fromtimestamp(now - _BACKDATED_SECONDS, datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=depth is None,
        key_cert_sign=depth is not None,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(seconds=_BACKDATED_SECONDS + seconds))
        .add_extension(x509.BasicConstraints(ca=depth is not None, path_length=depth), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in also:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def _name(common: str) -> x509.Name:
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, EMULATED_ORGANIZATION)
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _invalid(message: str) -> AttestationError:
    return AttestationError(Reason.CHAIN_INVALID, message)
