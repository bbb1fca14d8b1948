"""The log as its host shows it to an enclave: one tree, with the endorsed enclaves and their endorsers in it.

An enclave has no network, and its host is the attacker. So the host hands in the leaf hashes of the whole tree under a
signed checkpoint: the enclave computes the root, finds each endorsement among the leaves, and finds no withdrawal of it
there. Witnesses and the age of the checkpoint bound how old a tree a host can show.
"""

from __future__ import annotations

from collections.abc import Sequence

from odp.crypto.log_reasons import LogReason, refused
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, TransparencyError
from odp.trust.enclave.policy import UpgradePolicy
from odp.trust.log.checkpoint import check_age, verify_checkpoint
from odp.trust.log.endorsements import Endorsement, open_endorsement
from odp.trust.log.entries import EndorsementEntry, decode
from odp.trust.log.merkle import HASH_BYTES, leaf_hash, root_of
from odp.v1 import hand_over_pb2

#: Of both enclaves of a hand-over, by all their endorsers.
MOST_ENDORSEMENTS = 64


class EndorsedImages:
    """The endorsements in a tree by endorsers that a policy names."""

    def __init__(self, standing: Sequence[Endorsement], approvals: int, now: float) -> None:
        self._standing = tuple(standing)
        self._approvals, self._now = approvals, now

    @classmethod
    def read(cls, excerpt: hand_over_pb2.LogExcerpt, policy: UpgradePolicy, *, now: float) -> EndorsedImages:
        """The verified content of ``excerpt`` at ``now`` (seconds since the epoch, by the platform's clock).

        Raises:
            TransparencyError: the checkpoint is not accepted, the leaves are not those of its tree, or an endorsement
                is malformed or not in it.
        """
        verified = verify_checkpoint(excerpt.checkpoint, policy.log)
        check_age(verified, policy.log, now=now)
        tree, packed = verified.checkpoint, excerpt.leaves
        leaves = [packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES)]
        if len(packed) != HASH_BYTES * tree.size or root_of(leaves) != tree.root:
            raise refused(LogReason.INCONSISTENT, f"the leaves are not those of the signed tree of {tree.size} entries")
        if len(excerpt.endorsements) > MOST_ENDORSEMENTS:
            raise refused(LogReason.MALFORMED, f"more than {MOST_ENDORSEMENTS} endorsements came along")
        logged = frozenset(leaves)
        endorsements = []
        for data in excerpt.endorsements:
            if leaf_hash(data) not in logged:
                raise refused(LogReason.NOT_INCLUDED, "an endorsement is not in the log")
            endorsement = _opened(data)
            trusted = endorsement.endorser in policy.log.endorser_keys
            if trusted and bytes.fromhex(endorsement.withdrawal) not in logged:
                endorsements.append(endorsement)
        return cls(endorsements, policy.approvals, now)

    def require(self, *, role: str, image_digest: str, policy_sha256: str, ended: bool = False) -> None:
        """Returns if enough endorsers endorse this code under this policy now; with ``ended``, now or before.

        Raises:
            TransparencyError: ``not_endorsed``.
        """
        named = {"role": role, "image_digest": image_digest, "policy_sha256": policy_sha256}
        endorsers = {
            endorsement.endorser
            for endorsement in self._standing
            if endorsement.covers(**named, now=min(self._now, endorsement.not_after - 1) if ended else self._now)
        }
        if len(endorsers) < self._approvals:
            raise refused(
                LogReason.NOT_ENDORSED,
                f"{len(endorsers)} of the endorsers that the enclave's policy names have endorsed the {role}'s code "
                f"{image_digest[:19]}.. in the log, and still do; {self._approvals} have to",
            )


def _opened(data: bytes) -> Endorsement:
    try:
        entry = decode(data)
        if not isinstance(entry, EndorsementEntry):
            raise ConfigurationError(f"Expected an endorsement, got an entry of type {entry.label}")
        return open_endorsement(entry)
    except (ConfigurationError, SignatureError) as error:
        raise TransparencyError(LogReason.MALFORMED.value, f"an endorsement cannot be read: {error}") from error
