"""The enclave at the root of a tree: an aggregator's enclave that gives its rounds to leaves, and takes their sums."""

from __future__ import annotations

import hashlib
import os

from odp.crypto import domains, hpke
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.same_chip import NONCE_BYTES, OwnChip
from odp.errors import PrivacyError, StateError
from odp.privacy.mechanisms import IntegerNoise
from odp.signed.task import check_length, open_order
from odp.v1 import attestation_pb2, common_pb2, enrolment_pb2, leaf_pb2
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.boundary.orders import parse_order, require_same_model
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.modes.tree.root_round import RootRound
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.records import Writes


class RootCore(AggregatorCore):
    """``AggregatorCore`` whose contributions come to leaves: ledger, minimum, noise and signature stay here alone.

    Of the leaves' enclaves it takes those of this very code and policy alone, each verified over a nonce of its own.
    """

    def __init__(self, identity: EnclaveIdentity, *, noise: IntegerNoise | None = None) -> None:
        super().__init__(identity, noise=noise)
        self._leaf_nonces: dict[int, bytes] = {}

    def leaf_nonce(self, leaf: int) -> bytes:
        """32 random bytes for the evidence of a leaf; its earlier nonce becomes invalid. Raises StateError."""
        with self._admin:
            self._require_leaf(leaf)
            self._leaf_nonces[leaf] = os.urandom(NONCE_BYTES)
            return self._leaf_nonces[leaf]

    def delegate(
        self, task_sha256: bytes, round: int, leaf: int, greeting: leaf_pb2.GreetResponse
    ) -> leaf_pb2.Delegation:
        """The secrets of an open round, sealed to a leaf whose evidence is verified.

        Raises:
            AttestationError: the leaf's evidence is not accepted.
            ConfigurationError: its nonce has another length.
            StateError: no nonce was drawn for it, the round is not open, or the leaf's sum of it came already.
        """
        with self._admin:
            self._require_leaf(leaf)
            nonce = self._leaf_nonces.pop(leaf, None)
            if nonce is None:
                raise StateError(f"no nonce was drawn for the evidence of leaf {leaf}; ask for one first")
            check_length("nonce", greeting.nonce, NONCE_BYTES)
            found, task = self._root_round(task_sha256, round), self._holdings.task(task_sha256)
            if task is None or found.status is not Status.OPEN or found.has(leaf):
                raise StateError(f"round {round} takes no more of leaf {leaf}")
            verified = OwnChip.of(self._identity).verify_same_code(greeting.evidence, role="leaf", nonce=nonce)
            statement = leaf_pb2.DelegationStatement(
                task=task.signed, round=round, leaf=leaf, leaves=self._identity.policy.leaves
            ).SerializeToString(deterministic=True)
            digest = hashlib.sha256(statement).digest()
            info = domains.delegation_info(greeting.nonce, digest)
            sealed = hpke.seal(verified.hpke_key, found.record.encode(), info)
            evidence = self._identity.evidence(greeting.nonce)
            signed = domains.delegation(greeting.nonce, digest, sealed)
            return leaf_pb2.Delegation(
                statement=statement, sealed=sealed, nonce=greeting.nonce,
                evidence=attestation_pb2.GetEvidenceResponse(
                    token=evidence.token, policy=evidence.policy, event_log=evidence.event_log
                ),
                signature=self._identity.signing.sign(domains.DELEGATION, signed),
            )  # fmt: skip

    def check_close(self, order: bytes, signature: bytes, contributions: int) -> bool:
        """Whether the leaves have to close their parts of a round: it is open, and this order may close it.

        ``contributions`` is what the leaves' hosts say, so that a round that is too small stays open everywhere.

        Raises:
            SignatureError, ConfigurationError: the order is not valid, or of no round that is open here.
            PrivacyError: the developer does not own the population, or there are fewer contributions than the minimum.
        """
        with self._admin:
            parsed = parse_order(order)
            task, _ = self._ordered(parsed)
            open_order(order, signature, domain=domains.CLOSE, developer_key=task.developer_key)
            found = self._find_round(task.sha256, parsed.round)
            if not isinstance(found, Round) or found.status is not Status.OPEN:
                return False
            require_same_model(found.number, found.model_sha256, parsed)
            self._require_minimum(task, found.number, max(contributions, found.contributions))
            return True

    def give_part(self, task_sha256: bytes, round: int, piece: bytes) -> bool:
        """Takes a piece of the sum of a leaf; whether that sum is whole now. Idempotent for a sum that came.

        Raises StateError: see ``RootRound.give``.
        """
        with self._admin:
            return self._root_round(task_sha256, round).give(piece)

    def check_task(self, signed_task: common_pb2.SignedTask) -> None:
        _require_summed(signed_task)
        super().check_task(signed_task)

    def open_round(
        self,
        signed_task: common_pb2.SignedTask,
        order: bytes,
        signature: bytes,
        token_key: enrolment_pb2.SignedTokenKey | None = None,
    ) -> Writes:
        _require_summed(signed_task)
        return super().open_round(signed_task, order, signature, token_key)

    def _require_leaf(self, leaf: int) -> None:
        if not 0 <= leaf < self._identity.policy.leaves:
            raise StateError(f"the tree has {self._identity.policy.leaves} leaves, and no leaf {leaf}")

    def _root_round(self, task_sha256: bytes, round: int) -> RootRound:
        found = self._held(task_sha256, round)
        if not isinstance(found, RootRound):
            raise StateError(f"round {round} is not one of a tree")
        return found


def _require_summed(signed_task: common_pb2.SignedTask) -> None:
    """Raises PrivacyError for a task whose contributions no leaf can sum."""
    task = OpenedTask.open(signed_task)
    if task.rounds is not EnclaveRound:
        raise PrivacyError(
            f"{task.label} masks its contributions, and a tree of aggregators takes those that enclaves sum alone: use "
            "aggregation='enclave', or an aggregator without leaves"
        )
    if task.stream_bytes:
        raise PrivacyError(
            f"{task.label} is a stream, whose rounds depend on who was in those before, and a tree of aggregators "
            "takes none: use an aggregator without leaves"
        )
