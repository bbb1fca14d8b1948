"""A distributor and an aggregator that keep the contract of odp/v1, in process, over real TLS gRPC.

The aggregator releases the declared tensors of the task's real query: a fixed function of the round in place of sums
and noise, drawn once per round.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from conformance.postgresql import PostgresqlServer

from odp._system.files.state_folder import StateFolder
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.crypto import domains
from odp.crypto.signing import SigningKey, verify
from odp.errors import BudgetExceeded, PrivacyError
from odp.models.matrix_factorization import MatrixFactorization
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, ReleaseState, lines_of
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.tables import table_from_bytes
from odp.signed.charter import charter_sha256, check_founding, check_succession, open_charter
from odp.signed.task import model_sha256, open_manifest, open_order, open_task, task_sha256
from odp.tasks.task import Task
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.service import NotFound, answers, serve
from odp.transport.tls import Callers, TlsIdentity, development_identity
from odp.trust.enclave.attestation_servicer import attestation_servicer
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import (
    aggregator_pb2,
    aggregator_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    common_pb2,
    distributor_pb2,
    distributor_pb2_grpc,
    hand_over_pb2,
    population_pb2,
    server_pb2,
)
from server.board import Addresses, Board
from server.clients import AggregatorClient, DistributorClient
from server.driver import Driver
from server.populations import Populations
from server.servicer import checked_task
from server.steps import Parties
from server.storage import Storage, TaskRecord
from server.storage.sqlite import open_sqlite
from tests.server.stepping import step_once
from trusted_aggregator.boundary.interface import open_abandon_order

IMAGE = "sha384:" + "ab" * 48
ITEMS = 12


#: Of every server in these tests: the policy of the aggregator lists it as a founder.
KEY = SigningKey.from_bytes(hashlib.sha256(b"the server of tests").digest())


class Lines:
    """A log stream that tests read and wait on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._text = ""

    def write(self, text: str) -> int:
        with self._changed:
            self._text += text
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    @property
    def text(self) -> str:
        with self._changed:
            return self._text

    def wait_for(self, word: str, seconds: float = 60.0) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: word in self._text, seconds)


class Clock:
    """A clock that tests move."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeDistributor(distributor_pb2_grpc.DistributorControlServiceServicer):
    """Holds published models by task and version; ``failures`` are aborted with first, one per call."""

    def ForgetTask(
        self, request: distributor_pb2.ForgetTaskRequest, context: grpc.ServicerContext
    ) -> distributor_pb2.ForgetTaskResponse:
        if self.failures:
            context.abort(self.failures.pop(0), "told to fail")
        task = population_pb2.AbandonOrder.FromString(request.order).task_sha256
        verify(KEY.public, request.signature, domains.ABANDON, request.order)
        self.models = {key: tables for key, tables in self.models.items() if key[0] != task}
        return distributor_pb2.ForgetTaskResponse()

    def __init__(self, log: Log) -> None:
        self._log = log
        self.models: dict[tuple[bytes, int], dict[str, np.ndarray]] = {}
        self.streams = 0
        self.largest_chunk = 0
        self.failures: list[grpc.StatusCode] = []

    def Publish(
        self, request_iterator: Iterator[distributor_pb2.PublishRequest], context: grpc.ServicerContext
    ) -> distributor_pb2.PublishResponse:
        return self._publish(request_iterator, context)

    def _publish(self, parts: Iterator[distributor_pb2.PublishRequest], context: grpc.ServicerContext) -> Any:
        if self.failures:
            context.abort(self.failures.pop(0), "told to fail")
        self.streams += 1
        header = next(parts).header
        definition = open_task(header.task)
        manifest = open_manifest(header.model, task=header.task, developer_key=definition.developer_key)
        reply = distributor_pb2.PublishResponse(model_sha256=model_sha256(header.model))
        key = (manifest.task_sha256, manifest.version)
        if key in self.models:
            return reply
        chunks = [part.chunk for part in parts]
        self.largest_chunk = max(self.largest_chunk, *(len(chunk) for chunk in chunks))
        data, tables = b"".join(chunks), {}
        for entry in manifest.tables:
            size = entry.rows * entry.width * 4
            tables[entry.name] = table_from_bytes(entry, data[:size]).rows
            data = data[size:]
        if data:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too many bytes")
        self.models[key] = tables
        return reply


class FakeAggregator(
    aggregator_pb2_grpc.AggregatorServiceServicer, aggregator_pb2_grpc.AggregatorControlServiceServicer
):
    """Rounds by (task, round). ``contributions`` holds for every round; ``tamper`` changes a release before signing.

    ``chains`` are the charters of each population, ``abandoned`` the tasks that were ended.
    """

    def __init__(self, log: Log, key: SigningKey) -> None:
        self._log = log
        self._key = key
        self.hand_overs: list[hand_over_pb2.HandOver] = []
        self.contributions = 0
        self.round_key = bytes(range(32))
        self.over_budget = False
        self.refuses_to_close = False
        self.failures: list[grpc.StatusCode] = []
        self.tamper: Any = lambda release: None
        # Releases have the hash of their values alone, which come in the pieces that ``sends`` gives.
        self.detaches = False
        self.sends: Callable[[list[bytes]], Iterable[bytes]] = lambda pieces: pieces
        self.values: dict[tuple[bytes, int], bytes] = {}
        self.reads = 0
        self.opened: dict[tuple[bytes, int], tuple[common_pb2.TaskDefinition, bytes]] = {}
        self.releases: dict[tuple[bytes, int], common_pb2.SignedRelease] = {}
        self.drawn: list[tuple[bytes, int]] = []
        self.chains: dict[str, list[population_pb2.SignedCharter]] = {}
        self.abandoned: list[bytes] = []

    def SetCharter(
        self, request: aggregator_pb2.SetCharterRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.SetCharterResponse:
        return self._answer(self._set_charter, request, context)

    def GetCharters(
        self, request: aggregator_pb2.GetChartersRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.GetChartersResponse:
        return self._answer(self._get_charters, request, context)

    def AbandonTask(
        self, request: aggregator_pb2.AbandonTaskRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.AbandonTaskResponse:
        return self._answer(self._abandon, request, context)

    def GetHandOvers(
        self, request: aggregator_pb2.GetHandOversRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.GetHandOversResponse:
        return aggregator_pb2.GetHandOversResponse(hand_overs=self.hand_overs)

    def _set_charter(self, request: aggregator_pb2.SetCharterRequest) -> aggregator_pb2.SetCharterResponse:
        charter = open_charter(request.charter)
        chain = self.chains.setdefault(charter.population, [])
        if not chain:
            check_founding(charter, [one.key for one in charter.signed.signatures])
        elif charter_sha256(chain[-1]) != charter.sha256:
            check_succession(charter, open_charter(chain[-1]))
        if request.charter not in chain:
            chain.append(request.charter)
        return aggregator_pb2.SetCharterResponse()

    def _get_charters(self, request: aggregator_pb2.GetChartersRequest) -> aggregator_pb2.GetChartersResponse:
        return aggregator_pb2.GetChartersResponse(charters=self.chains.get(request.population, [])[request.first :])

    def _abandon(self, request: aggregator_pb2.AbandonTaskRequest) -> aggregator_pb2.AbandonTaskResponse:
        task = task_sha256(request.task)
        open_abandon_order(request.order, task_sha256=task, signature=request.signature)
        self.abandoned.append(task)
        self.opened = {key: held for key, held in self.opened.items() if key[0] != task}
        return aggregator_pb2.AbandonTaskResponse()

    def OpenRound(
        self, request: aggregator_pb2.OpenRoundRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.OpenRoundResponse:
        return self._answer(self._open_round, request, context)

    def GetRound(
        self, request: aggregator_pb2.GetRoundRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.GetRoundResponse:
        return self._answer(self._get_round, request, context)

    def CloseRound(
        self, request: aggregator_pb2.CloseRoundRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.CloseRoundResponse:
        return self._answer(self._close_round, request, context)

    def GetReleasedValues(
        self, request: aggregator_pb2.GetReleasedValuesRequest, context: grpc.ServicerContext
    ) -> Iterator[aggregator_pb2.GetReleasedValuesResponse]:
        order = aggregator_pb2.RoundOrder.FromString(request.order)
        self.reads += 1
        values = self.values[order.task_sha256, order.round]
        pieces = [values[start : start + 64] for start in range(0, len(values), 64)]
        for piece in self.sends(pieces):
            yield aggregator_pb2.GetReleasedValuesResponse(chunk=piece)

    def GetLedger(
        self, request: aggregator_pb2.GetLedgerRequest, context: grpc.ServicerContext
    ) -> aggregator_pb2.GetLedgerResponse:
        return self._answer(self._get_ledger, request, context)

    def _get_ledger(self, request: aggregator_pb2.GetLedgerRequest) -> aggregator_pb2.GetLedgerResponse:
        population = self.opened[request.task_sha256, 0][0].population
        ledger = Ledger(population)
        for task, round in self.drawn:
            definition = self.opened[task, round][0]
            if definition.population == population:
                ledger = ledger.charge(
                    task_id=task.hex(),
                    round=round,
                    events=charges_of(algorithm_for(definition).query(round)),
                    contributions=self.contributions,
                    population_size=self.contributions,
                    id_set_sha256=bytes(32),
                    task_budget=Budget(definition.privacy.epsilon, definition.privacy.delta),
                    population_budget=Budget(20.0, 1e-5),
                ).advance(
                    task_id=task.hex(),
                    round=round,
                    state=ReleaseState.SEALED,
                    release_sha256=hashlib.sha256(self.releases[task, round].release).digest(),
                )
        head = ledger.state.head.encode()
        return aggregator_pb2.GetLedgerResponse(
            entries=lines_of(ledger.entries[request.first :]), head=head, signature=self._key.sign(domains.LEDGER, head)
        )

    def _answer(self, method: Any, request: Any, context: grpc.ServicerContext) -> Any:
        if self.failures:
            context.abort(self.failures.pop(0), "told to fail")
        return answers(self._log)(lambda _self, given, _context: method(given))(self, request, context)

    def _open_round(self, request: aggregator_pb2.OpenRoundRequest) -> aggregator_pb2.OpenRoundResponse:
        if self.over_budget:
            raise BudgetExceeded("spent 7, asked 2, budget 8: no round fits")
        definition = open_task(request.task)
        order = open_order(
            request.order, request.signature, domain=domains.OPEN, developer_key=definition.developer_key
        )
        assert order.task_sha256 == task_sha256(request.task)
        key = (order.task_sha256, order.round)
        assert self.opened.setdefault(key, (definition, order.model_sha256))[1] == order.model_sha256
        round_key = common_pb2.SignedRoundKey(hpke_key=self.round_key, signature=bytes(64))
        return aggregator_pb2.OpenRoundResponse(round_key=round_key)

    def _get_round(self, request: aggregator_pb2.GetRoundRequest) -> aggregator_pb2.GetRoundResponse:
        key = (request.task_sha256, request.round)
        if key not in self.opened:
            raise NotFound("no such round")
        return aggregator_pb2.GetRoundResponse(contributions=self.contributions, released=key in self.releases)

    def _close_round(self, request: aggregator_pb2.CloseRoundRequest) -> aggregator_pb2.CloseRoundResponse:
        order = aggregator_pb2.RoundOrder.FromString(request.order)
        key = (order.task_sha256, order.round)
        definition, model = self.opened[key]
        open_order(request.order, request.signature, domain=domains.CLOSE, developer_key=definition.developer_key)
        assert order.model_sha256 == model
        if self.refuses_to_close:
            raise BudgetExceeded("spent 7, asked 2, budget 8: no round fits")
        if self.contributions < definition.cohort.minimum:
            raise PrivacyError(f"{self.contributions} contributions are below the minimum cohort")
        if key not in self.releases:
            self.drawn.append(key)
            self.releases[key] = self._release(definition, order)
        return aggregator_pb2.CloseRoundResponse(release=self.releases[key])

    def _release(
        self, definition: common_pb2.TaskDefinition, order: aggregator_pb2.RoundOrder
    ) -> common_pb2.SignedRelease:
        draws = np.random.default_rng(order.round)
        release = common_pb2.Release(
            task_sha256=order.task_sha256,
            round=order.round,
            model_sha256=order.model_sha256,
            tensors=[
                common_pb2.ReleasedTensor(
                    name=entry.name,
                    integers=draws.integers(-1000, 1000, entry.shape).astype("<i8").tobytes(),
                    shape=entry.shape,
                    step=entry.step,
                )
                for entry in algorithm_for(definition).query(order.round).releases
            ],
            epsilon_spent=1.0 + order.round,
            contributions=self.contributions,
        )
        if self.detaches:
            values = b"".join(tensor.integers for tensor in release.tensors)
            for tensor in release.tensors:
                tensor.ClearField("integers")
            release.values_sha256, release.values_bytes = hashlib.sha256(values).digest(), len(values)
            self.values[order.task_sha256, order.round] = values
        self.tamper(release)
        data = release.SerializeToString()
        return common_pb2.SignedRelease(release=data, signature=self._key.sign(domains.RELEASE, data))


class World:
    """Both services, running, and everything that a driver needs; storage and log are this test's own."""

    def __init__(self, services: Services, folder: Path) -> None:
        self.lines = Lines()
        self.log = Log("server", stream=self.lines)  # type: ignore[arg-type]  # the two methods that Log calls
        self.distributor = FakeDistributor(self.log)
        self.aggregator = FakeAggregator(self.log, services.identity.signing)
        services.distributor, services.aggregator = self.distributor, self.aggregator
        self.services = services
        self.key = KEY
        self.clock = Clock(1_000_000.0)
        self.monotonic = Clock(50.0)
        self.path = folder / "server.sqlite"
        self.storage = open_sqlite(self.path, clock=self.clock)

    def submit(self, definition: common_pb2.TaskDefinition, item_features: bytes = b"") -> bytes:
        """Stores a task as SubmitTask does; its id."""
        request = server_pb2.SubmitTaskRequest(definition=definition, item_features=item_features)
        task: TaskRecord = checked_task(request, self.key)
        self.storage.add_task(task, item_features=item_features)
        return task.sha256

    def populations(self, storage: Storage | None = None, **changes: Any) -> Populations:
        given = {"aggregator": self.services.aggregator_client, "key": self.key, "log": self.log} | changes
        return Populations(storage if storage is not None else self.storage, **given)

    def board(self, storage: Storage | None = None, **changes: Any) -> Board:
        return Board(
            storage if storage is not None else self.storage,
            addresses=Addresses(
                changes.pop("distributors", lambda task: ("distributor.example:7201",)),
                "aggregator.example:7202",
                changes.pop("issuer_address", ""),
            ),
            **changes,
        )

    def driver(self, **changes: Any) -> Driver:
        """A new driver, as after a restart of the program."""
        given: dict[str, Any] = {
            "storage": self.storage,
            "distributor": self.services.distributor_client,
            "aggregator": self.services.aggregator_client,
            "key": self.key,
            "log": self.log,
            "clock": self.clock,
            "monotonic": self.monotonic,
        } | changes
        given.setdefault("board", self.board(given["storage"]))
        if "populations" not in given:
            given["populations"] = self.populations(given["storage"], keeper=given.get("keeper"))
        names = [field.name for field in dataclasses.fields(Parties)]
        parties = Parties(**{name: given.pop(name) for name in names if name in given})
        return Driver(parties=parties, **given)

    def run(self, driver: Driver, *, steps: int = 200) -> int:
        """Steps until nothing more happens; how many steps got further."""
        for count in range(steps):
            if not step_once(driver):
                return count
        raise AssertionError(f"still busy after {steps} steps")


class Services:
    """The two gRPC servers of a test session: each test puts its own fakes behind them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.ca_folder = folder / "ca"
        self.distributor: Any = None
        self.aggregator: Any = None
        self.platform = EmulatedPlatform.open(folder / "platform")
        self.policy = EnclavePolicy(role="aggregator", founders=(KEY.public.hex(),))
        self.identity, _sealed = EnclaveIdentity.restore_or_create(
            guest=self.platform.launch(image_digest=IMAGE, policy=self.policy.to_bytes(), name="aggregator"),
            sealed=None,
        )
        log = Log("fake", stream=Lines())  # type: ignore[arg-type]  # the two methods that Log calls
        attestation = attestation_servicer(self._evidence, log=log)

        def add_distributor(server: grpc.Server) -> None:
            distributor_pb2_grpc.add_DistributorControlServiceServicer_to_server(_Relay(self, "distributor"), server)

        def add_aggregator(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(_Relay(self, "aggregator"), server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(attestation, server)

        def add_orders(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorControlServiceServicer_to_server(_Relay(self, "aggregator"), server)

        def identity(role: str) -> TlsIdentity:
            state = stack.enter_context(StateFolder.open(folder / role, role))
            return development_identity(state, self.ca_folder)

        def listen(own: TlsIdentity, add: Callable[[grpc.Server], None], *, control: bool) -> str:
            callers = Callers(own.ca_pem, ("odp:server",)) if control else None
            server = serve(address="127.0.0.1:0", identity=own, add=add, service_names=["fake"], callers=callers)
            stack.callback(server.stop, 0.1)
            return server.address

        aggregator, distributor, server = (identity(role) for role in ("aggregator", "distributor", "server"))
        self.distributor_control = listen(distributor, add_distributor, control=True)
        self.aggregator_address = listen(aggregator, add_aggregator, control=False)
        self.aggregator_control = listen(aggregator, add_orders, control=True)
        ca = self.ca_folder / "ca.pem"
        public = stack.enter_context(connect(self.aggregator_address, ca))
        distributor_orders, aggregator_orders = (
            stack.enter_context(connect(address, ca, identity=server))
            for address in (self.distributor_control, self.aggregator_control)
        )
        self.distributor_client = DistributorClient(distributor_orders, self.distributor_control)
        self.aggregator_client = AggregatorClient(
            public, aggregator_orders, address=self.aggregator_address, control_address=self.aggregator_control
        )

    def _evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        found = self.identity.evidence(nonce)
        return attestation_pb2.GetEvidenceResponse(token=found.token, policy=found.policy, event_log=found.event_log)

    def reference_values(self, *, image: str = IMAGE) -> ReferenceValues:
        return ReferenceValues(
            roots=(self.platform.root_certificate_pem,),
            image_digests={"aggregator": (image,)},
            policy_sha256={"aggregator": (hashlib.sha256(self.policy.to_bytes()).hexdigest(),)},
            allow_emulated=True,
        )


class _Relay:
    """Gives every call to the fake that the current test installed."""

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._name = name

    def __getattr__(self, method: str) -> Any:
        return lambda request, context: getattr(getattr(self._services, self._name), method)(request, context)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with ExitStack() as stack:
        yield Services(tmp_path_factory.mktemp("services"), stack)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A PostgreSQL of this test session; the test is skipped where it, or its driver, is not installed."""
    with PostgresqlServer.started() as server:
        yield server


@pytest.fixture
def world(services: Services, tmp_path: Path) -> Iterator[World]:
    made = World(services, tmp_path)
    yield made
    made.storage.close()


@pytest.fixture
def definition() -> common_pb2.TaskDefinition:
    """A task of 3 rounds (counts, biases, one step on factors) over 12 items; closes at 5, not below 3."""
    return Task(
        name="films",
        population="viewers",
        model=MatrixFactorization(items=ITEMS, rank=2),
        data=RatingsData(low=1, high=5),
        privacy=UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
        training=DPAM(steps=1),
        cohort=Cohort(minimum=3, goal=5, round_seconds=60),
    ).definition()
