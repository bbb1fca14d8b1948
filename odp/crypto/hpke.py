"""Encryption to an enclave's key: HPKE in base mode, one message per key encapsulation.

The suite is fixed: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM. A sealed message is ``enc || ciphertext``,
48 bytes longer than its plaintext. There is no additional data: whatever a message belongs to (task, round, model) goes
into ``info``, and a message opens under exactly the ``info`` it was sealed with.

    >>> key = HpkeKey.generate()
    >>> key.open(seal(key.public, b"ratings", info=b"round 1"), info=b"round 1")
    b'ratings'

Source: RFC 9180.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from odp.crypto.public_keys import KEY_BYTES, require_x25519
from odp.errors import ConfigurationError, OdpError

# 32 bytes of encapsulated key and 16 of authentication tag.
OVERHEAD = 48

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


class DecryptionError(OdpError):
    """A sealed message did not open; it never says why, because the reason would help only an attacker."""

    def __init__(self) -> None:
        super().__init__("the sealed message cannot be opened: wrong key, wrong context, or changed bytes")


class HpkeKey:
    """Private key that opens what was sealed to its public half. Its ``repr`` shows nothing of it."""

    __slots__ = ("_key", "_public")

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self._public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> HpkeKey:
        """A new key from the operating system's randomness."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, data: bytes) -> HpkeKey:
        """The key that ``to_bytes`` wrote (32 bytes).

        Raises:
            ConfigurationError: ``data`` is not 32 bytes.
        """
        if len(data) != KEY_BYTES:
            raise ConfigurationError(f"Expected an HPKE private key of {KEY_BYTES} bytes, got {len(data)}")
        return cls(X25519PrivateKey.from_private_bytes(data))

    def to_bytes(self) -> bytes:
        """The private key, 32 bytes: seal it before it is stored."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._public

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """The plaintext of ``sealed``.

        Args:
            sealed: ``enc || ciphertext``, as ``seal`` gives it.
            info: the context under which it was sealed.

        Raises:
            DecryptionError: for every kind of failure alike.
        """
        if len(sealed) < OVERHEAD:
            raise DecryptionError
        try:
            return _SUITE.decrypt(sealed, self._key, info=info)
        except (InvalidTag, ValueError):
            # ValueError: an encapsulated key of low order, which would give an all-zero shared secret.
            raise DecryptionError from None


def seal(public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Encrypts ``plaintext`` to the owner of ``public``: ``enc || ciphertext``, ``OVERHEAD`` bytes longer.

    Args:
        public: the receiver's public key, 32 bytes.
        plaintext: any length; the length is visible, so pad what must not be told apart.
        info: context that the receiver has to name in order to open.

    Raises:
        ConfigurationError: ``public`` is no key (``public_keys``), such as a point that anybody could decrypt for.
    """
    require_x25519(public, name="the HPKE public key")
    return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(public), info=info)
