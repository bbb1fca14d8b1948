"""The host's half of an aggregation mode: its steps around the calls to the enclave that every round has.

``trusted_aggregator.host.rounds`` makes those calls, in one order for all modes; no half changes that order.

Where the enclave sums the contributions (``EnclaveHost``), each comes in one piece, and the host stores a ciphertext.

The numbers of sessions of rounds that a hand-over ended outlive the round, and go along to the successor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from odp._system.files.state_folder import StateFolder
from odp.errors import Refusal, StateError
from odp.v1 import aggregator_pb2
from odp.v1.aggregator_enclave_pb2 import ChargedRound
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import HostSum, Refused, RoundState, SealedContribution

#: (task_sha256, round)
Key = tuple[bytes, int]
#: Lets others change the enclave while this round waits for its clients.
Pause = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Survivors:
    """The number of contributions that never reach the enclave, and the name of their set (32 bytes)."""

    clients: int
    set_sha256: bytes


class HostHalf:
    """The steps of one mode; the defaults suit a mode whose contributions all go to the enclave."""

    def holds(self, key: Key, charged: ChargedRound | None) -> bool:
        """Whether a round is of this mode, as far as it is known; ``charged`` is None before the charge."""
        return True

    def opening(self, request: aggregator_pb2.OpenRoundRequest) -> contextlib.AbstractContextManager[None]:
        """A context around the opening of a round, which may be of another mode."""
        return contextlib.nullcontext()

    def opened(self, key: Key) -> None:
        """Called when the opening of a round is stored, and before its key is handed out."""

    def gather(self, request: aggregator_pb2.CloseRoundRequest) -> None:
        """Brings the contributions that are elsewhere to the enclave, before a round closes.

        Raises what ``Rounds.charge`` raises, and Busy where some of them may come later.
        """

    def closing(self, key: Key) -> contextlib.AbstractContextManager[None]:
        """A context around the close of a round."""
        return contextlib.nullcontext()

    def contributions(self, state: RoundState) -> int:
        """The number of contributions of a round. Raises PrivacyError if it has failed and can never have a sum."""
        return state.contributions

    def uncounted(self, key: Key) -> int:
        """The number of contributions to an open round that its enclave does not know of."""
        return 0

    def can_be_void(self, key: Key) -> bool:
        """Whether an open round can end now without harm to those who contributed to it."""
        return True

    def survivors(self, key: Key) -> Survivors | None:
        """The contributions that a charge would cover; None if the enclave has them. Raises PrivacyError if there are
        none yet.
        """
        return None

    def to_store(self, charged: ChargedRound) -> int:
        """The number of contributions that have to be stored before the charge is in force."""
        return charged.contributions

    def host_sum(self, charged: ChargedRound, survivors: Survivors | None, pause: Pause) -> HostSum | None:
        """The host's sum of a round whose charge is in force; None if the enclave needs none.

        Raises:
            PrivacyError: the sum is lost for good.
            StateError: something of it is missing, and may come back.
        """
        return None

    def forget(self, key: Key) -> None:
        """Deletes all state of a round that is over. Idempotent."""


class EnclaveHost(HostHalf):
    """Accepts contributions, and has no other part in the mode."""

    def __init__(self, core: AggregatorCalls) -> None:
        self._core = core

    def contribution(self, request: aggregator_pb2.SubmitRequest) -> SealedContribution | Refused:
        """The contribution that came in one message."""
        return SealedContribution(request.task_sha256, request.round, request.sealed_contribution)

    def stream_bytes(self, header: aggregator_pb2.SubmitHeader) -> int | Refusal:
        """Length of the stream after ``header``, or the refusal that it would get."""
        lengths = self._core.lengths(header.task_sha256, header.round)
        return lengths if isinstance(lengths, Refusal) else lengths.bytes

    def to_refuse(self, header: aggregator_pb2.SubmitHeader) -> SealedContribution:
        """What the enclave refuses a stream for."""
        return SealedContribution(header.task_sha256, header.round, header.sealed_key)

    def streamed(self, header: aggregator_pb2.SubmitHeader, data: bytes) -> SealedContribution | Refused:
        """The contribution that came as a stream of ``data``."""
        return SealedContribution(header.task_sha256, header.round, data)


#: A GetHandOversResponse with the number of the next session of each.
ATTEMPTS = "session-attempts"


def read_attempts(state: StateFolder) -> Sequence[aggregator_pb2.UsedAttempts]:
    """The number of the next session of each round. Raises StateError."""
    try:
        return aggregator_pb2.GetHandOversResponse.FromString(state.read(ATTEMPTS) or b"").attempts
    except DecodeError:
        raise StateError(f"{state.path(ATTEMPTS)} is damaged: restore the state folder") from None


def write_attempts(state: StateFolder, attempts: Iterable[aggregator_pb2.UsedAttempts]) -> None:
    """Keeps them in the place of earlier ones. Raises StateError."""
    reply = aggregator_pb2.GetHandOversResponse(attempts=attempts)
    state.write_atomically(ATTEMPTS, reply.SerializeToString(deterministic=True))
