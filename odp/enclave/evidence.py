"""The evidence token: its format, how a platform writes it, and how a verifier reads it strictly.

A token is a JWT in compact form, signed with ES384. Its header holds exactly ``alg``, ``typ`` and ``x5c``, the chain of
the key that signed it. Its claims are those of a confidential VM's attestation token, plus the enclave's two public
keys. The keys are bound by ``report_data``, the 64 bytes that real hardware signs for its guest::

    SHA-512("odp/v1/report" || SHA-256(nonce) || hpke_key || signing_key || SHA-256(policy))

Reading decides nothing about trust: ``odp.enclave.verifier`` does.

Source: RFC 7515 (JWS), RFC 7518 section 3.4 (ES384), RFC 9711 (claims), RFC 9334 (terms).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from odp.crypto import domains
from odp.crypto.public_keys import KEY_BYTES, require_ed25519, require_x25519
from odp.enclave.registers import NAMES, REGISTER_BYTES
from odp.errors import AttestationError, ConfigurationError

ALGORITHM = "ES384"
AUDIENCE = "odp"
PROFILE = "urn:odp:evidence:v1"
EMULATED_ISSUER = "urn:odp:emulated-platform"
EMULATED_HARDWARE = "ODP-EMULATED"
DEBUG_DISABLED = "disabled-since-boot"
DEBUG_ENABLED = "enabled"

REPORT_DATA_BYTES = 64
NONCE_BYTES = range(16, 65)

_SIGNATURE_BYTES = 96
_LARGEST_TOKEN = 16 * 1024
_LARGEST_CERTIFICATE = 4 * 1024
_CHAIN_LENGTHS = (2, 3)
_LARGEST_TEXT = 256
_LARGEST_TIME = 2**40
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


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


def report_data(*, nonce: bytes, hpke_key: bytes, signing_key: bytes, policy: bytes) -> bytes:
    """The 64 bytes that tie both public keys and the policy to the caller's nonce (formula: module docstring)."""
    policy_sha256 = hashlib.sha256(policy).digest()
    return hashlib.sha512(
        domains.REPORT + hashlib.sha256(nonce).digest() + hpke_key + signing_key + policy_sha256
    ).digest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claims:
    """What the platform says about one enclave; public.

    Attributes:
        issuer: who wrote the token.
        issued, expires: whole seconds since the epoch.
        nonce: the caller's, 16 to 64 bytes.
        debug_status: ``"disabled-since-boot"``, or anything else: its memory may have been read.
        hardware_model: ``"ODP-EMULATED"`` for the emulation.
        software_name: ``"odp-<role>"``.
        emulated: True: protocol only, no protection by hardware.
        image_digest: ``"sha384:<hex>"`` of the enclave's code.
        registers: runtime registers, 48 bytes by name; see ``odp.enclave.registers``.
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
            "eat_nonce": _base64url(self.nonce),
            "eat_profile": PROFILE,
            "dbgstat": self.debug_status,
            "hwmodel": self.hardware_model,
            "swname": self.software_name,
            "emulated": self.emulated,
            "submods": {"container": {"image_digest": self.image_digest}},
            "registers": {name: _base64url(value) for name, value in self.registers.items()},
            "report_data": _base64url(self.report_data),
            "hpke_key": _base64url(self.hpke_key),
            "signing_key": _base64url(self.signing_key),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Claims:
        """The claims of a decoded token. Claims that ODP does not know are ignored, as RFC 7519 asks.

        Raises:
            AttestationError: ``malformed``, where a claim is missing, of another type, too long or out of range.
        """
        for name, expected in (("aud", AUDIENCE), ("eat_profile", PROFILE)):
            if _text(values, name) != expected:
                raise malformed(f"claim {name} is not {expected!r}")
        container = _object(_object(values, "submods"), "container")
        registers = _object(values, "registers")
        if set(registers) != set(NAMES):
            raise malformed(f"claim registers does not hold exactly {', '.join(NAMES)}")
        claims = cls(
            issuer=_text(values, "iss"),
            issued=_time(values, "iat"),
            expires=_time(values, "exp"),
            nonce=_bytes(values, "eat_nonce", NONCE_BYTES),
            debug_status=_text(values, "dbgstat"),
            hardware_model=_text(values, "hwmodel"),
            software_name=_text(values, "swname"),
            emulated=_truth(values, "emulated"),
            image_digest=_text(container, "image_digest"),
            registers={name: _bytes(registers, name, range(REGISTER_BYTES, REGISTER_BYTES + 1)) for name in NAMES},
            report_data=_bytes(values, "report_data", range(REPORT_DATA_BYTES, REPORT_DATA_BYTES + 1)),
            hpke_key=_key(values, "hpke_key", require_x25519),
            signing_key=_key(values, "signing_key", require_ed25519),
        )
        if claims.expires <= claims.issued:
            raise malformed("claim exp is not after claim iat")
        return claims


@dataclasses.dataclass(frozen=True)
class Token:
    """A token taken apart; nothing in it has been verified.

    Attributes:
        chain: DER certificates, the signing key's first; 2 or 3.
        claims: the claims set, as decoded JSON.
        signed: the bytes under the signature.
        signature: 96 bytes, r || s.
    """

    chain: tuple[bytes, ...]
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


def write_token(claims: Claims, *, chain: Sequence[bytes], key: ec.EllipticCurvePrivateKey) -> str:
    """Signs ``claims`` with the P-384 key that ``chain[0]`` (DER certificates) certifies."""
    header = {
        "alg": ALGORITHM,
        "typ": "JWT",
        "x5c": [base64.b64encode(certificate).decode("ascii") for certificate in chain],
    }
    signed = ".".join(
        _base64url(json.dumps(part, separators=(",", ":")).encode()) for part in (header, claims.to_json())
    )
    r, s = utils.decode_dss_signature(key.sign(signed.encode("ascii"), ec.ECDSA(hashes.SHA384())))
    return f"{signed}.{_base64url(r.to_bytes(48, 'big') + s.to_bytes(48, 'big'))}"


def read_token(token: str) -> Token:
    """Takes a token apart, strictly: size limits, one spelling per byte string, no repeated keys, no unknown header.

    Raises:
        AttestationError: ``malformed``.
    """
    if len(token) > _LARGEST_TOKEN:
        raise malformed(f"the token is longer than {_LARGEST_TOKEN} characters")
    parts = token.split(".")
    if len(parts) != 3:
        raise malformed(f"the token has {len(parts)} parts where a JWT has 3")
    header, claims = (_json_object(_unbase64url(part, "the token"), "the token") for part in parts[:2])
    if set(header) != {"alg", "typ", "x5c"}:
        raise malformed("the token's header does not hold exactly alg, typ and x5c")
    if header["alg"] != ALGORITHM or header["typ"] != "JWT":
        raise malformed(f"the token's header does not say alg {ALGORITHM} and typ JWT")
    signature = _unbase64url(parts[2], "the token's signature")
    if len(signature) != _SIGNATURE_BYTES:
        raise malformed(f"the token's signature is {len(signature)} bytes, not {_SIGNATURE_BYTES}")
    return Token(_certificates(header["x5c"]), claims, f"{parts[0]}.{parts[1]}".encode("ascii"), signature)


def signature_is_valid(token: Token, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether ``token`` was signed by the P-384 key ``key``."""
    r, s = (int.from_bytes(half, "big") for half in (token.signature[:48], token.signature[48:]))
    try:
        key.verify(utils.encode_dss_signature(r, s), token.signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def malformed(message: str) -> AttestationError:
    """The error for evidence that is not of the expected form."""
    return AttestationError(Reason.MALFORMED, message)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _unbase64url(text: str, where: str) -> bytes:
    if not _BASE64URL.fullmatch(text):
        raise malformed(f"{where} is not base64url without padding")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise malformed(f"{where} is not base64url without padding") from None
    # Unused bits of the last character would give one byte string two spellings.
    if _base64url(data) != text:
        raise malformed(f"{where} is not canonical base64url")
    return data


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_single_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise malformed(f"{where} is not JSON with single keys") from None
    if not isinstance(value, dict):
        raise malformed(f"{where} is not a JSON object")
    return value


def _single_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("repeated key")
    return values


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _certificates(value: object) -> tuple[bytes, ...]:
    if not isinstance(value, list) or len(value) not in _CHAIN_LENGTHS:
        raise malformed("the token's x5c is not a list of 2 or 3 certificates")
    chain = []
    for text in value:
        if not isinstance(text, str):
            raise malformed("the token's x5c holds something that is not a string")
        try:
            certificate = base64.b64decode(text, validate=True)
        except ValueError:
            raise malformed("the token's x5c is not base64") from None
        if not 0 < len(certificate) <= _LARGEST_CERTIFICATE:
            raise malformed(f"a certificate of the token's x5c is empty or above {_LARGEST_CERTIFICATE} bytes")
        chain.append(certificate)
    return tuple(chain)


def _claim(values: dict[str, Any], name: str, accepts: Callable[[Any], bool], what: str) -> Any:
    if name not in values:
        raise malformed(f"claim {name} is missing")
    if not accepts(values[name]):
        raise malformed(f"claim {name} is not {what}")
    return values[name]


def _text(values: dict[str, Any], name: str) -> str:
    def accepts(value: Any) -> bool:
        return isinstance(value, str) and 0 < len(value) <= _LARGEST_TEXT and value.isascii() and value.isprintable()

    return str(_claim(values, name, accepts, f"1 to {_LARGEST_TEXT} printable ASCII characters"))


def _time(values: dict[str, Any], name: str) -> int:
    def accepts(value: Any) -> bool:
        return type(value) is int and 0 <= value <= _LARGEST_TIME

    return int(_claim(values, name, accepts, "a time in whole seconds"))


def _truth(values: dict[str, Any], name: str) -> bool:
    return bool(_claim(values, name, lambda value: isinstance(value, bool), "true or false"))


def _object(values: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(_claim(values, name, lambda value: isinstance(value, dict), "an object"))


def _key(values: dict[str, Any], name: str, require: Callable[..., None]) -> bytes:
    key = _bytes(values, name, range(KEY_BYTES, KEY_BYTES + 1))
    try:
        require(key, name=f"claim {name}")
    except ConfigurationError as error:
        raise malformed(str(error)) from None
    return key


def _bytes(values: dict[str, Any], name: str, lengths: range) -> bytes:
    data = _unbase64url(_text(values, name), f"claim {name}")
    if len(data) not in lengths:
        raise malformed(f"claim {name} is {len(data)} bytes long")
    return data
