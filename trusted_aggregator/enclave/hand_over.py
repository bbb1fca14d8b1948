"""A hand-over: the old enclave passes the populations, and the keys to them, to the next version, which takes over.

Guarantee of the old enclave's half: of all enclaves, exactly one can charge a population, at every moment and whatever
hosts do. The successor is named in each population's record, and that record is in force (durable, the counters moved)
before the successor gets the key that opens it. From then on this enclave, and every copy of it, refuses to charge; and
the key goes to that successor alone: the code, under the same policy, on the same chip.

Who may be a successor: an enclave whose evidence this enclave's own chip signed over a fresh nonce, with the same
policy, and with code that enough of the endorsers of that policy have endorsed in the transparency log.

No open round goes along: what devices sealed to code that they verified is not opened by other code. A hand-over waits
until every contribution is released, unless its host asks for the end of the open rounds. A round that is open then is
void: its keys are erased, no copy of this enclave can charge it, and its public key is in the population's record. So
both enclaves can sign that nothing which was sealed to it ever had a release, and its devices contribute anew, to the
round that the server opens at the successor. That stays true once the round is charged under another key, and comes
with every later key of the population: who comes back late pays nothing for what never counted. Of a stream, its state
goes along (``streams.py``).

Every step can be repeated. The successor is the code and not a process of it: if it dies, the next one gets the same.
If it never takes over, another one can be named; the counters decide between the two.

The new enclave's half checks the old enclave, opens its records, and seals them for itself.

Guarantee of the new enclave's half: the ledger that this enclave continues is the one of an enclave of this chip and
this policy, whose code enough endorsers have endorsed in the log and not withdrawn, and it is the newest: the chip's
counters stand at the version that names this code as the successor, and move to this enclave's first version when it is
in force.

Of two processes that take over at once, one moves the counters. A process that dies before its records are stored has
changed nothing, and the old enclave gives the next one the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from odp.crypto import domains, hpke
from odp.crypto.signing import verify
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.signed.task import check_length
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.sealing import KEY_BYTES
from odp.trust.enclave.verifier import HAND_OVER_NONCE_BYTES, OwnChip, VerifiedEnclave
from odp.trust.log.excerpt import EndorsedImages
from odp.v1 import aggregator_enclave_pb2, attestation_pb2, hand_over_pb2, stored_release_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.enclave.streams import stream_sealer
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state import records as names
from trusted_aggregator.state.ledger_writes import restored_ledger
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import SealedRecord, Writes
from trusted_aggregator.state.sealed_state import PopulationRecord, Sealer, Successor, TaskRecord


class HandOver:
    """The calls of the old enclave during a hand-over. Thread-safe."""

    def __init__(self, state: EnclaveState) -> None:
        self._state = state
        # The nonce that a successor's evidence has to be over; None before one is drawn.
        self._nonce: bytes | None = None

    def ask_nonce(self, request: aggregator_enclave_pb2.AskNonce) -> aggregator_enclave_pb2.DrawnNonce:
        """32 random bytes for the evidence of a successor; earlier nonces become invalid.

        Erases the secrets of streams that a successor has taken over: only it goes on with them. A start does so, too.

        Raises StateError where the platform cannot erase.
        """
        state = self._state
        with state.lock:
            taken = [population.name for population in state.populations.values() if population.is_taken_over]
            state.streams.erase_taken(task.sha256 for name in taken for task in state.holdings.tasks_of(name))
            self._nonce = os.urandom(HAND_OVER_NONCE_BYTES)
            return aggregator_enclave_pb2.DrawnNonce(nonce=self._nonce)

    def begin_hand_over(self, request: hand_over_pb2.HandOverRequest) -> aggregator_enclave_pb2.RecordWrites:
        """Names the successor in every population's record. Idempotent for that successor.

        Nothing is named, and nothing has to be written, while rounds hold contributions: they have to be closed first,
        or be void if the request says so. Charged rounds, and those whose sessions have survivors, have to close.

        Raises:
            AttestationError, TransparencyError: the evidence is not accepted, or too few endorsers stand behind it.
            ConfigurationError: the policy allows no hand-over, there is nothing to hand over, or the successor is this
                very code.
            PrivacyError: another one has taken a population over.
            StateError: a population was rolled back, or an earlier change is not stored yet.
        """
        state = self._state
        with state.lock:
            successor = _successor(self._verified(request))
            founded = self._founded()
            for population in founded:
                population.require_may_hand_over(successor)
            if not self._freeze_rounds(void=request.void_rounds):
                return aggregator_enclave_pb2.RecordWrites()
            voided, erased = state.drop_rounds()
            for population in founded:
                population.hand_over(successor, voided=voided.get(population.name, ()))
            written = (record for population in founded for record in population.writes(state.sealer))
            return wire.written((*written, *erased))

    def finish_hand_over(self, request: hand_over_pb2.HandOverRequest) -> hand_over_pb2.HandOverPackage:
        """The package for the successor, sealed to it, once its name is in force in every population's record.

        Raises, besides what ``begin_hand_over`` raises, PrivacyError where it is not in force, and StateError where the
        platform cannot erase the keys of void rounds.
        """
        state = self._state
        with state.lock:
            verified = self._verified(request)
            check_length("nonce", request.nonce, HAND_OVER_NONCE_BYTES)
            for population in self._founded():
                if population.successor != _successor(verified):
                    raise PrivacyError(f"population {population.name!r} is not handed over to this successor yet")
            state.erase_over()
            statement = self._statement(verified).SerializeToString(deterministic=True)
            digest = hashlib.sha256(statement).digest()
            info = domains.hand_over_info(request.nonce, digest)
            sealed = hpke.seal(verified.hpke_key, state.identity.sealing_key, info)
            secrets = state.streams.secrets().SerializeToString(deterministic=True)
            streams = b""
            if secrets:
                streams_info = domains.hand_over_streams_info(request.nonce, digest)
                streams = hpke.seal(verified.hpke_key, secrets, streams_info)
            evidence = state.identity.evidence(request.nonce)
            sign = state.identity.signing.sign
            return hand_over_pb2.HandOverPackage(
                hand_over=hand_over_pb2.HandOver(
                    statement=statement,
                    signature=sign(domains.HAND_OVER, statement),
                    evidence=attestation_pb2.GetEvidenceResponse(
                        token=evidence.token, policy=evidence.policy, event_log=evidence.event_log
                    ),
                ),
                sealed=sealed,
                signature=sign(domains.HAND_OVER_PACKAGE, domains.hand_over_package(request.nonce, digest, sealed)),
                sealed_streams=streams,
                streams_signature=sign(
                    domains.HAND_OVER_PACKAGE, domains.hand_over_package(request.nonce, digest, streams)
                ),
            )

    def _verified(self, request: hand_over_pb2.HandOverRequest) -> VerifiedEnclave:
        state = self._state
        policy = state.identity.policy
        if policy.upgrade is None:
            raise ConfigurationError(
                "the policy of this enclave names no log and no endorsers (--upgrade): it cannot hand "
                "over its populations"
            )
        if self._nonce is None:
            raise StateError("no nonce was drawn for the successor's evidence; ask for one first")
        chip = OwnChip.of(state.identity)
        verified = chip.verify(request.successor, nonce=self._nonce)
        if verified.image_digest == state.identity.image_digest:
            raise ConfigurationError("the successor runs the same code as this enclave: there is nothing to hand over")
        EndorsedImages.read(request.log, policy.upgrade, now=chip.now).require(
            role=policy.role, image_digest=verified.image_digest, policy_sha256=policy.sha256.hex()
        )
        return verified

    def _founded(self) -> list[Population]:
        founded = [
            population for _, population in sorted(self._state.populations.items()) if population.record.charter_bytes
        ]
        if not founded:
            raise ConfigurationError("no population is founded here: there is nothing to hand over")
        return founded

    def _freeze_rounds(self, *, void: bool) -> bool:
        """Whether the open rounds can end here; if so, they accept no more. ``void``: also those with contributions."""

        def can_end(round: Round) -> bool:
            return not round.contributions or (void and round.can_be_void)

        held = self._state.holdings.rounds()
        if not all(round.status is Status.OPEN and can_end(round) for round in held):
            return False
        for round in held:
            round.freeze()
        # A contribution may have come in between.
        if not (ended := all(map(can_end, held))):
            for round in held:
                round.thaw()
        return ended

    def _statement(self, successor: VerifiedEnclave) -> hand_over_pb2.HandOverStatement:
        state = self._state
        return hand_over_pb2.HandOverStatement(
            predecessor_image=state.identity.image_digest,
            chip_id=successor.chip_id,
            successor_image=successor.image_digest,
            policy_sha256=state.identity.policy.sha256,
            populations=[_handed(population) for population in self._founded()],
        )


def _successor(verified: VerifiedEnclave) -> Successor:
    return Successor(verified.image_digest, verified.policy.sha256.hex())


def _handed(population: Population) -> hand_over_pb2.HandedPopulation:
    record = population.record
    charter = record.charter
    return hand_over_pb2.HandedPopulation(
        population=record.name,
        ledger_id=record.ledger_id,
        charter_sha256=b"" if charter is None else charter.sha256,
        entries=record.ledger.head.entries,
        head=record.ledger.head.sha256,
    )


class TakingOver:
    """One take-over, from the nonce to the enclave's ``state``. Not thread-safe: the enclave does not serve yet."""

    def __init__(self, identity: EnclaveIdentity) -> None:
        #: Complete once ``finish`` returned.
        self.state = EnclaveState(identity)
        self._identity = identity
        self._nonce: bytes | None = None
        self._predecessor: Sealer | None = None
        # Of the predecessor's records of streams, by their keys.
        self._stream_sealers: dict[str, Sealer] = {}
        self._statement = hand_over_pb2.HandOverStatement()

    def draw_nonce(self) -> bytes:
        """32 random bytes for the evidence of the predecessor; earlier nonces become invalid."""
        self._nonce = os.urandom(HAND_OVER_NONCE_BYTES)
        return self._nonce

    def accept(self, package: hand_over_pb2.HandOverPackage, log: hand_over_pb2.LogExcerpt) -> None:
        """Takes the key to the old records, from an enclave that has the right to give it.

        Raises:
            AttestationError, TransparencyError: its evidence is not accepted, or too few endorsers stand behind it.
            SignatureError, DecryptionError: the package is not by that enclave, or not to this one.
            ConfigurationError: the policy allows no hand-over, or the package is malformed.
            PrivacyError: it names another successor.
            StateError: no nonce was drawn.
        """
        policy, hand_over = self._identity.policy, package.hand_over
        if policy.upgrade is None:
            raise ConfigurationError(
                "the policy of this enclave names no log and no endorsers: it cannot take over populations"
            )
        if self._nonce is None:
            raise StateError("no nonce was drawn for the predecessor's evidence; ask for one first")
        chip = OwnChip.of(self._identity)
        old = chip.verify(hand_over.evidence, nonce=self._nonce)
        EndorsedImages.read(log, policy.upgrade, now=chip.now).require(
            role=policy.role, image_digest=old.image_digest, policy_sha256=policy.sha256.hex(), ended=True
        )
        digest = hashlib.sha256(hand_over.statement).digest()
        verify(old.signing_key, hand_over.signature, domains.HAND_OVER, hand_over.statement)
        signed = domains.hand_over_package(self._nonce, digest, package.sealed)
        verify(old.signing_key, package.signature, domains.HAND_OVER_PACKAGE, signed)
        try:
            statement = hand_over_pb2.HandOverStatement.FromString(hand_over.statement)
        except DecodeError:
            raise ConfigurationError("Expected a HandOverStatement; it cannot be read") from None
        if statement.successor_image != self._identity.image_digest:
            raise PrivacyError(f"the hand-over is to the code {statement.successor_image[:19]}.., and not to this one")
        key = self._identity.hpke.open(package.sealed, domains.hand_over_info(self._nonce, digest))
        check_length("the predecessor's sealing key", key, KEY_BYTES)
        self._predecessor, self._statement = Sealer(key), statement
        self._stream_sealers = self._sealers_of_streams(package, old.signing_key, digest, key)

    def reseal(self, record: SealedRecord) -> Writes:
        """A release or a record of a stream of the predecessor, sealed and signed by this enclave.

        The hash of a release is in the ledger, which decides whether it is handed out. A record of a stream that did
        not go along is left out.

        Raises StateError where it is another record, or the predecessor did not seal it.
        """
        if record.data is not None and record.key.startswith((names.PARTICIPATION_PREFIX, names.STREAM_PREFIX)):
            if (sealer := self._stream_sealers.get(record.key)) is None:
                return ()
            return (self.state.streams.resealed(record.key, sealer.open(record.key, record.data)),)
        if not record.key.startswith(names.RELEASE_PREFIX) or record.data is None:
            raise StateError(f"sealed record {record.key!r} is neither a release nor of a stream")
        stored = stored_release_pb2.StoredRelease.FromString(self._opened(record.key, record.data))
        stored.signature = self._identity.signing.sign(domains.RELEASE, stored.release)
        return (self.state.sealer.seal(record.key, stored.SerializeToString(deterministic=True)),)

    def finish(self, records: Mapping[str, bytes]) -> Writes:
        """Reads populations, tasks and streams from the predecessor's ``records``; those of rounds are dropped.

        Returns the records of this enclave, which the host has to store before they are committed.

        Raises:
            StateError: a record was changed or is missing, or a population was rolled back.
            PrivacyError: a population was handed over to another enclave.
        """
        populations, holdings = self.state.populations, self.state.holdings
        successor = Successor(self._identity.image_digest, self._identity.policy.sha256.hex())
        for handed in self._statement.populations:
            if (key := names.population_key(handed.population)) not in records:
                raise StateError(f"the records that were handed over lack population {handed.population!r}")
            record = PopulationRecord.decode(
                self._opened(key, records[key]), lambda head: restored_ledger(head, self._required(), records)
            )
            population = Population(self._identity, record.name, record=record)
            population.take_over(successor)
            populations[record.name] = population
            holdings.end(record.abandoned)
        tasks = []
        for key, data in records.items():
            if key.startswith(names.TASK_PREFIX):
                plaintext = self._opened(key, data)
                task = OpenedTask.restored(TaskRecord.decode(plaintext))
                if task.population in populations and not holdings.is_ended(task.sha256):
                    holdings.add_task(task)
                    tasks.append(self.state.sealer.seal(key, plaintext))
        for key, sealer in self._stream_sealers.items():
            if key.startswith(names.PARTICIPATION_PREFIX) and key in records:
                self.state.streams.take_up(key, sealer.open(key, records[key]), populations, holdings)
        written = (record for population in populations.values() for record in population.writes(self.state.sealer))
        return (*written, *tasks)

    def _sealers_of_streams(
        self, package: hand_over_pb2.HandOverPackage, signing_key: bytes, digest: bytes, sealing_key: bytes
    ) -> dict[str, Sealer]:
        if not package.sealed_streams or self._nonce is None:
            return {}  # earlier versions end streams
        signed = domains.hand_over_package(self._nonce, digest, package.sealed_streams)
        verify(signing_key, package.streams_signature, domains.HAND_OVER_PACKAGE, signed)
        info = domains.hand_over_streams_info(self._nonce, digest)
        secrets = hand_over_pb2.StreamSecrets.FromString(self._identity.hpke.open(package.sealed_streams, info))
        sealers: dict[str, Sealer] = {}
        for stream in secrets.streams:
            key = names.participation_key(stream.task_sha256, stream.round)
            sealers[key] = sealers[names.stream_beside(key)] = stream_sealer(sealing_key, stream.secret)
        return sealers

    def _opened(self, key: str, data: bytes) -> bytes:
        return self._required().open(key, data)

    def _required(self) -> Sealer:
        if self._predecessor is None:
            raise StateError("nothing was handed over to this enclave yet")
        return self._predecessor
