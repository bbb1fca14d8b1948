"""Enclaves of this process as their hosts call them: through their routes, and without a socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odp.errors import AttestationError, PrivacyError, Refusal, TransparencyError
from odp.trust.enclave.channel import Client, Encoded, Route
from odp.v1 import (
    aggregator_enclave_pb2,
    aggregator_pb2,
    common_pb2,
    enrolment_pb2,
    hand_over_pb2,
    leaf_pb2,
    population_pb2,
)
from odp.v1.aggregator_enclave_pb2 import AggregatorEnclaveReply, AggregatorEnclaveRequest
from odp.v1.attestation_pb2 import GetEvidenceResponse
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import HostSum, Refused, RoundState, SealedContribution
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.leaf_core import LeafCore
from trusted_aggregator.enclave.process import leaf_routes, routes
from trusted_aggregator.state.records import Writes


class _Routed:
    """The calls that a ``Client`` passes on."""

    def __init__(self, served: Mapping[str, Any]) -> None:
        self._served = served

    def call(self, request: AggregatorEnclaveRequest | Encoded) -> AggregatorEnclaveReply:
        if isinstance(request, Encoded):
            request = AggregatorEnclaveRequest.FromString(b"".join(request.pieces))
        route = self._served[request.WhichOneof("call")]
        assert isinstance(route, Route)
        try:
            reply = route.handle(request)
        except PrivacyError as error:
            # Where an enclave refused another one, its host gets the reason in words.
            cause = error.__cause__
            if isinstance(cause, (AttestationError, TransparencyError)):
                raise cause from None
            raise
        assert reply is not None
        return reply


@dataclass(frozen=True)
class Charged:
    """What a charge is answered with."""

    task_sha256: bytes
    round: int
    contributions: int
    released: bool
    writes: Writes
    host_part_bytes: int


def _round(task_sha256: bytes, round: int) -> aggregator_pb2.GetRoundRequest:
    return aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)


class EnclaveCalls:
    """The calls of a host with what their messages hold as arguments; ``calls`` takes the messages."""

    def __init__(self, caller: Client) -> None:
        self.calls = AggregatorCalls(caller)

    def set_charter(self, signed: population_pb2.SignedCharter) -> Writes:
        return wire.writes_of(self.calls.set_charter(signed).records)

    def charter(self, population: str) -> population_pb2.SignedCharter | None:
        signed = self.calls.charter(aggregator_enclave_pb2.AskCharter(population=population))
        return signed if signed.charter else None

    def check_task(self, signed_task: common_pb2.SignedTask) -> None:
        self.calls.check_task(aggregator_pb2.CheckTaskRequest(task=signed_task))

    def open_round(
        self,
        signed_task: common_pb2.SignedTask,
        order: bytes,
        signature: bytes,
        token_key: enrolment_pb2.SignedTokenKey | None = None,
    ) -> Writes:
        request = aggregator_pb2.OpenRoundRequest(
            task=signed_task, order=order, signature=signature, token_key=token_key
        )
        return wire.writes_of(self.calls.open_round(request).records)

    def round_key(self, task_sha256: bytes, round: int) -> common_pb2.SignedRoundKey | None:
        key = self.calls.round_key(_round(task_sha256, round))
        return key if key.hpke_key else None

    def submit(self, task_sha256: bytes, round: int, sealed: bytes, *, host_sha256: bytes = b"") -> Refusal | None:
        (refused,) = self.submit_batch([SealedContribution(task_sha256, round, sealed, host_sha256)])
        return None if refused is None else refused.refusal

    def submit_batch(self, submits: Sequence[SealedContribution]) -> list[Refused | None]:
        return self.calls.submit_batch(submits)

    def sign_refusal(self, contribution: SealedContribution) -> Refused:
        return self.calls.sign_refusal(contribution)

    def sealed_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        lengths = self.calls.lengths(task_sha256, round)
        return lengths if isinstance(lengths, Refusal) else lengths.bytes

    def host_part_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        lengths = self.calls.lengths(task_sha256, round)
        return lengths if isinstance(lengths, Refusal) else lengths.host_part

    def host_parts(self, task_sha256: bytes, round: int, start: int) -> bytes:
        asked = aggregator_enclave_pb2.AskHostParts(task_sha256=task_sha256, round=round, start=start)
        return self.calls.host_parts(asked).digests

    def announce(self, task_sha256: bytes, round: int, clients: int, set_sha256: bytes) -> None:
        self.calls.announce(
            aggregator_enclave_pb2.AnnounceSurvivors(
                task_sha256=task_sha256, round=round, clients=clients, set_sha256=set_sha256
            )
        )

    def give_up(self, task_sha256: bytes, round: int) -> Writes:
        return wire.writes_of(self.calls.give_up(_round(task_sha256, round)).records)

    def charge(self, order: bytes, signature: bytes) -> Charged:
        answer = self.calls.charge(aggregator_pb2.CloseRoundRequest(order=order, signature=signature))
        return Charged(
            answer.task_sha256, answer.round, answer.contributions, answer.released, wire.writes_of(answer.writes),
            answer.host_part_bytes,
        )  # fmt: skip

    def seal_release(
        self,
        order: bytes,
        *,
        noise: bytes | None = None,
        stream: bytes | None = None,
        host_sum: HostSum | None = None,
    ) -> Writes:
        return wire.writes_of(self.calls.seal_release(wire.seal_release(order, noise, stream, host_sum)).records)

    def release(self, order: bytes, *, stored: bytes) -> bytes:
        return self.calls.release(aggregator_enclave_pb2.ReleaseRound(order=order, stored=stored)).signed_release

    def take_piece(self, key: str, number: int) -> bytes:
        return self.calls.take_piece(aggregator_enclave_pb2.TakePiece(key=key, number=number)).data

    def give_piece(self, task_sha256: bytes, round: int, record: bytes, number: int, data: bytes) -> None:
        self.calls.give_piece(
            aggregator_enclave_pb2.GivePiece(
                task_sha256=task_sha256, round=round, record=record, number=number, data=data
            )
        )

    def commit(self) -> None:
        self.calls.commit(aggregator_enclave_pb2.CommitWrites())

    def abandon(
        self, signed_task: common_pb2.SignedTask, order: bytes, signature: population_pb2.CharterSignature
    ) -> Writes:
        request = aggregator_pb2.AbandonTaskRequest(task=signed_task, order=order, signature=signature)
        return wire.writes_of(self.calls.abandon(request).records)

    def forget(self, task_sha256: bytes) -> Writes:
        return wire.writes_of(
            self.calls.forget_task(aggregator_enclave_pb2.ForgetTask(task_sha256=task_sha256)).records
        )

    def ledger(self, task_sha256: bytes) -> tuple[bytes, bytes] | None:
        signed = self.calls.ledger(aggregator_pb2.GetLedgerRequest(task_sha256=task_sha256))
        return (signed.head, signed.signature) if signed.head else None

    def round_state(self, task_sha256: bytes, round: int) -> RoundState | None:
        return self.calls.round_state(task_sha256, round)

    def round_states(self) -> list[RoundState]:
        return self.calls.round_states()

    def evidence(self, nonce: bytes) -> GetEvidenceResponse:
        return self.calls.evidence_over(nonce)

    def draw_nonce(self) -> bytes:
        return self.calls.ask_nonce(aggregator_enclave_pb2.AskNonce()).nonce

    def begin_hand_over(self, request: hand_over_pb2.HandOverRequest) -> Writes:
        return wire.writes_of(self.calls.begin_hand_over(request).records)

    def finish_hand_over(self, request: hand_over_pb2.HandOverRequest) -> hand_over_pb2.HandOverPackage:
        return self.calls.finish_hand_over(request)

    # Of the root of a tree

    def leaf_nonce(self, leaf: int) -> bytes:
        return self.calls.leaf_nonce(leaf_pb2.AskLeafNonce(leaf=leaf)).nonce

    def delegate(
        self, task_sha256: bytes, round: int, leaf: int, greeting: leaf_pb2.GreetResponse
    ) -> leaf_pb2.Delegation:
        return self.calls.delegate(
            leaf_pb2.DelegateRound(task_sha256=task_sha256, round=round, leaf=leaf, greeting=greeting)
        )

    def check_close(self, order: bytes, signature: bytes, contributions: int) -> bool:
        request = leaf_pb2.CheckClose(order=order, signature=signature, contributions=contributions)
        return self.calls.check_close(request).yes

    def give_part(self, task_sha256: bytes, round: int, piece: bytes) -> bool:
        return self.calls.give_part(leaf_pb2.GivePart(task_sha256=task_sha256, round=round, piece=piece)).yes

    # Of a leaf

    def open_part(self, delegation: leaf_pb2.Delegation) -> None:
        self.calls.open_part(delegation)

    def close_part(self, task_sha256: bytes, round: int) -> tuple[int, int]:
        closed = self.calls.close_part(_round(task_sha256, round))
        return closed.contributions, closed.pieces

    def take_part(self, task_sha256: bytes, round: int, number: int) -> bytes:
        return self.calls.take_part(leaf_pb2.TakePart(task_sha256=task_sha256, round=round, number=number)).data

    def erase_part(self, task_sha256: bytes, round: int) -> None:
        self.calls.erase_part(_round(task_sha256, round))


class InProcess(EnclaveCalls):
    """An aggregator's enclave; ``state`` is what no host sees."""

    def __init__(self, enclave: AggregatorCore) -> None:
        super().__init__(_Routed(routes(enclave)))
        self.state = enclave.state


class LeafInProcess(EnclaveCalls):
    """A leaf's enclave; ``enclave`` is what no host sees."""

    def __init__(self, enclave: LeafCore) -> None:
        super().__init__(_Routed(leaf_routes(enclave)))
        self.enclave = enclave
