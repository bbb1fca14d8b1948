"""A small world for devices: fake services with real keys, real TLS and the real algorithm, all in this process."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fixed_times import impatient_times
from trust.enrolment.world import Clock, Developer, World as IssuerWorld

import odp
from device_runtime.host.provision import provision
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Services
from device_runtime.person.limits import Limits
from device_runtime.round.admission import Admission, MakeAttester
from device_runtime.round.gate import Gate
from device_runtime.round.participation import Participant
from device_runtime.round.verification import FOLDER, Records
from device_runtime.store.store import Store, store_path
from odp._system.files.state_folder import StateFolder
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.crypto import domains
from odp.crypto.hpke import DecryptionError, HpkeKey
from odp.crypto.refusals import CLOSED, closed_digest
from odp.crypto.signing import SigningKey
from odp.datasets.ratings import Ratings
from odp.errors import ContributionRefused, Refusal
from odp.protocol.catalogues.catalogue import versions_in
from odp.protocol.wire.model import ModelVersion
from odp.protocol.wire.tables import manifest_for, table_bytes
from odp.signed.charter import approve, charter_sha256, found
from odp.signed.task import model_sha256, sign_manifest, sign_task, task_sha256
from odp.transport.logs import Log
from odp.transport.service import RunningServer, serve
from odp.transport.tls import TlsIdentity, development_identity
from odp.trust.enclave import EmulatedPlatform, EnclavePolicy, ReferenceValues
from odp.trust.enrolment import issuer_program
from odp.trust.enrolment.issuer import Issuer
from odp.v1 import (
    aggregator_pb2,
    aggregator_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    catalogue_pb2,
    catalogue_pb2_grpc,
    common_pb2,
    distributor_pb2,
    distributor_pb2_grpc,
    enrolment_pb2,
    enrolment_pb2_grpc,
    population_pb2,
    server_pb2,
    server_pb2_grpc,
)

ITEMS = 600
DIGESTS = {role: "sha384:" + letter * 96 for role, letter in (("distributor", "d"), ("aggregator", "a"))}
POLICIES = {role: EnclavePolicy(role=role, minimum_cohort=2) for role in ("distributor", "aggregator")}


class Enclave(attestation_pb2_grpc.AttestationServiceServicer):
    """Keys and evidence of one role; ``image`` and ``root`` can be made to lie."""

    def __init__(self, role: str, platform: EmulatedPlatform) -> None:
        self.role = role
        self.platform = platform
        self.image = DIGESTS[role]
        self.hpke = HpkeKey.generate()
        self.signing = SigningKey.generate()
        self.round_key = HpkeKey.generate()
        self.asked = 0
        self.charter: population_pb2.SignedCharter | None = None
        self.ledger_id = b"l" * 32

    def GetEvidence(
        self, request: attestation_pb2.GetEvidenceRequest, context: grpc.ServicerContext
    ) -> attestation_pb2.GetEvidenceResponse:
        self.asked += 1
        policy = POLICIES[self.role].to_bytes()
        guest = self.platform.launch(image_digest=self.image, policy=policy, name=self.role)
        guest.bind_keys(hpke_public=self.hpke.public, signing_public=self.signing.public)
        if self.charter is not None:
            guest.extend(f"ledger people {self.ledger_id.hex()}")
            guest.extend(f"population people {charter_sha256(self.charter).hex()}")
        found = guest.evidence(request.nonce)
        return attestation_pb2.GetEvidenceResponse(token=found.token, policy=found.policy, event_log=found.event_log)


class Distributor(distributor_pb2_grpc.DistributorServiceServicer):
    """Answers from ``broadcast``; remembers sizes and, as only a test may, the keys."""

    def __init__(self, enclave: Enclave) -> None:
        self.enclave = enclave
        self.broadcast: ModelVersion | None = None
        self.model = b""
        self.sizes: list[tuple[int, int]] = []
        self.keys: list[np.ndarray] = []
        self.spoil: Callable[[distributor_pb2.SelectedRows], None] = lambda rows: None
        self.spoil_table: Callable[[bytes], bytes] = lambda data: data
        self.gone = 0

    def Select(
        self, request: distributor_pb2.SelectRequest, context: grpc.ServicerContext
    ) -> distributor_pb2.SelectResponse:
        if self.gone:  # as if newer versions had replaced the model, for so many requests
            self.gone -= 1
            context.abort(grpc.StatusCode.NOT_FOUND, "model 0123 is not held here; check in again for a newer version")
        assert request.model_sha256 == self.model
        assert self.broadcast is not None
        opened = self.enclave.hpke.open(request.sealed_keys, domains.select_info(self.model))
        wanted = distributor_pb2.SelectKeys.FromString(opened)
        keys = np.frombuffer(wanted.keys, dtype="<u4")
        self.keys.append(keys)
        rows = distributor_pb2.SelectedRows(
            rows=self.broadcast.keyed.rows[keys].astype("<f4").tobytes(),
            dense=[table_bytes(table) for table in self.broadcast.tables if not table.keyed],
        )
        self.spoil(rows)
        sealed = AESGCM(wanted.reply_key).encrypt(bytes(12), rows.SerializeToString(), domains.selected_aad(self.model))
        self.sizes.append((request.ByteSize(), len(sealed)))
        return distributor_pb2.SelectResponse(sealed_rows=sealed)

    def Download(
        self, request: distributor_pb2.DownloadRequest, context: grpc.ServicerContext
    ) -> Iterator[distributor_pb2.DownloadResponse]:
        assert self.broadcast is not None
        data = table_bytes(next(table for table in self.broadcast.tables if table.name == request.table))
        data = self.spoil_table(data)
        for start in range(0, len(data), 1000):
            yield distributor_pb2.DownloadResponse(chunk=data[start : start + 1000])


def signed_refusal(
    signer: SigningKey, code: int, request: aggregator_pb2.SubmitRequest, hpke_key: bytes
) -> aggregator_pb2.SubmitResponse:
    """A refusal as an enclave signs it."""
    closed = Refusal(code) in CLOSED
    sealed, masked = request.sealed_contribution, b"" if closed else request.masked_vector
    digest = closed_digest(sealed) if closed else hashlib.sha256(sealed).digest()
    data = domains.refusal(
        request.task_sha256, request.round, code, hpke_key, digest, hashlib.sha256(masked).digest() if masked else b""
    )
    return aggregator_pb2.SubmitResponse(refusal=code, signature=signer.sign(domains.REFUSAL, data))  # type: ignore[arg-type]


class Aggregator(aggregator_pb2_grpc.AggregatorServiceServicer):
    """Opens, checks and sums contributions, first one per id; ``script`` says how the next calls go wrong."""

    def __init__(self, enclave: Enclave, world: World) -> None:
        self.enclave = enclave
        self.world = world
        self.lock = threading.Lock()
        self.submits: list[bytes] = []
        self.counted: dict[bytes, aggregator_pb2.Contribution] = {}
        self.script: list[str] = []
        self.replayed = b""

    def Submit(
        self, request: aggregator_pb2.SubmitRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.SubmitResponse:
        with self.lock:
            self.submits.append(request.sealed_contribution)
            step = self.script.pop(0) if self.script else "answer"
            if step == "unavailable":
                context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
            if step == "error":
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no such round")
            answer = aggregator_pb2.SubmitResponse()
            if not step.startswith("refuse "):
                answer = self.refused(self._take(request), request)
            if step == "lose the answer":
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")
            if step.startswith("refuse "):
                return self.refused(int(step.removeprefix("refuse ")), request)
            if step.startswith("lie "):  # the contribution was counted
                return aggregator_pb2.SubmitResponse(refusal=int(step.removeprefix("lie ")), signature=self.replayed)
            return answer

    def refused(self, code: int, request: aggregator_pb2.SubmitRequest) -> aggregator_pb2.SubmitResponse:
        """An answer as the enclave gives it."""
        if code in (0, Refusal.ALREADY_CONTRIBUTED.value):
            return aggregator_pb2.SubmitResponse(refusal=code)  # type: ignore[arg-type]
        return signed_refusal(self.enclave.signing, code, request, self.enclave.round_key.public)

    def check(self, round: int, payload: bytes) -> None:
        """As the enclave does. Raises ContributionRefused."""
        self.world.algorithm.query(round).check(payload)

    def _take(self, request: aggregator_pb2.SubmitRequest) -> int:
        world = self.world
        info = domains.contribution_info(
            request.task_sha256, request.round, world.model_id, POLICIES["aggregator"].sha256
        )
        try:
            contribution = aggregator_pb2.Contribution.FromString(
                self.enclave.round_key.open(request.sealed_contribution, info)
            )
        except DecryptionError:
            return Refusal.MALFORMED.value
        if contribution.contribution_id in self.counted:
            return Refusal.ALREADY_CONTRIBUTED.value
        if world.issuer is not None:
            key = world.issuer.token_key(world.task, request.round)
            if not key.admits(domains.contribution_token(contribution.contribution_id), contribution.token):
                return Refusal.NO_TOKEN.value
        try:
            self.check(request.round, contribution.payload)
        except ContributionRefused as error:
            return error.refusal.value
        self.counted[contribution.contribution_id] = contribution
        return 0


class Server(server_pb2_grpc.ServerServiceServicer):
    """Offers the open round, or a retry window; ``requests`` holds what devices told it, byte for byte."""

    def __init__(self) -> None:
        self.assignment: server_pb2.Assignment | None = None
        self.requests: list[bytes] = []
        self.before: Callable[[], None] = lambda: None
        self.newest = server_pb2.GetModelResponse()
        self.releases = False  # a task is under way, between two rounds or after the last one

    def CheckIn(self, request: server_pb2.CheckInRequest, context: grpc.ServicerContext) -> server_pb2.CheckInResponse:
        self.requests.append(request.SerializeToString())
        self.before()
        if self.assignment is None:
            window = server_pb2.RetryWindow(min_seconds=3, max_seconds=7, without_task=not self.releases)
            return server_pb2.CheckInResponse(retry=window)
        return server_pb2.CheckInResponse(assignment=self.assignment)

    def GetModel(
        self, request: server_pb2.GetModelRequest, context: grpc.ServicerContext
    ) -> server_pb2.GetModelResponse:
        self.requests.append(request.SerializeToString())
        return self.newest


class Catalogues(catalogue_pb2_grpc.CatalogueServiceServicer):
    """Serves the ``steps`` that a test gives it."""

    steps: Sequence[bytes] = ()

    def GetCatalogueSteps(
        self, request: catalogue_pb2.GetCatalogueStepsRequest, context: grpc.ServicerContext
    ) -> Iterator[catalogue_pb2.GetCatalogueStepsResponse]:
        wanted = versions_in(request.block)
        for step in self.steps[wanted.start - 1 : wanted.stop - 1]:
            yield catalogue_pb2.GetCatalogueStepsResponse(step=step)


class World:
    """Three services on three ports, one task, and whatever round is open."""

    def __init__(
        self,
        folder: Path,
        identity: TlsIdentity,
        platform: EmulatedPlatform,
        task: odp.Task,
        *,
        issuer: IssuerWorld | None = None,
    ) -> None:
        """``issuer`` is that of the population's devices; without one, anybody may take part."""
        self.folder = folder
        self.identity = identity
        self.platform = platform
        self.developer = SigningKey.generate()
        self.task = sign_task(task.definition(), self.developer)
        self.issuer = issuer
        self.attesters: tuple[MakeAttester, ...] = ()
        issuer_key = b""
        if issuer is not None:
            issuer_key = issuer.key.public
            issuer.developer = Developer(self.developer)
            issuer.restart()
        self.charter = approve(found("people", owners=[self.developer.public], issuer_key=issuer_key), self.developer)
        self.definition = common_pb2.TaskDefinition.FromString(self.task.definition)
        self.task_id = task_sha256(self.task)
        self.algorithm = algorithm_for(self.definition)
        self.model_server = self.algorithm.server()
        self.state = self.model_server.start()
        self.server = Server()
        self.distributor = Distributor(Enclave("distributor", platform))
        self.aggregator = Aggregator(Enclave("aggregator", platform), self)
        self.aggregator.enclave.charter = self.charter
        self.log_text = io.StringIO()
        self.log = Log("devices", stream=self.log_text)
        self._running: list[RunningServer] = []
        self._services: list[Services] = []
        self.catalogues = Catalogues()
        self.address = self._serve("odp.v1.ServerService", self._add_server, self.server)
        self.distributor_address = self._serve(
            "odp.v1.DistributorService",
            distributor_pb2_grpc.add_DistributorServiceServicer_to_server,
            self.distributor,
            self.distributor.enclave,
        )
        self.aggregator_address = self._serve(
            "odp.v1.AggregatorService",
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server,
            self.aggregator,
            self.aggregator.enclave,
        )
        self.issuer_address = ""
        self.issuer_calls: list[enrolment_pb2.IssueTokenRequest] = []
        if issuer is not None:
            self.attesters = (issuer.vendor.device,)
            self.issuer_address = self._serve(
                issuer_program.NAME,
                enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server,
                self._issuing(issuer.issuer),
            )
        self.model_id = b""
        self.signed_manifest = common_pb2.SignedManifest()
        self.round = -1
        self.open_round(0)

    def _add_server(self, servicer: Server, server: grpc.Server) -> None:
        server_pb2_grpc.add_ServerServiceServicer_to_server(servicer, server)
        catalogue_pb2_grpc.add_CatalogueServiceServicer_to_server(self.catalogues, server)

    def _serve(self, name: str, add: Callable[..., None], servicer: object, enclave: Enclave | None = None) -> str:
        def register(server: grpc.Server) -> None:
            add(servicer, server)
            if enclave is not None:
                attestation_pb2_grpc.add_AttestationServiceServicer_to_server(enclave, server)

        running = serve(address="127.0.0.1:0", identity=self.identity, add=register, service_names=[name], workers=4)
        self._running.append(running)
        return running.address

    def _issuing(self, issuer: Issuer) -> enrolment_pb2_grpc.EnrolmentServiceServicer:
        servicer = issuer_program.enrolment_servicer(issuer, self.log)
        real = servicer.IssueToken

        def noted(
            request: enrolment_pb2.IssueTokenRequest, context: grpc.ServicerContext
        ) -> enrolment_pb2.IssueTokenResponse:
            self.issuer_calls.append(request)
            return real(request, context)

        servicer.IssueToken = noted  # type: ignore[method-assign]
        return servicer

    def open_round(self, round: int, broadcast: ModelVersion | None = None) -> None:
        """Publishes the present model as version ``round`` and offers that round."""
        broadcast = self.model_server.broadcast(self.state) if broadcast is None else broadcast
        broadcast = dataclasses.replace(broadcast, version=round)
        self.round = round
        self.signed_manifest = sign_manifest(manifest_for(broadcast, self.task_id), self.developer)
        self.model_id = model_sha256(self.signed_manifest)
        self.distributor.broadcast, self.distributor.model = broadcast, self.model_id
        self.server.newest = server_pb2.GetModelResponse(
            task=self.task,
            model=self.signed_manifest,
            distributor_address=self.distributor_address,
            charter=self.charter,
        )
        self.server.assignment = server_pb2.Assignment(
            task=self.task,
            round=round,
            model=self.signed_manifest,
            distributor_address=self.distributor_address,
            aggregator_address=self.aggregator_address,
            charter=self.charter,
            round_key=self.round_key(),
            token_key=None if self.issuer is None else self.issuer.signed_key(self.task, round),
            issuer_address=self.issuer_address,
        )

    def round_key(self) -> common_pb2.SignedRoundKey:
        """The present key of the aggregator's round, signed for the round that is offered."""
        enclave = self.aggregator.enclave
        data = domains.round_key(
            self.task_id, self.round, self.model_id, POLICIES["aggregator"].sha256, enclave.round_key.public
        )
        signature = enclave.signing.sign(domains.ROUND_KEY, data)
        return common_pb2.SignedRoundKey(hpke_key=enclave.round_key.public, signature=signature)

    def open_again(self) -> None:
        """As if the aggregator had lost the round: it is open again, under another key."""
        self.aggregator.enclave.round_key = HpkeKey.generate()
        self.server.assignment.round_key.CopyFrom(self.round_key())

    def void_round(self, *, signing: SigningKey | None = None, round: int | None = None) -> None:
        """As after a hand-over: the round is open again, and its enclave signs that the opening before is void."""
        before, enclave = self.aggregator.enclave.round_key.public, self.aggregator.enclave
        self.aggregator.counted.clear()
        self.open_again()
        data = domains.voided_key(self.task_id, self.round if round is None else round, before)
        signature = (signing or enclave.signing).sign(domains.VOIDED_KEY, data)
        self.server.assignment.round_key.voided.add(hpke_key=before, signature=signature)

    def close_round(self) -> None:
        """Sums what was counted, without noise, and opens the next round; after the last one there is none."""
        query = self.algorithm.query(self.round)
        total = query.new_sum()
        total.add([contribution.payload for contribution in self.aggregator.counted.values()])
        sums = total.totals()
        tensors = {release.name: sums[release.name] * release.step for release in query.releases}
        self.state = self.model_server.step(self.state, NoisyTensors(self.round, tensors, total.count))
        self.aggregator.counted.clear()
        self.open_round(self.round + 1)
        if self.round == self.model_server.rounds:
            self.server.assignment = None

    def services(self, **changes: object) -> Services:
        """Clients of this world, closed at its end; ``changes`` of what is pinned."""
        pinned = PinnedAddresses.of(self.reference_values(**changes))
        services = Services(self.address, self.identity.ca_pem, pinned=pinned)
        self._services.append(services)
        return services

    def reference_values(self, **changes: object) -> ReferenceValues:
        """What the devices pin."""
        values = {
            "roots": (self.platform.root_certificate_pem,),
            "image_digests": {role: (digest,) for role, digest in DIGESTS.items()},
            "policy_sha256": {role: (policy.sha256.hex(),) for role, policy in POLICIES.items()},
            "allow_emulated": True,
            "addresses": {
                "distributor": (self.distributor_address,),
                "aggregator": (self.aggregator_address,),
                **({"issuer": (self.issuer_address,)} if self.issuer_address else {}),
            },
        }
        return ReferenceValues(**{**values, **changes})  # type: ignore[arg-type]

    def participant(
        self, *, limits: Limits | None = None, reference_values: ReferenceValues | None = None, **gate: object
    ) -> Participant:
        """Takes part for devices of this world; a new one knows no enclave, as after a restart."""
        services = self.services()
        values = reference_values or self.reference_values()
        enclaves = Enclaves(services, lambda: values)
        return Participant(
            services=services,
            enclaves=enclaves,
            gate=Gate(limits=limits or Limits(min_cohort=2), **gate),  # type: ignore[arg-type]
            admission=Admission(
                services, self.attesters, clock=time.time if self.issuer is None else self.issuer.clock
            ),
            fixed_times=impatient_times(),
            records=Records(self.folder / "devices-state" / FOLDER, lambda: values),
        )

    def fill(self, counts: list[int], *, seed: int = 1) -> Ratings:
        """Gives device i ``counts[i]`` ratings and returns them all."""
        ratings = make_ratings(counts, seed=seed)
        provision(self.folder / "devices-state", ratings)
        return ratings

    def store(self, device: int) -> Store:
        """The open store of one device."""
        return Store.open(store_path(self.folder / "devices-state", device))

    def close(self) -> None:
        """Stops everything."""
        for services in self._services:
            services.close()
        for running in self._running:
            running.stop(0)


def make_ratings(counts: list[int], *, seed: int) -> Ratings:
    generator = np.random.default_rng(seed)
    items = [generator.choice(ITEMS, size=count, replace=False) for count in counts]
    users = np.repeat(np.arange(len(counts)), counts)
    values = generator.integers(1, 6, size=len(users)).astype(float)
    flat = np.concatenate([*items, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    return Ratings.from_triples("tiny", users, flat, values, low=1, high=5, n_users=len(counts), n_items=ITEMS)


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> TlsIdentity:
    with StateFolder.open(tmp_path_factory.mktemp("tls"), "server") as state:
        return development_identity(state)


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> EmulatedPlatform:
    return EmulatedPlatform.open(tmp_path_factory.mktemp("platform"))


@pytest.fixture
def task() -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=ITEMS, rank=2),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=20),
        training=odp.DPAM(steps=1, slices_per_device=40),
        cohort=odp.Cohort(minimum=2, goal=3),
        population="people",
    )


@pytest.fixture
def world(tmp_path: Path, identity: TlsIdentity, platform: EmulatedPlatform, task: odp.Task) -> Iterator[World]:
    world = World(tmp_path, identity, platform, task)
    yield world
    world.close()


@pytest.fixture
def admitting(tmp_path: Path, identity: TlsIdentity, platform: EmulatedPlatform, task: odp.Task) -> Iterator[World]:
    """A population that admits devices with a token of its issuer, which takes those of an emulated vendor."""
    issuer = IssuerWorld(tmp_path / "issuer", clock=Clock())
    world = World(tmp_path, identity, platform, task, issuer=issuer)
    yield world
    world.close()
    issuer.close()
