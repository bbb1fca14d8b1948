"""The enclave of a leaf: it takes contributions to the rounds whose secrets its root gave it, and keeps nothing.

Guarantee: about single contributions, nothing leaves but refusals and their sum, sealed to the root. The root is an
enclave of this very code under this very policy, verified by evidence over this leaf's nonce; no other gives it a
round. A leaf that starts again has no round until its root gives it the secrets anew, and then takes back what its host
stored. It has no ledger and no noise: a host that runs two copies of it, or brings back an older set, gets two sealed
sums, of which the root takes one.
"""

from __future__ import annotations

import hashlib
import os
import threading

from google.protobuf.message import DecodeError

from odp.crypto import domains
from odp.crypto.signing import verify
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.signed.task import check_length
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.verifier import HAND_OVER_NONCE_BYTES, OwnChip
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, leaf_pb2
from trusted_aggregator.boundary.interface import RoundState, parse_order
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.enclave.refusing import ClosedRounds
from trusted_aggregator.enclave.submissions import Submissions
from trusted_aggregator.modes.tree.enclave_half import LeafRound
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.sealed_state import RoundRecord

#: Rounds in memory at once.
MOST_PARTS = 1024

Key = tuple[bytes, int]


class LeafCore:
    """The enclave of a leaf. Thread-safe.

    ``submissions`` signs no refusal: another leaf, or another copy of this one, may take the contribution.

    Raises:
        ConfigurationError: the policy is of another role.
    """

    def __init__(self, identity: EnclaveIdentity) -> None:
        if identity.policy.role != "leaf":
            raise ConfigurationError(f"Expected a policy of role 'leaf', got role={identity.policy.role!r}")
        # It remembers no closed round, so that each refusal is unsigned.
        self.submissions = Submissions(identity.signing, self, ClosedRounds())
        self.identity = identity
        self._root_policy = identity.policy.as_role("aggregator")
        self._parts: dict[Key, LeafRound] = {}
        self._lock, self._parts_lock = threading.Lock(), threading.Lock()
        # The nonces that evidence of the root may be over; the oldest go first.
        self._nonces: list[bytes] = []

    def ask_nonce(self, request: aggregator_enclave_pb2.AskNonce) -> aggregator_enclave_pb2.DrawnNonce:
        """32 random bytes for the evidence of the root."""
        with self._lock:
            self._nonces = [*self._nonces[-7:], os.urandom(HAND_OVER_NONCE_BYTES)]
            return aggregator_enclave_pb2.DrawnNonce(nonce=self._nonces[-1])

    def open_part(self, delegation: leaf_pb2.Delegation) -> None:
        """Takes the secrets of a round from the root. Idempotent for a round whose part is open.

        Raises:
            AttestationError: the root's evidence is not accepted.
            SignatureError, DecryptionError: the delegation is not by that root, or not to this enclave.
            ConfigurationError: it is malformed, or of another task than it says.
            PrivacyError: it is of a round that was opened under another policy, or of another tree.
            StateError: no nonce was drawn, or too many parts are open.
        """
        with self._lock:
            statement, record = self._verified(delegation)
            task = OpenedTask.open(statement.task)
            order = parse_order(record.order)
            if (order.task_sha256, order.round) != (task.sha256, statement.round):
                raise ConfigurationError("the delegated round belongs to another task")
            if statement.leaves != self._root_policy.leaves or statement.leaf >= statement.leaves:
                raise PrivacyError(f"the tree has {self._root_policy.leaves} leaves, and no leaf {statement.leaf}")
            if record.policy_sha256 != self._root_policy.sha256:
                raise PrivacyError(f"round {order.round} was opened under another policy")
            part = LeafRound(
                task_sha256=task.sha256, order=order, record=record, query=task.queries[order.round],
                policy=self._root_policy, sampling=task.sampling(order.round),
                most=task.most(self._root_policy.population_delta),
            )  # fmt: skip
            part.leaf = statement.leaf
            self._hold(part)

    def close_part(self, request: aggregator_pb2.GetRoundRequest) -> leaf_pb2.ClosedPart:
        """Closes the part of a round. Raises StateError where it is not open."""
        with self._lock:
            sealed = self._part(request.task_sha256, request.round).close()
            return leaf_pb2.ClosedPart(contributions=sealed.contributions, pieces=sealed.pieces)

    def take_part(self, request: leaf_pb2.TakePart) -> aggregator_enclave_pb2.SealedPiece:
        """A piece of the sum of a closed part. Raises StateError where there is none."""
        with self._lock:
            piece = self._part(request.task_sha256, request.round).close().piece(request.number)
            return aggregator_enclave_pb2.SealedPiece(data=piece)

    def erase_part(self, request: aggregator_pb2.GetRoundRequest) -> None:
        """Erases a part. Idempotent."""
        with self._parts_lock:
            part = self._parts.pop((request.task_sha256, request.round), None)
        if part is not None:
            part.erase()

    def round_state(self, task_sha256: bytes, round: int) -> RoundState | None:
        """The number of contributions of a part; None where it is not open here."""
        with self._parts_lock:
            part = self._parts.get((task_sha256, round))
        return None if part is None else _state(part)

    def round_states(self) -> list[RoundState]:
        """All parts, by task and number."""
        with self._parts_lock:
            parts = sorted(self._parts.items())
        return [_state(part) for _, part in parts]

    def find_round(self, task_sha256: bytes, round: int) -> Round | Refusal:
        """A part in memory; otherwise the refusal for a contribution to it."""
        with self._parts_lock:
            return self._parts.get((task_sha256, round), Refusal.WRONG_ROUND)

    def _part(self, task_sha256: bytes, round: int) -> LeafRound:
        with self._parts_lock:
            part = self._parts.get((task_sha256, round))
        if part is None:
            raise StateError(f"round {round} is not open at this leaf; its root has to open it first")
        return part

    def _hold(self, part: LeafRound) -> None:
        key = part.task_sha256, part.number
        with self._parts_lock:
            before = self._parts.get(key)
            if before is not None and (before.public_key, before.leaf) == (part.public_key, part.leaf):
                return
            if len(self._parts) >= MOST_PARTS:
                raise StateError(f"this leaf has {MOST_PARTS} rounds open, the most it can; close some")
            self._parts[key] = part
        if before is not None:  # its root lost the round, and opened it again
            before.erase()

    def _verified(self, delegation: leaf_pb2.Delegation) -> tuple[leaf_pb2.DelegationStatement, RoundRecord]:
        chip, digest = OwnChip.of(self.identity), hashlib.sha256(delegation.statement).digest()
        nonce = _answered(delegation, self._nonces)
        root = chip.verify_same_code(delegation.evidence, role="aggregator", nonce=nonce)
        verify(
            root.signing_key,
            delegation.signature,
            domains.DELEGATION,
            domains.delegation(nonce, digest, delegation.sealed),
        )
        self._nonces.remove(nonce)
        try:
            statement = leaf_pb2.DelegationStatement.FromString(delegation.statement)
        except DecodeError:
            raise ConfigurationError("Expected a DelegationStatement; it cannot be read") from None
        record = RoundRecord.decode(self.identity.hpke.open(delegation.sealed, domains.delegation_info(nonce, digest)))
        return statement, record


def _answered(delegation: leaf_pb2.Delegation, nonces: list[bytes]) -> bytes:
    """The nonce that the evidence says it is over; what checks it is the verifier."""
    check_length("nonce", delegation.nonce, HAND_OVER_NONCE_BYTES)
    if delegation.nonce not in nonces:
        raise StateError("the delegation answers no nonce that this leaf drew; ask for one first")
    return delegation.nonce


def _state(part: LeafRound) -> RoundState:
    return RoundState(part.task_sha256, part.number, part.status, part.contributions)
