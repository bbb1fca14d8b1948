"""The aggregator's enclave as its host sees it: the calls of ``Aggregator`` over the socket.

Contributions that arrive while others are on their way travel together: one message for many saves both processes most
of what each would cost alone. The first never waits for company.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from odp.enclave.channel import Client, Connection
from odp.enclave.enclave_start import answered
from odp.errors import Refusal, StateError
from odp.v1 import aggregator_pb2, attestation_pb2, common_pb2, enclave_pb2
from odp.v1.enclave_pb2 import EnclaveReply, EnclaveRequest
from trusted_aggregator import wire
from trusted_aggregator.interface import Charged, Released, RoundState, Writes
from trusted_aggregator.records import SealedRecord

#: Messages of contributions under way: the enclave works on one while the next is on the socket.
IN_FLIGHT = 2
_MOST_TOGETHER = 512
_BYTES_TOGETHER = 4 * 2**20
_PAGE_BYTES = 2**20


class _Submission:
    """One caller that waits."""

    __slots__ = ("answer", "answered", "request")

    def __init__(self, request: aggregator_pb2.SubmitRequest) -> None:
        self.request = request
        self.answer: int | Exception = 0
        # A bare lock is the cheapest thing that a thread can wait on, and this is the path of every contribution.
        self.answered = threading.Lock()
        self.answered.acquire()


class RemoteAggregator:
    """Implements ``trusted_aggregator.interface.Aggregator``; thread-safe.

    Raises, besides what the enclave raises, StateError where the enclave is gone.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiting: list[_Submission] = []
        self._in_flight = 0

    def open_round(self, signed_task: common_pb2.SignedTask, order: bytes, signature: bytes) -> Writes:
        """See ``Aggregator``."""
        given = aggregator_pb2.OpenRoundRequest(task=signed_task, order=order, signature=signature)
        return wire.writes_of(self._client.call(EnclaveRequest(open_round=given)).writes.records)

    def submit(self, task_sha256: bytes, round: int, sealed: bytes) -> Refusal | None:
        """See ``Aggregator``."""
        given = aggregator_pb2.SubmitRequest(task_sha256=task_sha256, round=round, sealed_contribution=sealed)
        mine = _Submission(given)
        with self._lock:
            self._waiting.append(mine)
            batch = self._next_batch()
        self._send(batch)
        mine.answered.acquire()
        if isinstance(mine.answer, Exception):
            raise mine.answer
        return Refusal(mine.answer) if mine.answer else None

    def charge(self, order: bytes, signature: bytes) -> Charged:
        """See ``Aggregator``."""
        given = aggregator_pb2.CloseRoundRequest(order=order, signature=signature)
        return wire.charged_of(self._client.call(EnclaveRequest(charge=given)).charged)

    def release(self, order: bytes, *, stored: bytes | None = None) -> Released:
        """See ``Aggregator``."""
        given = enclave_pb2.ReleaseRound(order=order, stored=stored)
        return wire.released_of(self._client.call(EnclaveRequest(release=given)).released)

    def ledger(self, task_sha256: bytes) -> tuple[bytes, bytes] | None:
        """See ``Aggregator``."""
        given = aggregator_pb2.GetLedgerRequest(task_sha256=task_sha256)
        found = self._client.call(EnclaveRequest(ledger=given)).ledger
        return (found.ledger, found.signature) if found.ledger else None

    def round_state(self, task_sha256: bytes, round: int) -> RoundState | None:
        """See ``Aggregator``."""
        only = aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)
        found = self._client.call(EnclaveRequest(rounds=enclave_pb2.AskRounds(only=only)))
        return next(iter(wire.round_states_of(found.rounds)), None)

    def round_states(self) -> list[RoundState]:
        """See ``Aggregator``."""
        return wire.round_states_of(self._client.call(EnclaveRequest(rounds=enclave_pb2.AskRounds())).rounds)

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """Fresh evidence over a caller's nonce."""
        given = attestation_pb2.GetEvidenceRequest(nonce=nonce)
        return self._client.call(EnclaveRequest(evidence=given)).evidence

    def _next_batch(self) -> list[_Submission]:
        """Under the lock: what may be sent now."""
        if not self._waiting or self._in_flight >= IN_FLIGHT:
            return []
        count, size = 0, 0
        while count < min(len(self._waiting), _MOST_TOGETHER) and size < _BYTES_TOGETHER:
            size += len(self._waiting[count].request.sealed_contribution)
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._in_flight += 1
        return batch

    def _send(self, batch: list[_Submission]) -> None:
        if not batch:
            return
        submits = enclave_pb2.SubmitBatch(submits=[submission.request for submission in batch])
        self._client.send(EnclaveRequest(submit=submits), lambda answer: self._done(batch, answer))

    def _done(self, batch: list[_Submission], answer: EnclaveReply | Exception) -> None:
        with self._lock:
            self._in_flight -= 1
            following = self._next_batch()
        self._send(following)
        if not isinstance(answer, Exception) and len(answer.submitted.refusals) != len(batch):
            answer = StateError("the enclave answered another number of contributions; start the program again")
        for place, submission in enumerate(batch):
            submission.answer = answer if isinstance(answer, Exception) else answer.submitted.refusals[place]
            submission.answered.release()


def restore(
    connection: Connection,
    records: Mapping[str, bytes],
    contributions: Callable[[bytes, int], Iterable[bytes]],
) -> None:
    """Gives an enclave that has its keys back what it had its host store.

    Raises StateError where it does not accept that: changed, rolled back, or the enclave is gone.
    """
    for request in _pages_of_records(records):
        connection.send(0, request)
    while True:
        reply = answered(connection)
        if reply.WhichOneof("answer") == "ready":
            return
        if reply.WhichOneof("answer") != "want":
            raise StateError("the enclave asked for something unknown while it started")
        for request in _pages_of_contributions(contributions(reply.want.task_sha256, reply.want.round)):
            connection.send(0, request)


def _pages_of_records(records: Mapping[str, bytes]) -> Iterator[EnclaveRequest]:
    page = enclave_pb2.SealedRecords()
    for record in wire.records(SealedRecord(key, data) for key, data in records.items()):
        page.records.append(record)
        if page.ByteSize() >= _PAGE_BYTES:
            yield EnclaveRequest(records=page)
            page = enclave_pb2.SealedRecords()
    page.last = True
    yield EnclaveRequest(records=page)


def _pages_of_contributions(contributions: Iterable[bytes]) -> Iterator[EnclaveRequest]:
    page, size = enclave_pb2.StoredContributions(), 0
    for sealed in contributions:
        page.sealed.append(sealed)
        size += len(sealed)
        if size >= _PAGE_BYTES:
            yield EnclaveRequest(contributions=page)
            page, size = enclave_pb2.StoredContributions(), 0
    page.last = True
    yield EnclaveRequest(contributions=page)
