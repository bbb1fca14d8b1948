"""Blind RSA signatures: the signer does not see the message, and cannot recognise the signature later.

The variant is RSABSSA-SHA384-PSS-Deterministic, that of publicly verifiable Privacy Pass tokens. A signature is an
ordinary RSA-PSS signature: whoever has the public key can verify it, with any library. The variant does not randomise
the message, so the message itself has to be unguessable: sign hashes of secrets or of fresh keys.

Guarantee: under one key, honest or not, every request that led to a signature fits every signature, under equally many
blinding factors. So a signer learns nothing about which signature came from which request, however much it computes, as
long as the factor is random. Only the choice between several keys could mark a request: everybody has to see one key.

    >>> from odp.crypto.blind_signer import BlindSigner
    >>> signer = BlindSigner.generate()
    >>> blinding = blind(signer.public, b"unguessable")
    >>> signature = finalize(signer.public, blinding, signer.sign(blinding.blinded_message))
    >>> signer.public.verify(b"unguessable", signature)

Source: RFC 9474 (blind RSA), RFC 8017 section 9.1.1 (EMSA-PSS), RFC 9578 section 6 (its use for tokens).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError

EXPONENT = 65537
SALT_BYTES = 48
#: Key sizes that are read; the first one is made.
MODULUS_BITS = (2048, 3072, 4096)

_HASH_BYTES = 48
_PADDING = padding.PSS(padding.MGF1(hashes.SHA384()), SALT_BYTES)
_HASH = hashes.SHA384()
# Each try succeeds with a probability of more than one half, so that an honest key runs out of tries once in 2^256.
_MOST_TRIES = 256

RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True)
class PublicKey:
    """An RSA modulus; the exponent is always 65537.

    Raises:
        ConfigurationError: the modulus is even, or not of one of ``MODULUS_BITS``.
    """

    modulus: int

    def __post_init__(self) -> None:
        if self.modulus < 0 or self.modulus.bit_length() not in MODULUS_BITS or not self.modulus % 2:
            sizes = ", ".join(map(str, MODULUS_BITS))
            raise ConfigurationError(f"Expected an odd RSA modulus of {sizes} bits, got {self.modulus.bit_length()}")

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKey:
        """The key from ``to_bytes``. Raises ConfigurationError if ``data`` is none."""
        if len(data) > max(MODULUS_BITS) // 8:
            raise ConfigurationError(f"Expected an RSA modulus of at most {max(MODULUS_BITS) // 8} bytes")
        key = cls(int.from_bytes(data, "big"))
        if key.size != len(data):
            raise ConfigurationError("Expected an RSA modulus without leading zeros")
        return key

    def to_bytes(self) -> bytes:
        """The modulus, big-endian, ``size`` bytes."""
        return self.modulus.to_bytes(self.size, "big")

    @property
    def size(self) -> int:
        """Bytes of the modulus, of a blinded message and of a signature."""
        return self.modulus.bit_length() // 8

    def check_blinded(self, blinded_message: bytes) -> None:
        """Raises ConfigurationError unless ``blinded_message`` has ``size`` bytes and is below the modulus."""
        if len(blinded_message) != self.size or int.from_bytes(blinded_message, "big") >= self.modulus:
            raise ConfigurationError(f"Expected a blinded message of {self.size} bytes, below the modulus of its key")

    def verify(self, message: bytes, signature: bytes) -> None:
        """Returns if ``signature`` is one over ``message`` under this key. Raises SignatureError otherwise."""
        try:
            self._openssl.verify(signature, message, _PADDING, _HASH)
        except (InvalidSignature, ValueError):
            raise SignatureError("the blind signature does not match its key and message") from None

    @functools.cached_property
    def _openssl(self) -> rsa.RSAPublicKey:
        return rsa.RSAPublicNumbers(EXPONENT, self.modulus).public_key()


@dataclass(frozen=True)
class Blinding:
    """A blinded message: ``blinded_message`` goes to the signer, the rest stays. Its ``repr`` shows no secret."""

    blinded_message: bytes
    message: bytes = field(repr=False)
    inverse: int = field(repr=False)


def blind(key: PublicKey, message: bytes, random_bytes: RandomBytes = os.urandom) -> Blinding:
    """Blinds ``message`` for the holder of ``key``.

    Args:
        key: whose signature is wanted.
        message: any bytes that nobody can guess.
        random_bytes: the source of the salt (48 bytes) and of the blinding factor: secret, and of one message alone.

    Raises:
        ConfigurationError: the modulus shares a factor with what is signed, which no honest one does.
    """
    modulus = key.modulus
    encoded = int.from_bytes(_pss_encoded(message, random_bytes(SALT_BYTES), key.size), "big")
    for _ in range(_MOST_TRIES):
        factor = int.from_bytes(random_bytes(key.size), "big")
        if not 0 < factor < modulus:
            continue
        try:
            # One inversion, the costly step, serves for both: the product is a unit where its factors are.
            inverse = encoded * pow(encoded * factor, -1, modulus) % modulus
        except ValueError:
            continue
        blinded = encoded * pow(factor, EXPONENT, modulus) % modulus
        return Blinding(blinded.to_bytes(key.size, "big"), message, inverse)
    raise ConfigurationError("the RSA modulus of the signer has small factors: an honest signer has no such key")


def finalize(key: PublicKey, blinding: Blinding, blind_signature: bytes) -> bytes:
    """The signature over the message of ``blinding``, ``key.size`` bytes, verified.

    Raises:
        SignatureError: ``blind_signature`` is not the holder of ``key``'s over the blinded message.
    """
    if len(blind_signature) != key.size:
        raise SignatureError(f"the blind signature is {len(blind_signature)} bytes, not {key.size}")
    unblinded = int.from_bytes(blind_signature, "big") * blinding.inverse % key.modulus
    signature = unblinded.to_bytes(key.size, "big")
    key.verify(blinding.message, signature)
    return signature


def _pss_encoded(message: bytes, salt: bytes, size: int) -> bytes:
    """EMSA-PSS with SHA-384 for a modulus of ``size`` bytes, a multiple of eight bits: one bit shorter than it."""
    digest = hashlib.sha384(bytes(8) + hashlib.sha384(message).digest() + salt).digest()
    block = bytes(size - SALT_BYTES - _HASH_BYTES - 2) + b"\x01" + salt
    masked = bytes(byte ^ other for byte, other in zip(block, _mgf1(digest, len(block)), strict=True))
    return bytes([masked[0] & 0x7F]) + masked[1:] + digest + b"\xbc"


def _mgf1(seed: bytes, length: int) -> bytes:
    blocks = (hashlib.sha384(seed + number.to_bytes(4, "big")).digest() for number in range(-(-length // _HASH_BYTES)))
    return b"".join(blocks)[:length]
