"""JWTs in compact form, signed with ES256 or ES384 under an x5c chain: written, and read strictly.

Reading enforces one spelling per token: size limits, canonical base64url, single keys, no header but ``alg``, ``typ``
and ``x5c``. It decides nothing about trust.

Source: RFC 7515 (JWS), RFC 7518 section 3.4 (ECDSA), RFC 7519 (JWT).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A signature algorithm: its name, its curve and hash, and the bytes of half a signature."""

    name: str
    curve: type[ec.EllipticCurve]
    hash: type[hashes.HashAlgorithm]
    half: int

    def accepts(self, key: object) -> bool:
        """Whether ``key`` is a public key of this algorithm's curve."""
        return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, self.curve)


ES256 = Algorithm("ES256", ec.SECP256R1, hashes.SHA256, 32)
ES384 = Algorithm("ES384", ec.SECP384R1, hashes.SHA384, 48)

_LARGEST_TOKEN = 16 * 1024
_LARGEST_CERTIFICATE = 4 * 1024
_CHAIN_LENGTHS = (2, 3)
_LARGEST_TEXT = 256
_LARGEST_TIME = 2**40
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


class Malformed(ValueError):
    """A token, or a claim of one, is not of the expected form; the message is one line without the token's bytes."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A token taken apart; nothing in it has been verified.

    Attributes:
        chain: DER certificates, the signing key's first; 2 or 3.
        claims: the claims set, as decoded JSON.
        signed: the bytes under the signature.
        signature: r || s.
        algorithm: what the header names.
    """

    chain: tuple[bytes, ...]
    claims: dict[str, Any]
    signed: bytes
    signature: bytes
    algorithm: Algorithm


def write_token(
    claims: Mapping[str, object], *, chain: Sequence[bytes], key: ec.EllipticCurvePrivateKey, algorithm: Algorithm
) -> str:
    """Signs ``claims``, a JSON object, with the key that ``chain[0]`` (DER certificates) certifies."""
    header = {
        "alg": algorithm.name,
        "typ": "JWT",
        "x5c": [base64.b64encode(certificate).decode("ascii") for certificate in chain],
    }
    signed = ".".join(base64url(json.dumps(part, separators=(",", ":")).encode()) for part in (header, dict(claims)))
    r, s = utils.decode_dss_signature(key.sign(signed.encode("ascii"), ec.ECDSA(algorithm.hash())))
    return f"{signed}.{base64url(b''.join(half.to_bytes(algorithm.half, 'big') for half in (r, s)))}"


def read_token(token: str, algorithm: Algorithm) -> Token:
    """Takes a token apart, strictly: size limits, one spelling per byte string, no repeated keys, no unknown header.

    Raises:
        Malformed: it is no token of this algorithm.
    """
    if len(token) > _LARGEST_TOKEN:
        raise Malformed(f"the token is longer than {_LARGEST_TOKEN} characters")
    parts = token.split(".")
    if len(parts) != 3:
        raise Malformed(f"the token has {len(parts)} parts where a JWT has 3")
    header, claims = (_json_object(_unbase64url(part, "the token"), "the token") for part in parts[:2])
    if set(header) != {"alg", "typ", "x5c"}:
        raise Malformed("the token's header does not hold exactly alg, typ and x5c")
    if header["alg"] != algorithm.name or header["typ"] != "JWT":
        raise Malformed(f"the token's header does not say alg {algorithm.name} and typ JWT")
    signature = _unbase64url(parts[2], "the token's signature")
    if len(signature) != 2 * algorithm.half:
        raise Malformed(f"the token's signature is {len(signature)} bytes, not {2 * algorithm.half}")
    signed = f"{parts[0]}.{parts[1]}".encode("ascii")
    return Token(_certificates(header["x5c"]), claims, signed, signature, algorithm)


def signature_is_valid(token: Token, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether ``token`` was signed by ``key``, which is of its algorithm's curve."""
    half = token.algorithm.half
    r, s = (int.from_bytes(number, "big") for number in (token.signature[:half], token.signature[half:]))
    try:
        key.verify(utils.encode_dss_signature(r, s), token.signed, ec.ECDSA(token.algorithm.hash()))
    except InvalidSignature:
        return False
    return True


def base64url(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _unbase64url(text: str, where: str) -> bytes:
    if not _BASE64URL.fullmatch(text):
        raise Malformed(f"{where} is not base64url without padding")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise Malformed(f"{where} is not base64url without padding") from None
    # Unused bits of the last character would give one byte string two spellings.
    if base64url(data) != text:
        raise Malformed(f"{where} is not canonical base64url")
    return data


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_single_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed(f"{where} is not JSON with single keys") from None
    if not isinstance(value, dict):
        raise Malformed(f"{where} is not a JSON object")
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
        raise Malformed("the token's x5c is not a list of 2 or 3 certificates")
    chain = []
    for text in value:
        if not isinstance(text, str):
            raise Malformed("the token's x5c holds something that is not a string")
        try:
            certificate = base64.b64decode(text, validate=True)
        except ValueError:
            raise Malformed("the token's x5c is not base64") from None
        if not 0 < len(certificate) <= _LARGEST_CERTIFICATE:
            raise Malformed(f"a certificate of the token's x5c is empty or above {_LARGEST_CERTIFICATE} bytes")
        chain.append(certificate)
    return tuple(chain)


def _claim(values: dict[str, Any], name: str, accepts: Callable[[Any], bool], what: str) -> Any:
    if name not in values:
        raise Malformed(f"claim {name} is missing")
    if not accepts(values[name]):
        raise Malformed(f"claim {name} is not {what}")
    return values[name]


def text_claim(values: dict[str, Any], name: str) -> str:
    """A claim of 1 to 256 printable ASCII characters. Raises Malformed."""

    def accepts(value: Any) -> bool:
        return isinstance(value, str) and 0 < len(value) <= _LARGEST_TEXT and value.isascii() and value.isprintable()

    return str(_claim(values, name, accepts, f"1 to {_LARGEST_TEXT} printable ASCII characters"))


def time_claim(values: dict[str, Any], name: str) -> int:
    """A claim of whole seconds since the epoch. Raises Malformed."""

    def accepts(value: Any) -> bool:
        return type(value) is int and 0 <= value <= _LARGEST_TIME

    return int(_claim(values, name, accepts, "a time in whole seconds"))


def truth_claim(values: dict[str, Any], name: str) -> bool:
    """A claim that is true or false. Raises Malformed."""
    return bool(_claim(values, name, lambda value: isinstance(value, bool), "true or false"))


def object_claim(values: dict[str, Any], name: str) -> dict[str, Any]:
    """A claim that is a JSON object. Raises Malformed."""
    return dict(_claim(values, name, lambda value: isinstance(value, dict), "an object"))


def bytes_claim(values: dict[str, Any], name: str, lengths: range) -> bytes:
    """A claim of base64url bytes, of a length within ``lengths``. Raises Malformed."""
    data = _unbase64url(text_claim(values, name), f"claim {name}")
    if len(data) not in lengths:
        raise Malformed(f"claim {name} is {len(data)} bytes long")
    return data
