"""The identity of a refused contribution in the enclave's signature, for enclave, host and device.

Of a round that is closed, the beginning of the ciphertext is enough: its first 32 bytes are a public key that the
device drew for it alone. So a late device need not upload what would be refused.
"""

from __future__ import annotations

import hashlib

from odp.crypto import domains
from odp.crypto.signing import SignatureError, verify
from odp.errors import Refusal

#: Refusals of a round whose set is in force: they name a contribution by its beginning.
CLOSED = frozenset({Refusal.ROUND_CLOSED, Refusal.TASK_ABANDONED})
#: Length of that beginning.
KEY_BYTES = 80


def closed_digest(sealed: bytes) -> bytes:
    """SHA-256 of the beginning of a sealed contribution."""
    return hashlib.sha256(sealed[:KEY_BYTES]).digest()


def refusal_holds(
    signature: bytes, refusal: Refusal, *, signing_key: bytes, task_sha256: bytes, round: int, hpke_key: bytes,
    sealed: bytes, masked: bytes,
) -> bool:  # fmt: skip
    """Whether the enclave of ``signing_key`` signed that these bytes can never count in the round of ``hpke_key``.

    Args:
        signature: as received; empty where the enclave did not sign.
        refusal: the reason that came with it.
        signing_key: 32 bytes, of the verified evidence.
        task_sha256: 32 bytes.
        round: 0 .. 2^32 - 1.
        hpke_key: 32 bytes, to which ``sealed`` was sealed.
        sealed: the sealed contribution, as sent.
        masked: the masked vector that went with it; empty without one.
    """
    if refusal in CLOSED:
        digest, masked_sha256 = closed_digest(sealed), b""
    else:
        digest = hashlib.sha256(sealed).digest()
        masked_sha256 = hashlib.sha256(masked).digest() if masked else b""
    data = domains.refusal(task_sha256, round, refusal.value, hpke_key, digest, masked_sha256)
    try:
        verify(signing_key, signature, domains.REFUSAL, data)
    except SignatureError:
        return False
    return True
