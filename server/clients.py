"""The server's clients of distributor, aggregator and issuer of tokens: one method per call, each with a deadline.

Errors are those of ``odp.transport.channel``: ServiceUnavailable when nobody answers in time, ServiceError with the
other party's one line, its ``code`` a grpc.StatusCode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import grpc

from odp.errors import EnrolmentError, ServiceError, ServiceUnavailable
from odp.signed.ledger import LedgerPart, read_ledger
from odp.transport.channel import CHUNK_BYTES, LONG_DEADLINE, SHORT_DEADLINE, call, read_stream
from odp.v1 import (
    aggregator_pb2,
    aggregator_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    common_pb2,
    distributor_pb2,
    distributor_pb2_grpc,
    enrolment_pb2,
    enrolment_pb2_grpc,
    hand_over_pb2,
    log_pb2,
    log_pb2_grpc,
    population_pb2,
)

#: Seconds that opening and closing a round may take: the enclave draws the noise, or sums and signs, before it answers.
_ROUND_DEADLINE = LONG_DEADLINE
_WITNESS_DEADLINE = 5.0
#: Less than a developer waits who submits a task.
_CHECK_DEADLINE = 20.0


class Distributor(Protocol):
    """The destination of published models."""

    def publish(
        self, task: common_pb2.SignedTask, model: common_pb2.SignedManifest, tables: bytes | Iterator[bytes]
    ) -> None:
        """Publishes one version; ``tables`` are the tables' bytes in the manifest's order. Idempotent."""

    def forget_task(self, order: bytes, signature: bytes) -> None:
        """Drops all models of the task that the order of its developer ends. Idempotent."""


class DistributorClient:
    """``Distributor`` over gRPC; ``control`` reaches its control listener, at ``address``."""

    def __init__(self, control: grpc.Channel, address: str) -> None:
        self._stub = distributor_pb2_grpc.DistributorControlServiceStub(control)
        self._address = address

    def publish(
        self, task: common_pb2.SignedTask, model: common_pb2.SignedManifest, tables: bytes | Iterator[bytes]
    ) -> None:
        """See ``Distributor``; sends chunks of 1 MiB. Raises ServiceError also where another model is acknowledged."""
        what = "publish a model version to the distributor"
        reply = call(
            self._stub.Publish,
            _parts(distributor_pb2.PublishHeader(task=task, model=model), tables),
            timeout=LONG_DEADLINE,
            what=what,
            address=self._address,
        )
        if reply.model_sha256 != hashlib.sha256(model.manifest).digest():
            raise ServiceError(f"could not {what}: {self._address} acknowledged another model")

    def forget_task(self, order: bytes, signature: bytes) -> None:
        call(
            self._stub.ForgetTask,
            distributor_pb2.ForgetTaskRequest(order=order, signature=signature),
            timeout=SHORT_DEADLINE,
            what="delete a task at the distributor",
            address=self._address,
        )


class AggregatorClient:
    """The destination of orders for rounds. ``order`` and ``signature`` are those of ``odp.signed.task.sign_order``.

    ``public`` reaches the listener for everybody, at ``address``, and ``control`` the control listener.
    """

    def __init__(self, public: grpc.Channel, control: grpc.Channel, *, address: str, control_address: str) -> None:
        self._public = aggregator_pb2_grpc.AggregatorServiceStub(public)
        self._attestation = attestation_pb2_grpc.AttestationServiceStub(public)
        self._stub = aggregator_pb2_grpc.AggregatorControlServiceStub(control)
        self._address = address
        self._control_address = control_address

    def set_charter(self, charter: population_pb2.SignedCharter) -> None:
        """Puts a charter in force. Idempotent."""
        call(
            self._stub.SetCharter,
            aggregator_pb2.SetCharterRequest(charter=charter),
            timeout=SHORT_DEADLINE,
            what="set a charter at the aggregator",
            address=self._control_address,
        )

    def charters(self, population: str, first: int) -> list[population_pb2.SignedCharter]:
        """The charters of a population from sequence ``first`` on, oldest first; as many as fit an answer."""
        reply: aggregator_pb2.GetChartersResponse = call(
            self._stub.GetCharters,
            aggregator_pb2.GetChartersRequest(population=population, first=first),
            timeout=SHORT_DEADLINE,
            what="read the charters of a population at the aggregator",
            address=self._control_address,
        )
        return list(reply.charters)

    def abandon(self, task: common_pb2.SignedTask, order: bytes, signature: population_pb2.CharterSignature) -> None:
        """Ends a task; returns once the end is in force. Idempotent."""
        call(
            self._stub.AbandonTask,
            aggregator_pb2.AbandonTaskRequest(task=task, order=order, signature=signature),
            timeout=SHORT_DEADLINE,
            what="end a task at the aggregator",
            address=self._control_address,
        )

    def check_task(self, task: common_pb2.SignedTask) -> None:
        """Returns if the task could begin now."""
        call(
            self._stub.CheckTask,
            aggregator_pb2.CheckTaskRequest(task=task),
            timeout=_CHECK_DEADLINE,
            what="begin the task at the aggregator",
            address=self._control_address,
        )

    def open_round(
        self,
        task: common_pb2.SignedTask,
        order: bytes,
        signature: bytes,
        token_key: enrolment_pb2.SignedTokenKey | None = None,
    ) -> common_pb2.SignedRoundKey:
        """Opens the ordered round; its key for devices. Idempotent."""
        return call(
            self._stub.OpenRound,
            aggregator_pb2.OpenRoundRequest(task=task, order=order, signature=signature, token_key=token_key),
            timeout=_ROUND_DEADLINE,
            what="open a round at the aggregator",
            address=self._control_address,
        ).round_key

    def progress(self, task_sha256: bytes, round: int) -> aggregator_pb2.GetRoundResponse:
        """The number of contributions of a round."""
        return call(
            self._stub.GetRound,
            aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round),
            timeout=SHORT_DEADLINE,
            what="read the state of a round at the aggregator",
            address=self._control_address,
        )

    def close_round(self, order: bytes, signature: bytes) -> common_pb2.SignedRelease:
        """Closes the ordered round; returns the same bytes at every call."""
        return call(
            self._stub.CloseRound,
            aggregator_pb2.CloseRoundRequest(order=order, signature=signature),
            timeout=_ROUND_DEADLINE,
            what="close a round at the aggregator",
            address=self._control_address,
        ).release

    def released_values(self, order: bytes) -> Iterator[bytes]:
        """The integers of a release that has their hash alone, unchecked, in pieces."""
        what = "read the values of a release at the aggregator"
        request = aggregator_pb2.GetReleasedValuesRequest(order=order)
        replies: Iterator[aggregator_pb2.GetReleasedValuesResponse] = call(
            self._stub.GetReleasedValues, request, timeout=LONG_DEADLINE, what=what, address=self._control_address
        )
        return (reply.chunk for reply in read_stream(replies, what=what, address=self._control_address))

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """Evidence of the enclave over ``nonce``."""
        return call(
            self._attestation.GetEvidence,
            attestation_pb2.GetEvidenceRequest(nonce=nonce),
            timeout=SHORT_DEADLINE,
            what="get the evidence of the aggregator",
            address=self._address,
        )

    def ledger(self, task_sha256: bytes, first: int) -> LedgerPart:
        """The ledger of a task's population from entry ``first`` on, under its signed head."""
        return read_ledger(
            lambda number: call(
                self._public.GetLedger,
                aggregator_pb2.GetLedgerRequest(task_sha256=task_sha256, first=number),
                timeout=SHORT_DEADLINE,
                what="read the aggregator's ledger",
                address=self._address,
            ),
            first=first,
        )

    def hand_overs(self) -> list[hand_over_pb2.HandOver]:
        """The hand-overs that led to the enclave, oldest first."""
        reply: aggregator_pb2.GetHandOversResponse = call(
            self._stub.GetHandOvers,
            aggregator_pb2.GetHandOversRequest(),
            timeout=SHORT_DEADLINE,
            what="read the aggregator's hand-overs",
            address=self._control_address,
        )
        return list(reply.hand_overs)


class IssuerClient:
    """The source of token keys; ``control`` reaches its control listener, at ``address``."""

    def __init__(self, control: grpc.Channel, address: str) -> None:
        self._stub = enrolment_pb2_grpc.EnrolmentControlServiceStub(control)
        self._address = address

    def token_key(self, task: common_pb2.SignedTask, order: bytes, signature: bytes) -> enrolment_pb2.SignedTokenKey:
        """The key of the ordered round, the same at every call. Raises EnrolmentError if the issuer refuses."""
        try:
            reply: enrolment_pb2.GetTokenKeyResponse = call(
                self._stub.GetTokenKey,
                enrolment_pb2.GetTokenKeyRequest(task=task, order=order, signature=signature),
                timeout=SHORT_DEADLINE,
                what="get a token key of the issuer",
                address=self._address,
            )
        except ServiceUnavailable:
            raise
        except ServiceError as error:
            # Its operator can mend what it refuses: the task is not to end for it.
            raise EnrolmentError(str(error)) from error
        return reply.token_key


class WitnessClient:
    """A witness over gRPC, with a short deadline: an unavailable witness must not delay the rounds."""

    def __init__(self, channel: grpc.Channel, address: str) -> None:
        self._stub = log_pb2_grpc.WitnessServiceStub(channel)
        self._address = address

    def add_checkpoint(self, note: bytes, *, old_size: int, hashes: bytes) -> log_pb2.AddCheckpointResponse:
        """Shows a checkpoint and its proof from ``old_size``."""
        return call(
            self._stub.AddCheckpoint,
            log_pb2.AddCheckpointRequest(old_size=old_size, hashes=hashes, checkpoint=note),
            timeout=_WITNESS_DEADLINE,
            what="show the log's checkpoint to a witness",
            address=self._address,
        )


def _parts(
    header: distributor_pb2.PublishHeader, tables: bytes | Iterator[bytes]
) -> Iterator[distributor_pb2.PublishRequest]:
    yield distributor_pb2.PublishRequest(header=header)
    for chunk in _chunks(tables) if isinstance(tables, bytes) else tables:
        yield distributor_pb2.PublishRequest(chunk=chunk)


def _chunks(tables: bytes) -> Iterator[bytes]:
    for start in range(0, len(tables), CHUNK_BYTES):
        yield tables[start : start + CHUNK_BYTES]
