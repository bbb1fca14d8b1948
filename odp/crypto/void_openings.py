"""The enclave's statement that an opening of a round never had a release, and never will, as devices read it.

An opening is named by its public key, which the enclave drew for it alone. So the statement of one opening says nothing
of another one of the same round, and stays true whatever becomes of the round.
"""

from __future__ import annotations

from odp.crypto import domains
from odp.crypto.signing import SignatureError, verify
from odp.v1 import common_pb2

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
