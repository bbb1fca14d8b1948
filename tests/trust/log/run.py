"""A finished run as a log, made by hand: every key is the test's own, so that every lie can be signed properly."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from trust.log.world import CHARTER, DEVELOPER, NOW, POLICIES, a_model, a_task

from odp.algorithms.registry import Algorithm, algorithm_for
from odp.algorithms.release import charge_of, charges_of
from odp.crypto import domains
from odp.crypto.note import Kind, NoteKey
from odp.crypto.signing import SigningKey
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, Entry as LedgerLine, ReleaseState, lines_of
from odp.signed.charter import charter_sha256
from odp.signed.ledger import LedgerPart
from odp.signed.task import model_sha256, task_sha256
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.endorsements import endorse
from odp.trust.log.entries import (
    CharterEntry,
    EndorsementEntry,
    Entry,
    EvidenceEntry,
    LedgerEntry,
    ManifestEntry,
    PolicyEntry,
    ReleaseEntry,
    TaskEntry,
    WithdrawalEntry,
)
from odp.trust.log.log_files import LogFiles
from odp.v1 import common_pb2

IMAGE = "sha384:" + "e" * 96
LEDGER_ID = b"l" * 32
COHORT = 5
POLICY = POLICIES["aggregator"]


@dataclasses.dataclass
class Run:
    """Entries of a run of one task of two rounds: task, models, releases and ledgers, signed by an attested key."""

    platform: EmulatedPlatform
    log_key: NoteKey = dataclasses.field(default_factory=lambda: NoteKey.generate("example.com/log"))
    endorser: SigningKey = dataclasses.field(default_factory=SigningKey.generate)
    developer: SigningKey = DEVELOPER
    enclave: SigningKey = dataclasses.field(default_factory=SigningKey.generate)

    def __post_init__(self) -> None:
        self.task = a_task(self.developer)
        self.definition = common_pb2.TaskDefinition.FromString(self.task.definition)
        self.task_id = task_sha256(self.task)
        self.algorithm: Algorithm = algorithm_for(self.definition)
        self.rounds = len(self.algorithm.planned_releases())
        self.models = [a_model(self.task, self.developer, version=version) for version in range(self.rounds + 1)]
        self.ledgers = self._ledgers()

    def _ledgers(self) -> list[Ledger]:
        """The ledger after each round."""
        ledgers, ledger = [], Ledger(self.definition.population)
        for round in range(self.rounds):
            ledger = self.charge(ledger, round)
            ledgers.append(ledger)
        return ledgers

    def charge(
        self, ledger: Ledger, round: int, *, task_id: bytes | None = None, contributions: int = COHORT
    ) -> Ledger:
        task = (task_id or self.task_id).hex()
        charged = ledger.charge(
            task_id=task,
            round=round,
            events=charges_of(self.algorithm.query(round)),
            contributions=contributions,
            population_size=contributions,
            id_set_sha256=bytes(32),
            task_budget=Budget(self.definition.privacy.epsilon, self.definition.privacy.delta),
            population_budget=Budget(POLICY.population_epsilon, POLICY.population_delta),
        )
        release = self._made(round, charged.entries[-1]).SerializeToString(deterministic=True)
        return charged.advance(
            task_id=task, round=round, state=ReleaseState.SEALED, release_sha256=hashlib.sha256(release).digest()
        )

    def _made(self, round: int, entry: LedgerLine) -> common_pb2.Release:
        """The release of a round under the entry that charges it."""
        query = self.algorithm.query(round)
        return common_pb2.Release(
            task_sha256=self.task_id,
            round=round,
            model_sha256=model_sha256(self.models[round]),
            tensors=[
                common_pb2.ReleasedTensor(
                    name=one.name, integers=bytes(8 * one.coordinates), shape=one.shape, step=one.step
                )
                for one in query.releases
            ],
            charges=[charge_of(event) for event in charges_of(query)],
            epsilon_spent=entry.task_epsilon,
            epsilon_remaining=max(0.0, entry.task_budget.epsilon - entry.task_epsilon),
            contributions=COHORT,
        )  # fmt: skip

    def endorsement(
        self, *, key: SigningKey | None = None, **changes: object
    ) -> tuple[EndorsementEntry, WithdrawalEntry]:
        values: dict[str, object] = {
            "role": "aggregator",
            "image_digest": IMAGE,
            "policy_sha256": hashlib.sha256(POLICY.to_bytes()).hexdigest(),
            "not_before": int(NOW) - 1000,
            "not_after": int(NOW) + 1000,
        }
        return endorse(key or self.endorser, **{**values, **changes})  # type: ignore[arg-type]

    def evidence(
        self,
        *,
        role: str = "aggregator",
        image: str = IMAGE,
        key: SigningKey | None = None,
        charter: bytes | None = None,
        ledger_id: bytes = LEDGER_ID,
    ) -> EvidenceEntry:
        policy = POLICIES[role].to_bytes()
        launched = self.platform.launch(
            image_digest=image,
            policy=policy,
            name=role,
        )
        launched.bind_keys(hpke_public=b"h" * 32, signing_public=(key or self.enclave).public)
        shown = charter_sha256(CHARTER) if charter is None else charter
        launched.extend(f"ledger people {ledger_id.hex()}")
        launched.extend(f"population people {shown.hex()}")
        found = launched.evidence(bytes(32))
        return EvidenceEntry(found.token.encode("ascii"), policy, found.event_log)

    def release(
        self,
        round: int,
        *,
        key: SigningKey | None = None,
        change: Callable[[common_pb2.Release], None] = lambda release: None,
    ) -> ReleaseEntry:
        entry = next(e for e in self.ledgers[round].entries if e.round == round and e.events)
        release = self._made(round, entry)
        change(release)
        data = release.SerializeToString(deterministic=True)
        return ReleaseEntry(data, (key or self.enclave).sign(domains.RELEASE, data))

    def ledger(
        self, round: int, *, ledger: Ledger | None = None, lines: bytes | None = None, key: SigningKey | None = None
    ) -> LedgerEntry:
        """What came after the round before, up to ``ledger``; ``lines`` instead of these where they are given."""
        found = ledger or self.ledgers[round]
        before = len(self.ledgers[round - 1].entries) if round else 0
        new = lines_of(found.entries[before:]) if lines is None else lines
        head = found.state.head.encode()
        return LedgerEntry.of(
            self.task_id, round, LedgerPart(before, new, head, (key or self.enclave).sign(domains.LEDGER, head))
        )

    def entries(self) -> list[Entry]:
        """Everything, in order."""
        start: list[Entry] = [
            PolicyEntry(POLICY.to_bytes()), self.endorsement()[0], CharterEntry.of(CHARTER), TaskEntry.of(self.task),
            ManifestEntry.of(self.models[0]), self.evidence(),
        ]  # fmt: skip
        for round in range(self.rounds):
            start += [self.release(round), self.ledger(round), ManifestEntry.of(self.models[round + 1])]
        return start

    def write(self, folder: Path, entries: Sequence[Entry | bytes]) -> Path:
        """A log with these entries, properly signed."""
        with LogFiles.open(folder, self.log_key, now=NOW) as log:
            log.append([entry if isinstance(entry, bytes) else entry.encode() for entry in entries], now=NOW)
        return folder

    def pins(self, **changes: object) -> ReferenceValues:
        values: dict[str, object] = {
            "roots": (self.platform.root_certificate_pem,),
            "image_digests": {},
            "policy_sha256": {},
            "allow_emulated": True,
            "log": LogPolicy(
                log_keys=(self.log_key.public(Kind.NOTE).text,), endorser_keys=(self.endorser.public.hex(),)
            ),
        }
        return ReferenceValues(**{**values, **changes})  # type: ignore[arg-type]
