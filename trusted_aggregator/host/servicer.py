"""AggregatorService: contributions of anonymous devices, and the ledger for everybody.

- A contribution is acknowledged once the enclave has counted it and its ciphertext is stored.
- Where a part of a contribution stays here, the enclave gets its hash.
- Where storing fails, the program stops: its memory is then ahead of its files, and a start from the files is right.

Orders come by another listener (``control.py``).

A sealed contribution that comes as a stream is read into memory, at most the round's exact length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import grpc

from odp import _validate
from odp._system.recent import Recent
from odp.errors import ConfigurationError, Refusal, StateError
from odp.privacy.ledger_state import LedgerHead
from odp.transport import observing
from odp.transport.backpressure import Backpressure
from odp.transport.call import progress
from odp.transport.channel import CHUNK_BYTES
from odp.transport.logs import Log, short
from odp.transport.service import Later, NotFound, servicer
from odp.transport.workers import Promise
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Refused, SealedContribution
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.ingest import MOST_ASKED, Ingest, is_undecided
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.modes.hosting import HostModes
from trusted_aggregator.modes.tree.host_half import LeafHost

NAME = "odp.v1.AggregatorService"
#: Threads of the server: the maximum number of submissions that share one commit.
WORKERS = 64
#: Contributions in memory at once, of at most 16 MiB each, and of more, which have at most 33 MiB; the other threads
#: answer everything else meanwhile.
MAX_STREAMS, MAX_LONG_STREAMS = 16, 4
LONG_STREAM_BYTES = 2**24

_Response = TypeVar("_Response", aggregator_pb2.SubmitResponse, aggregator_pb2.SubmitStreamResponse)

_Answer = TypeVar("_Answer")

_HEADS_IN_MEMORY = 256
# How long a stream, or a contribution in parts, to a round that is being closed waits for the charge of that round.
_HELD_SECONDS = 10.0
_LEDGER_PAGE = 2**20
Requests = Iterator[aggregator_pb2.SubmitStreamRequest]


class AggregatorService:
    """The host's half. ``failed`` is called when a write could not be stored: the program has to stop."""

    def __init__(
        self,
        core: AggregatorCalls,
        storage: Storage,
        changes: Changes,
        modes: HostModes | LeafHost,
        *,
        failed: Callable[[StateError], None],
    ) -> None:
        self._core, self._storage, self._changes, self._modes = core, storage, changes, modes
        self._ingest = Ingest(core, storage, failed=failed, changes=changes)
        observing.watch("waiting_contributions", lambda: self._ingest.waiting)
        self._heads: Recent[bytes, tuple[int, aggregator_pb2.GetLedgerResponse]] = Recent(_HEADS_IN_MEMORY)
        self._held = threading.BoundedSemaphore(MAX_STREAMS)
        self._streams, self._long_streams = (
            Backpressure(at_once=most, waiting=0, service="aggregator", what="submissions")
            for most in (MAX_STREAMS, MAX_LONG_STREAMS)
        )

    def submit(self, request: aggregator_pb2.SubmitRequest) -> Promise:
        """Counts a contribution; the promise is None once it is counted and stored."""
        return self._taken(self._decided(lambda: self._modes.contribution(request)))

    def submit_stream(
        self, requests: Iterator[aggregator_pb2.SubmitStreamRequest], context: grpc.ServicerContext
    ) -> Refused | None:
        """``submit`` of a contribution in chunks. Raises Busy if too many streams are open."""
        header = read_header(requests)
        half = self._modes.streaming(header)

        def length_of() -> int | Refused:
            length = half.stream_bytes(header)
            return self._core.sign_refusal(half.to_refuse(header)) if isinstance(length, Refusal) else length

        length = self._decided(length_of)
        if isinstance(length, Refused):
            return length
        # A turn is memory for the whole contribution: for a stream of a round that is open here, not for any.
        streams = self._long_streams if length > LONG_STREAM_BYTES else self._streams
        with streams.admitted(progress(context)):
            data = read_sealed(requests, length)
            if isinstance(data, Refusal):
                return Refused(data)
            return cast("Refused | None", self._taken(half.streamed(header, data)).result())

    def _decided(self, ask: Callable[[], _Answer | Refused]) -> _Answer | Refused:
        """What ``ask`` gives; where it refuses because of a change under way, what it gives after that change."""
        for _ in range(MOST_ASKED):
            since = self._changes.decisions
            answer = ask()
            if not is_undecided(answer) or not self._held.acquire(blocking=False):
                return answer
            try:
                if not self._changes.wait_after(since, timeout=_HELD_SECONDS):
                    return answer
            finally:
                self._held.release()
        return answer

    def _taken(self, contribution: SealedContribution | Refused) -> Promise:
        if isinstance(contribution, SealedContribution):
            return self._ingest.submit(contribution)
        refused = Promise()
        refused.set_result(contribution)
        return refused

    def get_ledger(self, request: aggregator_pb2.GetLedgerRequest) -> aggregator_pb2.GetLedgerResponse:
        """Entries of the ledger of the task's population, and its signed head; the enclave signs it once after each
        change.
        """
        _validate.integer(low=0, high=2**53, first=request.first)
        signed = self._ledger_head(request.task_sha256)
        head = LedgerHead.decode(signed.head)
        lines = self._storage.ledger_lines(head.population, request.first, head.entries, most_bytes=_LEDGER_PAGE)
        return aggregator_pb2.GetLedgerResponse(entries=lines, head=signed.head, signature=signed.signature)

    def _ledger_head(self, task: bytes) -> aggregator_pb2.GetLedgerResponse:
        version = self._changes.version
        recent = self._heads.get(task)
        if recent is not None and recent[0] == version:
            return recent[1]
        signed = self._core.ledger(aggregator_pb2.GetLedgerRequest(task_sha256=task))
        if not signed.head:
            raise NotFound(f"task {short(task)} is not known here")
        self._heads.put(task, (version, signed))
        return signed

    def close(self) -> None:
        """Completes the waiting contributions. Idempotent."""
        self._ingest.close()


def aggregator_servicer(service: AggregatorService, log: Log) -> aggregator_pb2_grpc.AggregatorServiceServicer:
    """The gRPC face of ``service``."""

    return servicer(
        aggregator_pb2_grpc.AggregatorServiceServicer,
        log,
        {
            "Submit": lambda request, _: Later(
                service.submit(request), lambda refused: _answer(aggregator_pb2.SubmitResponse(), refused)
            ),
            "SubmitStream": lambda requests, context: _answer(
                aggregator_pb2.SubmitStreamResponse(), service.submit_stream(requests, context)
            ),
            "GetLedger": lambda request, _: service.get_ledger(request),
        },
    )


def _answer(response: _Response, refused: Refused | None) -> _Response:
    observing.contribution("" if refused is None else refused.refusal.name)
    if refused is not None:
        response.refusal = cast(aggregator_pb2.Refusal, refused.refusal.value)
        response.signature = refused.signature
    return response


def read_header(requests: Requests) -> aggregator_pb2.SubmitHeader:
    """The first message of a stream. Raises ConfigurationError if it is no header, or missing."""
    first = next(requests, None)
    if first is None or first.WhichOneof("part") != "header":
        raise ConfigurationError("the first message of a submit stream must be its header")
    return first.header


def read_sealed(requests: Requests, length: int) -> bytes | Refusal:
    """The sealed bytes, if they are exactly ``length``; stops reading a longer stream.

    A stream that is cut looks like one that ended early: both are MALFORMED, and nothing of them is kept.

    Raises:
      ConfigurationError: a chunk is empty or above 1 MiB, or a message holds something else.
    """
    chunks: list[bytes] = []
    received = 0
    for request in requests:
        chunk = request.chunk  # each access copies it
        if request.WhichOneof("part") != "chunk" or not 0 < len(chunk) <= CHUNK_BYTES:
            raise ConfigurationError(f"Expected chunks of 1 to {CHUNK_BYTES} bytes after the submit header")
        received += len(chunk)
        if received > length:
            return Refusal.MALFORMED
        chunks.append(chunk)
    return b"".join(chunks) if received == length else Refusal.MALFORMED
