"""LeafService: the parts of rounds at the host of a leaf, as the host of the root orders them.

Contributions are stored here as at any aggregator, before they are acknowledged. The enclave forgets its rounds with
its process; when the root gives it one again, it takes back what is stored here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError, Refusal, StateError
from odp.signed.task import parse_known, task_sha256
from odp.transport.logs import Log, short
from odp.transport.service import servicer
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, attestation_pb2, leaf_pb2, leaf_pb2_grpc
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Submit
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.rounds.host_half import Key

NAME = "odp.v1.LeafService"

_ROOT_FILE = "root"
_ID_BYTES = 32
_BYTES_TOGETHER = 2**20


class LeafParts:
    """The parts that this leaf's enclave holds. Thread-safe.

    Args:
        core: the enclave.
        storage: where contributions are.
        state: remembers whose leaf this is.
        log: where parts come and go.
    """

    def __init__(self, core: AggregatorCalls, storage: Storage, state: StateFolder, log: Log) -> None:
        self._core = core
        self._storage = storage
        self._state = state
        self._log = log
        self._lock = threading.Lock()
        self._held: set[Key] = set()
        self._swept = False

    def holds(self, task_sha256: bytes, round: int) -> bool:
        """Whether contributions to a round are taken, or refused, by the enclave now."""
        return (task_sha256, round) in self._held

    def greet(self, nonce: bytes) -> leaf_pb2.GreetResponse:
        """Evidence for the root, and the nonce for the root's."""
        evidence = self._core.evidence(attestation_pb2.GetEvidenceRequest(nonce=nonce))
        return leaf_pb2.GreetResponse(
            nonce=self._core.ask_nonce(aggregator_enclave_pb2.AskNonce()).nonce, evidence=evidence
        )

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
        block: list[Submit] = []
        for sealed in self._storage.contributions(*key):
            block.append(Submit(*key, sealed))
            size += len(sealed)
            if size >= _BYTES_TOGETHER:
                count, size = count + self._resubmit(block), 0
                block = []
        return count + (self._resubmit(block) if block else 0)

    def _resubmit(self, block: list[Submit]) -> int:
        answers = self._core.submit_batch(block)
        return sum(answer is None or answer.refusal is Refusal.ALREADY_CONTRIBUTED for answer in answers)

    def _require_root(self, root: bytes, leaf: int) -> None:
        """Returns if this is that leaf of that root, or was nobody's. Raises ConfigurationError, StateError."""
        if len(root) != _ID_BYTES:
            raise ConfigurationError(f"Expected root to have {_ID_BYTES} bytes, got {len(root)}")
        mine = f"{root.hex()} {leaf}\n".encode()
        stored = self._state.read(_ROOT_FILE)
        if stored is None:
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
