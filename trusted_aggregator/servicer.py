"""AggregatorService: carries bytes between gRPC, the enclave and the storage, in the order that keeps every promise.

- A contribution is acknowledged once the enclave has counted it and its ciphertext is stored.
- What the enclave asks to be written is stored before its reply is forwarded, in the order in which it was asked.
- Of a masked contribution, the vector stays here and its hash goes to the enclave; at the close the vectors that the
  enclave names are summed.
- Where storing fails, the program stops: its memory is then ahead of its files, and a start from the files is right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import cast

import grpc

from odp.errors import PrivacyError, Refusal, StateError
from odp.transport.call import progress
from odp.transport.logs import Log, short
from odp.transport.service import Later, NotFound, answers
from odp.transport.turns import Turns
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2
from trusted_aggregator.ingest import Ingest
from trusted_aggregator.interface import Aggregator, Status
from trusted_aggregator.masked_vectors import masked_request, masked_sum
from trusted_aggregator.orders import ordered
from trusted_aggregator.records import SealedRecord, release_key
from trusted_aggregator.secagg_rounds import Key, SecAggRounds, kept
from trusted_aggregator.storage import Storage
from trusted_aggregator.streams import read_header, read_sealed

NAME = "odp.v1.AggregatorService"
#: Threads of the server: so many submissions share one commit.
WORKERS = 64
#: Contributions in memory at once, of at most 8 MiB each; the other threads answer everything else meanwhile.
MAX_STREAMS = 16

_STORE_SECONDS = 30.0


class AggregatorService:
    """The host's half. ``failed`` is called when something could not be stored: the program has to stop."""

    def __init__(
        self,
        core: Aggregator,
        storage: Storage,
        log: Log,
        *,
        failed: Callable[[StateError], None],
        secagg: SecAggRounds | None = None,
    ) -> None:
        self._core = core
        self._secagg = secagg
        self._storage = storage
        self._log = log
        self._failed = failed
        self._ingest = Ingest(core, storage, failed=failed)
        # Writes are stored in the order in which the enclave made them.
        self._changes = threading.Lock()
        self._streams = Turns(at_once=MAX_STREAMS, waiting=0, service="aggregator", what="submissions")

    def open_round(self, request: aggregator_pb2.OpenRoundRequest) -> None:
        """Opens a round; returns once that is stored."""
        with self._changes, kept(self._secagg, request):
            writes = self._core.open_round(request.task, request.order, request.signature)
            self._apply(writes)
        order = aggregator_pb2.RoundOrder.FromString(request.order)
        self._log.event("round_opened", task=short(order.task_sha256), round=order.round)

    def submit(self, request: aggregator_pb2.SubmitRequest) -> Future[Refusal | None]:
        """Counts a contribution; the future is None once it is counted and stored."""
        if request.masked_sha256:  # the host's own word to its enclave
            return _refused(Refusal.MALFORMED)
        if not request.masked_vector:
            return self._ingest.submit(request)
        length = self._core.masked_bytes(request.task_sha256, request.round)
        if isinstance(length, Refusal):
            return _refused(length)
        if len(request.masked_vector) != length:
            return _refused(Refusal.MALFORMED)
        return self._ingest.submit(
            masked_request(request, request.sealed_contribution, request.masked_vector), masked=request.masked_vector
        )

    def submit_stream(
        self, requests: Iterator[aggregator_pb2.SubmitStreamRequest], context: grpc.ServicerContext
    ) -> Refusal | None:
        """As ``submit``, of a contribution in chunks. Raises Busy where too many streams are open."""
        header = read_header(requests)
        masked = bool(header.sealed_contribution)
        asked = self._core.masked_bytes if masked else self._core.sealed_bytes
        length = asked(header.task_sha256, header.round)
        if isinstance(length, Refusal):
            return length
        # A turn is memory for the whole contribution: for a stream of a round that is open here, not for any.
        with self._streams.turn(progress(context)):
            data = read_sealed(requests, length)
            if isinstance(data, Refusal):
                return data
            if masked:
                # Without a vector, the round is not masked.
                request = masked_request(header, header.sealed_contribution, data)
                return self._ingest.submit(request, masked=data).result() if data else Refusal.MALFORMED
            return self._ingest.submit(
                aggregator_pb2.SubmitRequest(
                    task_sha256=header.task_sha256, round=header.round, sealed_contribution=data
                )
            ).result()

    def close_round(self, request: aggregator_pb2.CloseRoundRequest) -> common_pb2.SignedRelease:
        """Charges and releases a round; returns once both are stored."""
        key = ordered(request.order)
        if self._secagg is not None and self._secagg.holds(key):
            with self._secagg.closing(key):
                return self._close_secagg(request, key, self._secagg)
        with self._changes:
            charged = self._core.charge(request.order, request.signature)
            task, number = charged.task_sha256, charged.round
            if charged.released:
                stored = self._storage.record(release_key(task, number))
                released = self._core.release(request.order, stored=stored)
            else:
                # The charge names the exact set: a crash after it must find all of the set.
                self._storage.wait_for(task, number, charged.contributions, timeout=_STORE_SECONDS)
                self._storage.sync()
                self._apply(charged.writes)
                self._log.event("round_charged", task=short(task), round=number, contributions=charged.contributions)
                masked = None
                if charged.masked_bytes:
                    masked = masked_sum(self._core, self._storage, task, number, length=charged.masked_bytes)
                released = self._core.release(request.order, masked=masked)
                self._apply(released.writes)
                self._storage.erase(task, number)
                self._log.event("round_released", task=short(task), round=number, contributions=charged.contributions)
        return common_pb2.SignedRelease.FromString(released.signed_release)

    def _close_secagg(
        self, request: aggregator_pb2.CloseRoundRequest, key: Key, secagg: SecAggRounds
    ) -> common_pb2.SignedRelease:
        """As ``close_round``, of a round of SecAgg+: nobody gives a share to unmask before the charge is stored."""
        task, number = key
        state = self._core.round_state(task, number)
        if state is not None and state.status is Status.OPEN:
            survivors = secagg.require_ready(key)
            with self._changes:
                self._core.announce(task, number, survivors.clients, survivors.set_sha256)
                self._apply(self._core.charge(request.order, request.signature).writes)
            self._log.event("round_charged", task=short(task), round=number, contributions=survivors.clients)
            try:
                masked = secagg.take_sum(key, survivors)
            except PrivacyError:
                with self._changes:
                    self._apply(self._core.give_up(task, number))
                raise
            with self._changes:
                released = self._core.release(request.order, masked=masked)
                self._apply(released.writes)
            self._log.event("round_released", task=short(task), round=number, contributions=survivors.clients)
        else:
            with self._changes:
                self._core.charge(request.order, request.signature)
                released = self._core.release(request.order, stored=self._storage.record(release_key(task, number)))
        secagg.forget(key)
        return common_pb2.SignedRelease.FromString(released.signed_release)

    def get_round(self, request: aggregator_pb2.GetRoundRequest) -> aggregator_pb2.GetRoundResponse:
        """Number of contributions, and whether the round is released."""
        state = self._core.round_state(request.task_sha256, request.round)
        if state is None:
            raise NotFound(f"round {request.round} of task {short(request.task_sha256)} is not open here")
        contributions = state.contributions
        key = request.task_sha256, request.round
        if state.status is Status.OPEN and self._secagg is not None and self._secagg.holds(key):
            contributions = self._secagg.survivors(key)
        return aggregator_pb2.GetRoundResponse(contributions=contributions, released=state.status is Status.RELEASED)

    def get_ledger(self, request: aggregator_pb2.GetLedgerRequest) -> aggregator_pb2.GetLedgerResponse:
        """The signed ledger of the task's population."""
        found = self._core.ledger(request.task_sha256)
        if found is None:
            raise NotFound(f"task {short(request.task_sha256)} is not known here")
        return aggregator_pb2.GetLedgerResponse(ledger=found[0], signature=found[1])

    def close(self) -> None:
        """Finishes the contributions that wait. Idempotent."""
        self._ingest.close()

    def _apply(self, writes: Sequence[SealedRecord]) -> None:
        try:
            self._storage.apply(writes)
        except StateError as error:
            self._failed(error)
            raise


def aggregator_servicer(service: AggregatorService, log: Log) -> aggregator_pb2_grpc.AggregatorServiceServicer:
    """The gRPC face of ``service``."""

    class Servicer(aggregator_pb2_grpc.AggregatorServiceServicer):
        @answers(log)
        def OpenRound(
            self, request: aggregator_pb2.OpenRoundRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.OpenRoundResponse:
            service.open_round(request)
            return aggregator_pb2.OpenRoundResponse()

        @answers(log)
        def Submit(  # type: ignore[override]  # the front takes a reply that comes later
            self, request: aggregator_pb2.SubmitRequest, context: grpc.ServicerContext
        ) -> Later:
            return Later(
                service.submit(request), lambda refusal: aggregator_pb2.SubmitResponse(refusal=_number(refusal))
            )

        @answers(log)
        def SubmitStream(
            self, request_iterator: Iterator[aggregator_pb2.SubmitStreamRequest], context: grpc.ServicerContext
        ) -> aggregator_pb2.SubmitStreamResponse:
            refusal = service.submit_stream(request_iterator, context)
            return aggregator_pb2.SubmitStreamResponse(refusal=_number(refusal))

        @answers(log)
        def GetRound(
            self, request: aggregator_pb2.GetRoundRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.GetRoundResponse:
            return service.get_round(request)

        @answers(log)
        def CloseRound(
            self, request: aggregator_pb2.CloseRoundRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.CloseRoundResponse:
            return aggregator_pb2.CloseRoundResponse(release=service.close_round(request))

        @answers(log)
        def GetLedger(
            self, request: aggregator_pb2.GetLedgerRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.GetLedgerResponse:
            return service.get_ledger(request)

    return Servicer()


def _refused(refusal: Refusal) -> Future[Refusal | None]:
    future: Future[Refusal | None] = Future()
    future.set_result(refusal)
    return future


def _number(refusal: Refusal | None) -> aggregator_pb2.Refusal:
    return cast(aggregator_pb2.Refusal, 0 if refusal is None else refusal.value)
