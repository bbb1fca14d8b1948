"""AggregatorControlService: orders of servers, carried to the enclave and stored before they are answered.

Every caller showed a certificate that names it a server. What it may do follows from the keys that own a population,
and the enclave alone decides that. ``rounds.py`` has the order of charge and release.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from odp._validate import identifier
from odp.errors import StateError
from odp.signed.charter import open_charter
from odp.signed.task import open_task, task_sha256
from odp.transport.backpressure import Backpressure
from odp.transport.call import hold_turn
from odp.transport.logs import Log, short
from odp.transport.service import NotFound, servicer
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, aggregator_pb2_grpc, common_pb2, population_pb2
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Status, ordered
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.config import IdleTasks
from trusted_aggregator.host.hand_over_service import HandOverService
from trusted_aggregator.host.rounds import HostedRounds
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.state.records import TASK_PREFIX

NAME = "odp.v1.AggregatorControlService"

#: Servers that read the integers of releases at once, and those that wait for their turn.
MAX_READING, WAITING_READING = 2, 4
# Of at most 3 KiB each.
_CHARTERS_PER_ANSWER = 256


class ControlService:
    """The host's half of the orders of servers."""

    def __init__(
        self,
        core: AggregatorCalls,
        storage: Storage,
        changes: Changes,
        log: Log,
        *,
        rounds: HostedRounds,
        idle: IdleTasks,
        hand_over: HandOverService | None = None,
    ) -> None:
        self._core, self._storage, self._changes, self._log = core, storage, changes, log
        self._rounds, self._idle, self._hand_over = rounds, idle, hand_over
        self._reading = Backpressure(
            at_once=MAX_READING, waiting=WAITING_READING, service="aggregator", what="readers of releases"
        )

    def resume(self) -> None:
        """Completes work that a crash interrupted: erasure, and start times of work on tasks. Call at start.

        A task that came by a hand-over has no time yet, and a round in memory only where one is open.
        """
        self._rounds.empty_files()
        tasks = (key for key in self._storage.keys(after=TASK_PREFIX) if key.startswith(TASK_PREFIX))
        self._idle.resume(bytes.fromhex(key.removeprefix(TASK_PREFIX)) for key in tasks)

    def set_charter(self, signed: population_pb2.SignedCharter) -> aggregator_pb2.SetCharterResponse:
        """Founds a population or changes its owners; returns once that is in force."""
        charter = open_charter(signed)
        with self._changes.turn():
            before = self._rounds.held()
            writes = self._core.set_charter(signed).records
            self._changes.settle(writes)
            self._storage.keep_charter(charter.population, charter.sequence, signed.SerializeToString())
            self._rounds.erase_ended(before)
        if writes:
            owners = len(charter.owners)
            self._log.event("charter_set", population=charter.population, sequence=charter.sequence, owners=owners)
        return aggregator_pb2.SetCharterResponse()

    def charters(self, request: aggregator_pb2.GetChartersRequest) -> aggregator_pb2.GetChartersResponse:
        """The charters of a population, oldest first."""
        identifier(population=request.population)
        charters = self._storage.charters(request.population, request.first, _CHARTERS_PER_ANSWER)
        return aggregator_pb2.GetChartersResponse(charters=map(population_pb2.SignedCharter.FromString, charters))

    def check_task(self, request: aggregator_pb2.CheckTaskRequest) -> aggregator_pb2.CheckTaskResponse:
        """Returns if a task could begin now."""
        self._core.check_task(request)
        return aggregator_pb2.CheckTaskResponse()

    def open_round(self, request: aggregator_pb2.OpenRoundRequest) -> common_pb2.SignedRoundKey | None:
        """Opens a round; returns its key once the opening is stored, or None if the round is released."""
        if self._hand_over is not None:
            self._hand_over.require_open()
        self._rounds.open(request)
        task, number = ordered(request.order)
        self._idle.note(task)
        key = self._core.round_key(aggregator_pb2.GetRoundRequest(task_sha256=task, round=number))
        return key if key.hpke_key else None

    def close_round(self, request: aggregator_pb2.CloseRoundRequest) -> common_pb2.SignedRelease:
        """Charges and releases a round; returns once both are stored and in force."""
        release = self._rounds.close(request)
        self._idle.note(ordered(request.order)[0])
        return release

    def released_values(
        self, request: aggregator_pb2.GetReleasedValuesRequest, context: grpc.ServicerContext
    ) -> Iterator[aggregator_pb2.GetReleasedValuesResponse]:
        """The integers of a release that has their hash alone. Raises Busy if too many servers read some."""
        hold_turn(self._reading, context)
        pieces = self._rounds.values(request.order)
        self._idle.note(ordered(request.order)[0])
        return (aggregator_pb2.GetReleasedValuesResponse(chunk=piece) for piece in pieces)

    def get_round(self, request: aggregator_pb2.GetRoundRequest) -> aggregator_pb2.GetRoundResponse:
        """The number of contributions, and whether the round is released."""
        if (state := self._core.round_state(request.task_sha256, request.round)) is None:
            raise NotFound(f"round {request.round} of task {short(request.task_sha256)} is not open here")
        self._idle.note(request.task_sha256)
        return aggregator_pb2.GetRoundResponse(
            contributions=self._rounds.contributions(state), released=state.status is Status.RELEASED
        )

    def abandon(self, request: aggregator_pb2.AbandonTaskRequest) -> aggregator_pb2.AbandonTaskResponse:
        """Ends a task; returns once that is in force, and its contributions are erased from the files."""
        task = task_sha256(request.task)
        with self._changes.turn():
            before = self._rounds.held()
            self._changes.settle(self._core.abandon(request).records)
            self._rounds.erase_ended(before)
            self._idle.forget(task)
        self._log.event("task_abandoned", task=short(task), name=open_task(request.task).name)
        return aggregator_pb2.AbandonTaskResponse()

    def sweep(self) -> None:
        """Erases tasks that no server asked about for too long, with the contributions to their open rounds."""
        self._rounds.empty_files()
        for task in self._idle.overdue():
            with self._changes.turn():
                before = self._rounds.held()
                try:
                    writes = self._core.forget_task(aggregator_enclave_pb2.ForgetTask(task_sha256=task)).records
                except StateError as error:
                    self._log.warning("task_not_forgotten", task=short(task), reason=str(error))
                    continue
                self._changes.store(writes)
                self._rounds.erase_ended(before)
                self._idle.forget(task)
            self._log.event("task_forgotten", task=short(task))


def control_servicer(
    service: ControlService, hand_over: HandOverService, log: Log
) -> aggregator_pb2_grpc.AggregatorControlServiceServicer:
    """The gRPC face of both services."""

    return servicer(
        aggregator_pb2_grpc.AggregatorControlServiceServicer,
        log,
        {
            "SetCharter": lambda request, _: service.set_charter(request.charter),
            "GetCharters": lambda request, _: service.charters(request),
            "CheckTask": lambda request, _: service.check_task(request),
            "OpenRound": lambda request, _: aggregator_pb2.OpenRoundResponse(round_key=service.open_round(request)),
            "GetRound": lambda request, _: service.get_round(request),
            "GetReleasedValues": service.released_values,
            "CloseRound": lambda request, _: aggregator_pb2.CloseRoundResponse(release=service.close_round(request)),
            "AbandonTask": lambda request, _: service.abandon(request),
            "AskNonce": lambda *_: aggregator_pb2.AskNonceResponse(nonce=hand_over.draw_nonce()),
            "HandOver": lambda request, _: hand_over.hand_over(request),
            "GetHandedRecords": lambda request, _: hand_over.records(request),
            "GetHandOvers": lambda *_: hand_over.history(),
        },
    )
