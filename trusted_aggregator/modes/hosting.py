"""All modes of aggregation at a host: the half that handles a round or a contribution, and additional services."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc

from odp._system.files.state_folder import StateFolder
from odp.crypto.roster import read_roster
from odp.errors import Refusal
from odp.transport.logs import Log
from odp.v1 import aggregator_pb2, secagg_service_pb2_grpc
from odp.v1.aggregator_enclave_pb2 import ChargedRound
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Refused, RoundState, SealedContribution, Status
from trusted_aggregator.modes.masked.host_half import MaskedHost, Vectors
from trusted_aggregator.modes.secagg import servicer
from trusted_aggregator.modes.secagg.admission import WithToken
from trusted_aggregator.modes.secagg.host_half import SecAggHost
from trusted_aggregator.modes.secagg.journal import Parts
from trusted_aggregator.modes.secagg.limits import Pace, SessionLimits
from trusted_aggregator.modes.secagg.rounds import SecAggRounds
from trusted_aggregator.modes.tree.host_half import Leaves, TreeHost
from trusted_aggregator.rounds.host_half import EnclaveHost, HostHalf, Key


@dataclass(frozen=True)
class ModeOptions:
    """The operator's options for sessions of clients.

    Attributes:
        pace: how long the steps of a session take.
        session_limits: what sessions may take of the host.
        rosters: files of the identities that may take part in the sessions of tasks that name them, so that a stranger
            cannot end one.
    """

    pace: Pace = field(default_factory=Pace)
    session_limits: SessionLimits = field(default_factory=SessionLimits)
    rosters: tuple[Path, ...] = ()

    def read_rosters(self) -> list[Collection[bytes]]:
        """The identities in each file. Raises ConfigurationError."""
        return [read_roster(path) for path in self.rosters]


class Store(Vectors, Parts, Protocol):
    """What all modes together need of the host's storage."""


class HostModes:
    """The host's halves, one of each mode. Thread-safe.

    Args:
        core: the enclave.
        store: where parts of contributions are stored that stay here, and sessions.
        state: where rounds with sessions are written down.
        log: where sessions go.
        options: what the operator says.
        rosters: of ``options``, as they were read.
        leaves: of the tree whose root this is; None where contributions come here.
    """

    #: Callers that may wait for each other at once, besides those of ``AggregatorService``.
    waiting = servicer.MOST_WAITING
    #: Further gRPC services of the listener of devices.
    service_names: Sequence[str] = (servicer.NAME,)

    def __init__(
        self, core: AggregatorCalls, store: Store, state: StateFolder, log: Log, options: ModeOptions | None = None,
        rosters: Sequence[Collection[bytes]] = (), leaves: Leaves | None = None,
    ) -> None:  # fmt: skip
        options = ModeOptions() if options is None else options
        self._sessions = SecAggRounds(
            state, store, log, pace=options.pace, rosters=rosters, limits=options.session_limits
        )
        self._log = log
        self._enclave = EnclaveHost(core) if leaves is None else TreeHost(core, leaves)
        self._masked = MaskedHost(core, store)
        self._halves: tuple[HostHalf, ...] = (SecAggHost(core, self._sessions), self._masked, self._enclave)

    def add_to(self, server: grpc.Server) -> None:
        """Adds the services of ``service_names``."""
        service = servicer.SecureAggregationService(self._sessions, admission=WithToken(self._sessions))
        secagg_service_pb2_grpc.add_SecureAggregationServiceServicer_to_server(
            servicer.secagg_servicer(service, self._log), server
        )

    def resume(self, states: Sequence[RoundState]) -> None:
        """Restores the rounds that are open or charged at the enclave. Raises StateError."""
        live = {
            (state.task_sha256, state.round): state.status is Status.CHARGED
            for state in states
            if state.status in (Status.OPEN, Status.CHARGED)
        }
        self._sessions.keep_only(live)
        for key, charged in live.items():
            self._sessions.restore(key, charged=charged)

    def of(self, key: Key, charged: ChargedRound | None = None) -> HostHalf:
        """The half of a round; ``charged`` is the enclave's answer to its charge, and None before that.

        Before the charge, a round whose mode the enclave alone knows has the half of one that the enclave sums: up to
        there, both go the same way.
        """
        return next(half for half in self._halves if half.holds(key, charged))

    @contextlib.contextmanager
    def opening(self, request: aggregator_pb2.OpenRoundRequest) -> Iterator[None]:
        """Around the opening of a round of any mode. Raises what a half raises, before anything is opened."""
        with contextlib.ExitStack() as halves:
            for half in self._halves:
                halves.enter_context(half.opening(request))
            yield

    def hold_sessions(self, seconds: float) -> None:
        """Lets no session of clients begin for ``seconds``; those that began go on."""
        self._sessions.hold(seconds)

    def keep_attempts(self) -> None:
        """Stores how many sessions each round had, for whoever opens it after a hand-over. Raises StateError."""
        self._sessions.keep_attempts()

    def forget(self, key: Key) -> None:
        """Deletes all state of a round that is over. Idempotent."""
        for half in self._halves:
            half.forget(key)

    # Contributions

    def contribution(self, request: aggregator_pb2.SubmitRequest) -> SealedContribution | Refused:
        """The contribution that came in one message."""
        if request.masked_sha256:  # the host's own word to its enclave
            return Refused(Refusal.MALFORMED)
        return (self._enclave if self.is_whole(request) else self._masked).contribution(request)

    def streaming(self, header: aggregator_pb2.SubmitHeader) -> EnclaveHost:
        """The half of a contribution whose stream follows ``header``."""
        return self._masked if header.sealed_contribution else self._enclave

    @staticmethod
    def is_whole(request: aggregator_pb2.SubmitRequest) -> bool:
        """Whether all of a contribution goes to the enclave: the host then only queues it."""
        return not request.masked_vector
