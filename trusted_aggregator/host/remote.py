"""The aggregator's enclave as its host sees it: the calls of ``Aggregator`` over the socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from odp.enclave.channel import Client, Connection
from odp.enclave.enclave_start import answered
from odp.errors import Refusal, StateError
from odp.v1 import (
    aggregator_pb2,
    attestation_pb2,
    common_pb2,
    enclave_pb2,
    enrolment_pb2,
    hand_over_pb2,
    population_pb2,
)
from odp.v1.enclave_pb2 import EnclaveRequest
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Charged, HostSum, Refused, RoundState, Sealed
from trusted_aggregator.state.records import SealedRecord, Writes

_PAGE_BYTES = 2**20


class RemoteAggregator:
    """Implements ``trusted_aggregator.boundary.interface.Aggregator``; thread-safe.

    Raises, besides what the enclave raises, StateError where the enclave is gone.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def check_task(self, signed_task: common_pb2.SignedTask) -> None:
        self._client.call(EnclaveRequest(check_task=aggregator_pb2.CheckTaskRequest(task=signed_task)))

    def open_round(
        self,
        signed_task: common_pb2.SignedTask,
        order: bytes,
        signature: bytes,
        token_key: enrolment_pb2.SignedTokenKey | None = None,
    ) -> Writes:
        given = aggregator_pb2.OpenRoundRequest(task=signed_task, order=order, signature=signature, token_key=token_key)
        return self._writes(EnclaveRequest(open_round=given))

    def round_key(self, task_sha256: bytes, round: int) -> common_pb2.SignedRoundKey | None:
        given = aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)
        found = self._client.call(EnclaveRequest(round_key=given)).round_key
        return found if found.hpke_key else None

    def sign_refusal(self, given: Sealed) -> Refused:
        answer = wire.submitted_of(self._client.call(wire.sign_refusal(given)).submitted, 1)[0]
        if answer is None:
            raise StateError("the enclave signed no refusal; start the program again")
        return answer

    def submit_batch(self, submits: Sequence[Sealed]) -> list[Refused | None]:
        return wire.submitted_of(self._client.call(wire.submit(submits)).submitted, len(submits))

    def sealed_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        return self._lengths(task_sha256, round)[0]

    def host_part_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        return self._lengths(task_sha256, round)[1]

    def host_parts(self, task_sha256: bytes, round: int, start: int) -> bytes:
        return wire.host_parts_of(self._client.call(wire.ask_host_parts(task_sha256, round, start)))

    def announce(self, task_sha256: bytes, round: int, clients: int, set_sha256: bytes) -> None:
        given = enclave_pb2.AnnounceSurvivors(
            task_sha256=task_sha256, round=round, clients=clients, set_sha256=set_sha256
        )
        self._client.call(EnclaveRequest(announce=given))

    def give_up(self, task_sha256: bytes, round: int) -> Writes:
        given = aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)
        return self._writes(EnclaveRequest(give_up=given))

    def charge(self, order: bytes, signature: bytes) -> Charged:
        given = aggregator_pb2.CloseRoundRequest(order=order, signature=signature)
        return wire.charged_of(self._client.call(EnclaveRequest(charge=given)).charged)

    def seal_release(
        self,
        order: bytes,
        *,
        noise: bytes | None = None,
        stream: bytes | None = None,
        host_sum: HostSum | None = None,
    ) -> Writes:
        return self._writes(wire.seal_release(order, noise, stream, host_sum))

    def release(self, order: bytes, *, stored: bytes) -> bytes:
        given = enclave_pb2.ReleaseRound(order=order, stored=stored)
        return self._client.call(EnclaveRequest(release=given)).released.signed_release

    def take_piece(self, key: str, number: int) -> bytes:
        given = enclave_pb2.TakePiece(key=key, number=number)
        return self._client.call(EnclaveRequest(take_piece=given)).piece.data

    def give_piece(self, task_sha256: bytes, round: int, record: bytes, number: int, data: bytes) -> None:
        given = enclave_pb2.GivePiece(task_sha256=task_sha256, round=round, record=record, number=number, data=data)
        self._client.call(EnclaveRequest(give_piece=given))

    def set_charter(self, signed: population_pb2.SignedCharter) -> Writes:
        return self._writes(EnclaveRequest(set_charter=signed))

    def charter(self, population: str) -> population_pb2.SignedCharter | None:
        given = enclave_pb2.AskCharter(population=population)
        found = self._client.call(EnclaveRequest(charter=given)).charter
        return found if found.charter else None

    def commit(self) -> None:
        self._client.call(EnclaveRequest(commit=enclave_pb2.CommitWrites()))

    def abandon(
        self, signed_task: common_pb2.SignedTask, order: bytes, signature: population_pb2.CharterSignature
    ) -> Writes:
        given = aggregator_pb2.AbandonTaskRequest(task=signed_task, order=order, signature=signature)
        return self._writes(EnclaveRequest(abandon=given))

    def forget(self, task_sha256: bytes) -> Writes:
        return self._writes(EnclaveRequest(forget_task=enclave_pb2.ForgetTask(task_sha256=task_sha256)))

    def ledger(self, task_sha256: bytes) -> tuple[bytes, bytes] | None:
        given = aggregator_pb2.GetLedgerRequest(task_sha256=task_sha256)
        found = self._client.call(EnclaveRequest(ledger=given)).ledger
        return (found.head, found.signature) if found.head else None

    def round_state(self, task_sha256: bytes, round: int) -> RoundState | None:
        only = aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)
        found = self._client.call(EnclaveRequest(rounds=enclave_pb2.AskRounds(only=only)))
        return next(iter(wire.round_states_of(found.rounds)), None)

    def round_states(self) -> list[RoundState]:
        return wire.round_states_of(self._client.call(EnclaveRequest(rounds=enclave_pb2.AskRounds())).rounds)

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """Fresh evidence over a caller's nonce."""
        given = attestation_pb2.GetEvidenceRequest(nonce=nonce)
        return self._client.call(EnclaveRequest(evidence=given)).evidence

    def draw_nonce(self) -> bytes:
        return self._client.call(EnclaveRequest(ask_nonce=enclave_pb2.AskNonce())).nonce.nonce

    def begin_hand_over(self, request: hand_over_pb2.HandOverRequest) -> Writes:
        return self._writes(EnclaveRequest(begin_hand_over=request))

    def finish_hand_over(self, request: hand_over_pb2.HandOverRequest) -> hand_over_pb2.HandOverPackage:
        return self._client.call(EnclaveRequest(finish_hand_over=request)).package

    def _lengths(self, task_sha256: bytes, round: int) -> tuple[int | Refusal, int | Refusal]:
        given = aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)
        return wire.sealed_length_of(self._client.call(EnclaveRequest(sealed_length=given)).sealed_length)

    def _writes(self, request: EnclaveRequest) -> Writes:
        return wire.writes_of(self._client.call(request).writes.records)


def restore(
    connection: Connection,
    records: Mapping[str, bytes],
    contributions: Callable[[bytes, int], Iterable[bytes]],
) -> Writes:
    """Restores an enclave that has its keys from the host's records; stores its writes before anything else.

    Raises StateError where it does not accept that: changed, rolled back, or the enclave is gone.
    """
    for request in _pages_of_records(records):
        connection.send(0, request)
    while True:
        reply = answered(connection)
        if reply.WhichOneof("answer") == "ready":
            return wire.writes_of(reply.ready.writes)
        if reply.WhichOneof("answer") != "want":
            raise StateError("the enclave sent an unknown request while it started")
        for request in _pages_of_contributions(contributions(reply.want.task_sha256, reply.want.round)):
            connection.send(0, request)


class Successor:
    """An enclave that has its keys and no records yet, before ``restore``.

    Raises what the enclave raises; StateError where it is gone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def draw_nonce(self) -> bytes:
        """32 random bytes for the evidence of the predecessor."""
        return self._ask(EnclaveRequest(ask_nonce=enclave_pb2.AskNonce())).nonce.nonce

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """Fresh evidence over the predecessor's nonce."""
        return self._ask(EnclaveRequest(evidence=attestation_pb2.GetEvidenceRequest(nonce=nonce))).evidence

    def take_over(self, package: hand_over_pb2.HandOverPackage, log: hand_over_pb2.LogExcerpt) -> None:
        """Passes it the key to the predecessor's records."""
        self._ask(EnclaveRequest(take_over=enclave_pb2.TakeOver(package=package, log=log)))

    def reseal(self, record: SealedRecord) -> Writes:
        """The successor's record of a release of the predecessor."""
        given = enclave_pb2.SealedRecord(key=record.key, data=record.data)
        return wire.writes_of(self._ask(EnclaveRequest(reseal=given)).writes.records)

    def _ask(self, request: EnclaveRequest) -> enclave_pb2.EnclaveReply:
        self._connection.send(0, request)
        return answered(self._connection)


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
