"""The new enclave's half of a hand-over: it checks the old enclave, opens its records, and seals them for itself.

Guarantee: the ledger that this enclave continues is the one of an enclave of this chip and this policy, whose code
enough endorsers have endorsed in the log and not withdrawn, and it is the newest: the chip's counters stand at the
version that names this code as the successor, and move to this enclave's first version when it is in force.

Of two processes that take over at once, one moves the counters. A process that dies before its records are stored has
changed nothing, and the old enclave gives the next one the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from odp.crypto import domains
from odp.crypto.signing import verify
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.privacy.ledger_state import LedgerHead, LedgerState
from odp.signed.task import check_length
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.same_chip import NONCE_BYTES, OwnChip
from odp.trust.enclave.sealing import KEY_BYTES
from odp.trust.log.excerpt import EndorsedImages
from odp.v1 import hand_over_pb2, stored_release_pb2
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.enclave.streams import stream_sealer
from trusted_aggregator.state import records as names
from trusted_aggregator.state.ledger_writes import restored_ledger
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import SealedRecord, Writes
from trusted_aggregator.state.sealed_state import PopulationRecord, Sealer, Successor, TaskRecord


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
        self._nonce = os.urandom(NONCE_BYTES)
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
            sealer = self._stream_sealers.get(record.key)
            if sealer is None:
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
            key = names.population_key(handed.population)
            if key not in records:
                raise StateError(f"the records that were handed over lack population {handed.population!r}")
            record = PopulationRecord.decode(self._opened(key, records[key]), self._ledger_at(records))
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

    def _ledger_at(self, records: Mapping[str, bytes]) -> Callable[[LedgerHead], LedgerState]:
        return lambda head: restored_ledger(head, self._required(), records)

    def _opened(self, key: str, data: bytes) -> bytes:
        return self._required().open(key, data)

    def _required(self) -> Sealer:
        if self._predecessor is None:
            raise StateError("nothing was handed over to this enclave yet")
        return self._predecessor
