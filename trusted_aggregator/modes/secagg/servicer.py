"""SecureAggregationService: the calls of devices to the sessions of a host.

Every message is bounded and checked before a session sees it; a refused one changes nothing. A bounded number of
callers waits briefly for answers that are not available yet; the others get a retry time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import grpc

from odp.crypto.public_keys import KEY_BYTES
from odp.crypto.secure_aggregation.session import HASH_BYTES, require_length
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, PrivacyError
from odp.transport.backpressure import Backpressure
from odp.transport.call import progress
from odp.transport.channel import CHUNK_BYTES
from odp.transport.fairness import address_of
from odp.transport.logs import Log
from odp.transport.service import servicer
from odp.v1 import secagg_service_pb2 as wire, secagg_service_pb2_grpc, secure_aggregation_pb2
from trusted_aggregator.modes.secagg.admission import WithToken
from trusted_aggregator.modes.secagg.clients import Message
from trusted_aggregator.modes.secagg.rounds import SecAggRounds
from trusted_aggregator.modes.secagg.session import TOKEN_BYTES, LiveSession

NAME = "odp.v1.SecureAggregationService"
#: Callers that wait for their answer at once, and how long.
MOST_WAITING = 56
WAIT_SECONDS = 5.0
#: The retry time of the others.
_POLL_MILLISECONDS = 200
#: Vectors that come in at once, each in memory until it is whole, and how long a further one waits for its turn.
_MOST_STREAMS = 16
_STREAM_SECONDS = 20.0


class SecureAggregationService:
    """The sessions of ``rounds`` for devices that ``admission`` admits; without it, strangers may enter them."""

    def __init__(self, rounds: SecAggRounds, *, admission: WithToken | None = None, wait: float = WAIT_SECONDS) -> None:
        self._rounds, self._admission, self._wait = rounds, admission, wait
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._streams = Backpressure(
            at_once=_MOST_STREAMS,
            waiting=MOST_WAITING,
            service="aggregator",
            what="vectors",
            longest=_STREAM_SECONDS,
        )

    def join(self, request: wire.JoinRequest) -> wire.JoinResponse:
        """The configuration of the session that gathers clients, or how long to wait, or that none follows."""
        require_length("task_sha256", request.task_sha256, HASH_BYTES)
        key = request.task_sha256, request.round
        if (config := self._rounds.join(key)) is None and self._rounds.failure(key):
            return wire.JoinResponse(end=wire.SecAggEnd(reason=wire.SecAggEnd.REASON_VOIDED))
        if config is None:
            return wire.JoinResponse(wait=wire.SecAggWait(milliseconds=_POLL_MILLISECONDS))
        return wire.JoinResponse(config=config)

    def step(self, request: wire.StepRequest, *, address: str = "") -> wire.StepResponse:
        """Takes a client's message; returns the next one for the client, or how long to wait.

        ``address`` is where the client connected from.
        """
        if (session := self._session(request.client)) is None:
            return _void()
        if request.leave:
            return session.leave(request.client.identity, request.client.token)
        kind = request.WhichOneof("message")
        message: Message | None = None if kind is None else getattr(request, kind)
        if self._admission is not None and kind == "advert" and not session.holds(request.client.identity):
            self._admission.require(request)
        return self._step(session, request.client, message, address)

    def send_masked(
        self, requests: Iterator[wire.SendMaskedRequest], context: grpc.ServicerContext
    ) -> wire.StepResponse:
        """As ``step``, of a masked vector in chunks."""
        first = next(requests, None)
        if first is None or first.WhichOneof("part") != "client":
            raise ConfigurationError("the first message of a masked stream must name its client")
        client = first.client
        if (session := self._session(client)) is None:
            return _void()
        if session.has_vector(client.identity, client.token):  # the answer to an earlier stream was lost
            return self._step(session, client, None, "")
        session.require_may_send(client.identity, client.token)
        with self._streams.admitted(progress(context)):
            message = _read_masked(requests, session.vector_bytes)
        return self._step(session, client, message, "")

    def _session(self, client: wire.SecAggClient) -> LiveSession | None:
        require_length("task_sha256", client.task_sha256, HASH_BYTES)
        require_length("identity", client.identity, KEY_BYTES)
        require_length("token", client.token, TOKEN_BYTES)
        return self._rounds.session((client.task_sha256, client.round), client.attempt)

    def _step(
        self, session: LiveSession, client: wire.SecAggClient, message: Message | None, address: str
    ) -> wire.StepResponse:
        with self._turn() as wait:
            try:
                answer = session.step(client.identity, client.token, message, address=address, wait=wait)
            except SignatureError as error:
                raise PrivacyError(f"refused: {error}") from error
        if answer is None:
            return wire.StepResponse(wait=wire.SecAggWait(milliseconds=1 if wait else _POLL_MILLISECONDS))
        return answer

    @contextlib.contextmanager
    def _turn(self) -> Iterator[float]:
        """Seconds for which this caller may wait for its answer."""
        mine = self._waiting.acquire(blocking=False)
        try:
            yield self._wait if mine else 0.0
        finally:
            if mine:
                self._waiting.release()


def _read_masked(requests: Iterator[wire.SendMaskedRequest], length: int) -> secure_aggregation_pb2.SecAggMasked:
    second = next(requests, None)
    if second is None or second.WhichOneof("part") != "session" or len(second.session) != HASH_BYTES:
        raise ConfigurationError("the second message of a masked stream must name its session")
    vector = bytearray()
    for request in requests:
        if request.WhichOneof("part") != "chunk" or not 0 < len(request.chunk) <= CHUNK_BYTES:
            raise ConfigurationError(f"Expected chunks of 1 to {CHUNK_BYTES} bytes of a masked vector")
        if len(vector) + len(request.chunk) > length:
            raise ConfigurationError(f"Expected a masked vector of {length} bytes, got more")
        vector += request.chunk
    if len(vector) != length:
        raise ConfigurationError(f"Expected a masked vector of {length} bytes, got {len(vector)}")
    return secure_aggregation_pb2.SecAggMasked(session=second.session, vector=bytes(vector))


def _void() -> wire.StepResponse:
    return wire.StepResponse(end=wire.SecAggEnd(reason=wire.SecAggEnd.REASON_VOIDED, retry_seconds=1))


def secagg_servicer(
    service: SecureAggregationService, log: Log
) -> secagg_service_pb2_grpc.SecureAggregationServiceServicer:
    """The gRPC face of ``service``."""

    return servicer(
        secagg_service_pb2_grpc.SecureAggregationServiceServicer,
        log,
        {
            "Join": lambda request, _: service.join(request),
            "Step": lambda request, context: service.step(request, address=address_of(context.peer())),
            "SendMasked": lambda requests, context: wire.SendMaskedResponse(
                answer=service.send_masked(requests, context)
            ),
        },
    )
