"""Rehearsal of a hand-over between two made-up enclaves of one chip, in memory: it loads all lazy imports."""

from __future__ import annotations

import time
from pathlib import Path

from odp.crypto import SigningKey
from odp.crypto.note import Kind, NoteKey
from odp.enclave import chain
from odp.enclave.guest import Evidence
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.log_policy import LogPolicy
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.enclave.rehearsal import RehearsalCounter, RehearsalGuest
from odp.enclave.upgrade_policy import UpgradePolicy
from odp.signed.charter import approve, found
from odp.transparency import Checkpoint, sign_checkpoint
from odp.transparency.endorsements import endorse
from odp.transparency.merkle import leaf_hash, root_of
from odp.v1 import attestation_pb2, common_pb2, enclave_pb2, hand_over_pb2
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.enclave.taking_over import TakingOver
from trusted_aggregator.state.records import release_key
from trusted_aggregator.state.sealed_state import Sealer

_IMAGES = ("sha384:" + "0" * 96, "sha384:" + "1" * 96)


class RehearsedGuest(RehearsalGuest):
    """A guest with evidence of a chip that nobody pins; ``counters`` are shared by the enclaves of the chip."""

    def __init__(
        self, platform: EmulatedPlatform, policy: EnclavePolicy, image: str, counters: dict[str, RehearsalCounter]
    ) -> None:
        super().__init__(policy)
        self.image_digest = image
        self._counters = counters
        self._launched = platform.launch(image_digest=image, policy=policy.to_bytes(), name=policy.role)

    def bind_keys(self, *, hpke_public: bytes, signing_public: bytes) -> None:
        self._launched.bind_keys(hpke_public=hpke_public, signing_public=signing_public)

    def evidence(self, nonce: bytes) -> Evidence:
        return self._launched.evidence(nonce)


def rehearse_hand_over() -> None:
    """Founds a population, hands it over and takes it over; keeps nothing of it."""
    developer, endorser, log_key = SigningKey.generate(), SigningKey.generate(), NoteKey.generate("rehearsal/log")
    pinned = LogPolicy(log_keys=(log_key.public(Kind.NOTE).text,), endorser_keys=(endorser.public.hex(),))
    policy = EnclavePolicy(role="aggregator", founders=(developer.public.hex(),), upgrade=UpgradePolicy(log=pinned))
    # The folder is never used: counters and slots are those of a rehearsal.
    platform = EmulatedPlatform(Path(), chain.issue(now=time.time()), bytes(32))
    counters: dict[str, RehearsalCounter] = {}
    old, new = (
        EnclaveIdentity.restore_or_create(guest=RehearsedGuest(platform, policy, image, counters), sealed=None)[0]
        for image in _IMAGES
    )
    core, taking = AggregatorCore(EnclaveState(old)), TakingOver(new)
    records = {}
    charter = approve(found("rehearsal", owners=[developer.public]), developer)
    for record in core.owners.set_charter(charter).records:
        records[record.key] = record.data
    core.state.commit(enclave_pb2.CommitWrites())
    request = hand_over_pb2.HandOverRequest(
        successor=_evidence(new, core.hand_over.ask_nonce(enclave_pb2.AskNonce()).nonce),
        nonce=taking.draw_nonce(),
        log=_excerpt(log_key, endorser, policy),
    )
    for record in core.hand_over.begin_hand_over(request).records:
        records[record.key] = record.data
    core.state.commit(enclave_pb2.CommitWrites())
    taking.accept(core.hand_over.finish_hand_over(request), request.log)
    key = release_key(bytes(32), 0)
    taking.reseal(Sealer(old.sealing_key).seal(key, common_pb2.SignedRelease().SerializeToString()))
    taking.finish({key: data for key, data in records.items() if data})
    taking.state.commit(enclave_pb2.CommitWrites())


def _evidence(identity: EnclaveIdentity, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
    found = identity.evidence(nonce)
    return attestation_pb2.GetEvidenceResponse(token=found.token, policy=found.policy, event_log=found.event_log)


def _excerpt(log_key: NoteKey, endorser: SigningKey, policy: EnclavePolicy) -> hand_over_pb2.LogExcerpt:
    now = int(time.time())
    entries = [
        endorse(
            endorser,
            role="aggregator",
            image_digest=image,
            policy_sha256=policy.sha256.hex(),
            not_before=now - 60,
            not_after=now + 60,
        )[0].encode()
        for image in _IMAGES
    ]
    leaves = list(map(leaf_hash, entries))
    note = sign_checkpoint(Checkpoint(log_key.name, len(leaves), root_of(leaves)), log_key, now=now)
    return hand_over_pb2.LogExcerpt(checkpoint=note.encode(), leaves=b"".join(leaves), endorsements=entries)
