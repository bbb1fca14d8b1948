"""The host's half at the root of a tree: contributions come to leaves, and their sums come here when a round closes."""

from __future__ import annotations

from typing import Protocol

from odp.errors import Refusal
from odp.v1 import aggregator_pb2
from odp.v1.aggregator_enclave_pb2 import ChargedRound
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Refused, RoundState, Status
from trusted_aggregator.boundary.orders import ordered
from trusted_aggregator.modes.enclave.host_half import EnclaveHost
from trusted_aggregator.rounds.host_half import Key, Submission


class Leaves(Protocol):
    """The leaves, as the root's host reaches them."""

    def open(self, key: Key) -> None:
        """Gives every leaf that answers its part of an open round; the others get theirs when they answer."""
        ...

    def contributions(self, key: Key) -> int:
        """What the hosts of the leaves say of a round, the newest of each."""
        ...

    def close(self, key: Key, order: bytes, signature: bytes) -> None:
        """Brings the sums of the leaves to the enclave, and stores them.

        Raises what ``Rounds.charge`` raises, before any leaf closes; and Busy where a leaf does not answer, for
        some time, or for as long as the minimum needs it.
        """
        ...

    def forget(self, key: Key) -> None:
        """Has the leaves erase their parts of a round that is over, when they answer."""
        ...


class TreeHost(EnclaveHost):
    """Takes no contributions, and gathers the sums of the leaves."""

    def __init__(self, core: AggregatorCalls, leaves: Leaves) -> None:
        super().__init__(core)
        self._leaves = leaves

    def submission(self, request: aggregator_pb2.SubmitRequest) -> Submission | Refused:
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
