"""What the host of an aggregator calls its enclave for, in the order in which a round goes through the calls.

The parts of ``trusted_aggregator.enclave.core`` say what each call guarantees and raises.
"""

from __future__ import annotations

from collections.abc import Sequence

from odp.errors import Refusal, StateError
from odp.trust.enclave.calls import Call, Calls
from odp.v1.aggregator_enclave_pb2 import (
    AnnounceSurvivors,
    AskCharter,
    AskHostParts,
    AskNonce,
    AskRounds,
    ChargedRound,
    CommitWrites,
    DrawnNonce,
    ForgetTask,
    GivePiece,
    HostParts,
    RecordWrites,
    ReleasedRound,
    ReleaseRound,
    RoundStates,
    SealedLength,
    SealedPiece,
    SealRelease,
    TakePiece,
)
from odp.v1.aggregator_pb2 import (
    AbandonTaskRequest,
    CheckTaskRequest,
    CloseRoundRequest,
    GetLedgerRequest,
    GetLedgerResponse,
    GetRoundRequest,
    OpenRoundRequest,
)
from odp.v1.attestation_pb2 import GetEvidenceRequest, GetEvidenceResponse
from odp.v1.common_pb2 import SignedRoundKey
from odp.v1.enclave_pb2 import Done
from odp.v1.hand_over_pb2 import HandOverPackage, HandOverRequest
from odp.v1.leaf_pb2 import AskLeafNonce, CheckClose, ClosedPart, DelegateRound, Delegation, GivePart, TakePart, Told
from odp.v1.population_pb2 import SignedCharter
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Refused, RoundState, SealedContribution


class AggregatorCalls(Calls):
    """The enclave of an aggregator, of the root of a tree, or of a leaf, as its host sees it."""

    interface = wire.AGGREGATOR

    evidence = Call(GetEvidenceRequest, GetEvidenceResponse)
    set_charter = Call(SignedCharter, RecordWrites)
    charter = Call(AskCharter, SignedCharter)
    check_task = Call(CheckTaskRequest, Done)
    open_round = Call(OpenRoundRequest, RecordWrites)
    round_key = Call(GetRoundRequest, SignedRoundKey)
    sealed_length = Call(GetRoundRequest, SealedLength)
    rounds = Call(AskRounds, RoundStates)
    announce = Call(AnnounceSurvivors, Done)
    charge = Call(CloseRoundRequest, ChargedRound)
    host_parts = Call(AskHostParts, HostParts)
    give_piece = Call(GivePiece, Done)
    seal_release = Call(SealRelease, RecordWrites)
    take_piece = Call(TakePiece, SealedPiece)
    commit = Call(CommitWrites, Done)
    release = Call(ReleaseRound, ReleasedRound)
    ledger = Call(GetLedgerRequest, GetLedgerResponse)
    give_up = Call(GetRoundRequest, RecordWrites)
    forget_task = Call(ForgetTask, RecordWrites)
    abandon = Call(AbandonTaskRequest, RecordWrites)

    # For a hand-over; a leaf draws its nonces for its root
    ask_nonce = Call(AskNonce, DrawnNonce)
    begin_hand_over = Call(HandOverRequest, RecordWrites)
    finish_hand_over = Call(HandOverRequest, HandOverPackage)

    # Of the root of a tree
    leaf_nonce = Call(AskLeafNonce, DrawnNonce)
    delegate = Call(DelegateRound, Delegation)
    check_close = Call(CheckClose, Told)
    give_part = Call(GivePart, Told)

    # Of a leaf
    open_part = Call(Delegation, Done)
    close_part = Call(GetRoundRequest, ClosedPart)
    take_part = Call(TakePart, SealedPiece)
    erase_part = Call(GetRoundRequest, Done)

    def evidence_over(self, nonce: bytes) -> GetEvidenceResponse:
        """Fresh evidence over a caller's nonce."""
        return self.evidence(GetEvidenceRequest(nonce=nonce))

    def submit_batch(self, contributions: Sequence[SealedContribution]) -> list[Refused | None]:
        """Counts sealed contributions, each once, in order; None means accepted, and to be stored."""
        return wire.submitted_of(self.caller.call(wire.submit(contributions)).submitted, len(contributions))

    def sign_refusal(self, contribution: SealedContribution) -> Refused:
        """The refusal of a contribution to a round that takes none; nothing is kept."""
        answer = wire.submitted_of(self.caller.call(wire.sign_refusal(contribution)).submitted, 1)[0]
        if answer is None:
            raise StateError("the enclave signed no refusal; start the program again")
        return answer

    def lengths(self, task_sha256: bytes, round: int) -> SealedLength | Refusal:
        """Lengths of both parts of every well-formed contribution to a round; or the refusal that each would get."""
        length = self.sealed_length(GetRoundRequest(task_sha256=task_sha256, round=round))
        return length if length.WhichOneof("answer") == "bytes" else Refusal(length.refusal)

    def round_state(self, task_sha256: bytes, round: int) -> RoundState | None:
        """The number of contributions of a round; None for an unknown one."""
        only = GetRoundRequest(task_sha256=task_sha256, round=round)
        return next(iter(wire.round_states_of(self.rounds(AskRounds(only=only)))), None)

    def round_states(self) -> list[RoundState]:
        """All open or charged rounds, ordered by task and number."""
        return wire.round_states_of(self.rounds(AskRounds()))
