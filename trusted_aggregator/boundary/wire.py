"""What crosses between enclave and host, as messages of protos/odp/v1/aggregator_enclave.proto.

One field of a contribution has the name of the mode of aggregation that it came with: here it is ``host_sha256``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from google.protobuf.message import DecodeError

from odp.crypto.segments import SEGMENT_BYTES
from odp.errors import ConfigurationError, Refusal, StateError
from odp.protocol.wire.long_fields import fields, split_field
from odp.trust.enclave.calls import Interface
from odp.trust.enclave.channel import Encoded
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, enclave_pb2
from trusted_aggregator.boundary.interface import HostSum, Refused, RoundState, SealedContribution, Status
from trusted_aggregator.state.records import SealedRecord, Writes

#: The calls of the enclave as messages.
AGGREGATOR = Interface(aggregator_enclave_pb2.AggregatorEnclaveRequest, aggregator_enclave_pb2.AggregatorEnclaveReply)

_SUBMIT_FIELD = aggregator_enclave_pb2.AggregatorEnclaveRequest.SUBMIT_FIELD_NUMBER
_SUBMITS_FIELD = aggregator_enclave_pb2.SubmitBatch.SUBMITS_FIELD_NUMBER
_SEALED_FIELD = aggregator_pb2.SubmitRequest.SEALED_CONTRIBUTION_FIELD_NUMBER


def submit(contributions: Iterable[SealedContribution]) -> Encoded:
    """The request that counts contributions.

    Their bytes come into it as they are: as messages they would be copied three times, and they may be long.
    """
    heads: dict[tuple[bytes, int, bytes], bytes] = {}
    pieces = [b""]
    for task_sha256, round, sealed, host_sha256, _ in contributions:
        key = task_sha256, round, host_sha256
        if (head := heads.get(key)) is None:
            head = heads[key] = _request(SealedContribution(task_sha256, round, b"", host_sha256)).SerializeToString()
        head += _delimited(_SEALED_FIELD, len(sealed))
        pieces += [_delimited(_SUBMITS_FIELD, len(head) + len(sealed)), head, sealed]
    pieces[0] = _delimited(_SUBMIT_FIELD, sum(map(len, pieces)))
    return Encoded("submit", pieces)


def sign_refusal(contribution: SealedContribution) -> aggregator_enclave_pb2.AggregatorEnclaveRequest:
    """The request for the refusal of a contribution."""
    return aggregator_enclave_pb2.AggregatorEnclaveRequest(sign_refusal=_request(contribution))


def sealed_of(request: aggregator_pb2.SubmitRequest) -> SealedContribution:
    """The contribution in a message of the host's."""
    return SealedContribution(request.task_sha256, request.round, request.sealed_contribution, request.masked_sha256)


def contributions_in(request: bytes) -> list[SealedContribution]:
    """The contributions of a serialized request to count them, in place. Raises ConfigurationError if it is none."""
    try:
        (batch,) = fields(memoryview(request), _SUBMIT_FIELD)
        return [_contribution_in(message) for message in fields(batch, _SUBMITS_FIELD)]
    except (DecodeError, ValueError):
        raise ConfigurationError("the request is not a batch of contributions") from None


def _contribution_in(message: memoryview) -> SealedContribution:
    rest, sealed = split_field(message, _SEALED_FIELD)
    head = aggregator_pb2.SubmitRequest.FromString(rest)
    # A long one is opened out of the buffer that it came in.
    data = cast(bytes, sealed) if len(sealed) > SEGMENT_BYTES else bytes(sealed)
    return SealedContribution(head.task_sha256, head.round, data, head.masked_sha256)


def _request(contribution: SealedContribution) -> aggregator_pb2.SubmitRequest:
    task, round, sealed, host_sha256, _ = contribution
    return aggregator_pb2.SubmitRequest(
        task_sha256=task, round=round, sealed_contribution=sealed, masked_sha256=host_sha256
    )  # fmt: skip


def _delimited(field: int, length: int) -> bytes:
    """What stands before ``length`` bytes of a field in a message. The numbers of our fields are below 16."""
    encoded = bytearray((field << 3 | 2,))
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def submitted(answers: Sequence[Refused | None]) -> aggregator_enclave_pb2.SubmittedBatch:
    """The outcomes of contributions, as a message."""
    return aggregator_enclave_pb2.SubmittedBatch(
        refusals=bytes(0 if answer is None else answer.refusal.value for answer in answers),
        signatures=[answer.signature for answer in answers if answer is not None],
    )


def submitted_of(message: aggregator_enclave_pb2.SubmittedBatch, count: int) -> list[Refused | None]:
    """The inverse of ``submitted``. Raises StateError where it is not of ``count`` contributions."""
    signatures = iter(message.signatures)
    answers = [Refused(Refusal(number), next(signatures, b"")) if number else None for number in message.refusals]
    if len(answers) != count:
        raise StateError("the enclave answered for another number of contributions; start the program again")
    return answers


def records(writes: Iterable[SealedRecord]) -> list[enclave_pb2.SealedRecord]:
    """Sealed records as messages."""
    return [enclave_pb2.SealedRecord(key=record.key, data=record.data, pieces=record.pieces) for record in writes]


def written(writes: Iterable[SealedRecord]) -> aggregator_enclave_pb2.RecordWrites:
    """The answer of a call that changes the enclave's state."""
    return aggregator_enclave_pb2.RecordWrites(records=records(writes))


def writes_of(messages: Iterable[enclave_pb2.SealedRecord]) -> Writes:
    """The inverse of ``records``."""
    return tuple(
        SealedRecord(entry.key, entry.data if entry.HasField("data") else None, entry.pieces) for entry in messages
    )


def seal_release(
    order: bytes, noise: bytes | None = None, stream: bytes | None = None, host_sum: HostSum | None = None
) -> aggregator_enclave_pb2.SealRelease:
    """The request for a sealed release, with ``host_sum`` if the round needs one."""
    request = aggregator_enclave_pb2.SealRelease(order=order, noise=noise, stream=stream)
    if host_sum is not None:
        request.host_sum.sum, request.host_sum.set_sha256 = host_sum.sum, host_sum.set_sha256
    return request


def host_sum_of(message: aggregator_enclave_pb2.SealRelease) -> HostSum | None:
    """The host's sum in a request for a sealed release."""
    return HostSum(message.host_sum.sum, message.host_sum.set_sha256) if message.HasField("host_sum") else None


def round_states(states: Iterable[RoundState]) -> aggregator_enclave_pb2.RoundStates:
    """States of rounds as a message."""
    return aggregator_enclave_pb2.RoundStates(
        states=[
            aggregator_enclave_pb2.RoundState(
                task_sha256=state.task_sha256,
                round=state.round,
                status=cast(aggregator_enclave_pb2.RoundState.Status, state.status.value),
                contributions=state.contributions,
            )
            for state in states
        ]
    )


def round_states_of(message: aggregator_enclave_pb2.RoundStates) -> list[RoundState]:
    """The inverse of ``round_states``."""
    return [
        RoundState(state.task_sha256, state.round, Status(state.status), state.contributions)
        for state in message.states
    ]
