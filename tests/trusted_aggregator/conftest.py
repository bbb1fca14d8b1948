"""A developer with a tiny DPAM task, its devices, and a host that keeps what the enclave asks it to keep."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from conformance.postgresql import PostgresqlServer
from in_process import Charged, InProcess

from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows, NoisyTensors
from odp.algorithms.statistics.task import Histogram, Statistics
from odp.crypto import SigningKey, domains, seal
from odp.crypto.segments import is_large, seal_segments
from odp.errors import Refusal
from odp.evaluation.noise import NoNoise
from odp.models.matrix_factorization import MatrixFactorization
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import ReleaseState
from odp.privacy.ledger_state import LedgerHead
from odp.privacy.mechanisms import GaussianNoise, IntegerNoise, OperatingSystemNoise
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import manifest_for
from odp.signed.charter import approve, found, open_charter, succeed
from odp.signed.ledger import LedgerPart
from odp.signed.task import model_sha256, open_task, sign_manifest, sign_order, sign_task, task_sha256
from odp.tasks.task import Task
from odp.trust.enclave.guest import Guest
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2, population_pb2
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.restoring import restore
from trusted_aggregator.enclave.state import EnclaveState, RoundKeys
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.records import SealedRecord, Writes, ledger_key, noise_key, release_key, stream_key
from trusted_aggregator.state.sealed_state import RoundNoise

IMAGE = "sha384:" + "0" * 96
ITEMS = 12
_WORLDS_ON_A_PLATFORM = 32


class World:
    """Everything around one enclave. ``records`` and ``rows`` are what its host has made durable."""

    def __init__(
        self,
        platform: EmulatedPlatform,
        population: str,
        *,
        minimum: int = 100,
        policy: EnclavePolicy | None = None,
        epsilon: float = 8.0,
        noise: IntegerNoise | None = None,
        edit: Callable[[common_pb2.TaskDefinition], None] | None = None,
        founders: Iterable[SigningKey] = (),
        issuer_key: bytes = b"",
    ) -> None:
        """``founders`` are other developers who may found populations at this enclave."""
        self.platform = platform
        self.made_by = noise
        self.developer = SigningKey.generate()
        policy = policy or EnclavePolicy(role="aggregator", minimum_cohort=minimum)
        keys = sorted(key.public.hex() for key in (self.developer, *founders))
        self.policy = dataclasses.replace(policy, founders=tuple(keys))
        self.identity, self.sealed_keys = EnclaveIdentity.restore_or_create(guest=self.guest(), sealed=None)
        self.population = population
        self.adopt(self.sign(self.definition(minimum=minimum, epsilon=epsilon), edit))
        self.records: dict[str, bytes] = {}
        self.restored: dict[str, bytes | None] = {}
        self.rows: dict[tuple[bytes, int], list[bytes]] = {}
        self.round_keys: dict[tuple[bytes, int], bytes] = {}
        self.restored_writes: Writes = ()
        self.core = InProcess(AggregatorCore(EnclaveState(self.identity), noise=noise))
        self.charter = approve(found(population, owners=[self.developer.public], issuer_key=issuer_key), self.developer)
        self.settle(self.core.set_charter(self.charter))

    def adopt(self, task: common_pb2.SignedTask) -> None:
        """From here on, everything is about ``task``."""
        self.task = task
        self.task_sha256 = task_sha256(task)
        self.algorithm = algorithm_for(open_task(task))
        self.server_state = self.algorithm.server().start()
        self.broadcasts = {0: self.algorithm.server().broadcast(self.server_state)}

    def guest(self) -> Guest:
        """A new launch of this enclave on the world's platform."""
        return self.platform.launch(image_digest=IMAGE, policy=self.policy.to_bytes(), name="aggregator")

    def definition(self, *, minimum: int, epsilon: float, name: str = "films") -> common_pb2.TaskDefinition:
        task = Task(
            name=name,
            model=MatrixFactorization(items=ITEMS, rank=2),
            data=RatingsData(low=1, high=5),
            privacy=UserLevelDP(epsilon=epsilon, delta=1e-6, max_items_per_user=4),
            training=DPAM(steps=1),
            cohort=Cohort(minimum=minimum, goal=minimum),
            population=self.population,
        )
        return task.definition()

    def sign(
        self, definition: common_pb2.TaskDefinition, edit: Callable[[common_pb2.TaskDefinition], None] | None = None
    ) -> common_pb2.SignedTask:
        if edit is not None:
            edit(definition)
        return sign_task(definition, self.developer)

    # The developer's server

    def model(self, round: int) -> bytes:
        broadcast = self.broadcasts[round]
        return model_sha256(sign_manifest(manifest_for(broadcast, self.task_sha256), self.developer))

    def order(self, round: int, domain: bytes, **changes: Any) -> tuple[bytes, bytes]:
        fields = {"task_sha256": self.task_sha256, "round": round, "model_sha256": self.model(round), **changes}
        return sign_order(aggregator_pb2.RoundOrder(**fields), self.developer, domain)

    def learn(self, signed_release: bytes) -> common_pb2.Release:
        """Applies a release, so that the next round has a model."""
        release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed_release).release)
        tensors = {
            tensor.name: np.frombuffer(tensor.integers, "<i8").reshape(tensor.shape) * tensor.step
            for tensor in release.tensors
        }
        server = self.algorithm.server()
        self.server_state = server.step(self.server_state, NoisyTensors(release.round, tensors, release.contributions))
        self.broadcasts[release.round + 1] = server.broadcast(self.server_state)
        return release

    # Devices

    def payload(self, device: int, round: int = 0, *, seed: int = 0) -> bytes:
        random = np.random.default_rng([device, seed])
        items = np.sort(random.choice(ITEMS, size=4, replace=False)).astype(np.int64)
        data = self.algorithm.data_of(LocalRows(items, random.integers(1, 6, size=4).astype(np.float64)))
        broadcast = self.broadcasts[round]
        slices = Slices(round, items, broadcast.keyed.rows[items], broadcast.dense)
        return self.algorithm.client().contribute(slices, data, round=round, seed=seed)[0]

    def contribution(self, device: int, number: int = 0, **changes: Any) -> aggregator_pb2.Contribution:
        secret = hashlib.sha256(device.to_bytes(8, "big")).digest()
        fields = {
            "task_sha256": self.task_sha256,
            "round": number,
            "model_sha256": self.model(number),
            "contribution_id": domains.contribution_id(secret, self.task_sha256, number),
            "pseudonym": domains.pseudonym(secret, self.task_sha256),
            "payload": self.payload(device, number) if "payload" not in changes else b"",
            **changes,
        }
        return aggregator_pb2.Contribution(**fields)

    def seal(self, plaintext: bytes, round: int = 0, *, key: bytes | None = None) -> bytes:
        info = domains.contribution_info(self.task_sha256, round, self.model(round), self.policy.sha256)
        return seal(key or self.round_key(round), plaintext, info)

    def round_key(self, round: int = 0) -> bytes:
        """The key of a round, as devices know it: the one that was handed out last."""
        found = self.core.round_key(self.task_sha256, round)
        if found is not None:
            self.round_keys[self.task_sha256, round] = found.hpke_key
        return self.round_keys.get((self.task_sha256, round), self.identity.hpke.public)

    def sealed(self, device: int, number: int = 0, **changes: Any) -> bytes:
        return self.seal(self.contribution(device, number, **changes).SerializeToString(), number)

    # The host, step by step

    def persist(self, writes: Iterable[SealedRecord]) -> None:
        for record in writes:
            if record.data is None:
                self.records.pop(record.key, None)
            else:
                self.records[record.key] = record.data

    def settle(self, writes: Iterable[SealedRecord]) -> None:
        self.persist(writes)
        self.core.commit()

    def open(self, round: int = 0, token_key: enrolment_pb2.SignedTokenKey | None = None, **changes: Any) -> None:
        self.persist(self.core.open_round(self.task, *self.order(round, domains.OPEN, **changes), token_key))

    def submit(self, sealed: bytes, round: int = 0) -> Refusal | None:
        refusal = self.core.submit(self.task_sha256, round, sealed)
        if refusal is None:
            self.rows.setdefault((self.task_sha256, round), []).append(sealed)
        return refusal

    def fill(self, devices: Iterable[int], round: int = 0) -> None:
        for device in devices:
            assert self.submit(self.sealed(device, round), round) is None

    def charge(self, round: int = 0) -> Charged:
        return self.core.charge(*self.order(round, domains.CLOSE))

    def seal_release(self, round: int = 0) -> tuple[SealedRecord, ...]:
        noise = self.records.get(noise_key(self.task_sha256, round))
        stream = self.records.get(stream_key(self.task_sha256, round))
        return self.core.seal_release(self.order(round, domains.CLOSE)[0], noise=noise, stream=stream)

    def release(self, round: int = 0) -> bytes:
        stored = self.records.get(release_key(self.task_sha256, round), b"")
        return self.core.release(self.order(round, domains.CLOSE)[0], stored=stored)

    def close(self, round: int = 0) -> bytes:
        self.settle(self.charge(round).writes)
        return self.finish(round)

    def finish(self, round: int = 0) -> bytes:
        """From a charge in force to the signed release."""
        self.settle(self.seal_release(round))
        self.rows.pop((self.task_sha256, round), None)
        return self.release(round)

    def abandon(self, key: SigningKey | None = None) -> tuple[SealedRecord, ...]:
        """The end of the task, ordered by an owner."""
        signer = self.developer if key is None else key
        order = population_pb2.AbandonOrder(task_sha256=self.task_sha256).SerializeToString()
        signature = population_pb2.CharterSignature(key=signer.public, signature=signer.sign(domains.ABANDON, order))
        return self.core.abandon(self.task, order, signature)

    def other_owner(self, *owners: SigningKey, by: SigningKey | None = None) -> population_pb2.SignedCharter:
        """The next charter, which names these owners."""
        signed = self.core.charter(self.population)
        assert signed is not None
        after = succeed(open_charter(signed), owners=[owner.public for owner in owners])
        return approve(after, self.developer if by is None else by)

    def held(self, round: int = 0) -> Round:
        """What the enclave holds of a round that is open or charged."""
        found = self.core.state.find_round(self.task_sha256, round)
        assert isinstance(found, Round)
        return found

    def noise(self, round: int = 0) -> RoundNoise:
        """What only the enclave can read."""
        key = noise_key(self.task_sha256, round)
        sealer = RoundKeys(self.identity).sealer(self.task_sha256)
        assert sealer is not None
        return RoundNoise.decode(sealer.open(key, self.records[key]), self.algorithm.query(round).releases)

    def restart(self, records: dict[str, bytes] | None = None, rows: dict[Any, list[bytes]] | None = None) -> None:
        """A new enclave process, from given state or from what was persisted so far."""
        kept = self.rows if rows is None else rows
        self.identity, _ = EnclaveIdentity.restore_or_create(guest=self.guest(), sealed=self.sealed_keys)
        state = EnclaveState(self.identity)
        stored = dict(self.records if records is None else records)
        # Not persisted: a test may start again from the state before.
        self.restored_writes = restore(state, stored, lambda task, round: iter(kept.get((task, round), [])))
        self.core = InProcess(AggregatorCore(state, noise=self.made_by))
        self.restored = {record.key: record.data for record in self.restored_writes}

    @property
    def found(self) -> dict[str, bytes | None]:
        """What is persisted, and what the last start asked for besides."""
        return {**self.records, **self.restored}

    def ledger(self) -> Ledger:
        """The ledger that the enclave signs."""
        found = self.core.ledger(self.task_sha256)
        assert found is not None
        end = LedgerHead.decode(found[0]).entries
        lines = b"".join(self.found[ledger_key(self.population, number)] for number in range(end))
        return LedgerPart(0, lines, *found).ledger()

    def charges(self) -> int:
        """Charged rounds in that ledger."""
        return sum(entry.state is ReleaseState.CHARGED for entry in self.ledger().entries)


@pytest.fixture(scope="session")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., World]:
    """Makes worlds, each with a population of its own; a few of them share a platform.

    A platform reads its counters of all populations for each of them: those of a thousand take longer than most tests.
    """
    numbers = itertools.count()

    @functools.cache
    def platform(_group: int) -> EmulatedPlatform:
        return EmulatedPlatform.open(tmp_path_factory.mktemp("platform"))

    def make(**changes: Any) -> World:
        number = next(numbers)
        return World(platform(number // _WORLDS_ON_A_PLATFORM), f"population-{number}", **changes)

    return make


@pytest.fixture
def small(make_world: Callable[..., World]) -> World:
    """An open round of a task whose minimum is 3."""
    world = make_world(minimum=3)
    world.open()
    return world


class StatisticsWorld(World):
    """A task of one histogram; from 2^18 bins its contributions are sealed in segments."""

    bins = 40
    aggregation = "enclave"

    def definition(self, *, minimum: int, epsilon: float, name: str = "histogram") -> common_pb2.TaskDefinition:
        return Statistics(
            name=name,
            queries={"items": Histogram(bins=self.bins)},
            privacy=UserLevelDP(epsilon=epsilon, delta=1e-6),
            cohort=Cohort(minimum=minimum, goal=2 * minimum, aggregation=self.aggregation),
            population=self.population,
        ).definition()

    def payload(self, device: int, round: int = 0, *, seed: int = 0) -> bytes:
        items = np.array([device, self.bins - 1], dtype=np.int64)
        slices = Slices(round, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {})
        data = self.algorithm.data_of(LocalRows(items, np.ones(2)))
        return self.algorithm.client().contribute(slices, data, round=round, seed=seed)[0]

    def seal(self, plaintext: bytes, round: int = 0, *, key: bytes | None = None) -> bytes:
        if not is_large(4 * self.bins):
            return super().seal(plaintext, round, key=key)
        info = domains.large_contribution_info(self.task_sha256, round, self.model(round), self.policy.sha256)
        return seal_segments(key or self.round_key(round), plaintext, info)


@pytest.fixture
def make_statistics(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., StatisticsWorld]:
    """Makes worlds with a histogram of so many bins, each on a platform of its own."""

    def make(bins: int, **changes: Any) -> StatisticsWorld:
        kind = type("_World", (StatisticsWorld,), {"bins": bins, "aggregation": changes.pop("aggregation", "enclave")})
        platform = EmulatedPlatform.open(tmp_path_factory.mktemp("platform"))
        world: StatisticsWorld = kind(platform, "people", **{"minimum": 3, **changes})
        return world

    return make


@pytest.fixture
def large(make_statistics: Callable[..., StatisticsWorld]) -> World:
    """An open round of a task with large contributions, whose minimum is 3, without noise."""
    world = make_statistics(300_000, noise=NoNoise())
    world.open()
    return world


class CountingNoise:
    """Gaussian noise that counts its draws."""

    def __init__(self) -> None:
        self.calls = 0
        self._noise = GaussianNoise(OperatingSystemNoise())

    def sample(self, ratio: float, count: int) -> np.ndarray:
        self.calls += 1
        return self._noise.sample(ratio, count)


@pytest.fixture
def counting_noise() -> CountingNoise:
    return CountingNoise()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    with PostgresqlServer.started() as server:
        yield server
