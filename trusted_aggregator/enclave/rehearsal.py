"""Rehearsal: one tiny task of each kind from first round to last, in memory, which loads all lazy imports.

An enclave cannot open files once it serves, so anything that its code or its libraries import late has to be there
before. A list of such imports would be wrong with the next library; running every step is not. The kinds are those that
a task can be made with: each algorithm, way to aggregate and way to sample, and what their charges cost together.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.hashes import SHA384

from odp.algorithms.registry import TABLE, algorithm_for, part_of
from odp.algorithms.rehearsal import sampled
from odp.algorithms.release import round_charges, sampling_of
from odp.algorithms.seam import Algorithm, LocalRows, NoisyTensors
from odp.crypto import SigningKey, domains, seal
from odp.crypto.blind_rsa import EXPONENT, SALT_BYTES
from odp.crypto.segments import SEGMENT_BYTES, is_large, seal_segments
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.policy import ACCUMULATIONS, Accumulation, EnclavePolicy
from odp.enclave.rehearsal import RehearsalGuest
from odp.enrolment.token_key import TOKEN_BYTES, TokenKey
from odp.errors import StateError
from odp.numerics.arrays import Int64Array
from odp.privacy import accounting
from odp.privacy.events import Event
from odp.privacy.mechanisms import GaussianNoise, OperatingSystemNoise
from odp.signed.charter import approve, found, open_charter, succeed
from odp.signed.task import model_sha256, open_task, sign_manifest, sign_order, sign_task, task_sha256
from odp.v1 import aggregator_pb2, common_pb2, enclave_pb2, enrolment_pb2, population_pb2
from odp.wire.model import ModelVersion, Slices
from odp.wire.tables import manifest_for
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import HostSum, Submit
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.restoring import restore
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.modes.rehearsal import AGGREGATIONS, set_of_one, split
from trusted_aggregator.state.records import noise_key, release_key, stream_key

# So many that a contribution is sealed in segments.
_LARGE = SEGMENT_BYTES // 4 + 1


class _NoNoise:
    """No noise: the sums of a rehearsal are made up, and exact noise would build a table per standard deviation."""

    def sample(self, ratio: float, count: int) -> Int64Array:
        return np.zeros(count, dtype=np.int64)


def rehearse() -> None:
    """Runs all rehearsals; keeps nothing of them."""
    rehearse_full_participation()
    rehearse_sampling()


def rehearse_full_participation() -> None:
    """Runs the tasks in which every contribution counts."""
    GaussianNoise(OperatingSystemNoise()).sample(1.0, 1)
    issuer = _Issuer()
    for definition in unsampled():
        # How an enclave adds up is one for dense contributions: there are no items that could be seen.
        ways = ACCUMULATIONS[:1] if algorithm_for(definition).dense else ACCUMULATIONS
        for accumulation in ways:
            _Rehearsal(definition, accumulation, issuer).run()


def rehearse_sampling() -> None:
    """Runs the tasks with sampled contributions: their accountant is the slowest part to load."""
    issuer, definitions = _Issuer(), unsampled()
    drawn = sampled(definitions)
    for definition in drawn:
        _Rehearsal(definition, "oblivious", issuer).run()
    _account((*definitions, *drawn))


def payload_of(algorithm: Algorithm, broadcast: ModelVersion, number: int) -> bytes:
    """What a device with three ratings contributes to round ``number``."""
    items = np.arange(3)
    rows = next((table.rows[items] for table in broadcast.tables if table.keyed), np.zeros((0, 0), np.float32))
    slices = Slices(number, items if len(rows) else items[:0], rows, broadcast.dense)
    own = algorithm.data_of(LocalRows(items, np.ones(3)))
    return algorithm.client().contribute(slices, own, round=number, seed=1)[0]


@functools.cache
def unsampled() -> tuple[common_pb2.TaskDefinition, ...]:
    """A small task of each kind in which every contribution counts."""
    rehearsals = (part_of(training, "rehearsal") for training in TABLE)
    return tuple(
        definition for rehearsal in rehearsals for definition in rehearsal.aggregated(AGGREGATIONS, large=_LARGE)
    )


def _account(definitions: Iterable[common_pb2.TaskDefinition]) -> None:
    """Charges a ledger with each pair of kinds: each pair may need its own accountant."""
    charges: dict[type[Event], Event] = {}
    for definition in definitions:
        for event in round_charges(algorithm_for(definition).query(0), sampling_of(definition, 0)):
            charges.setdefault(type(event), event)
    for pair in itertools.combinations_with_replacement(charges.values(), 2):
        accounting.epsilon(pair, delta=1e-6)


class _Issuer:
    """Signs tokens without blinding: a rehearsal has no identities to protect."""

    def __init__(self) -> None:
        self.key = SigningKey.generate()
        self._rsa = rsa.generate_private_key(EXPONENT, 8 * TOKEN_BYTES)

    def token_key(self, population: str, sha256: bytes, round: int) -> enrolment_pb2.SignedTokenKey:
        """The key of a round."""
        modulus = self._rsa.public_key().public_numbers().n.to_bytes(TOKEN_BYTES, "big")
        return TokenKey(population, sha256, round, modulus, 0).signed(self.key)

    def token(self, contribution_id: bytes) -> bytes:
        """The token of a contribution."""
        padding = PSS(mgf=MGF1(SHA384()), salt_length=SALT_BYTES)
        return self._rsa.sign(domains.contribution_token(contribution_id), padding, SHA384())


class _Rehearsal:
    """Developer, issuer, one device and host of one task."""

    def __init__(self, definition: common_pb2.TaskDefinition, accumulation: Accumulation, issuer: _Issuer) -> None:
        self._issuer = issuer
        self._developer = SigningKey.generate()
        self._definition = definition
        self._task = sign_task(definition, self._developer)
        self._sha256 = task_sha256(self._task)
        self._algorithm = algorithm_for(open_task(self._task))
        self._guest = RehearsalGuest(
            EnclavePolicy(
                role="aggregator",
                minimum_cohort=1,
                accumulation=accumulation,
                founders=(self._developer.public.hex(),),
            )
        )
        self._identity, self._sealed_keys = EnclaveIdentity.restore_or_create(guest=self._guest, sealed=None)
        self._core = AggregatorCore(EnclaveState(self._identity), noise=_NoNoise())
        self._records: dict[str, bytes] = {}

    def run(self) -> None:
        """Runs every round, with a restart in the middle of each; then other owners, and the end of the task."""
        population = self._definition.population
        first = approve(
            found(population, owners=[self._developer.public], issuer_key=self._issuer.key.public), self._developer
        )
        self._core.rounds.check_task(aggregator_pb2.CheckTaskRequest(task=self._task))
        self._settle(self._core.owners.set_charter(first))
        server = self._algorithm.server(item_features=self._algorithm.blank_matrix())
        state = server.start()
        for number in range(len(self._algorithm.planned_releases())):
            broadcast = server.broadcast(state)
            state = server.step(state, self._round(number, broadcast))
        self._core.owners.ledger(aggregator_pb2.GetLedgerRequest(task_sha256=self._sha256))
        other = SigningKey.generate()
        second = succeed(open_charter(first), owners=[self._developer.public, other.public])
        self._settle(self._core.owners.set_charter(approve(second, self._developer)))
        order = population_pb2.AbandonOrder(task_sha256=self._sha256).SerializeToString()
        end = population_pb2.CharterSignature(key=other.public, signature=other.sign(domains.ABANDON, order))
        ending = aggregator_pb2.AbandonTaskRequest(task=self._task, order=order, signature=end)
        self._settle(self._core.owners.abandon(ending))
        self._core.rounds.forget_task(enclave_pb2.ForgetTask(task_sha256=self._sha256))

    def _round(self, number: int, broadcast: ModelVersion) -> NoisyTensors:
        model = model_sha256(sign_manifest(manifest_for(broadcast, self._sha256), self._developer))
        order = aggregator_pb2.RoundOrder(task_sha256=self._sha256, round=number, model_sha256=model)
        opening, signature = sign_order(order, self._developer, domains.OPEN)
        token_key = self._issuer.token_key(self._definition.population, self._sha256, number)
        request = aggregator_pb2.OpenRoundRequest(
            task=self._task, order=opening, signature=signature, token_key=token_key
        )
        self._persist(self._core.rounds.open_round(request))
        which = aggregator_pb2.GetRoundRequest(task_sha256=self._sha256, round=number)
        lengths = self._core.submissions.sealed_length(which)
        if not lengths.bytes:
            return self._release(number, order, self._announced(number))
        sealed, vector = self._contribution(number, model, broadcast)
        digest = hashlib.sha256(vector).digest() if vector else b""
        if (
            lengths.bytes != len(sealed)
            or lengths.host_part != len(vector)
            or self._core.submissions.submit_batch([Submit(self._sha256, number, sealed, digest)]) != [None]
        ):
            raise StateError("the rehearsal's contribution was refused")
        self._restart([sealed + digest])
        name = set_of_one(digest, task_sha256=self._sha256, round=number)
        return self._release(number, order, HostSum(vector, name) if vector else None)

    def _announced(self, number: int) -> HostSum:
        self._restart([])
        clients = self._definition.cohort.minimum
        self._core.rounds.announce(
            enclave_pb2.AnnounceSurvivors(task_sha256=self._sha256, round=number, clients=clients, set_sha256=bytes(32))
        )
        (release,) = self._algorithm.query(number).releases
        return HostSum(bytes(8 * release.coordinates), bytes(32))

    def _release(self, number: int, order: aggregator_pb2.RoundOrder, host_sum: HostSum | None) -> NoisyTensors:
        close, signature = sign_order(order, self._developer, domains.CLOSE)
        charged = self._core.rounds.charge(aggregator_pb2.CloseRoundRequest(order=close, signature=signature))
        self._settle(enclave_pb2.RecordWrites(records=charged.writes))
        if charged.host_part_bytes:
            self._core.rounds.host_parts(enclave_pb2.AskHostParts(task_sha256=self._sha256, round=number))
        noise = self._records[noise_key(self._sha256, number)]
        stream = self._records.get(stream_key(self._sha256, number))
        self._settle(self._core.rounds.seal_release(wire.seal_release(close, noise, stream, host_sum)))
        stored = self._records[release_key(self._sha256, number)]
        signed = self._core.rounds.release(enclave_pb2.ReleaseRound(order=close, stored=stored)).signed_release
        release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed).release)
        tensors = {
            tensor.name: np.frombuffer(tensor.integers, "<i8").reshape(tensor.shape) * tensor.step
            for tensor in release.tensors
        }
        return NoisyTensors(number, tensors, release.contributions)

    def _contribution(self, number: int, model: bytes, broadcast: ModelVersion) -> tuple[bytes, bytes]:
        payload = payload_of(self._algorithm, broadcast, number)
        vector = b""
        which = aggregator_pb2.GetRoundRequest(task_sha256=self._sha256, round=number)
        if self._core.submissions.sealed_length(which).host_part:
            payload, vector = split(payload, task_sha256=self._sha256, round=number)
        contribution_id = os.urandom(32)
        contribution = aggregator_pb2.Contribution(
            task_sha256=self._sha256,
            round=number,
            model_sha256=model,
            contribution_id=contribution_id,
            pseudonym=os.urandom(32),
            payload=payload,
            token=self._issuer.token(contribution_id),
        )
        large = is_large(len(payload))
        context, close = (
            (domains.large_contribution_info, seal_segments) if large else (domains.contribution_info, seal)
        )
        info = context(self._sha256, number, model, self._identity.policy.sha256)
        key = self._core.rounds.round_key(which)
        if not key.hpke_key:
            raise StateError("the rehearsal's round has no key")
        return close(key.hpke_key, contribution.SerializeToString(), info), vector

    def _restart(self, contributions: list[bytes]) -> None:
        self._identity, _ = EnclaveIdentity.restore_or_create(guest=self._guest, sealed=self._sealed_keys)
        state = EnclaveState(self._identity)
        restore(state, self._records, lambda task, round: contributions)
        self._core = AggregatorCore(state, noise=_NoNoise())

    def _settle(self, writes: enclave_pb2.RecordWrites) -> None:
        self._persist(writes)
        self._core.state.commit(enclave_pb2.CommitWrites())

    def _persist(self, writes: enclave_pb2.RecordWrites) -> None:
        for record in wire.writes_of(writes.records):
            if record.data is None:
                self._records.pop(record.key, None)
            else:
                self._records[record.key] = record.data
