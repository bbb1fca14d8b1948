"""The key of one round for contributions, signed by the enclave whose evidence the device verified.

It comes with the assignment, from a server that nobody trusts. The enclave erases its private half with the round, so
what a host recorded stays closed, whatever leaks later. A device seals once for a key: where the round comes back
with another key, ``void_openings.py`` decides.
"""

from __future__ import annotations

from odp.crypto import domains
from odp.crypto.public_keys import require_x25519
from odp.crypto.signing import SignatureError, verify
from odp.errors import AttestationError, ConfigurationError
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.v1 import common_pb2


def require_round_key(
    signed: common_pb2.SignedRoundKey | None,
    enclave: VerifiedEnclave,
    *,
    task_sha256: bytes,
    round: int,
    model_sha256: bytes,
) -> bytes:
    """The key (32 bytes), which the aggregator's enclave signed for this task, round and model under its policy.

    Raises:
      AttestationError: it signed another one, or none came along.
    """
    if signed is None:
        raise AttestationError(Reason.WRONG_ROUND_KEY, "the server gave no key of the round")
    try:
        require_x25519(signed.hpke_key, name="the round's key")
        data = domains.round_key(task_sha256, round, model_sha256, enclave.policy.sha256, signed.hpke_key)
        verify(enclave.signing_key, signed.signature, domains.ROUND_KEY, data)
    except (ConfigurationError, SignatureError):
        raise AttestationError(
            Reason.WRONG_ROUND_KEY, f"the key of round {round} is not one that the aggregator's enclave signed for it"
        ) from None
    return signed.hpke_key
