"""AggregatorControlService: orders of servers, carried to the enclave and stored before they are answered.

Every caller showed a certificate that names it a server. What it may do follows from the keys that own a population,
and the enclave alone decides that. What a round is charged for is stored before the charge, a release before its hash
is in force, and its hash is in force before its signature leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc

from odp._validate import identifier
from odp.errors import Busy, DiskFailed, PopulationFull, PrivacyError, StateError
from odp.signed.charter import open_charter
from odp.signed.task import open_task, task_sha256
from odp.transport.logs import Log, short
from odp.transport.service import NotFound, answers
from odp.transport.sweeping import DAY, SweepClock
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2, hand_over_pb2, population_pb2
from trusted_aggregator.changes import Changes
from trusted_aggregator.hand_over_service import HandOverService
from trusted_aggregator.interface import Aggregator, Charged, Status
from trusted_aggregator.masked_vectors import masked_sum
from trusted_aggregator.orders import ordered
from trusted_aggregator.records import noise_key, release_key
from trusted_aggregator.secagg_rounds import Key, SecAggRounds, kept
from trusted_aggregator.storage import Storage

NAME = "odp.v1.AggregatorControlService"

#: Days after which a task that no server asks about is forgotten, with its open rounds.
IDLE_DAYS = 30.0

_STORE_SECONDS = 30.0
_NOTE_SECONDS = 3600.0
# After which a server may ask again for a round of a population that has as many open as it may.
_FULL_SECONDS = 5.0, 15.0
# Of at most 3 KiB each.
_CHARTERS_PER_ANSWER = 256


class ControlService:
    """The host's half of what servers order. ``clock`` gives seconds since the epoch."""

    def __init__(
        self,
        core: Aggregator,
        storage: Storage,
        changes: Changes,
        log: Log,
        *,
        secagg: SecAggRounds | None = None,
        hand_over: HandOverService | None = None,
        idle_seconds: float = IDLE_DAYS * DAY,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hand_over = hand_over
        self._core = core
        self._storage = storage
        self._changes = changes
        self._log = log
        self._secagg = secagg
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._sweeps = SweepClock(clock=clock, monotonic=monotonic)
        self._noted: dict[bytes, float] = {}

    def resume(self) -> None:
        """Finishes what a death interrupted: erasing, and noting when work on the open rounds began. Call at start."""
        self._empty_files()
        for state in self._core.round_states():
            self._storage.note_work(state.task_sha256, self._clock(), unless_noted=True)

    def set_charter(self, signed: population_pb2.SignedCharter) -> None:
        """Founds a population or changes who owns it; returns once that is in force."""
        charter = open_charter(signed)
        with self._changes.turn():
            before = self._core.round_states()
            writes = self._core.set_charter(signed)
            self._changes.settle(writes)
            self._storage.keep_charter(charter.population, charter.sequence, signed.SerializeToString())
            self._erase_ended({(state.task_sha256, state.round) for state in before})
        if writes:
            owners = len(charter.owners)
            self._log.event("charter_set", population=charter.population, sequence=charter.sequence, owners=owners)

    def charters(self, request: aggregator_pb2.GetChartersRequest) -> aggregator_pb2.GetChartersResponse:
        """The charters of a population, oldest first."""
        identifier(population=request.population)
        found = self._storage.charters(request.population, request.first, _CHARTERS_PER_ANSWER)
        return aggregator_pb2.GetChartersResponse(charters=map(population_pb2.SignedCharter.FromString, found))

    def check_task(self, request: aggregator_pb2.CheckTaskRequest) -> None:
        """Returns if a task could begin now."""
        self._core.check_task(request.task)

    def open_round(self, request: aggregator_pb2.OpenRoundRequest) -> common_pb2.SignedRoundKey | None:
        """Opens a round; its key, once that is stored. None where the round is released."""
        if self._hand_over is not None:
            self._hand_over.require_open()
        with self._changes.turn(), kept(self._secagg, request):
            try:
                writes = self._core.open_round(request.task, request.order, request.signature, request.token_key)
            except PopulationFull as error:
                # A refusal would end the task, whatever it has spent.
                raise Busy(str(error), *_FULL_SECONDS) from error
            self._changes.store(writes)
        task, number = ordered(request.order)
        self._note_work(task)
        cohort = open_task(request.task).cohort
        self._log.event(
            "round_opened", task=short(task), round=number, minimum=cohort.minimum, goal=cohort.goal,
            seconds=cohort.round_seconds,
        )  # fmt: skip
        return self._core.round_key(task, number)

    def close_round(self, request: aggregator_pb2.CloseRoundRequest) -> common_pb2.SignedRelease:
        """Charges and releases a round; returns once both are stored and in force."""
        key = ordered(request.order)
        if self._secagg is not None and self._secagg.holds(key):
            with self._secagg.closing(key):
                return self._close_secagg(request, key, self._secagg)
        with self._changes.turn():
            charged = self._core.charge(request.order, request.signature)
            if charged.released:
                self._changes.settle(self._core.seal_release(request.order))  # a failure may have kept it from being so
            else:
                self._seal(request, charged)
            release = self._release(request, key)
        self._note_work(key[0])
        return release

    def _seal(self, request: aggregator_pb2.CloseRoundRequest, charged: Charged) -> None:
        task, number = charged.task_sha256, charged.round
        # The charge names the exact set: a crash after it must find all of the set.
        self._storage.wait_for(task, number, charged.contributions, timeout=_STORE_SECONDS)
        self._changes.settle(charged.writes)
        self._log.event("round_charged", task=short(task), round=number, contributions=charged.contributions)
        masked = None
        if charged.masked_bytes:
            masked = masked_sum(self._core, self._storage, task, number, length=charged.masked_bytes)
        noise = self._storage.record(noise_key(task, number))
        self._changes.settle(self._core.seal_release(request.order, noise=noise, masked=masked))
        self._storage.erase(task, number)
        self._empty_files()
        self._log.event("round_released", task=short(task), round=number, contributions=charged.contributions)

    def _release(self, request: aggregator_pb2.CloseRoundRequest, key: Key) -> common_pb2.SignedRelease:
        stored = self._storage.record(release_key(*key))
        return common_pb2.SignedRelease.FromString(self._core.release(request.order, stored=stored or b""))

    def _close_secagg(
        self, request: aggregator_pb2.CloseRoundRequest, key: Key, secagg: SecAggRounds
    ) -> common_pb2.SignedRelease:
        """As ``close_round``, of a round of SecAgg+: nobody gives a share to unmask before the charge is in force."""
        task, number = key
        state = self._core.round_state(task, number)
        if state is not None and state.status is Status.OPEN:
            survivors = secagg.require_ready(key)
            with self._changes.turn():
                self._core.announce(task, number, survivors.clients, survivors.set_sha256)
                self._changes.settle(self._core.charge(request.order, request.signature).writes)
            self._log.event("round_charged", task=short(task), round=number, contributions=survivors.clients)
            try:
                masked = secagg.take_sum(key, survivors)
            except PrivacyError:
                with self._changes.turn():
                    self._changes.store(self._core.give_up(task, number))
                raise
            with self._changes.turn():
                noise = self._storage.record(noise_key(task, number))
                self._changes.settle(self._core.seal_release(request.order, noise=noise, masked=masked))
            self._log.event("round_released", task=short(task), round=number, contributions=survivors.clients)
        with self._changes.turn():
            if self._core.charge(request.order, request.signature).released:
                self._changes.settle(self._core.seal_release(request.order))
            release = self._release(request, key)
        secagg.forget(key)
        return release

    def get_round(self, request: aggregator_pb2.GetRoundRequest) -> aggregator_pb2.GetRoundResponse:
        """Number of contributions, and whether the round is released."""
        state = self._core.round_state(request.task_sha256, request.round)
        if state is None:
            raise NotFound(f"round {request.round} of task {short(request.task_sha256)} is not open here")
        self._note_work(request.task_sha256)
        contributions = state.contributions
        key = request.task_sha256, request.round
        if state.status is Status.OPEN and self._secagg is not None and self._secagg.holds(key):
            contributions = self._secagg.survivors(key)
        return aggregator_pb2.GetRoundResponse(contributions=contributions, released=state.status is Status.RELEASED)

    def abandon(self, request: aggregator_pb2.AbandonTaskRequest) -> None:
        """Ends a task; returns once that is in force, and what was contributed to it is gone from the files."""
        task = task_sha256(request.task)
        with self._changes.turn():
            before = self._core.round_states()
            self._changes.settle(self._core.abandon(request.task, request.order, request.signature))
            self._erase_ended({(state.task_sha256, state.round) for state in before})
            self._forget_work(task)
        self._log.event("task_abandoned", task=short(task), name=open_task(request.task).name)

    def sweep(self) -> None:
        """Forgets tasks that no server asked about for too long, with what was contributed to their open rounds."""
        self._empty_files()
        for task in self._storage.idle(self._sweeps.now() - self._idle_seconds):
            with self._changes.turn():
                before = self._core.round_states()
                try:
                    writes = self._core.forget(task)
                except StateError as error:
                    self._log.warning("task_not_forgotten", task=short(task), reason=str(error))
                    continue
                self._changes.store(writes)
                self._erase_ended({(state.task_sha256, state.round) for state in before})
                self._forget_work(task)
            self._log.event("task_forgotten", task=short(task))

    def _erase_ended(self, before: set[Key]) -> None:
        """Erases the contributions of the rounds of ``before`` that the enclave holds no longer."""
        held = {(state.task_sha256, state.round) for state in self._core.round_states()}
        for key in before - held:
            if self._secagg is not None:
                self._secagg.forget(key)
            self._storage.erase(*key)
        # Also what an earlier order could not: it is asked again, and there is nothing left to end.
        self._storage.finish_erasing()

    def _empty_files(self) -> None:
        """What was erased leaves the files now, or with a later round: a release does not wait for it."""
        try:
            self._storage.finish_erasing()
        except DiskFailed:
            raise
        except StateError as error:
            self._log.warning("not_erased", reason=str(error))

    def _forget_work(self, task: bytes) -> None:
        self._storage.forget_work(task)
        self._noted.pop(task, None)

    def _note_work(self, task: bytes) -> None:
        """Remembers that a server works on a task; to the hour, since it asks several times a second."""
        now = self._clock()
        if not 0 <= now - self._noted.get(task, float("-inf")) < _NOTE_SECONDS:
            self._storage.note_work(task, now)
            self._noted[task] = now


def control_servicer(
    service: ControlService, hand_over: HandOverService, log: Log
) -> aggregator_pb2_grpc.AggregatorControlServiceServicer:
    """The gRPC face of both services."""

    class Servicer(aggregator_pb2_grpc.AggregatorControlServiceServicer):
        @answers(log)
        def SetCharter(
            self, request: aggregator_pb2.SetCharterRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.SetCharterResponse:
            service.set_charter(request.charter)
            return aggregator_pb2.SetCharterResponse()

        @answers(log)
        def GetCharters(
            self, request: aggregator_pb2.GetChartersRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.GetChartersResponse:
            return service.charters(request)

        @answers(log)
        def CheckTask(
            self, request: aggregator_pb2.CheckTaskRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.CheckTaskResponse:
            service.check_task(request)
            return aggregator_pb2.CheckTaskResponse()

        @answers(log)
        def OpenRound(
            self, request: aggregator_pb2.OpenRoundRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.OpenRoundResponse:
            return aggregator_pb2.OpenRoundResponse(round_key=service.open_round(request))

        @answers(log)
        def GetRound(
            self, request: aggregator_pb2.GetRoundRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.GetRoundResponse:
            return service.get_round(request)

        @answers(log)
        def CloseRound(
            self, request: aggregator_pb2.CloseRoundRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.CloseRoundResponse:
            return aggregator_pb2.CloseRoundResponse(release=service.close_round(request))

        @answers(log)
        def AbandonTask(
            self, request: aggregator_pb2.AbandonTaskRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.AbandonTaskResponse:
            service.abandon(request)
            return aggregator_pb2.AbandonTaskResponse()

        @answers(log)
        def AskNonce(
            self, request: aggregator_pb2.AskNonceRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.AskNonceResponse:
            return aggregator_pb2.AskNonceResponse(nonce=hand_over.draw_nonce())

        @answers(log)
        def HandOver(
            self, request: hand_over_pb2.HandOverRequest, context: grpc.ServicerContext
        ) -> hand_over_pb2.HandOverResponse:
            return hand_over.hand_over(request)

        @answers(log)
        def GetHandedRecords(
            self, request: aggregator_pb2.GetHandedRecordsRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.GetHandedRecordsResponse:
            return hand_over.records(request)

        @answers(log)
        def GetHandOvers(
            self, request: aggregator_pb2.GetHandOversRequest, context: grpc.ServicerContext
        ) -> aggregator_pb2.GetHandOversResponse:
            return hand_over.history()

    return Servicer()
