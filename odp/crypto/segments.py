"""Encryption of large messages to an enclave's key: HPKE wraps a fresh key, segments of 1 MiB go under that key.

::

    sealed = HPKE(key)  ||  AES-256-GCM(segment 0)  ||  AES-256-GCM(segment 1)  || ..
             80 bytes       <= 1 MiB + 16 bytes each

A segment opens in its own place of its own message only: the key is used for one message, and the nonce and the
additional data name the index and whether it is the last. So a message that is cut, reordered, extended or mixed with
another one does not open, and the length of the plaintext decides the length of the message.

    >>> key = HpkeKey.generate()
    >>> sealed = seal_segments(key.public, b"ratings", info=b"round 1")
    >>> bytes(open_segments(key, sealed, info=b"round 1"))
    b'ratings'

Sources: RFC 9180 (key), NIST SP 800-38D (segments), Hoang et al. 2015, "Online authenticated-encryption and its
nonce-reuse misuse-resistance" (the STREAM construction: index and last-segment flag).
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from odp.crypto import hpke
from odp.crypto.domains import segment_aad
from odp.crypto.hpke import DecryptionError, HpkeKey
from odp.errors import ConfigurationError

SEGMENT_BYTES = 2**20

_KEY_BYTES = 32
_WRAPPED_BYTES = _KEY_BYTES + hpke.OVERHEAD
_TAG_BYTES = 16


def is_large(payload_bytes: int) -> bool:
    """Whether a contribution with a payload of this length is sealed in segments, and not as one HPKE message."""
    return payload_bytes > SEGMENT_BYTES


def sealed_bytes(plaintext_bytes: int) -> int:
    """Length of a sealed message, for a plaintext of at least one byte."""
    return _WRAPPED_BYTES + plaintext_bytes + _TAG_BYTES * _segments(plaintext_bytes)


def seal_segments(public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Encrypts ``plaintext``, at least one byte, to the owner of ``public``.

    Raises:
        ConfigurationError: ``plaintext`` is empty, or ``public`` is no usable key (see ``odp.crypto.hpke.seal``).
    """
    if not plaintext:
        raise ConfigurationError("Expected a plaintext of at least one byte")
    key = os.urandom(_KEY_BYTES)
    wrapped = hpke.seal(public, key, info)
    cipher, source = AESGCM(key), memoryview(plaintext)
    count = _segments(len(plaintext))
    sealed = bytearray(sealed_bytes(len(plaintext)))
    sealed[:_WRAPPED_BYTES] = wrapped
    target = memoryview(sealed)[_WRAPPED_BYTES:]
    for index in range(count):
        segment = source[index * SEGMENT_BYTES : (index + 1) * SEGMENT_BYTES]
        size = len(segment) + _TAG_BYTES
        aad = segment_aad(index, last=index == count - 1)
        cipher.encrypt_into(_nonce(index), segment, aad, target[:size])
        target = target[size:]
    return bytes(sealed)


def open_segments(key: HpkeKey, sealed: bytes, info: bytes) -> bytearray:
    """The plaintext of a message from ``seal_segments`` with ``info``.

    Raises:
        DecryptionError: for every kind of failure alike; nothing of the plaintext is given then.
    """
    body = memoryview(sealed)[_WRAPPED_BYTES:]
    count = -(-len(body) // (SEGMENT_BYTES + _TAG_BYTES))
    size = len(body) - count * _TAG_BYTES
    if size <= 0 or _segments(size) != count:
        raise DecryptionError
    content_key = key.open(bytes(sealed[:_WRAPPED_BYTES]), info)
    if len(content_key) != _KEY_BYTES:
        raise DecryptionError
    cipher, plaintext = AESGCM(content_key), bytearray(size)
    target = memoryview(plaintext)
    for index in range(count):
        segment = body[: SEGMENT_BYTES + _TAG_BYTES]
        try:
            cipher.decrypt_into(
                _nonce(index), segment, segment_aad(index, last=index == count - 1), target[: len(segment) - _TAG_BYTES]
            )
        except (InvalidTag, ValueError):
            raise DecryptionError from None
        body, target = body[len(segment) :], target[len(segment) - _TAG_BYTES :]
    return plaintext


def seal_segment(key: bytes, segment: bytes | memoryview, index: int, *, last: bool) -> bytes:
    """Segment ``index`` under ``key``: 32 random bytes, used for the segments of one message and for nothing else."""
    return AESGCM(key).encrypt(_nonce(index), segment, segment_aad(index, last=last))


def open_segment(key: bytes, sealed: bytes, index: int, *, last: bool) -> bytes:
    """The inverse of ``seal_segment``. Raises DecryptionError."""
    try:
        return AESGCM(key).decrypt(_nonce(index), sealed, segment_aad(index, last=last))
    except (InvalidTag, ValueError):
        raise DecryptionError from None


def _segments(plaintext_bytes: int) -> int:
    return -(-plaintext_bytes // SEGMENT_BYTES)


def _nonce(index: int) -> bytes:
    # The key is fresh, so its nonces only have to differ from each other.
    return index.to_bytes(12, "big")
