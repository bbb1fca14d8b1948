"""What a hand-over needs around two enclaves: a log in memory with its endorsers, and the steps of both hosts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from in_process import InProcess

from odp.crypto import SigningKey
from odp.crypto.note import Kind, NoteKey
from odp.trust.enclave.guest import Guest
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.policy import EnclavePolicy, UpgradePolicy
from odp.trust.log import Checkpoint, sign_checkpoint
from odp.trust.log.endorsements import endorse
from odp.trust.log.entries import EndorsementEntry, PolicyEntry, WithdrawalEntry
from odp.trust.log.merkle import leaf_hash, root_of
from odp.v1 import attestation_pb2, hand_over_pb2
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.hand_over import TakingOver
from trusted_aggregator.enclave.restoring import restore
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.state.records import (
    LATER_PREFIXES,
    LEDGER_PREFIX,
    PARTICIPATION_PREFIX,
    RELEASE_PREFIX,
    STREAM_PREFIX,
    SealedRecord,
)

OLD = "sha384:" + "0" * 96
NEW, OTHER, STRANGER = ("sha384:" + digit * 96 for digit in "123")

Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Nothing happens between two steps."""


class Endorsers:
    """A log of some entries, and two endorsers who both have to endorse."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.key = NoteKey.generate("example.com/log")
        self.endorsers = (SigningKey.generate(), SigningKey.generate())
        self.entries: list[bytes] = [PolicyEntry(b"something else").encode()]
        self.endorsements: list[bytes] = []

    @property
    def policy(self) -> UpgradePolicy:
        """What an enclave pins of them."""
        pinned = LogPolicy(
            log_keys=(self.key.public(Kind.NOTE).text,),
            endorser_keys=tuple(one.public.hex() for one in self.endorsers),
        )
        return UpgradePolicy(log=pinned, approvals=2)

    def endorse(
        self, image: str, policy: EnclavePolicy, *, by: tuple[SigningKey, ...] | None = None
    ) -> list[WithdrawalEntry]:
        """Logs endorsements of an image; the withdrawals are not logged."""
        withdrawals = []
        for endorser in self.endorsers if by is None else by:
            now = int(self.clock())
            entry, withdrawal = endorse(
                endorser, role="aggregator", image_digest=image, policy_sha256=policy.sha256.hex(),
                not_before=now - 86400, not_after=now + 30 * 86400,
            )  # fmt: skip
            self.log(entry)
            withdrawals.append(withdrawal)
        return withdrawals

    def log(self, entry: EndorsementEntry | WithdrawalEntry) -> None:
        self.entries.append(entry.encode())
        if isinstance(entry, EndorsementEntry):
            self.endorsements.append(entry.encode())

    def excerpt(self, *, now: float | None = None) -> hand_over_pb2.LogExcerpt:
        """What a host shows of the log."""
        leaves = [leaf_hash(entry) for entry in self.entries]
        tree = Checkpoint(self.key.name, len(leaves), root_of(leaves))
        note = sign_checkpoint(tree, self.key, now=self.clock() if now is None else now)
        return hand_over_pb2.LogExcerpt(
            checkpoint=note.encode(), leaves=b"".join(leaves), endorsements=self.endorsements
        )


class Upgrade:
    """The old enclave of ``world`` and a new one; ``stored`` is what the new one's host has made durable."""

    def __init__(self, world: Any, endorsers: Endorsers, *, image: str = NEW) -> None:
        self.world = world
        self.endorsers = endorsers
        self.image = image
        self.stored: dict[str, bytes] = {}
        self.sealed_keys: bytes | None = None
        self.package: hand_over_pb2.HandOverPackage | None = None
        self.launch()

    def guest(self, policy: EnclavePolicy | None = None) -> Guest:
        policy = self.world.policy if policy is None else policy
        return self.world.platform.launch(image_digest=self.image, policy=policy.to_bytes(), name="aggregator")

    def launch(self, policy: EnclavePolicy | None = None) -> None:
        """A new process of the successor."""
        self.identity, self.sealed_keys = EnclaveIdentity.restore_or_create(
            guest=self.guest(policy), sealed=self.sealed_keys
        )
        self.taking = TakingOver(self.identity)

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        found = self.identity.evidence(nonce)
        return attestation_pb2.GetEvidenceResponse(token=found.token, policy=found.policy, event_log=found.event_log)

    def request(self, *, void_rounds: bool = False) -> hand_over_pb2.HandOverRequest:
        return hand_over_pb2.HandOverRequest(
            void_rounds=void_rounds,
            successor=self.evidence(self.world.core.draw_nonce()),
            nonce=self.taking.draw_nonce(),
            log=self.endorsers.excerpt(),
        )

    def run(self, step: Step = no_step, *, void_rounds: bool = False) -> InProcess:
        """The whole hand-over; ``step`` is told after each step, and may raise: that is where all processes die."""
        request = self.request(void_rounds=void_rounds)
        step("asked")
        writes = self.world.core.begin_hand_over(request)
        step("prepared")
        self.world.persist(writes)
        step("the successor is named on the disk")
        self.world.core.commit()
        step("the successor is named in force")
        self.package = self.world.core.finish_hand_over(request)
        step("the key was given")
        self.taking.accept(self.package, request.log)
        step("the key was taken")
        return self.adopt(self.world.records, step)

    def adopt(self, records: Mapping[str, bytes], step: Step = no_step) -> InProcess:
        """The new enclave, from the key on."""
        resealed = [
            one
            for key, data in records.items()
            if key.startswith((RELEASE_PREFIX, PARTICIPATION_PREFIX, STREAM_PREFIX))
            for one in self.taking.reseal(SealedRecord(key, data))
        ]
        needed = {key: data for key, data in records.items() if not key.startswith(LATER_PREFIXES)}
        written = self.taking.finish(needed)
        core = InProcess(AggregatorCore(self.taking.state, noise=self.world.made_by))
        step("the records were read")
        self.stored = {key: data for key, data in records.items() if key.startswith(LEDGER_PREFIX)}
        self.stored |= {record.key: record.data for record in (*resealed, *written) if record.data}
        step("the records are on the new disk")
        core.commit()
        step("the records are in force")
        return core

    def restart(self) -> InProcess:
        """The new enclave from what its host has stored."""
        self.launch()
        state = EnclaveState(self.identity)
        restore(state, dict(self.stored), lambda task, round: ())
        return InProcess(AggregatorCore(state, noise=self.world.made_by))

    def move(self, core: InProcess) -> Any:
        """The world, with the new enclave in the place of the old one."""
        self.world.core, self.world.records = core, self.stored
        self.world.identity, self.world.sealed_keys = self.identity, self.sealed_keys
        self.world.guest = self.guest
        self.world.round_keys.clear()
        return self.world


def upgradable(make_world: Callable[..., Any], **changes: Any) -> tuple[Any, Endorsers]:
    """A world whose enclave may be upgraded, and whose own code is endorsed."""
    endorsers = Endorsers()
    policy = EnclavePolicy(role="aggregator", minimum_cohort=3, upgrade=endorsers.policy)
    world = make_world(minimum=3, policy=dataclasses.replace(policy, **changes.pop("policy", {})), **changes)
    endorsers.endorse(OLD, world.policy)
    return world, endorsers
