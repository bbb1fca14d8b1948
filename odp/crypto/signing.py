"""Ed25519 signatures over ``domain || data``.

The domain is one of ``odp.crypto.domains.SIGNED``. That set is closed and prefix-free, so a signature made for one
purpose never verifies for another, and both sides refuse a domain that is not in it.

    >>> key = SigningKey.generate()
    >>> verify(key.public, key.sign(domains.TASK, b"definition"), domains.TASK, b"definition")

Source: RFC 8032.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from odp.crypto import domains
from odp.crypto.public_keys import KEY_BYTES, require_ed25519
from odp.errors import ConfigurationError, OdpError

SIGNATURE_BYTES = 64


class SignatureError(OdpError):
    """A signature does not belong to this key, domain and data; nothing that it covers may be used."""


class SigningKey:
    """Private Ed25519 key. Its ``repr`` shows nothing of it."""

    __slots__ = ("_key", "_public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, data: bytes) -> SigningKey:
        """The key that ``to_bytes`` wrote (32 bytes).

        Raises:
            ConfigurationError: ``data`` is not 32 bytes.
        """
        if len(data) != KEY_BYTES:
            raise ConfigurationError(f"Expected an Ed25519 private key of {KEY_BYTES} bytes, got {len(data)}")
        return cls(Ed25519PrivateKey.from_private_bytes(data))

    def to_bytes(self) -> bytes:
        """The private key, 32 bytes: seal it, or keep it in a file that only its owner reads."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._public

    def sign(self, domain: bytes, data: bytes) -> bytes:
        """Signature (64 bytes) over ``domain || data``.

        Raises:
            ConfigurationError: ``domain`` is not one of ``domains.SIGNED``.
        """
        return self._key.sign(_checked_domain(domain) + data)


def verify(public: bytes, signature: bytes, domain: bytes, data: bytes) -> None:
    """Returns if ``signature`` is by ``public`` over ``domain || data``.

    Args:
        public: the signer's public key, 32 bytes.
        signature: 64 bytes.
        domain: one of ``domains.SIGNED``.
        data: the signed bytes, as received.

    Raises:
        SignatureError: it is not, the signature has a wrong length, or the key is none (``public_keys``).
        ConfigurationError: ``domain`` is not one of ``domains.SIGNED``.
    """
    prefix = _checked_domain(domain)
    try:
        require_ed25519(public, name=f"the signer's key for {prefix.decode()}")
    except ConfigurationError as error:
        raise SignatureError(str(error)) from None
    if len(signature) != SIGNATURE_BYTES:
        raise SignatureError(f"the signature for {prefix.decode()} is {len(signature)} bytes, not {SIGNATURE_BYTES}")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, prefix + data)
    except (InvalidSignature, ValueError):
        raise SignatureError(f"the signature for {prefix.decode()} does not match its key and content") from None


def _checked_domain(domain: bytes) -> bytes:
    if domain not in domains.SIGNED:
        valid = ", ".join(sorted(name.decode() for name in domains.SIGNED))
        raise ConfigurationError(f"Expected domain={domain!r} to be one of {valid}")
    return domain
