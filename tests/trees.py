"""A tree of aggregators in memory: a root, leaves, and hosts that keep what the enclaves ask them to keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from in_process import LeafInProcess
from worlds import conftest_of

from odp.crypto.leaves import leaf_of
from odp.errors import Refusal
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2, attestation_pb2, leaf_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.enclave.leaf_core import LeafCore

_conftest: Any = conftest_of("trusted_aggregator")
World, StatisticsWorld, IMAGE = _conftest.World, _conftest.StatisticsWorld, _conftest.IMAGE


class LeafWorld:
    """One leaf and its host; ``rows`` are the contributions that the host stored, by round."""

    def __init__(self, tree: Any, *, image: str = IMAGE, policy: EnclavePolicy | None = None) -> None:
        self.tree = tree
        self.image = image
        self.policy = tree.policy.as_role("leaf") if policy is None else policy
        self.rows: dict[int, list[bytes]] = {}
        self.restart()

    def restart(self) -> None:
        """A new process, which knows nothing."""
        launched = self.tree.platform.launch(image_digest=self.image, policy=self.policy.to_bytes(), name="leaf")
        self.identity, _ = EnclaveIdentity.restore_or_create(guest=launched, sealed=None)
        self.core = LeafInProcess(LeafCore(self.identity))

    def greet(self, nonce: bytes) -> leaf_pb2.GreetResponse:
        evidence = self.identity.evidence(nonce)
        return leaf_pb2.GreetResponse(
            nonce=self.core.draw_nonce(),
            evidence=attestation_pb2.GetEvidenceResponse(
                token=evidence.token, policy=evidence.policy, event_log=evidence.event_log
            ),
        )

    def submit(self, sealed: bytes, round: int = 0) -> Refusal | None:
        request = aggregator_pb2.SubmitRequest(
            task_sha256=self.tree.task_sha256, round=round, sealed_contribution=sealed
        )
        (answer,) = self.core.submit_batch([wire.sealed_of(request)])
        if answer is None:
            self.rows.setdefault(round, []).append(sealed)
            return None
        assert not answer.signature, "no leaf can tell that a contribution never counts"
        return answer.refusal

    def part(self, round: int = 0) -> list[bytes]:
        """The pieces of its sealed sum."""
        _, pieces = self.core.close_part(self.tree.task_sha256, round)
        return [self.core.take_part(self.tree.task_sha256, round, number) for number in range(pieces)]


class Tree:
    """Mixed into a world: its root has leaves."""

    def __init__(self, platform: Any, population: str, *, leaves: int = 2, **changes: Any) -> None:
        policy = changes.pop("policy", EnclavePolicy(role="aggregator", minimum_cohort=3))
        changes["policy"] = dataclasses.replace(policy, leaves=leaves)
        super().__init__(platform, population, **changes)
        self.leaves = [LeafWorld(self) for _ in range(leaves)]

    def delegate(self: Any, number: int, round: int = 0, leaf: LeafWorld | None = None) -> None:
        """Gives a leaf its part of a round, and back what its host stored."""
        leaf = self.leaves[number] if leaf is None else leaf
        greeting = leaf.greet(self.core.leaf_nonce(number))
        leaf.core.open_part(self.core.delegate(self.task_sha256, round, number, greeting))
        for sealed in leaf.rows.get(round, []):
            leaf.core.submit(self.task_sha256, round, sealed)

    def leaf_of(self: Any, device: int, round: int = 0) -> int:
        pseudonym = self.contribution(device, round).pseudonym
        return leaf_of(self.task_sha256, round, pseudonym, len(self.leaves))

    def fill(self: Any, devices: Iterable[int], round: int = 0) -> None:
        for device in devices:
            assert self.leaves[self.leaf_of(device, round)].submit(self.sealed(device, round), round) is None

    def hand_in(self: Any, number: int, round: int = 0) -> None:
        """The sum of a leaf goes to the root, whose host stores it."""
        pieces = self.leaves[number].part(round)
        whole = [self.core.give_part(self.task_sha256, round, piece) for piece in pieces]
        assert whole == [False] * (len(pieces) - 1) + [True]
        self.rows.setdefault((self.task_sha256, round), []).extend(pieces)


class TreeWorld(Tree, World):  # type: ignore[misc, valid-type]
    """A tree for DPAM."""


class StatisticsTree(Tree, StatisticsWorld):  # type: ignore[misc, valid-type]
    """A tree for a histogram."""
