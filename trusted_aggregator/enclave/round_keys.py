"""The keys of rounds: each round has its own, and it is erased with the round.

A round's contributions are sealed to an HPKE key that is drawn with its opening. Its private half, the seed of its draw
and its noise are in records under a key of two parts: the enclave's sealing key, which can be derived for as long as
chip and code are the same, and a secret in an erasable slot of the platform. A task has one slot, since at most one of
its rounds is open or charged. It is erased when the round is released, void, given up, forgotten or ended: once that is
in force, and before its signature leaves or its end is acknowledged. A start erases what a death left of rounds that
are over, and so does the opening of the next round.

What stays possible: whoever copies the memory of a running enclave, or the slots of a chip, before that has the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.crypto import domains
from odp.trust.enclave import sealing
from odp.trust.enclave.identity import EnclaveIdentity
from odp.v1 import common_pb2
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.sealed_state import Sealer, VoidedKey


class RoundKeys:
    """Slots and signatures of one enclave's rounds."""

    def __init__(self, identity: EnclaveIdentity) -> None:
        self._identity = identity

    def new_sealer(self, task_sha256: bytes) -> Sealer:
        """A sealer for the records of a new round; the task's earlier rounds become unreadable for good.

        Raises StateError where the platform cannot store or erase.
        """
        return self._sealer(self._identity.guest.slots.create(task_sha256.hex()))

    def sealer(self, task_sha256: bytes) -> Sealer | None:
        """The sealer for the records of the task's round; None if its secret is erased."""
        secret = self._identity.guest.slots.read(task_sha256.hex())
        return None if secret is None else self._sealer(secret)

    def erase(self, tasks: Iterable[bytes]) -> None:
        """Erases the secrets for the records of these tasks' rounds. Idempotent. Raises StateError if that fails."""
        names = [task.hex() for task in tasks]
        if names:
            self._identity.guest.slots.erase(names)

    def signed(self, round: Round, voided: Sequence[VoidedKey] = ()) -> common_pb2.SignedRoundKey:
        """A round's signed public key: the same bytes at every call and after every restart.

        ``voided`` are openings of any rounds that never have a release, in force.
        """
        data = domains.round_key(
            round.task_sha256, round.number, round.model_sha256, self._identity.policy.sha256, round.public_key
        )
        sign = self._identity.signing.sign
        key = common_pb2.SignedRoundKey(hpke_key=round.public_key, signature=sign(domains.ROUND_KEY, data))
        for opening in voided:
            key.voided.add(hpke_key=opening.hpke_key, signature=sign(domains.VOIDED_KEY, domains.voided_key(*opening)))
        return key

    def _sealer(self, secret: bytes) -> Sealer:
        derived = HKDF(hashes.SHA384(), length=sealing.KEY_BYTES, salt=secret, info=domains.ROUND_SEALING)
        return Sealer(derived.derive(self._identity.sealing_key))
