"""The proofs of an assignment: task, model and charter are in the log, and the enclaves are endorsed."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from odp._system.recent import Recent
from odp.crypto.log_reasons import LogReason, refused
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, TransparencyError
from odp.refusing import refusing
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.trust.log.checkpoint import Checkpoint
from odp.trust.log.client import LogMemory
from odp.trust.log.endorsements import Endorsement, open_endorsement
from odp.trust.log.entries import CharterEntry, EndorsementEntry, ManifestEntry, TaskEntry, decode
from odp.trust.log.merkle import HASH_BYTES, ProofError, leaf_hash, verify_inclusion
from odp.v1 import common_pb2, log_pb2, population_pb2

_MOST_ENDORSEMENTS = 32
_REMEMBERED = 16


def packed(hashes: Sequence[bytes]) -> bytes:
    """Hashes in their wire form."""
    return b"".join(hashes)


def unpacked(data: bytes) -> list[bytes]:
    """The hashes of a message.

    Raises:
        TransparencyError: ``malformed``.
    """
    if len(data) % HASH_BYTES:
        raise refused(LogReason.MALFORMED, f"{len(data)} bytes of hashes, which have {HASH_BYTES} bytes each")
    return [data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES)]


@dataclass(frozen=True)
class LoggedEndorsement:
    """An endorsement in the log, at entry ``index``."""

    endorsement: Endorsement
    index: int


class LogGuard:
    """Checks assignments against the log that the device's person pinned. Thread-safe.

    Nothing is remembered of a refusal: the next answer is checked anew.
    """

    def __init__(self, memory: LogMemory, *, clock: Callable[[], float] = time.time) -> None:
        """``clock`` gives seconds since the epoch."""
        self._memory = memory
        self._policy: LogPolicy = memory.policy
        self._clock = clock
        self._lock = threading.Lock()
        self._verified: Recent[bytes, tuple[float, tuple[LoggedEndorsement, ...]]] = Recent(_REMEMBERED)

    @refusing("proof of the log")
    def logged(
        self,
        proof: log_pb2.LogProof | None,
        *,
        task: common_pb2.SignedTask,
        model: common_pb2.SignedManifest | None,
        charter: population_pb2.SignedCharter | None,
    ) -> tuple[LoggedEndorsement, ...]:
        """The endorsements beside the assignment, after checks that task, model, charter and each of them are in the
        log; without a model of a task that has none.

        Raises:
            TransparencyError: any reason but ``not_endorsed`` and ``withdrawn``.
            ServiceError: the log did not answer.
            StateError: what is remembered of the log cannot be read or written.
        """
        if proof is None or not proof.checkpoint or charter is None:
            raise refused(LogReason.MISSING, "the server gave no proof that task, model and charter are in the log")
        manifest = b"" if model is None else ManifestEntry.of(model).leaf
        leaves = (TaskEntry.of(task).leaf, manifest, CharterEntry.of(charter).leaf)
        key = hashlib.sha256(
            packed(tuple(leaf for leaf in leaves if leaf)) + proof.SerializeToString(deterministic=True)
        ).digest()
        with self._lock:
            remembered = self._verified.get(key)
            # A checkpoint grows old while its answer is at hand, so it is looked at again now and then.
            if remembered is not None and self._clock() < remembered[0]:
                return remembered[1]
            endorsements = self._checked(proof, *leaves)
            self._verified.put(key, (self._clock() + min(60.0, self._policy.max_age_seconds), endorsements))
            return endorsements

    def require_endorsed(self, enclave: VerifiedEnclave, logged: Sequence[LoggedEndorsement]) -> None:
        """Returns if an endorsement of ``logged`` covers this enclave now and is not withdrawn.

        Raises:
            TransparencyError: ``not_endorsed``, ``withdrawn``, ``inconsistent``.
        """
        named = {
            "role": enclave.role,
            "image_digest": enclave.image_digest,
            "policy_sha256": enclave.policy.sha256.hex(),
        }
        now = self._clock()
        withdrawn: TransparencyError | None = None
        for entry in logged:
            if entry.endorsement.covers(**named, now=now):
                try:
                    withdrawal = bytes.fromhex(entry.endorsement.withdrawal)
                    self._memory.require_not_withdrawn(withdrawal, until=entry.endorsement.not_after, index=entry.index)
                except TransparencyError as error:
                    withdrawn = error
                    continue
                return
        if withdrawn is not None:
            raise withdrawn
        raise refused(
            LogReason.NOT_ENDORSED,
            f"no endorsement in the log covers the {enclave.role}'s code {enclave.image_digest[:19]}.. and its policy "
            "at this time",
            passes=any(entry.endorsement.covers(**named, now=entry.endorsement.not_before) for entry in logged),
        )

    def _checked(
        self, proof: log_pb2.LogProof, task: bytes, model: bytes, charter: bytes
    ) -> tuple[LoggedEndorsement, ...]:
        checkpoint = self._memory.accept(proof.checkpoint, now=self._clock())
        return endorsements_in(proof, checkpoint, self._policy, task=task, model=model, charter=charter)


def endorsements_in(
    proof: log_pb2.LogProof,
    checkpoint: Checkpoint,
    policy: LogPolicy,
    *,
    task: bytes,
    model: bytes,
    charter: bytes,
) -> tuple[LoggedEndorsement, ...]:
    """The endorsements by pinned endorsers, after checks that they and the other leaves are in the log.

    Args:
        proof: inclusion proofs in the tree of ``checkpoint``.
        checkpoint: a tree that was accepted.
        policy: what is pinned.
        task, model, charter: the leaves; ``model`` is empty where the task has none.

    Raises:
        TransparencyError: ``not_included``, ``malformed``.
    """

    def included(inclusion: log_pb2.Inclusion, leaf: bytes, what: str) -> None:
        hashes = unpacked(inclusion.hashes)
        try:
            verify_inclusion(leaf=leaf, index=inclusion.index, size=checkpoint.size, proof=hashes, root=checkpoint.root)
        except ProofError as error:
            raise refused(LogReason.NOT_INCLUDED, f"{what} is not proved to be in the log: {error}") from error

    included(proof.task, task, "the task")
    if model:
        included(proof.model, model, "the model")
    included(proof.charter, charter, "the charter")
    if len(proof.endorsements) > _MOST_ENDORSEMENTS:
        raise refused(LogReason.MALFORMED, f"there are more than {_MOST_ENDORSEMENTS} endorsements")
    endorsements = []
    for inclusion in proof.endorsements:
        included(inclusion, leaf_hash(inclusion.entry), "an endorsement")
        try:
            entry = decode(inclusion.entry)
            if not isinstance(entry, EndorsementEntry):
                raise ConfigurationError(f"Expected an endorsement, got an entry of type {entry.label}")
            endorsement = open_endorsement(entry)
        except (ConfigurationError, SignatureError) as error:
            raise refused(LogReason.MALFORMED, f"an endorsement in the log cannot be read: {error}") from error
        if endorsement.endorser in policy.endorser_keys:
            endorsements.append(LoggedEndorsement(endorsement, inclusion.index))
    return tuple(endorsements)
