"""The host's half at the root of a tree: contributions come to leaves, and their sums come here when a round closes.

At a leaf, it takes contributions to the rounds that the leaf's enclave has from the root.
"""

from __future__ import annotations

from typing import Protocol

from odp.errors import Busy, Refusal
from odp.v1 import aggregator_pb2
from odp.v1.aggregator_enclave_pb2 import ChargedRound
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Refused, RoundState, SealedContribution, Status, ordered
from trusted_aggregator.rounds.host_half import EnclaveHost, Key

# The root gives a leaf what it lacks within a second or two.
_AGAIN_SECONDS = 1.0, 5.0


class Leaves(Protocol):
    """The leaves, as the root's host reaches them."""

    def open(self, key: Key) -> None:
        """Gives every leaf that answers its part of an open round; the others get theirs when they answer."""

    def contributions(self, key: Key) -> int:
        """What the hosts of the leaves say of a round, the newest of each."""

    def close(self, key: Key, order: bytes, signature: bytes) -> None:
        """Brings the sums of the leaves to the enclave, and stores them.

        Raises what ``Rounds.charge`` raises, before any leaf closes; and Busy where a leaf does not answer, for
        some time, or for as long as the minimum needs it.
        """

    def forget(self, key: Key) -> None:
        """Has the leaves erase their parts of a round that is over, when they answer."""


class TreeHost(EnclaveHost):
    """Takes no contributions, and gathers the sums of the leaves."""

    def __init__(self, core: AggregatorCalls, leaves: Leaves) -> None:
        super().__init__(core)
        self._leaves = leaves

    def contribution(self, request: aggregator_pb2.SubmitRequest) -> SealedContribution | Refused:
        return Refused(Refusal.WRONG_LEAF)

    def stream_bytes(self, header: aggregator_pb2.SubmitHeader) -> int | Refusal:
        return Refusal.WRONG_LEAF

    def opened(self, key: Key) -> None:
        self._leaves.open(key)

    def gather(self, request: aggregator_pb2.CloseRoundRequest) -> None:
        self._leaves.close(ordered(request.order), request.order, request.signature)

    def contributions(self, state: RoundState) -> int:
        if state.status is not Status.OPEN:
            return state.contributions
        return max(state.contributions, self._leaves.contributions((state.task_sha256, state.round)))

    def uncounted(self, key: Key) -> int:
        return self._leaves.contributions(key)

    def to_store(self, charged: ChargedRound) -> int:
        """None: the sums were stored when they came."""
        return 0

    def forget(self, key: Key) -> None:
        self._leaves.forget(key)


class Parts(Protocol):
    """What the leaf holds."""

    def holds(self, task_sha256: bytes, round: int) -> bool:
        """Whether contributions to a round are taken, or refused, by the enclave now."""


class LeafHost(EnclaveHost):
    """Takes contributions to the parts that the enclave holds; for others, devices come again."""

    def __init__(self, core: AggregatorCalls, parts: Parts) -> None:
        super().__init__(core)
        self._parts = parts

    def contribution(self, request: aggregator_pb2.SubmitRequest) -> SealedContribution | Refused:
        if request.masked_sha256 or request.masked_vector:
            return Refused(Refusal.MALFORMED)
        self._require_held(request.task_sha256, request.round)
        return super().contribution(request)

    def stream_bytes(self, header: aggregator_pb2.SubmitHeader) -> int | Refusal:
        self._require_held(header.task_sha256, header.round)
        return Refusal.MALFORMED if header.sealed_contribution else super().stream_bytes(header)

    def streaming(self, header: aggregator_pb2.SubmitHeader) -> LeafHost:
        """Itself: no part of a contribution stays here."""
        return self

    @staticmethod
    def is_whole(request: aggregator_pb2.SubmitRequest) -> bool:
        """Always: the host only queues it."""
        return True

    def _require_held(self, task_sha256: bytes, round: int) -> None:
        # Neither a refusal, which a device would take for the end of it, nor an answer that it could not rely on.
        if not self._parts.holds(task_sha256, round):
            raise Busy(f"round {round} is not open at this leaf yet; try again", *_AGAIN_SECONDS)
