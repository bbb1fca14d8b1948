"""A log with a signed task, a model and endorsed enclaves, as the server keeps it; and what a device pins."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import odp
from odp.algorithms.registry import algorithm_for
from odp.crypto.note import Kind, Note, NoteKey
from odp.crypto.signing import SigningKey
from odp.protocol.wire.tables import manifest_for
from odp.signed.charter import approve, found
from odp.signed.task import sign_manifest, sign_task, task_sha256
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.trust.log.client import LogMemory
from odp.trust.log.endorsements import endorse
from odp.trust.log.entries import (
    CharterEntry,
    EndorsementEntry,
    ManifestEntry,
    PolicyEntry,
    TaskEntry,
    WithdrawalEntry,
)
from odp.trust.log.log_files import LogFiles
from odp.trust.log.proofs import LogGuard, packed
from odp.v1 import common_pb2, log_pb2

NOW = 1_795_000_000.0
IMAGES = {role: "sha384:" + letter * 96 for role, letter in (("aggregator", "a"), ("distributor", "d"))}
#: The same in every world, since the policy of the aggregator lists it.
DEVELOPER = SigningKey.from_bytes(hashlib.sha256(b"the developer of tests").digest())
POLICIES = {
    "aggregator": EnclavePolicy(role="aggregator", minimum_cohort=2, founders=(DEVELOPER.public.hex(),)),
    "distributor": EnclavePolicy(role="distributor", minimum_cohort=2),
}
CHARTER = approve(found("people", owners=[DEVELOPER.public]), DEVELOPER)


class Clock:
    """A clock that tests move."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def a_task(developer: SigningKey, *, name: str = "films") -> common_pb2.SignedTask:
    return sign_task(
        odp.Task(
            name=name,
            model=odp.MatrixFactorization(items=12, rank=0),
            data=odp.RatingsData(low=1, high=5),
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
            training=odp.DPAM(slices_per_device=8),
            cohort=odp.Cohort(minimum=2, goal=3),
            population="people",
        ).definition(),
        developer,
    )


def a_model(task: common_pb2.SignedTask, developer: SigningKey, *, version: int = 0) -> common_pb2.SignedManifest:
    server = algorithm_for(common_pb2.TaskDefinition.FromString(task.definition)).server()
    broadcast = dataclasses.replace(server.broadcast(server.start()), version=version)
    return sign_manifest(manifest_for(broadcast, task_sha256(task)), developer)


def filler(count: int, *, first: int = 0) -> list[bytes]:
    """Entries that only have to be there."""
    return [PolicyEntry(f"policy {number}".encode()).encode() for number in range(first, first + count)]


def enclave(role: str, *, image: str | None = None, policy: EnclavePolicy | None = None) -> VerifiedEnclave:
    """What attestation would give."""
    return VerifiedEnclave(
        role=role,  # type: ignore[arg-type]  # one of the two roles
        hpke_key=b"h" * 32,
        signing_key=b"s" * 32,
        policy=policy or POLICIES[role],
        image_digest=image or IMAGES[role],
        expires=NOW + 3600,
        emulated=True,
        chip_id=bytes(64),
        restrictions=(),
    )


@dataclasses.dataclass
class LogWorld:
    """One log on disk, its endorser, a task and a model in it, and witnesses that cosign when asked to."""

    folder: Path
    clock: Clock = dataclasses.field(default_factory=Clock)
    key: NoteKey = dataclasses.field(default_factory=lambda: NoteKey.generate("example.com/log"))
    endorser: SigningKey = dataclasses.field(default_factory=SigningKey.generate)
    developer: SigningKey = DEVELOPER
    witnesses: tuple[NoteKey, ...] = ()
    before: int = 0

    def __post_init__(self) -> None:
        self.log = LogFiles.open(self.folder, self.key, now=self.clock())
        self.task = a_task(self.developer)
        self.model = a_model(self.task, self.developer)
        made = {role: self.endorsed(role) for role in IMAGES}
        self.endorsements = [entry for entry, _withdrawal in made.values()]
        self.withdrawals = {role: withdrawal for role, (_entry, withdrawal) in made.items()}
        self.append(
            *filler(self.before),
            *(PolicyEntry(policy.to_bytes()).encode() for policy in POLICIES.values()),
            *(entry.encode() for entry in self.endorsements),
            CharterEntry.of(CHARTER).encode(),
            TaskEntry.of(self.task).encode(),
            ManifestEntry.of(self.model).encode(),
        )

    def endorsed(
        self, role: str, *, key: SigningKey | None = None, days: tuple[float, float] = (-1, 300)
    ) -> tuple[EndorsementEntry, WithdrawalEntry]:
        return endorse(
            key or self.endorser,
            role=role,
            image_digest=IMAGES[role],
            policy_sha256=hashlib.sha256(POLICIES[role].to_bytes()).hexdigest(),
            not_before=int(NOW + days[0] * 86400),
            not_after=int(NOW + days[1] * 86400),
        )

    def append(self, *entries: bytes) -> None:
        self.log.append(entries, now=self.clock())
        self.cosign(*self.witnesses)

    def cosign(self, *witnesses: NoteKey) -> None:
        body = Note.parse(self.log.note).body
        self.log.add_cosignatures(body, [witness.cosign(body, now=self.clock()) for witness in witnesses])

    def policy(self, **changes: object) -> LogPolicy:
        values = {
            "log_keys": (self.key.public(Kind.NOTE).text,),
            "endorser_keys": (self.endorser.public.hex(),),
            "witness_keys": tuple(witness.public(Kind.COSIGNATURE).text for witness in self.witnesses),
            "quorum": len(self.witnesses),
        }
        return LogPolicy(**{**values, **changes})  # type: ignore[arg-type]

    def memory(self, file: Path | None = None, **changes: object) -> LogMemory:
        return LogMemory(self.policy(**changes), file, self.log.hashes)

    def guard(self, file: Path | None = None, **changes: object) -> LogGuard:
        """A device, or the same one after a restart where ``file`` is the same."""
        return LogGuard(self.memory(file, **changes), clock=self.clock)

    def proof(self, *, endorsements: Sequence[EndorsementEntry] | None = None) -> log_pb2.LogProof:
        """What the server sends along."""
        return log_pb2.LogProof(
            checkpoint=self.log.note,
            task=self.inclusion(TaskEntry.of(self.task).leaf),
            model=self.inclusion(ManifestEntry.of(self.model).leaf),
            charter=self.inclusion(CharterEntry.of(CHARTER).leaf),
            endorsements=[
                self.inclusion(entry.leaf, entry.encode())
                for entry in (self.endorsements if endorsements is None else endorsements)
            ],
        )

    def inclusion(self, leaf: bytes, entry: bytes = b"") -> log_pb2.Inclusion:
        index = self.log.index_of(leaf)
        assert index is not None
        hashes = packed(self.log.inclusion_proof(index, self.log.size))
        return log_pb2.Inclusion(index=index, hashes=hashes, entry=entry)

    def close(self) -> None:
        self.log.close()
