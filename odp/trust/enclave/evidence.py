"""The evidence token: its format, its writer for platforms, and its strict reader for verifiers.

A token is a JWT of ``odp.crypto.jwt``, under the chain of the key that signed it. Its claims are those of a
confidential VM's attestation token, plus the enclave's two public keys. The keys are bound by ``report_data``, the 64
bytes that real hardware signs for its guest::

    SHA-512("odp/v1/report" || SHA-256(nonce) || hpke_key || signing_key || SHA-256(policy))

Reading decides nothing about trust: ``odp.trust.enclave.verifier`` does.

Source: RFC 9711 (claims), RFC 9334 (terms).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from odp.crypto import domains, jwt
from odp.crypto.public_keys import KEY_BYTES, require_ed25519, require_x25519
from odp.errors import AttestationError, ConfigurationError
from odp.trust.enclave.registers import NAMES, REGISTER_BYTES

AUDIENCE = "odp"
PROFILE = "urn:odp:evidence:v1"
EMULATED_ISSUER = "urn:odp:emulated-platform"
EMULATED_HARDWARE = "ODP-EMULATED"
DEBUG_DISABLED = "disabled-since-boot"
DEBUG_ENABLED = "enabled"

REPORT_DATA_BYTES = 64
NONCE_BYTES = range(16, 65)


class Reason(enum.StrEnum):
    """Why evidence was refused: a closed set, one member per check. Members equal their strings."""

    MALFORMED = "malformed"
    WRONG_ROOT = "wrong_root"
    CHAIN_INVALID = "chain_invalid"
    CHAIN_EXPIRED = "chain_expired"
    BAD_SIGNATURE = "bad_signature"
    WRONG_NONCE = "wrong_nonce"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    DEBUG_ENABLED = "debug_enabled"
    EMULATED_NOT_ALLOWED = "emulated_not_allowed"
    WRONG_IMAGE = "wrong_image"
    WRONG_POLICY = "wrong_policy"
    WRONG_ROLE = "wrong_role"
    KEY_BINDING = "key_binding"
    REVOKED = "revoked"
    TCB_OUTDATED = "tcb_outdated"
    IMAGE_WITHDRAWN = "image_withdrawn"
    IMAGE_NOT_VALID = "image_not_valid"
    EVENT_LOG = "event_log"
    UNRESTRICTED = "unrestricted"
    TEST_NOISE_NOT_ALLOWED = "test_noise_not_allowed"
    WRONG_CHARTER = "wrong_charter"
    WRONG_LEDGER = "wrong_ledger"
    WRONG_ROUND_KEY = "wrong_round_key"


def report_data(*, nonce: bytes, hpke_key: bytes, signing_key: bytes, policy: bytes) -> bytes:
    """The 64 bytes that tie both public keys and the policy to the caller's nonce (formula: module docstring)."""
    policy_sha256 = hashlib.sha256(policy).digest()
    return hashlib.sha512(
        domains.REPORT + hashlib.sha256(nonce).digest() + hpke_key + signing_key + policy_sha256
    ).digest()


def malformed(message: str) -> AttestationError:
    """The error for evidence that is not of the expected form."""
    return AttestationError(Reason.MALFORMED, message)


@contextlib.contextmanager
def _as_evidence() -> Iterator[None]:
    try:
        yield
    except jwt.Malformed as error:
        raise malformed(str(error)) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claims:
    """The platform's statements about one enclave; public.

    Attributes:
        issuer: who wrote the token.
        issued, expires: whole seconds since the epoch.
        nonce: the caller's, 16 to 64 bytes.
        debug_status: ``"disabled-since-boot"``, or anything else: its memory may have been read.
        hardware_model: ``"ODP-EMULATED"`` for the emulation.
        software_name: ``"odp-<role>"``.
        emulated: True: protocol only, no protection by hardware.
        image_digest: ``"sha384:<hex>"`` of the enclave's code.
        registers: runtime registers, 48 bytes by name; see ``odp.trust.enclave.registers``.
        report_data: 64 bytes, see ``report_data``.
        hpke_key, signing_key: 32 bytes each.
    """

    issuer: str
    issued: int
    expires: int
    nonce: bytes
    debug_status: str
    hardware_model: str
    software_name: str
    emulated: bool
    image_digest: str
    registers: Mapping[str, bytes]
    report_data: bytes
    hpke_key: bytes
    signing_key: bytes

    def to_json(self) -> dict[str, object]:
        """The JWT's claims set."""
        return {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "iat": self.issued,
            "exp": self.expires,
            "eat_nonce": jwt.base64url(self.nonce),
            "eat_profile": PROFILE,
            "dbgstat": self.debug_status,
            "hwmodel": self.hardware_model,
            "swname": self.software_name,
            "emulated": self.emulated,
            "submods": {"container": {"image_digest": self.image_digest}},
            "registers": {name: jwt.base64url(value) for name, value in self.registers.items()},
            "report_data": jwt.base64url(self.report_data),
            "hpke_key": jwt.base64url(self.hpke_key),
            "signing_key": jwt.base64url(self.signing_key),
        }

    @classmethod
    @_as_evidence()
    def from_json(cls, values: dict[str, Any]) -> Claims:
        """The claims of a decoded token. Unknown claims are ignored, as RFC 7519 requires.

        Raises:
            AttestationError: ``malformed``, where a claim is missing, of another type, too long or out of range.
        """
        for name, expected in (("aud", AUDIENCE), ("eat_profile", PROFILE)):
            if jwt.text_claim(values, name) != expected:
                raise malformed(f"claim {name} is not {expected!r}")
        container = jwt.object_claim(jwt.object_claim(values, "submods"), "container")
        registers = jwt.object_claim(values, "registers")
        if set(registers) != set(NAMES):
            raise malformed(f"claim registers does not hold exactly {', '.join(NAMES)}")
        claims = cls(
            issuer=jwt.text_claim(values, "iss"),
            issued=jwt.time_claim(values, "iat"),
            expires=jwt.time_claim(values, "exp"),
            nonce=jwt.bytes_claim(values, "eat_nonce", NONCE_BYTES),
            debug_status=jwt.text_claim(values, "dbgstat"),
            hardware_model=jwt.text_claim(values, "hwmodel"),
            software_name=jwt.text_claim(values, "swname"),
            emulated=jwt.truth_claim(values, "emulated"),
            image_digest=jwt.text_claim(container, "image_digest"),
            registers={
                name: jwt.bytes_claim(registers, name, range(REGISTER_BYTES, REGISTER_BYTES + 1)) for name in NAMES
            },
            report_data=jwt.bytes_claim(values, "report_data", range(REPORT_DATA_BYTES, REPORT_DATA_BYTES + 1)),
            hpke_key=_key(values, "hpke_key", require_x25519),
            signing_key=_key(values, "signing_key", require_ed25519),
        )
        if claims.expires <= claims.issued:
            raise malformed("claim exp is not after claim iat")
        return claims


def write_token(claims: Claims, *, chain: Sequence[bytes], key: ec.EllipticCurvePrivateKey) -> str:
    """Signs ``claims`` with the P-384 key that ``chain[0]`` (DER certificates) certifies."""
    return jwt.write_token(claims.to_json(), chain=chain, key=key, algorithm=jwt.ES384)


@_as_evidence()
def read_token(token: str) -> jwt.Token:
    """Takes a token apart, strictly; nothing in it is verified.

    Raises:
        AttestationError: ``malformed``.
    """
    return jwt.read_token(token, jwt.ES384)


def _key(values: dict[str, Any], name: str, require: Callable[..., None]) -> bytes:
    key = jwt.bytes_claim(values, name, range(KEY_BYTES, KEY_BYTES + 1))
    try:
        require(key, name=f"claim {name}")
    except ConfigurationError as error:
        raise malformed(str(error)) from None
    return key
