"""Sealed storage: only the same code on the same chip can read the bytes back.

The key comes from the platform (``sealing_key``), which derives it from the chip's secret and from the measurement of
the enclave. ``context`` says what the bytes are (task, kind, counter value): sealed bytes put in another place do not
open. Sealing does not notice that an *older* state came back; for that, put the value of a monotonic counter into the
context.

    >>> key = bytes(32)
    >>> unseal(key, seal(key, b"ledger", context=b"counter 7"), context=b"counter 7")
    b'ledger'

Source: AES-256-GCM, NIST SP 800-38D; random nonces, so at most 2^32 messages under one key.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from odp.crypto.hpke import DecryptionError
from odp.errors import ConfigurationError

KEY_BYTES = 32

_NONCE_BYTES = 12
_TAG_BYTES = 16
# 12 bytes of nonce and 16 of authentication tag.
OVERHEAD = _NONCE_BYTES + _TAG_BYTES


def seal(key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """``nonce || ciphertext``, ``OVERHEAD`` bytes longer than ``plaintext``.

    Args:
        key: 32 bytes, from the platform's ``sealing_key``.
        plaintext: at most 2^31 - 1 bytes.
        context: what the bytes are; authenticated, not stored.

    Raises:
        ConfigurationError: the key is not 32 bytes.
    """
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + _cipher(key).encrypt(nonce, plaintext, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The plaintext of ``sealed``.

    Raises:
        DecryptionError: wrong key, wrong context, or changed bytes; it does not say which.
        ConfigurationError: the key is not 32 bytes.
    """
    cipher = _cipher(key)
    if len(sealed) < OVERHEAD:
        raise DecryptionError
    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
    except InvalidTag:
        raise DecryptionError from None


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"Expected a sealing key of {KEY_BYTES} bytes, got {len(key)}")
    return AESGCM(key)
