"""The aggregator's answers as messages between enclave and host (protos/odp/v1/enclave.proto), both ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from odp.errors import Refusal, StateError
from odp.v1 import enclave_pb2
from trusted_aggregator.boundary.interface import Charged, Refused, RoundState, Status
from trusted_aggregator.state.records import SealedRecord, Writes


def submitted(answers: Sequence[Refused | None]) -> enclave_pb2.SubmittedBatch:
    """What became of contributions, as a message."""
    return enclave_pb2.SubmittedBatch(
        refusals=bytes(0 if answer is None else answer.refusal.value for answer in answers),
        signatures=[answer.signature for answer in answers if answer is not None],
    )


def submitted_of(message: enclave_pb2.SubmittedBatch, count: int) -> list[Refused | None]:
    """The inverse of ``submitted``. Raises StateError where it is not of ``count`` contributions."""
    signatures = iter(message.signatures)
    answers = [Refused(Refusal(number), next(signatures, b"")) if number else None for number in message.refusals]
    if len(answers) != count:
        raise StateError("the enclave answered another number of contributions; start the program again")
    return answers


def records(writes: Iterable[SealedRecord]) -> list[enclave_pb2.SealedRecord]:
    """Sealed records as messages."""
    return [enclave_pb2.SealedRecord(key=record.key, data=record.data) for record in writes]


def writes_of(messages: Iterable[enclave_pb2.SealedRecord]) -> Writes:
    """The inverse of ``records``."""
    return tuple(SealedRecord(entry.key, entry.data if entry.HasField("data") else None) for entry in messages)


def charged(given: Charged) -> enclave_pb2.ChargedRound:
    """``given`` as a message."""
    return enclave_pb2.ChargedRound(
        task_sha256=given.task_sha256,
        round=given.round,
        contributions=given.contributions,
        released=given.released,
        writes=records(given.writes),
        masked_bytes=given.masked_bytes,
    )


def charged_of(message: enclave_pb2.ChargedRound) -> Charged:
    """The inverse of ``charged``."""
    return Charged(
        message.task_sha256,
        message.round,
        message.contributions,
        message.released,
        writes_of(message.writes),
        message.masked_bytes,
    )


def round_states(states: Iterable[RoundState]) -> enclave_pb2.RoundStates:
    """States of rounds as a message."""
    return enclave_pb2.RoundStates(
        states=[
            enclave_pb2.RoundState(
                task_sha256=state.task_sha256,
                round=state.round,
                status=cast(enclave_pb2.RoundState.Status, state.status.value),
                contributions=state.contributions,
            )
            for state in states
        ]
    )


def round_states_of(message: enclave_pb2.RoundStates) -> list[RoundState]:
    """The inverse of ``round_states``."""
    return [
        RoundState(state.task_sha256, state.round, Status(state.status), state.contributions)
        for state in message.states
    ]
