"""The start of an aggregator's enclave as its host sees it: its records, or those of its predecessor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from odp.errors import StateError
from odp.trust.enclave.channel import Connection
from odp.trust.enclave.enclave_start import answered
from odp.v1 import aggregator_enclave_pb2, attestation_pb2, enclave_pb2, hand_over_pb2
from odp.v1.aggregator_enclave_pb2 import AggregatorEnclaveReply, AggregatorEnclaveRequest
from trusted_aggregator.boundary import wire
from trusted_aggregator.state.records import SealedRecord, Writes

_PAGE_BYTES = 2**20


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
        reply = answered(connection, wire.AGGREGATOR.reply)
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
        return self._ask(AggregatorEnclaveRequest(ask_nonce=aggregator_enclave_pb2.AskNonce())).nonce.nonce

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """Fresh evidence over the predecessor's nonce."""
        return self._ask(AggregatorEnclaveRequest(evidence=attestation_pb2.GetEvidenceRequest(nonce=nonce))).evidence

    def take_over(self, package: hand_over_pb2.HandOverPackage, log: hand_over_pb2.LogExcerpt) -> None:
        """Passes it the key to the predecessor's records."""
        self._ask(AggregatorEnclaveRequest(take_over=aggregator_enclave_pb2.TakeOver(package=package, log=log)))

    def reseal(self, record: SealedRecord) -> Writes:
        """The successor's record of a release of the predecessor."""
        message = enclave_pb2.SealedRecord(key=record.key, data=record.data)
        return wire.writes_of(self._ask(AggregatorEnclaveRequest(reseal=message)).writes.records)

    def _ask(self, request: AggregatorEnclaveRequest) -> AggregatorEnclaveReply:
        self._connection.send(0, request)
        return cast(AggregatorEnclaveReply, answered(self._connection, wire.AGGREGATOR.reply))


def _pages_of_records(records: Mapping[str, bytes]) -> Iterator[AggregatorEnclaveRequest]:
    page = aggregator_enclave_pb2.SealedRecords()
    for record in wire.records(SealedRecord(key, data) for key, data in records.items()):
        page.records.append(record)
        if page.ByteSize() >= _PAGE_BYTES:
            yield AggregatorEnclaveRequest(records=page)
            page = aggregator_enclave_pb2.SealedRecords()
    page.last = True
    yield AggregatorEnclaveRequest(records=page)


def _pages_of_contributions(contributions: Iterable[bytes]) -> Iterator[AggregatorEnclaveRequest]:
    page, size = aggregator_enclave_pb2.StoredContributions(), 0
    for sealed in contributions:
        page.sealed.append(sealed)
        size += len(sealed)
        if size >= _PAGE_BYTES:
            yield AggregatorEnclaveRequest(contributions=page)
            page, size = aggregator_enclave_pb2.StoredContributions(), 0
    page.last = True
    yield AggregatorEnclaveRequest(contributions=page)
