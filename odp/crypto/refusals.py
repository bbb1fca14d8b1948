"""What an enclave signs of contributions that never count, for enclave, host and device.

Of a round that is closed, the beginning of the ciphertext is enough: its first 32 bytes are a public key that the
device drew for it alone. So a late device need not upload what would be refused.

An opening of a round that never had a release, and never will, is named by its public key, which the enclave drew for
it alone. So the statement of one opening says nothing of another one of the same round, and stays true whatever becomes
of the round.
"""

from __future__ import annotations

import hashlib

from odp.crypto import domains
from odp.crypto.signing import SignatureError, verify
from odp.errors import Refusal
from odp.v1 import common_pb2

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


#: Statements that come with one key of a round: of all rounds that a population may have open, over sixteen hand-overs.
MOST_VOIDED = 256


def void_holds(
    voided: common_pb2.VoidedKey, *, signing_key: bytes, task_sha256: bytes, round: int, hpke_key: bytes
) -> bool:
    """Whether the enclave of ``signing_key`` signed that the opening of a round under ``hpke_key`` is void.

    Args:
        voided: as received.
        signing_key: 32 bytes, of the verified evidence.
        task_sha256: 32 bytes.
        round: 0 .. 2^32 - 1.
        hpke_key: 32 bytes, to which the device sealed its contribution.
    """
    if voided.hpke_key != hpke_key:
        return False
    try:
        verify(signing_key, voided.signature, domains.VOIDED_KEY, domains.voided_key(task_sha256, round, hpke_key))
    except SignatureError:
        return False
    return True
