"""The server's entries in the transparency log, their order, and the proofs for devices.

=================================  ==============================================================================
before its population's tasks      each charter, once it is in force
when it is published               each version of a catalogue
before the first model is made     the task; policies and endorsements of the enclaves (these at the start, too)
after the distributor took it      each model version
before a release is applied        the aggregator's evidence, the release, and what was charged to its population since
                                   the ledger was logged last, in one batch; before evidence of new code, the hand-overs
                                   that led to it, with evidence of those who signed them
=================================  ==============================================================================

Every step is done again after a crash: an entry that is in the log is not appended again, and what is not the same
bytes twice (evidence, ledgers) is recognised by what it is about. Devices get proofs for the newest checkpoint, which
is signed again every minute: the signature's time shows them, and the witnesses, that it is still the newest.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from odp.crypto.note import Kind, VerifierKey, parse_line
from odp.errors import ConfigurationError, OdpError, ServiceUnavailable, StateError
from odp.privacy.ledger_state import LedgerHead
from odp.protocol.catalogues.step import SignedStep
from odp.signed.task import open_task, task_sha256
from odp.transport.channel import parse_address
from odp.transport.logs import Log, short
from odp.transport.sweeping import DAY
from odp.transport.tls import WARN_SECONDS, utc
from odp.trust.enclave.evidence import Claims, read_token
from odp.trust.log.checkpoint import Checkpoint
from odp.trust.log.endorsements import EndorsementFile, open_endorsement
from odp.trust.log.entries import (
    HEAD_BYTES,
    CatalogueEntry,
    CharterEntry,
    EndorsementEntry,
    EvidenceEntry,
    HandOverEntry,
    LedgerEntry,
    ManifestEntry,
    ReleaseEntry,
    TaskEntry,
    decode,
    type_of,
)
from odp.trust.log.log_files import LogFiles
from odp.trust.log.proofs import packed
from odp.v1 import attestation_pb2, common_pb2, log_pb2, population_pb2
from server.catalogues import LoggedCatalogues
from server.clients import AggregatorClient, WitnessClient

#: How often the newest checkpoint is signed and cosigned again.
FRESH_SECONDS = 60.0
#: How often a witness that did not cosign is asked again.
_ASK_AGAIN_SECONDS = 5.0
# For the thread that asks the witnesses; a hanging witness delays the others for at most this time.
_PATIENCE_SECONDS = 1.0
_MOST_ENDORSEMENTS = 16
_NONCE_BYTES = 32


@dataclass
class KnownWitness:
    """A witness, and the keeper's state about it: the proven size, its newest cosignature, and its last failure."""

    key: VerifierKey
    caller: WitnessClient
    size: int = 0
    cosigned: Checkpoint | None = None
    failed: float = float("-inf")


class LogKeeper:
    """Appends, signs, collects cosignatures, and proves. Thread-safe."""

    def __init__(
        self,
        log: LogFiles,
        *,
        endorsements: EndorsementFile,
        events: Log,
        clock: Callable[[], float],
        witnesses: Sequence[KnownWitness] = (),
        reread: Callable[[], EndorsementFile | None] = lambda: None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Logs the endorsements, so that a new withdrawal takes effect at start. Raises StateError.

        ``reread`` gives the endorsements again where they changed since; these are logged as well.
        """
        self._log = log
        #: Those in the log.
        self.catalogues = LoggedCatalogues(log)
        self._endorsements = endorsements
        self._events = events
        self._clock = clock
        self._witnesses = tuple(witnesses)
        self._reread = reread
        self._random = random
        # Under the first one nothing waits for another party; whoever holds one of the others may take it.
        self._lock = threading.RLock()
        self._rounds, self._asking = threading.Lock(), threading.Lock()
        self._signed = clock()
        self._evidence: set[bytes] = set()
        self._ledgers: set[tuple[bytes, int]] = set()
        # By population, how many entries of its ledger the log holds.
        self._charged: dict[str, int] = {}
        # How many entries were read for these three.
        self._recalled = 0
        self._recall()
        self._append([entry.encode() for entry in endorsements.entries])
        # Nobody cosigned this start's checkpoint yet, and it may be old.
        log.sign_again(now=clock())

    def log_charter(self, charter: population_pb2.SignedCharter) -> None:
        """Logs a charter that is in force. Raises StateError."""
        if self._append([CharterEntry.of(charter).encode()]):
            self._events.event("charter_logged", size=self._log.size)

    def log_task(self, task: common_pb2.SignedTask) -> None:
        """Logs a task.

        Raises:
            ConfigurationError: it names a catalogue version that is not in the log, or was withdrawn.
            StateError: the log cannot be written.
        """
        if not self.has_task(task) and self._append([TaskEntry.of(task).encode()], unless=self._unnamed(task)):
            self._events.event("task_logged", size=self._log.size)

    def _unnamed(self, task: common_pb2.SignedTask) -> Callable[[], bool]:
        """Raises, and is never true: under the log's lock, so that no version is withdrawn in between."""
        definition = open_task(task)

        def check() -> bool:
            self.catalogues.require(definition, shared=False)
            return False

        return check

    def log_catalogue(self, signed: SignedStep) -> bool:
        """Logs the next version of a catalogue; False where it is logged already.

        Raises:
            ConfigurationError: it does not follow the newest one.
            StateError: the log cannot be written.
        """
        step = signed.open()
        return self._append(
            [CatalogueEntry.of(signed).encode()], unless=lambda: not self.catalogues.after(step, signed.step)
        )

    def has_task(self, task: common_pb2.SignedTask) -> bool:
        """Whether a task is logged."""
        return self._log.index_of(TaskEntry.of(task).leaf) is not None

    def require_tasks(self, tasks: Iterable[common_pb2.SignedTask]) -> None:
        """Raises StateError if the log lacks one of ``tasks``, which were logged: its files are outdated or gone."""
        for task in tasks:
            if not self.has_task(task):
                raise StateError(
                    f"the log in {self._log.folder} lacks task {short(task_sha256(task))}, which was logged: its files "
                    "are older than the database, or new; `odp audit repair` restores them"
                )

    def log_model(self, model: common_pb2.SignedManifest) -> None:
        """Logs a model version. Raises StateError."""
        self._append([ManifestEntry.of(model).encode()])

    def log_round(
        self,
        task_sha256: bytes,
        round: int,
        release: common_pb2.SignedRelease,
        *,
        population: str,
        aggregator: AggregatorClient,
    ) -> bool:
        """Logs a release with the evidence of its signer and its charges; False if that is done already.

        Raises:
            ServiceError, ServiceUnavailable: the aggregator did not give evidence or ledger, or evidence of a time at
                which its code is not endorsed.
            AttestationError: its evidence is malformed.
            StateError: the log cannot be written.
        """
        with self._rounds:
            while True:
                self._recall()
                if (task_sha256, round) in self._ledgers:
                    return False
                charged = self._charged.get(population, 0)
                evidence = aggregator.evidence(self._random(_NONCE_BYTES))
                is_new = _key_of(evidence) not in self._evidence
                if is_new:
                    self._require_time(evidence)
                part = aggregator.ledger(task_sha256, charged)
                batch = [ReleaseEntry.of(release).encode(), LedgerEntry.of(task_sha256, round, part).encode()]
                if is_new:
                    batch = [*self._history(aggregator), _evidence_entry(evidence), *batch]
                overtaken = functools.partial(self._is_overtaken, task_sha256, round, population, charged)
                if self._append(batch, unless=overtaken):
                    break
            self._recall()
            self._events.event("round_logged", task=short(task_sha256), round=round, size=self._log.size)
            return True

    def _require_time(self, evidence: attestation_pb2.GetEvidenceResponse) -> None:
        """A log keeps what it has: evidence from a clock that leapt would fail every later audit.

        Raises ServiceUnavailable.
        """
        claims = Claims.from_json(read_token(evidence.token).claims)
        policy = hashlib.sha256(evidence.policy).hexdigest()
        endorsements = [
            each
            for each in map(open_endorsement, self._endorsements.endorsements)
            if self._log.index_of(bytes.fromhex(each.withdrawal)) is None
        ]
        code = ("aggregator", claims.image_digest, policy)
        standing = [each for each in endorsements if (each.role, each.image_digest, each.policy_sha256) == code]
        if standing and not any(each.not_before <= claims.issued < each.not_after for each in standing):
            raise ServiceUnavailable(
                f"the aggregator's evidence is of {utc(claims.issued)}, when no endorsement of its code holds: check "
                "its clock, and renew the endorsement (`odp enclave endorse`) if that is the time"
            )

    def _is_overtaken(self, task_sha256: bytes, round: int, population: str, charged: int) -> bool:
        """Whether another server logged this round, or charges of its population, since they were read."""
        self._recall()
        return (task_sha256, round) in self._ledgers or self._charged.get(population, 0) != charged

    def _history(self, aggregator: AggregatorClient) -> list[bytes]:
        """The hand-overs that led to the aggregator's enclave, each after evidence of its signer; only new ones."""
        entries, new = [], set[bytes]()
        for hand_over in aggregator.hand_overs():
            if (signer := _key_of(hand_over.evidence)) not in self._evidence | new:
                entries.append(_evidence_entry(hand_over.evidence))
                new.add(signer)
            entries.append(HandOverEntry(hand_over.statement, hand_over.signature).encode())
        return entries

    def take_endorsements(self, endorsements: EndorsementFile) -> None:
        """Logs new entries of the endorser's file, and warns of enclaves whose endorsements end within 30 days.

        Raises StateError.
        """
        with self._lock:
            self._endorsements = endorsements
        if self._append([entry.encode() for entry in endorsements.entries]):
            self._events.event("endorsements_logged", size=self._log.size)
        ends: dict[tuple[str, str], int] = {}
        for entry in endorsements.endorsements:
            stated = open_endorsement(entry)
            if self._log.index_of(bytes.fromhex(stated.withdrawal)) is None:
                enclave = (stated.role, stated.image_digest)
                ends[enclave] = max(stated.not_after, ends.get(enclave, 0))
        now = self._clock()
        for (role, image), end in ends.items():
            if end - now < WARN_SECONDS:
                days = max(0, int((end - now) // DAY))
                self._events.warning("endorsement_expires", role=role, image=image[:19], at=utc(end), days=days)

    @property
    def age(self) -> float:
        """Seconds since this server signed the newest checkpoint."""
        return max(0.0, self._clock() - self._signed)

    def keep_fresh(self) -> bool:
        """Signs the newest checkpoint again and asks witnesses again, if it is due. True if it changed."""
        now = self._clock()
        with self._asker() as mine:
            with self._lock:
                due = not 0 <= now - self._signed < FRESH_SECONDS
                if due:
                    self._log.sign_again(now=now)
                    self._signed = now
            return (mine and self._cosign(again=due)) or due

    def reread_endorsements(self) -> bool:
        """Takes the endorser's file again where it changed; whether it did. Raises StateError."""
        try:
            changed = self._reread()
        except ConfigurationError as error:
            self._events.warning("endorsements_not_read", reason=str(error))
            return False
        if changed is not None:
            self.take_endorsements(changed)
        return changed is not None

    def proof(
        self,
        task: common_pb2.SignedTask,
        model: common_pb2.SignedManifest | None,
        charter: population_pb2.SignedCharter | None,
    ) -> log_pb2.LogProof | None:
        """The proof that a task, a model, a charter and the endorsed enclaves are in the log.

        Without ``model`` no enclave takes part, and the proof is of task and charter alone. None where one of them is
        not there.
        """
        if charter is None:
            return None
        with self._asker():
            pass  # a device refuses what was appended until its witnesses have cosigned it
        with self._lock:
            size = self._log.size
            places = [self._log.index_of(entry.leaf) for entry in (TaskEntry.of(task), CharterEntry.of(charter))]
            if places[0] is None or places[1] is None:
                return None
            proof = log_pb2.LogProof(
                checkpoint=self._log.note,
                task=self._inclusion(places[0], size),
                charter=self._inclusion(places[1], size),
            )
            if model is None:
                return proof
            if (place := self._log.index_of(ManifestEntry.of(model).leaf)) is None:
                return None
            proof.model.CopyFrom(self._inclusion(place, size))
            proof.endorsements.extend(
                self._inclusion(index, size, entry=entry.encode()) for index, entry in self._standing_endorsements()
            )
            return proof

    def _standing_endorsements(self) -> list[tuple[int, EndorsementEntry]]:
        """Those in force; without one, those that ended: a clock that leapt may say so, and devices go by their own."""
        now = self._clock()
        standing: list[tuple[int, EndorsementEntry]] = []
        ended: list[tuple[int, EndorsementEntry]] = []
        for entry in self._endorsements.endorsements:
            stated = open_endorsement(entry)
            index = self._log.index_of(entry.leaf)
            withdrawn = self._log.index_of(bytes.fromhex(stated.withdrawal)) is not None
            if index is not None and not withdrawn:
                (standing if now < stated.not_after else ended).append((index, entry))
        return (standing or ended)[-_MOST_ENDORSEMENTS:]

    def _inclusion(self, index: int, size: int, *, entry: bytes = b"") -> log_pb2.Inclusion:
        return log_pb2.Inclusion(index=index, hashes=packed(self._log.inclusion_proof(index, size)), entry=entry)

    def _append(self, entries: Sequence[bytes], *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Appends entries, and asks for cosignatures; False if none was new, or where ``unless`` is true."""
        with self._asker() as mine:
            with self._lock:
                before, now = self._log.size, self._clock()
                if not self._log.append(entries, now=now, unless=unless) or self._log.size == before:
                    return False
                self._signed = now
            if mine:
                self._cosign(again=True)
            return True

    @contextlib.contextmanager
    def _asker(self) -> Iterator[bool]:
        """Whether this thread may ask the witnesses; it delays others for at most ``_PATIENCE_SECONDS``.

        Without it, what is missing is left to the next ``keep_fresh``.
        """
        mine = self._asking.acquire(timeout=_PATIENCE_SECONDS)
        try:
            yield mine
        finally:
            if mine:
                self._asking.release()

    def _cosign(self, *, again: bool) -> bool:
        """Asks the witnesses for missing cosignatures (``again``: for all); a failed one is asked again later."""
        changed = False
        for witness in self._witnesses:
            with self._lock:
                note, newest = self._log.note, self._log.checkpoint
            lately = 0 <= self._clock() - witness.failed < _ASK_AGAIN_SECONDS
            if lately or not (again or witness.cosigned != newest):
                continue
            try:
                changed = self._ask(witness, note, newest) or changed
            except OdpError as error:
                witness.cosigned = None
                self._events.warning("witness_did_not_cosign", witness=witness.key.name, reason=str(error))
            if witness.cosigned != newest:
                witness.failed = self._clock()
        return changed

    def _ask(self, witness: KnownWitness, note: bytes, newest: Checkpoint) -> bool:
        # The witness returns its size if it differs from the remembered one: one more attempt.
        for _ in range(2):
            proof = self._log.consistency_proof(min(witness.size, newest.size), newest.size)
            reply = witness.caller.add_checkpoint(note, old_size=min(witness.size, newest.size), hashes=packed(proof))
            if reply.cosignature:
                break
            if reply.size > newest.size:
                raise StateError(
                    f"the witness cosigned a tree of {reply.size} entries and this log has {newest.size}: "
                    "its files are older than what was shown"
                )
            witness.size = reply.size
        else:
            return False
        line = parse_line(reply.cosignature)
        if not line.is_by(witness.key) or not witness.key.verifies(line, newest.body):
            raise ConfigurationError(f"the witness's line is not its signature under {witness.key.text}")
        witness.size, witness.cosigned = newest.size, newest
        return self._log.add_cosignatures(newest.body, [line])

    def _recall(self) -> None:
        """Reads from new entries of the log which evidence and ledgers it has."""
        with self._lock:
            for index in range(self._recalled, self._log.size):
                kind = type_of(self._log.head(index, HEAD_BYTES))
                if kind is EvidenceEntry or kind is LedgerEntry:
                    entry = decode(self._log.entry(index))
                    if isinstance(entry, EvidenceEntry):
                        claims = Claims.from_json(read_token(entry.token.decode("ascii")).claims)
                        self._evidence.add(claims.signing_key)
                    elif isinstance(entry, LedgerEntry):
                        self._ledgers.add((entry.task_sha256, entry.number))
                        self._note_charged(entry.head)
                self._recalled = index + 1

    def _note_charged(self, encoded: bytes) -> None:
        head = LedgerHead.decode(encoded)
        self._charged[head.population] = head.entries


def _key_of(evidence: attestation_pb2.GetEvidenceResponse) -> bytes:
    return Claims.from_json(read_token(evidence.token).claims).signing_key


def _evidence_entry(evidence: attestation_pb2.GetEvidenceResponse) -> bytes:
    return EvidenceEntry(evidence.token.encode("ascii"), evidence.policy, evidence.event_log).encode()


def read_witness(text: str) -> tuple[str, VerifierKey]:
    """Address and key of ``host:port=verifier key``. Raises ConfigurationError."""
    address, separator, key = text.partition("=")
    if not separator:
        raise ConfigurationError(
            f"Expected witness={text!r} to be host:port=KEY; `odp witness run` prints its key when it starts"
        )
    parse_address(address)
    verifier = VerifierKey.from_text(key)
    if verifier.kind is not Kind.COSIGNATURE:
        raise ConfigurationError(f"Expected the key of witness {verifier.name!r} to be a cosignature key")
    return address, verifier
