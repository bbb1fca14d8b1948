"""The host's half of a round of SecAgg+: its sessions. One of them is unmasked, after its survivors are charged."""

from __future__ import annotations

import contextlib

from odp.v1 import aggregator_pb2
from odp.v1.aggregator_enclave_pb2 import ChargedRound
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import HostSum, RoundState, Status
from trusted_aggregator.modes.secagg.rounds import SecAggRounds, kept
from trusted_aggregator.rounds.host_half import HostHalf, Key, Pause, Survivors


class SecAggHost(HostHalf):
    """Rounds whose contributions never reach the enclave."""

    def __init__(self, core: AggregatorCalls, rounds: SecAggRounds) -> None:
        self._core, self._rounds = core, rounds

    def holds(self, key: Key, charged: ChargedRound | None) -> bool:
        return self._rounds.holds(key)

    def opening(self, request: aggregator_pb2.OpenRoundRequest) -> contextlib.AbstractContextManager[None]:
        return kept(self._rounds, request)

    def closing(self, key: Key) -> contextlib.AbstractContextManager[None]:
        return self._rounds.closing(key)

    def contributions(self, state: RoundState) -> int:
        if state.status is not Status.OPEN:
            return state.contributions
        return self._rounds.survivors((state.task_sha256, state.round))

    def uncounted(self, key: Key) -> int:
        return self._rounds.clients_under_way(key)

    def can_be_void(self, key: Key) -> bool:
        return not self.uncounted(key)

    def survivors(self, key: Key) -> Survivors | None:
        """See ``HostHalf``; None for a round that was charged before."""
        state = self._core.round_state(*key)
        if state is None or state.status is not Status.OPEN:
            return None
        return self._rounds.require_ready(key)

    def to_store(self, charged: ChargedRound) -> int:
        """None: the sum of the vectors is part of the session, which is stored as it goes on."""
        return 0

    def host_sum(self, charged: ChargedRound, survivors: Survivors | None, pause: Pause) -> HostSum | None:
        """See ``HostHalf``; waits until clients sent their shares."""
        with pause():
            return self._rounds.take_sum((charged.task_sha256, charged.round), survivors)

    def forget(self, key: Key) -> None:
        self._rounds.forget(key)
