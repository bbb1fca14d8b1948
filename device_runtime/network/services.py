"""The device's side of gRPC: one channel per address, a deadline on every call, every byte counted.

A device says eight things to the outside: its population (CheckIn, GetModel), a public table's name (GetTable), a nonce
(GetEvidence), a tile of the log (GetHashes), a block of its population's catalogue (GetCatalogueSteps), that it is a
device which wants a token of a round (IssueToken), which rows it wants, encrypted (Select, SelectPrivately), and its
contribution, encrypted (Submit, SubmitStream). Download names a whole table and so tells nothing; where it goes on
after a cut, or asks for changed blocks (ListBlocks), it tells which version of the table the device holds. A client of
a SecAgg+ session says its part of the protocol (Join, Step, SendMasked).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from device_runtime.network.addresses import SERVER, Peer, Peers, PinnedAddresses
from odp.errors import Busy, EnrolmentError, ServiceError, StaleModel
from odp.protocol.catalogues.exchange import steps_of
from odp.protocol.wire.tables import entry_bytes
from odp.transport.backpressure import Patience
from odp.transport.channel import (
    CHUNK_BYTES,
    LONG_DEADLINE,
    SHORT_DEADLINE,
    call,
    parse_addresses,
    read_stream,
    translated,
)
from odp.trust.log.proofs import unpacked
from odp.v1 import (
    aggregator_pb2,
    attestation_pb2,
    common_pb2,
    distributor_pb2,
    enrolment_pb2,
    local_pb2,
    log_pb2,
    retrieval_pb2,
    secagg_service_pb2,
    server_pb2,
    table_pb2,
)

_Reply = TypeVar("_Reply")


@dataclass
class Traffic:
    """Bytes of serialized messages that went out (``up``) and came in (``down``); counted by one thread."""

    up: int = 0
    down: int = 0

    def add(self, request: Any, reply: Any) -> None:
        """Counts one exchange of protobuf messages."""
        self.up += request.ByteSize()
        self.down += reply.ByteSize()


@contextlib.contextmanager
def _stale_told() -> Iterator[None]:
    """Separates errors for an outdated model version from other failures of a distributor."""
    try:
        yield
    except ServiceError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND:
            raise
        stale = StaleModel(str(error))
        stale.code = error.code
        raise stale from error


class Services:
    """All services that a device talks to; thread-safe, closed once.

    Every method raises ServiceUnavailable when nobody answers, Busy when the other party has more callers than it can
    serve even after its retry windows, StaleModel when the asked version is not served any more, and ServiceError with
    the other party's one line otherwise.

    Args:
      server: ``host:port`` of the developer's server; several, with commas between, where it has replicas.
      ca: PEM file (or its bytes) of the authority that all services' certificates descend from.
      pinned: where the other services may be: a server names them, and it is not trusted.
      patience: how retry windows are taken.

    Raises:
      ConfigurationError: the file is missing or no certificate, or an address is malformed.
    """

    def __init__(
        self, server: str, ca: Path | bytes, *, pinned: PinnedAddresses, patience: Patience | None = None
    ) -> None:
        parse_addresses(server)
        self._patience = Patience() if patience is None else patience
        self._server = server
        self._peers = Peers(ca, pinned)

    def require_pinned(self, **addresses: str) -> None:
        """Returns if the services may be at the addresses that the server names, by role. Raises AddressRefused."""
        for role, address in addresses.items():
            self._peers.pinned.require(role, address)

    def check_in(self, population: str, traffic: Traffic) -> server_pb2.CheckInResponse:
        """Asks the server for work; reveals the population and nothing else."""
        request = server_pb2.CheckInRequest(population=population)
        return self._call(self._home.server.CheckIn, request, self._server, "check in with the server", traffic)

    @_stale_told()
    def draw(self, task_sha256: bytes, traffic: Traffic) -> bytes:
        """A row of a task of local trust, drawn by the server; the same request of every device."""
        request = local_pb2.DrawRequest(task_sha256=task_sha256)
        return self._call(self._home.local.Draw, request, self._server, "draw a row of the server", traffic).row

    @_stale_told()
    def report(self, request: local_pb2.ReportRequest, traffic: Traffic) -> local_pb2.ReportResponse:
        """Hands in a report of local trust, which is private by itself."""
        return self._call(self._home.local.Report, request, self._server, "report to the server", traffic)

    def newest_model(self, population: str, *, of_examples: bool = False) -> server_pb2.GetModelResponse:
        """The newest model of a population that scores items, or predicts of examples; reveals these two alone."""
        request = server_pb2.GetModelRequest(population=population, of_examples=of_examples)
        return self._call(self._home.server.GetModel, request, self._server, "ask the server for its model", Traffic())

    def public_table(self, name: str) -> table_pb2.PublishedTable:
        """The newest version of a public table; reveals its name and nothing else."""
        request = table_pb2.GetTableRequest(name=name)
        return self._call(
            self._home.table.GetTable, request, self._server, f"ask the server for table {name!r}", Traffic()
        ).table

    def log_hashes(self, level: int, start: int, count: int) -> list[bytes]:
        """Hashes of the transparency log's tree, in whole tiles; reveals at most the number of a tile."""
        request = log_pb2.GetHashesRequest(level=level, start=start, count=count)
        reply: log_pb2.GetHashesResponse = self._call(
            self._home.log.GetHashes, request, self._server, "read the transparency log", Traffic()
        )
        return unpacked(reply.hashes)

    def catalogue_steps(self, population: str, block: int) -> list[bytes]:
        """The steps of a block of a catalogue, unchecked; reveals the population and the number of a block."""
        return steps_of(self._home.catalogue, population, block, address=self._server, patience=self._patience)

    def evidence(self, address: str, nonce: bytes, *, role: str) -> attestation_pb2.GetEvidenceResponse:
        """Evidence of the enclave behind ``address`` over ``nonce``."""
        request = attestation_pb2.GetEvidenceRequest(nonce=nonce)
        method = self._peers.at(role, address).attestation.GetEvidence
        return self._call(method, request, address, f"get the evidence of the {role}", Traffic())

    def enrolment_challenge(self, address: str, traffic: Traffic) -> enrolment_pb2.GetChallengeResponse:
        """A fresh challenge for a statement; reveals nothing."""
        method = self._peers.at("issuer", address).enrolment.GetChallenge
        what = "get a challenge of the issuer of tokens"
        return self._call(method, enrolment_pb2.GetChallengeRequest(), address, what, traffic)

    def issue_token(
        self, address: str, request: enrolment_pb2.IssueTokenRequest, traffic: Traffic
    ) -> enrolment_pb2.IssueTokenResponse:
        """A blind signature for a device that proves that it is one. Raises EnrolmentError if the issuer refuses."""
        method = self._peers.at("issuer", address).enrolment.IssueToken
        try:
            return self._call(method, request, address, "get a token of the issuer", traffic)
        except ServiceError as error:
            if error.code is not grpc.StatusCode.PERMISSION_DENIED:
                raise
            raise EnrolmentError(str(error)) from error

    @_stale_told()
    def select(
        self, address: str, request: distributor_pb2.SelectRequest, traffic: Traffic
    ) -> distributor_pb2.SelectResponse:
        """Rows of a keyed table; request and reply are encrypted."""
        method = self._distributor(address).distributor.Select
        return self._call(method, request, address, "fetch rows from the distributor", traffic)

    @_stale_told()
    def table_shape(
        self, address: str, request: retrieval_pb2.GetShapeRequest, traffic: Traffic
    ) -> retrieval_pb2.GetShapeResponse:
        """The shape of a table: what a device needs for a private query to two parties."""
        return self._call(
            self._distributor(address).retrieval.GetShape,
            request,
            address,
            "ask the distributor for a table's shape",
            traffic,
        )

    @_stale_told()
    def select_privately(
        self, address: str, request: retrieval_pb2.SelectPrivatelyRequest, traffic: Traffic
    ) -> retrieval_pb2.SelectPrivatelyResponse:
        """Shares of rows, from the leader and from the helper behind it."""
        return self._call(
            self._distributor(address).retrieval.SelectPrivately,
            request,
            address,
            "fetch rows from the two parties",
            traffic,
        )

    def submit(
        self, address: str, request: aggregator_pb2.SubmitRequest, traffic: Traffic
    ) -> aggregator_pb2.SubmitResponse:
        """Hands in an encrypted contribution."""
        return self._call(self._taker(address).aggregator.Submit, request, address, "submit to the aggregator", traffic)

    def submit_stream(
        self, address: str, header: aggregator_pb2.SubmitHeader, sealed: bytes, traffic: Traffic
    ) -> aggregator_pb2.SubmitStreamResponse:
        """Hands in a large encrypted contribution, or a large masked vector behind its sealed header, in chunks."""
        method = self._taker(address).aggregator.SubmitStream
        reply: aggregator_pb2.SubmitStreamResponse = self._patience.call(
            lambda: call(
                method,
                _parts(header, sealed),
                timeout=LONG_DEADLINE,
                what="submit to the aggregator",
                address=address,
            )
        )
        traffic.up += header.ByteSize() + len(sealed)
        traffic.down += reply.ByteSize()
        return reply

    def join_session(self, address: str, key: tuple[bytes, int], traffic: Traffic) -> secagg_service_pb2.JoinResponse:
        """Asks which SecAgg+ session gathers clients for (task, round)."""
        request = secagg_service_pb2.JoinRequest(task_sha256=key[0], round=key[1])
        return self._call(
            self._aggregator(address).secagg.Join, request, address, "join a session at the aggregator", traffic
        )

    def start_step(self, address: str, request: secagg_service_pb2.StepRequest) -> Any:
        """Starts to hand in one message of a session; ``step_answer`` reads the future's answer."""
        stub = self._aggregator(address).secagg
        if request.WhichOneof("message") == "masked" and len(request.masked.vector) > CHUNK_BYTES:
            return stub.SendMasked.future(_masked_parts(request), timeout=LONG_DEADLINE)
        return stub.Step.future(request, timeout=SHORT_DEADLINE)

    def step_answer(
        self, address: str, request: secagg_service_pb2.StepRequest, done: Any, traffic: Traffic
    ) -> secagg_service_pb2.StepResponse:
        """The answer of a call that has finished."""
        try:
            reply = done.result()
        except grpc.RpcError as error:
            raise translated(error, what="take part in a session of the aggregator", address=address) from error
        traffic.add(request, reply)
        step: secagg_service_pb2.StepResponse = step_of(reply)
        return step

    def download(
        self, address: str, model_sha256: bytes, entry: common_pb2.TableManifest, traffic: Traffic | None = None
    ) -> bytes:
        """The bytes of a whole table, exactly as long as the manifest states; the caller checks the hash."""
        request = distributor_pb2.DownloadRequest(model_sha256=model_sha256, table=entry.name)
        return b"".join(self.table_chunks(address, request, entry_bytes(entry), traffic))

    def table_chunks(
        self, address: str, request: distributor_pb2.DownloadRequest, expected: int, traffic: Traffic | None = None
    ) -> Iterator[bytes]:
        """The chunks of a download, together exactly ``expected`` bytes; the caller checks the hash."""
        what = f"download table {request.table!r} from the distributor"
        left = expected
        counted = traffic if traffic is not None else Traffic()
        counted.up += request.ByteSize()
        method = self._distributor(address).distributor.Download

        def start() -> Iterator[distributor_pb2.DownloadResponse]:
            replies = call(method, request, timeout=LONG_DEADLINE, what=what, address=address)
            return read_stream(replies, what=what, address=address)

        with _stale_told():
            for reply in self._patience.stream(start):
                left -= len(reply.chunk)
                counted.down += reply.ByteSize()
                if left < 0:
                    break
                yield reply.chunk
        if left:
            raise ServiceError(f"could not {what}: {address} did not send the {expected} bytes of its manifest")

    @_stale_told()
    def block_list(
        self, address: str, model_sha256: bytes, entry: common_pb2.TableManifest, traffic: Traffic | None = None
    ) -> bytes:
        """The hashes of a table's blocks as the distributor states them, 32 bytes each; the caller checks them."""
        request = distributor_pb2.ListBlocksRequest(model_sha256=model_sha256, table=entry.name)
        counted = traffic if traffic is not None else Traffic()
        method = self._distributor(address).distributor.ListBlocks
        return self._call(method, request, address, "ask the distributor for blocks", counted).sha256

    def moment(self, error: Busy) -> float:
        """Seconds until the next attempt, for a caller that waits by its own means."""
        return self._patience.moment(error)

    def close(self) -> None:
        """Closes all channels; calls in flight end with ServiceUnavailable."""
        self._peers.close()

    @property
    def _home(self) -> Peer:
        """The developer's server."""
        return self._peers.at(SERVER, self._server)

    def _distributor(self, address: str) -> Peer:
        return self._peers.at("distributor", address)

    def _taker(self, address: str) -> Peer:
        """The aggregator, or the leaf of one, as ``address`` is pinned."""
        role = "leaf" if address in self._peers.pinned.by_role.get("leaf", ()) else "aggregator"
        return self._peers.at(role, address)

    def _aggregator(self, address: str) -> Peer:
        return self._peers.at("aggregator", address)

    def _call(self, method: Callable[..., _Reply], request: Any, address: str, what: str, traffic: Traffic) -> _Reply:
        reply = self._patience.call(lambda: call(method, request, timeout=SHORT_DEADLINE, what=what, address=address))
        traffic.add(request, reply)
        return reply


def _parts(header: aggregator_pb2.SubmitHeader, sealed: bytes) -> Iterator[aggregator_pb2.SubmitStreamRequest]:
    yield aggregator_pb2.SubmitStreamRequest(header=header)
    for start in range(0, len(sealed), CHUNK_BYTES):
        yield aggregator_pb2.SubmitStreamRequest(chunk=sealed[start : start + CHUNK_BYTES])


def step_of(reply: Any) -> Any:
    """The answer to a step, of ``Step`` or ``SendMasked``."""
    return reply.answer if isinstance(reply, secagg_service_pb2.SendMaskedResponse) else reply


def _masked_parts(request: secagg_service_pb2.StepRequest) -> Iterator[secagg_service_pb2.SendMaskedRequest]:
    masked = request.masked
    yield secagg_service_pb2.SendMaskedRequest(client=request.client)
    yield secagg_service_pb2.SendMaskedRequest(session=masked.session)
    view = memoryview(masked.vector)
    for start in range(0, len(view), CHUNK_BYTES):
        yield secagg_service_pb2.SendMaskedRequest(chunk=bytes(view[start : start + CHUNK_BYTES]))
