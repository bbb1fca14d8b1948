"""The part of the enclave that takes contributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from google.protobuf.message import Message

from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, Refusal
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Refused, RoundState, SealedContribution, Status
from trusted_aggregator.enclave.refusing import ClosedRounds, sign_closed, sign_judged
from trusted_aggregator.rounds.enclave_half import Round

#: More than a host of ours ever sends at once.
_MOST_SUBMITS = 4096


class RoundTable(Protocol):
    """The rounds in memory, for any thread."""

    def find_round(self, task_sha256: bytes, number: int, /) -> Round | Refusal:
        """A round; otherwise the refusal for a contribution to it."""

    def round_state(self, task_sha256: bytes, number: int, /) -> RoundState | None:
        """The number of contributions of a round; None for an unknown one."""

    def round_states(self) -> list[RoundState]:
        """All of them, by task and number."""


class Submissions:
    """Routes each contribution to its round. Thread-safe.

    Args:
        signing: signs refusals that are final.
        table: has the round of each contribution.
        closed: what is remembered of closed rounds.
    """

    def __init__(self, signing: SigningKey, table: RoundTable, closed: ClosedRounds) -> None:
        self._signing, self._table, self._closed = signing, table, closed

    def submit(self, batch: aggregator_enclave_pb2.SubmitBatch) -> aggregator_enclave_pb2.SubmittedBatch:
        """Counts contributions, each once. Raises ConfigurationError where they are too many."""
        return self._submitted([wire.sealed_of(request) for request in batch.submits])

    def submit_long(self, request: bytes) -> Message:
        """``submit`` of a serialized request, whose contributions are opened in place."""
        return wire.AGGREGATOR.reply_of(self._submitted(wire.contributions_in(request)))

    def _submitted(self, contributions: Sequence[SealedContribution]) -> aggregator_enclave_pb2.SubmittedBatch:
        if len(contributions) > _MOST_SUBMITS:
            raise ConfigurationError(
                f"Expected at most {_MOST_SUBMITS} contributions at once, got {len(contributions)}"
            )
        return wire.submitted(self.submit_batch(contributions))

    def submit_batch(self, contributions: Sequence[SealedContribution]) -> list[Refused | None]:
        """Counts each, in order within a round; None means accepted: the host stores it before it acknowledges it.

        Refusals that are final are signed.
        """
        answers: list[Refused | None] = [None] * len(contributions)
        rounds: dict[tuple[bytes, int], list[int]] = {}
        for number, contribution in enumerate(contributions):
            rounds.setdefault((contribution.task_sha256, contribution.round), []).append(number)
        for key, numbers in rounds.items():
            held = self._table.find_round(*key)
            some = [contributions[number] for number in numbers]
            if isinstance(held, Refusal) or held.is_closed:
                refusals: Sequence[Refused | None] = [self._refused(contribution) for contribution in some]
            else:
                refusals = self._kept(held, some)
            for number, answer in zip(numbers, refusals, strict=True):
                answers[number] = answer
        return answers

    def sign_refusal(self, request: aggregator_pb2.SubmitRequest) -> aggregator_enclave_pb2.SubmittedBatch:
        """The refusal of a contribution to a closed round, signed if it did not count; keeps nothing.

        The first bytes of the sealed contribution are enough (``odp.crypto.refusals``).
        """
        return wire.submitted([self._refused(wire.sealed_of(request))])

    def _refused(self, contribution: SealedContribution) -> Refused:
        key = contribution.task_sha256, contribution.round
        held = self._table.find_round(*key)
        closed = self._closed.find(key)
        # Also of an opening that a hand-over ended: to this enclave it is a round that is not open yet.
        refusal = held if isinstance(held, Refusal) else Refusal.ROUND_CLOSED
        if refusal is Refusal.WRONG_ROUND and closed is not None:
            refusal = Refusal.ROUND_CLOSED
        return Refused(refusal, sign_closed(self._signing, closed, refusal, contribution))

    def _kept(self, held: Round, contributions: Sequence[SealedContribution]) -> list[Refused | None]:
        judged = held.judge(
            [contribution.sealed for contribution in contributions],
            host_sha256=[contribution.host_sha256 for contribution in contributions],
        )
        answers: list[Refused | None] = []
        for contribution, verdict, refusal in zip(contributions, judged, held.keep(judged), strict=True):
            if refusal is None:
                answers.append(None)
                continue
            # What ``keep`` refuses may count after a restart: it depends on what came before.
            final = isinstance(verdict, Refusal) and held.signs_refusals
            signature = sign_judged(self._signing, held, refusal, contribution) if final else b""
            answers.append(Refused(refusal, signature))
        return answers

    def sealed_length(self, request: aggregator_pb2.GetRoundRequest) -> aggregator_enclave_pb2.SealedLength:
        """Length of every well-formed sealed contribution to a round, and of the part of it that stays with the host.

        The refusal that each of them would meet where the round takes none.
        """
        held = self._table.find_round(request.task_sha256, request.round)
        if isinstance(held, Refusal) or held.status is not Status.OPEN:
            refusal = held if isinstance(held, Refusal) else Refusal.ROUND_CLOSED
            return aggregator_enclave_pb2.SealedLength(refusal=cast(aggregator_pb2.Refusal, refusal.value))
        return aggregator_enclave_pb2.SealedLength(bytes=held.sealed_bytes, host_part=held.host_part_bytes)

    def rounds(self, request: aggregator_enclave_pb2.AskRounds) -> aggregator_enclave_pb2.RoundStates:
        """The states of one round or of all."""
        if not request.HasField("only"):
            return wire.round_states(self._table.round_states())
        state = self._table.round_state(request.only.task_sha256, request.only.round)
        return wire.round_states([] if state is None else [state])
