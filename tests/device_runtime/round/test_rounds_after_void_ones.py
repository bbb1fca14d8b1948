"""Tasks whose minimum is the number of their devices, and whose rounds hand-overs end as void at any step (R371).

Enclaves, hand-overs, devices and their stores are real. Hosts and distributor are played in memory. Tasks of local
trust have no aggregator whose rounds could be void, and a session of SecAgg+ is never void (R374).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from e2e.combination_devices import data_of
from fixed_times import impatient_times
from hand_overs import NEW, OLD, Upgrade, upgradable
from task_combinations import COMBINATIONS, DEVICES, Combination
from upgrade_worlds import Masking, World

from device_runtime.host.provision import provision
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Traffic
from device_runtime.person.limits import Limits
from device_runtime.round.gate import Gate
from device_runtime.round.participation import Outcome, Participant
from device_runtime.rows.retrieval import Retrievals
from device_runtime.store.store import Store, store_path
from device_runtime.tasks.assignment import Work, open_assignment
from odp.errors import ServiceUnavailable
from odp.evaluation.noise import NoNoise
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import manifest_for
from odp.signed.task import sign_manifest
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import aggregator_pb2, attestation_pb2, common_pb2, server_pb2
from trusted_aggregator.boundary.interface import SealedContribution

_ADDRESS = "127.0.0.1:1"
#: In each mode in which an enclave counts contributions. Other algorithms send dense sums, as these do.
ALGORITHMS = ("ratings", "statistics", "shuffled_statistics", "fedavg", "dpftrl", "private_fl")
KINDS = [
    combination
    for combination in COMBINATIONS
    if combination.is_distinct
    and combination.algorithm in ALGORITHMS
    and combination.broadcast in ("", "all")
    and combination.sampling == "full"
    and combination.aggregation != "secagg+"
]


class _World(World):  # type: ignore[misc, valid-type]
    """The task of a combination."""

    combination: Combination

    def definition(self, *, minimum: int, epsilon: float, name: str = "") -> common_pb2.TaskDefinition:
        task: Any = self.combination.task("")
        definition: common_pb2.TaskDefinition = dataclasses.replace(task, population=self.population).definition()
        return definition


class _MaskedWorld(Masking, _World):
    """The host sums masked vectors."""


class Population:
    """One task, its devices, and the enclave that has its budget."""

    def __init__(self, folder: Path, combination: Combination) -> None:
        kind = type(
            "_Of", (_MaskedWorld if combination.aggregation == "masked" else _World,), {"combination": combination}
        )
        platform = EmulatedPlatform.open(folder / "platform")
        self.world: Any
        self.world, self.endorsers = upgradable(lambda **changes: kind(platform, "people", noise=NoNoise(), **changes))
        for image in (OLD, NEW):
            self.endorsers.endorse(image, self.world.policy)
        self.folder, self.image = folder / "devices", OLD
        provision(self.folder, data_of(combination))
        values = ReferenceValues(
            roots=(platform.root_certificate_pem,), image_digests={"aggregator": (OLD, NEW)},
            policy_sha256={"aggregator": (self.world.policy.sha256.hex(),)}, allow_emulated=True,
        )  # fmt: skip
        #: What becomes of the next contribution: "counts", "lost" (its answer), or "held" (it does not leave).
        self.fate = "counts"
        services: Any = SimpleNamespace(
            require_pinned=lambda **addresses: None, evidence=self._evidence, submit=self._submit, catalogue_steps=None
        )
        whole: Any = SimpleNamespace(fetch=self._fetch)
        self.participant = Participant(
            services=services, enclaves=Enclaves(services, lambda: values), fixed_times=impatient_times(),
            retrievals=Retrievals(whole=whole, two_parties=cast("Any", None)),
            gate=Gate(limits=Limits(min_cohort=DEVICES, max_local_epsilon=100.0)),
        )  # fmt: skip

    @property
    def rounds(self) -> range:
        return range(len(self.world.algorithm.planned_releases()))

    @property
    def is_private_by_itself(self) -> bool:
        """Whether a contribution is a report with an ε of its own."""
        return self.world.algorithm.local_charge is not None

    def reports(self, device: int) -> set[bytes]:
        """What the device holds of its newest contribution, where that is private by itself."""
        with self.store(device) as store:
            newest = store.ledger()[-1].report
        return set() if newest is None else {newest}

    def open(self, round: int) -> None:
        self.world.rows.pop((self.world.task_sha256, round), None)
        self.world.open(round)

    def work(self, round: int) -> Work:
        """What the server offers."""
        world = self.world
        manifest = sign_manifest(manifest_for(world.broadcasts[round], world.task_sha256), world.developer)
        assignment = server_pb2.Assignment(
            task=world.task, round=round, model=manifest, distributor_address=_ADDRESS, aggregator_address=_ADDRESS,
            charter=world.charter, round_key=world.core.round_key(world.task_sha256, round),
        )  # fmt: skip
        return open_assignment(assignment, population="people")

    def store(self, device: int) -> Store:
        return Store.open(store_path(self.folder, device), durable=False)

    def take_part(self, device: int, work: Work, fate: str = "counts") -> Outcome | None:
        self.fate = fate
        with self.store(device) as store:
            try:
                return self.participant.take_part(store, work, Traffic())
            except ServiceUnavailable:
                assert fate != "counts"
                return None

    def void(self, late: dict[int, Work]) -> None:
        """Hands the budget over to the other code; contributions of ``late`` come to the old enclave after it."""
        old, self.image = self.world, NEW if self.image == OLD else OLD
        upgrade = Upgrade(old, self.endorsers, image=self.image)
        core = upgrade.run(void_rounds=True)
        for device, work in late.items():
            assert self.take_part(device, work) is Outcome.REFUSED
        self.world = upgrade.move(core)

    def _evidence(self, address: str, nonce: bytes, *, role: str) -> attestation_pb2.GetEvidenceResponse:
        evidence = self.world.identity.evidence(nonce)
        return attestation_pb2.GetEvidenceResponse(
            token=evidence.token, policy=evidence.policy, event_log=evidence.event_log
        )

    def _submit(
        self, to: str, request: aggregator_pb2.SubmitRequest, traffic: Traffic
    ) -> aggregator_pb2.SubmitResponse:
        if self.fate == "held":
            raise ServiceUnavailable("nobody answers")
        world, vector = self.world, request.masked_vector
        digest = hashlib.sha256(vector).digest() if vector else b""
        sealed = request.sealed_contribution
        (refused,) = world.core.submit_batch([SealedContribution(request.task_sha256, request.round, sealed, digest)])
        if refused is not None:
            return aggregator_pb2.SubmitResponse(refusal=refused.refusal.value, signature=refused.signature)
        world.rows.setdefault((request.task_sha256, request.round), []).append(sealed + digest)
        world.__dict__.setdefault("vectors", {})[digest] = vector
        if self.fate == "lost":
            raise ServiceUnavailable("the connection was cut")
        return aggregator_pb2.SubmitResponse()

    def _fetch(self, work: Work, keys: np.ndarray, traffic: Traffic) -> Slices:
        broadcast = self.world.broadcasts[work.round]
        rows = broadcast.keyed.rows[keys] if work.model.keyed else np.zeros((0, 0), dtype=np.float32)
        return Slices(work.round, keys, rows, broadcast.dense)


@pytest.fixture
def begin(tmp_path: Path) -> Callable[[Combination], Population]:
    return lambda combination: Population(tmp_path, combination)


#: What each device did in the opening that became void: nothing, its contribution counted, counted with a lost answer,
#: did not leave, or came to the old enclave after the hand-over.
STEPS = {
    "nobody came": ("", "", "", ""),
    "one counted": ("counts", "", "", ""),
    "all counted": ("counts", "counts", "counts", "counts"),
    "all answers were lost": ("lost", "lost", "lost", "lost"),
    "none left": ("held", "held", "held", "held"),
    "all were late": ("late", "late", "late", "late"),
    "each did something else": ("counts", "lost", "held", "late"),
}


def _cases() -> Iterator[Any]:
    """All pairs. In CI, devices of the first kind of each mode do all; those of the others, each another one."""
    first = {combination.aggregation: combination for combination in reversed(KINDS)}
    for combination, step in itertools.product(KINDS, STEPS):
        in_ci = combination in first.values() or step == "each did something else"
        yield pytest.param(combination, step, id=f"{combination.name}-{step}", marks=[] if in_ci else pytest.mark.proof)


@pytest.mark.parametrize(("combination", "step"), list(_cases()))
@pytest.mark.slow
def test_r371_a_task_ends_with_all_devices_in_each_round_though_each_is_void_twice(
    begin: Callable[[Combination], Population], combination: Combination, step: str
) -> None:
    population = begin(combination)
    for round in population.rounds:
        reports: dict[int, set[bytes]] = {device: set() for device in range(DEVICES)}
        for _ in range(2):
            population.open(round)
            work = population.work(round)
            late = {}
            for device, fate in enumerate(STEPS[step]):
                if fate:
                    population.take_part(device, work, "held" if fate == "late" else fate)
                    reports[device] |= population.reports(device)
                if fate == "late":
                    late[device] = work
            population.void(late)
        population.open(round)
        work = population.work(round)
        for device in range(DEVICES):
            assert population.take_part(device, work) is Outcome.SENT
            assert population.take_part(device, work) is Outcome.SETTLED
            reports[device] |= population.reports(device)
        assert {len(made) for made in reports.values()} == {int(population.is_private_by_itself)}
        release = population.world.learn(population.world.close(round))
        assert release.contributions == DEVICES
    assert population.world.charges() == len(population.rounds)
    for device in range(DEVICES):
        with population.store(device) as store:
            assert [one.round for one in store.charged()] == list(population.rounds)
