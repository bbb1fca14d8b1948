"""A leaf of a tree of aggregators as a program: the listener of devices, and that of its root's host.

On the listener of its root, LeafService has the parts of rounds, as the host of the root orders them. Contributions are
stored here as at any aggregator, before they are acknowledged. The enclave forgets its rounds with its process; when
the root gives it one again, it takes back what is stored here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import grpc

from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError, Refusal, StateError
from odp.signed.task import parse_known, task_sha256
from odp.transport.logs import Log, short
from odp.transport.running import Failure, Running
from odp.transport.service import serve, servicer
from odp.transport.tls import Callers, caller_name
from odp.trust.enclave import attestation_servicer, chip_end
from odp.trust.enclave.channel import Client
from odp.trust.enclave.host import Launch, begin
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY
from odp.v1 import (
    aggregator_enclave_pb2,
    aggregator_pb2,
    aggregator_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    leaf_pb2,
    leaf_pb2_grpc,
)
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.config import Config
from trusted_aggregator.host.postgresql_storage import open_storage
from trusted_aggregator.host.remote import restore
from trusted_aggregator.host.servicer import NAME, WORKERS, AggregatorService, aggregator_servicer
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.modes.tree.host_half import LeafHost
from trusted_aggregator.rounds.host_half import Key

ROLE = "leaf"
LEAF_SERVICE = "odp.v1.LeafService"

_ROOT_FILE = "root"
_ID_BYTES = 32
_BYTES_TOGETHER = 2**20


def start(config: Config, *, log: Log | None, launch: Launch) -> Running:
    """Opens the state folder, launches the enclave, and serves; its root gives it rounds. Raises as ``program``."""
    log = Log(ROLE) if log is None else log
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        storage = open_storage(state, config.database)
        undo.callback(storage.close)
        begun = begin(
            launch=launch,
            state=state,
            platform=config.platform,
            entry=AGGREGATOR_ENTRY,
            policy=config.policy,
            may_renew=True,  # its keys protect nothing that is stored
            log=log,
            undo=undo,
        )
        restore(begun.connection, {}, storage.contributions)
        client = Client(
            begun.connection, AggregatorCalls.interface.reply, ended=failure,
            crashed=lambda where: log.error("enclave_error", where=where),
        )  # fmt: skip
        undo.callback(client.close)
        core = AggregatorCalls(client)
        parts = LeafParts(core, storage, state, log)
        changes = Changes(core, storage, failed=failure)
        service = AggregatorService(core, storage, changes, LeafHost(core, parts), failed=failure)
        undo.callback(service.close)
        tls = config.identity(state, log, undo)

        def add(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(aggregator_servicer(service, log), server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(core.evidence_over, log=log), server
            )

        def add_control(server: grpc.Server) -> None:
            leaf_pb2_grpc.add_LeafServiceServicer_to_server(leaf_servicer(parts, log), server)

        server = serve(
            address=config.listen,
            identity=tls,
            add=add,
            service_names=[NAME, attestation_servicer.NAME],
            workers=WORKERS,
            limits=config.limits,
            reflection=config.reflection,
            immediate={f"/{NAME}/Submit": LeafHost.is_whole},
        )
        undo.callback(server.stop)
        orders = serve(
            address=config.control_listen,
            identity=tls,
            add=add_control,
            service_names=[LEAF_SERVICE],
            limits=config.limits,
            callers=Callers(tls.ca_pem, (caller_name("aggregator"),)),
        )
        undo.callback(orders.stop)
        undo.callback(chip_end.watch(core.evidence_over, log).close)
        log.event("serving", address=server.address, control=orders.address, image=begun.image_digest)
        return Running(
            address=server.address,
            control_address=orders.address,
            ca_pem=tls.ca_pem,
            closing=undo.pop_all(),
            log=log,
            failure=failure,
        )


class LeafParts:
    """The parts that this leaf's enclave holds. Thread-safe.

    Args:
        core: the enclave.
        storage: where contributions are.
        state: remembers whose leaf this is.
        log: where parts come and go.
    """

    def __init__(self, core: AggregatorCalls, storage: Storage, state: StateFolder, log: Log) -> None:
        self._core, self._storage, self._state, self._log = core, storage, state, log
        self._lock = threading.Lock()
        self._held: set[Key] = set()
        self._swept = False

    def holds(self, task_sha256: bytes, round: int) -> bool:
        """Whether contributions to a round are taken, or refused, by the enclave now."""
        return (task_sha256, round) in self._held

    def greet(self, nonce: bytes) -> leaf_pb2.GreetResponse:
        """Evidence for the root, and the nonce for the root's."""
        evidence = self._core.evidence(attestation_pb2.GetEvidenceRequest(nonce=nonce))
        nonce_of_leaf = self._core.ask_nonce(aggregator_enclave_pb2.AskNonce()).nonce
        return leaf_pb2.GreetResponse(nonce=nonce_of_leaf, evidence=evidence)

    def open(self, delegation: leaf_pb2.Delegation) -> None:
        """Passes a part to the enclave, and gives it back what is stored of it."""
        statement = parse_known(leaf_pb2.DelegationStatement(), delegation.statement, "delegation of a round")
        key = task_sha256(statement.task), statement.round
        with self._lock:
            self._core.open_part(delegation)
            if key in self._held:
                return
            count = self._take_back(key)
            self._storage.set_stored(*key, count)
            self._held.add(key)
        self._log.event("part_opened", task=short(key[0]), round=key[1], leaf=statement.leaf, contributions=count)

    def parts(self, request: leaf_pb2.ListPartsRequest) -> leaf_pb2.ListPartsResponse:
        """What the enclave holds; everything else than what the root keeps is erased, here and there."""
        self._require_root(request.root, request.leaf)
        wanted = {(round.task_sha256, round.round) for round in request.kept}
        with self._lock:
            gone = self._held - wanted
            for key in gone:
                self._held.discard(key)
                self._core.erase_part(aggregator_pb2.GetRoundRequest(task_sha256=key[0], round=key[1]))
            if gone or not self._swept:
                # The first time also what an earlier process left.
                self._storage.keep_only(wanted)
                self._storage.finish_erasing()
                self._swept = True
            states = [state for state in self._core.round_states() if (state.task_sha256, state.round) in self._held]
        return leaf_pb2.ListPartsResponse(
            parts=[
                leaf_pb2.ListPartsResponse.Part(
                    task_sha256=state.task_sha256, round=state.round, contributions=state.contributions
                )
                for state in states
            ]
        )

    def close(self, task_sha256: bytes, round: int) -> Iterator[leaf_pb2.ClosePartResponse]:
        """Closes a part: the pieces of its sealed sum."""
        with self._lock:
            closed = self._core.close_part(aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round))
        self._log.event("part_closed", task=short(task_sha256), round=round, contributions=closed.contributions)
        takes = (
            leaf_pb2.TakePart(task_sha256=task_sha256, round=round, number=number) for number in range(closed.pieces)
        )
        return (leaf_pb2.ClosePartResponse(data=self._core.take_part(take).data) for take in takes)

    def _take_back(self, key: Key) -> int:
        count, size = 0, 0
        block: list[SealedContribution] = []
        for sealed in self._storage.contributions(*key):
            block.append(SealedContribution(*key, sealed))
            size += len(sealed)
            if size >= _BYTES_TOGETHER:
                count, size = count + self._resubmit(block), 0
                block = []
        return count + (self._resubmit(block) if block else 0)

    def _resubmit(self, block: list[SealedContribution]) -> int:
        answers = self._core.submit_batch(block)
        return sum(answer is None or answer.refusal is Refusal.ALREADY_CONTRIBUTED for answer in answers)

    def _require_root(self, root: bytes, leaf: int) -> None:
        """Returns if this is that leaf of that root, or was nobody's. Raises ConfigurationError, StateError."""
        if len(root) != _ID_BYTES:
            raise ConfigurationError(f"Expected root to have {_ID_BYTES} bytes, got {len(root)}")
        mine = f"{root.hex()} {leaf}\n".encode()
        if (stored := self._state.read(_ROOT_FILE)) is None:
            self._state.write_atomically(_ROOT_FILE, mine)
        elif stored != mine:
            other = stored.decode("ascii", "replace").split()
            raise StateError(
                f"this is leaf {other[-1]} of the root {other[0][:8]}.., and not leaf {leaf} of {root.hex()[:8]}..: "
                "give each root leaves of its own, in the same order at every start"
            )


def leaf_servicer(parts: LeafParts, log: Log) -> leaf_pb2_grpc.LeafServiceServicer:
    """The gRPC face of ``parts``."""
    return servicer(
        leaf_pb2_grpc.LeafServiceServicer,
        log,
        {
            "Greet": lambda request, _: parts.greet(request.nonce),
            "OpenPart": lambda request, _: _opened(parts, request),
            "ListParts": lambda request, _: parts.parts(request),
            "ClosePart": lambda request, _: parts.close(request.task_sha256, request.round),
        },
    )


def _opened(parts: LeafParts, request: leaf_pb2.OpenPartRequest) -> leaf_pb2.OpenPartResponse:
    parts.open(request.delegation)
    return leaf_pb2.OpenPartResponse()
