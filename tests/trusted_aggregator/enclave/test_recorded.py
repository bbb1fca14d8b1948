"""Recorded tasks of every kind run in the sealed process: what an algorithm or a library would load late fails here."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from combinations import recording
from combinations.recording import Recorded, recorded
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.hashes import SHA384
from in_process import EnclaveCalls

from odp.algorithms.registry import algorithm_for
from odp.crypto import SigningKey, domains, seal
from odp.crypto.blind_rsa import EXPONENT, SALT_BYTES
from odp.crypto.secure_aggregation.masked import mask, set_sha256
from odp.crypto.segments import is_large, seal_segments
from odp.signed.charter import approve, found, open_charter, succeed
from odp.signed.task import sign_order, sign_task, task_sha256
from odp.trust.enclave import launcher
from odp.trust.enclave.channel import Client, Connection
from odp.trust.enclave.enclave_start import start
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY
from odp.trust.enclave.policy import ACCUMULATIONS, Accumulation, EnclavePolicy
from odp.trust.enrolment.token_key import TOKEN_BYTES, TokenKey
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2, population_pb2
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import HostSum, SealedContribution
from trusted_aggregator.host.remote import restore
from trusted_aggregator.state.records import SealedRecord, noise_key, release_key, stream_key

pytestmark = pytest.mark.processes

MODEL = hashlib.sha256(b"a model").digest()


class Issuer:
    """Signs tokens without blinding: nobody here has an identity to protect."""

    def __init__(self) -> None:
        self.key = SigningKey.generate()
        self._rsa = rsa.generate_private_key(EXPONENT, 8 * TOKEN_BYTES)

    def token_key(self, population: str, sha256: bytes, round: int) -> enrolment_pb2.SignedTokenKey:
        modulus = self._rsa.public_key().public_numbers().n.to_bytes(TOKEN_BYTES, "big")
        return TokenKey(population, sha256, round, modulus, 0).signed(self.key)

    def token(self, contribution_id: bytes) -> bytes:
        padding = PSS(mgf=MGF1(SHA384()), salt_length=SALT_BYTES)
        return self._rsa.sign(domains.contribution_token(contribution_id), padding, SHA384())


class Host:
    """Developer, issuer and host of one enclave at a time; it keeps what each asks it to keep."""

    def __init__(self, folder: Path, accumulation: Accumulation) -> None:
        self.developer, self.issuer = SigningKey.generate(), Issuer()
        founders = (self.developer.public.hex(),)
        self.policy = EnclavePolicy(
            role="aggregator", minimum_cohort=1, accumulation=accumulation, founders=founders, population_epsilon=1e3,
            population_delta=1e-3,
        )  # fmt: skip
        self.charters: dict[str, population_pb2.SignedCharter] = {}
        self._folder = folder
        self._keys: bytes | None = None
        self.records: dict[str, bytes] = {}
        self.rows: dict[tuple[bytes, int], list[bytes]] = {}
        self.start()

    def start(self) -> None:
        """Launches an enclave from all that is kept."""
        policy = self.policy.to_bytes()
        self._enclave = launcher.launch(platform_folder=self._folder, entry=AGGREGATOR_ENTRY, policy=policy)
        connection = Connection(self._enclave.channel)
        self._keys = start(connection, self._keys)
        self.persist(restore(connection, self.records, lambda task, round: self.rows.get((task, round), [])))
        self.ended: list[Exception] = []
        self._client = Client(connection, AggregatorCalls.interface.reply, ended=self.ended.append)
        self.core = EnclaveCalls(self._client)

    def close(self) -> None:
        self._client.close()
        self._enclave.close()

    def persist(self, writes: tuple[SealedRecord, ...]) -> None:
        for record in writes:
            if record.data is None:
                self.records.pop(record.key, None)
            else:
                self.records[record.key] = record.data

    def settle(self, writes: tuple[SealedRecord, ...]) -> None:
        self.persist(writes)
        self.core.commit()


class Run:
    """One recorded task at a host."""

    def __init__(self, host: Host, combination: Recorded) -> None:
        self.host, self.combination = host, combination
        definition = common_pb2.TaskDefinition()
        definition.CopyFrom(combination.definition)
        self.task = sign_task(definition, host.developer)
        self.sha256 = task_sha256(self.task)
        self.definition = definition
        host.core.check_task(self.task)
        if definition.population not in host.charters:
            owners, issuer = [host.developer.public], host.issuer.key.public
            signed = approve(found(definition.population, owners=owners, issuer_key=issuer), host.developer)
            host.settle(host.core.set_charter(signed))
            host.charters[definition.population] = signed

    def rounds(self, *, restarts: bool) -> None:
        """Every round; with ``restarts``, each has one between its contribution and its charge."""
        for number in range(len(self.combination.payloads)):
            self._open(number)
            host_sum = self._contribute(number)
            if restarts:
                self.host.close()
                self.host.start()
            self._release(number, host_sum)

    def end(self) -> None:
        """Another owner of its population, who ends it."""
        core, developer, charters = self.host.core, self.host.developer, self.host.charters
        assert core.ledger(self.sha256) is not None
        other, population = SigningKey.generate(), self.definition.population
        charter = succeed(open_charter(charters[population]), owners=[developer.public, other.public])
        charters[population] = approve(charter, developer)
        self.host.settle(core.set_charter(charters[population]))
        order = population_pb2.AbandonOrder(task_sha256=self.sha256).SerializeToString()
        signed = population_pb2.CharterSignature(key=other.public, signature=other.sign(domains.ABANDON, order))
        self.host.settle(core.abandon(self.task, order, signed))
        core.forget(self.sha256)

    def _open(self, number: int) -> None:
        order = aggregator_pb2.RoundOrder(task_sha256=self.sha256, round=number, model_sha256=MODEL)
        self._order = order
        signed = sign_order(order, self.host.developer, domains.OPEN)
        token_key = self.host.issuer.token_key(self.definition.population, self.sha256, number)
        self.host.persist(self.host.core.open_round(self.task, *signed, token_key))

    def _contribute(self, number: int) -> HostSum | None:
        core = self.host.core
        expected = core.sealed_bytes(self.sha256, number)
        if not expected:
            return None  # a session has all of it
        payload, vector = self.combination.payloads[number], b""
        if core.host_part_bytes(self.sha256, number):
            halves = mask(payload, info=domains.masked_vector_info(self.sha256, number))
            payload, vector = halves.secret, halves.vector
        sealed = self._sealed(number, payload)
        digest = hashlib.sha256(vector).digest() if vector else b""
        assert len(sealed) == expected
        assert core.submit_batch([SealedContribution(self.sha256, number, sealed, digest)]) == [None]
        self.host.rows[self.sha256, number] = [sealed + digest]
        return HostSum(vector, set_sha256(self.sha256, number, [digest])) if vector else None

    def _sealed(self, number: int, payload: bytes) -> bytes:
        contribution_id = os.urandom(32)
        contribution = aggregator_pb2.Contribution(
            task_sha256=self.sha256, round=number, model_sha256=MODEL, contribution_id=contribution_id,
            pseudonym=os.urandom(32), payload=payload, token=self.host.issuer.token(contribution_id),
        )  # fmt: skip
        large = is_large(len(payload))
        context, close = (
            (domains.large_contribution_info, seal_segments) if large else (domains.contribution_info, seal)
        )
        key = self.host.core.round_key(self.sha256, number)
        info = context(self.sha256, number, MODEL, self.host.policy.sha256)
        return close(key.hpke_key, contribution.SerializeToString(), info)

    def _release(self, number: int, host_sum: HostSum | None) -> None:
        host, order = self.host, sign_order(self._order, self.host.developer, domains.CLOSE)
        if not host.core.sealed_bytes(self.sha256, number):
            host.core.announce(self.sha256, number, self.definition.cohort.minimum, bytes(32))
            (release,) = algorithm_for(self.definition).query(number).releases
            host_sum = HostSum(bytes(8 * release.coordinates), bytes(32))
        charged = host.core.charge(*order)
        host.settle(charged.writes)
        if charged.host_part_bytes:
            host.core.host_parts(self.sha256, number, 0)
        noise = host.records[noise_key(self.sha256, number)]
        stream = host.records.get(stream_key(self.sha256, number))
        host.settle(host.core.seal_release(order[0], noise=noise, stream=stream, host_sum=host_sum))
        signed = host.core.release(order[0], stored=host.records[release_key(self.sha256, number)])
        release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed).release)
        assert release.task_sha256 == self.sha256
        assert release.tensors


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_every_recorded_task_runs_from_first_round_to_end_where_nothing_can_be_loaded(accumulation, tmp_path):
    everything = accumulation == "oblivious"
    # How an enclave adds up is one for dense contributions: there are no items that could be seen. The other way could
    # not keep a secret draw.
    chosen = [combination for combination in recorded() if everything or _adds_items(combination)]
    assert chosen
    host = Host(tmp_path / "platform", accumulation)
    restarted = {"dpam-enclave", "dpftrl-masked", "fedavg-secagg+", "statistics-enclave"} if everything else set()
    try:
        for combination in chosen:
            run = Run(host, combination)
            kind = combination.name.partition("-")[2]
            run.rounds(restarts=kind in restarted)
            restarted.discard(kind)
            run.end()
        assert not restarted
        assert host.ended == []
    finally:
        host.close()


def _adds_items(combination: Recorded) -> bool:
    sampled = combination.definition.cohort.HasField("enclave_poisson")
    return not algorithm_for(combination.definition).dense and not sampled


def test_there_is_a_recording_of_every_kind_that_a_task_can_be_made_of():
    made, kept = ([combination.name for combination in some] for some in (recording.made(), recorded()))
    assert made == kept, "record them: `python -m combinations.recording` in tests/"
