"""The root of a tree: it gives its rounds to the enclaves of leaves, and takes their sums."""

from __future__ import annotations

import hashlib
import os

from odp.crypto import domains, hpke
from odp.errors import StateError
from odp.signed.task import check_length, open_order
from odp.trust.enclave.verifier import HAND_OVER_NONCE_BYTES, OwnChip
from odp.v1 import aggregator_enclave_pb2, attestation_pb2, leaf_pb2
from trusted_aggregator.boundary.interface import Status, parse_order, require_same_model
from trusted_aggregator.enclave.rounds import Rounds
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.modes.tree.enclave_half import RootRound
from trusted_aggregator.rounds.enclave_half import Round


class Tree:
    """The leaves of a root: contributions come to them; ledger, minimum, noise and signature stay at the root alone.

    Of the leaves' enclaves it takes those of this very code and policy alone, each verified over a nonce of its own.
    """

    def __init__(self, state: EnclaveState, rounds: Rounds) -> None:
        self._state, self._rounds = state, rounds
        self._leaf_nonces: dict[int, bytes] = {}

    def leaf_nonce(self, request: leaf_pb2.AskLeafNonce) -> aggregator_enclave_pb2.DrawnNonce:
        """32 random bytes for the evidence of a leaf; its earlier nonce becomes invalid. Raises StateError."""
        with self._state.lock:
            self._require_leaf(request.leaf)
            nonce = self._leaf_nonces[request.leaf] = os.urandom(HAND_OVER_NONCE_BYTES)
            return aggregator_enclave_pb2.DrawnNonce(nonce=nonce)

    def delegate(self, request: leaf_pb2.DelegateRound) -> leaf_pb2.Delegation:
        """The secrets of an open round, sealed to a leaf whose evidence is verified.

        Raises:
            AttestationError: the leaf's evidence is not accepted.
            ConfigurationError: its nonce has another length.
            StateError: no nonce was drawn for it, the round is not open, or the leaf's sum of it came already.
        """
        state, leaf, round, greeting = self._state, request.leaf, request.round, request.greeting
        with state.lock:
            self._require_leaf(leaf)
            if (nonce := self._leaf_nonces.pop(leaf, None)) is None:
                raise StateError(f"no nonce was drawn for the evidence of leaf {leaf}; ask for one first")
            check_length("nonce", greeting.nonce, HAND_OVER_NONCE_BYTES)
            held, task = self._root_round(request.task_sha256, round), state.holdings.task(request.task_sha256)
            if task is None or held.status is not Status.OPEN or held.has(leaf):
                raise StateError(f"round {round} takes no more of leaf {leaf}")
            verified = OwnChip.of(state.identity).verify_same_code(greeting.evidence, role="leaf", nonce=nonce)
            statement = leaf_pb2.DelegationStatement(
                task=task.signed, round=round, leaf=leaf, leaves=state.identity.policy.leaves
            ).SerializeToString(deterministic=True)
            digest = hashlib.sha256(statement).digest()
            info = domains.delegation_info(greeting.nonce, digest)
            sealed = hpke.seal(verified.hpke_key, held.record.encode(), info)
            evidence = state.identity.evidence(greeting.nonce)
            signed = domains.delegation(greeting.nonce, digest, sealed)
            return leaf_pb2.Delegation(
                statement=statement, sealed=sealed, nonce=greeting.nonce,
                evidence=attestation_pb2.GetEvidenceResponse(
                    token=evidence.token, policy=evidence.policy, event_log=evidence.event_log
                ),
                signature=state.identity.signing.sign(domains.DELEGATION, signed),
            )  # fmt: skip

    def check_close(self, request: leaf_pb2.CheckClose) -> leaf_pb2.Told:
        """Whether the leaves have to close their parts of a round: it is open, and this order may close it.

        The contributions are what the leaves' hosts say, so that a round that is too small stays open everywhere.

        Raises:
            SignatureError, ConfigurationError: the order is not valid, or of no round that is open here.
            PrivacyError: the developer does not own the population, or there are fewer contributions than the minimum.
        """
        state = self._state
        with state.lock:
            parsed = parse_order(request.order)
            task, _ = state.ordered(parsed)
            open_order(request.order, request.signature, domain=domains.CLOSE, developer_key=task.developer_key)
            held = state.find_round(task.sha256, parsed.round)
            if not isinstance(held, Round) or held.status is not Status.OPEN:
                return leaf_pb2.Told(yes=False)
            require_same_model(held.number, held.model_sha256, parsed)
            self._rounds.require_minimum(task, held.number, max(request.contributions, held.contributions))
            return leaf_pb2.Told(yes=True)

    def give_part(self, request: leaf_pb2.GivePart) -> leaf_pb2.Told:
        """Takes a piece of the sum of a leaf; whether that sum is whole now. Idempotent for a sum that came.

        Raises StateError: see ``RootRound.give``.
        """
        with self._state.lock:
            return leaf_pb2.Told(yes=self._root_round(request.task_sha256, request.round).give(request.piece))

    def _require_leaf(self, leaf: int) -> None:
        state = self._state
        if not 0 <= leaf < state.identity.policy.leaves:
            raise StateError(f"the tree has {state.identity.policy.leaves} leaves, and no leaf {leaf}")

    def _root_round(self, task_sha256: bytes, round: int) -> RootRound:
        held = self._state.held(task_sha256, round)
        if not isinstance(held, RootRound):
            raise StateError(f"round {round} is not one of a tree")
        return held
