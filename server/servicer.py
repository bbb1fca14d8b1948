"""ServerService: devices check in, the operator submits and watches tasks.

Devices are anonymous and answered from memory (``server.board``). Everything else needs the operator's token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from odp._validate import identifier
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import LARGEST_ATTACHED_BYTES, release_bytes, require_sizes
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, PrivacyError, ServiceError
from odp.signed.task import HASH_BYTES, LARGEST_DEFINITION, check_length, open_task, sign_task, task_sha256
from odp.transport.channel import MAX_REPLY_BYTES
from odp.transport.logs import Log, short
from odp.transport.service import NotFound, servicer
from odp.v1 import common_pb2, server_pb2, server_pb2_grpc
from server.board import Board
from server.local.desk import Desk
from server.local.steps import require_periods
from server.operator_token import OperatorToken
from server.populations import Populations
from server.storage import RoundRecord, Storage, TaskRecord, TaskState
from server.waits import Wait, require_count, unneeded_count

NAME = "odp.v1.ServerService"
#: Releases that one answer about tasks carries at most; older rounds then come without theirs.
_RELEASES_PER_ANSWER = MAX_REPLY_BYTES // 2
_LARGEST_FEATURES = 16 * 2**20
# The first parameters of a network, 4 bytes each: as many as a contribution has numbers.
_LARGEST_START = 4 * 2**25
_INTEGER_BYTES = 8
# Nothing is left to do for these; of a failed task the aggregator may still have to be told.
_OVER = TaskState.FINISHED, TaskState.CANCELLED
_REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskStatuses:
    """What the operator reads of tasks.

    Attributes:
      storage: of the server.
      waits_for: gives what a task waits for.
      distributor_of: gives the address of a distributor that holds a task's models.
      aggregator_address: where devices upload.
      desk: has the tasks of local trust; None: there are none.
    """

    storage: Storage
    waits_for: Callable[[bytes], Wait | None] = lambda task_sha256: None
    distributor_of: Callable[[bytes], str]
    aggregator_address: str
    desk: Desk | None = None
    # By task and round: a release never changes, and may be long.
    _epsilons: dict[tuple[bytes, int], float] = field(default_factory=dict, init=False)

    def of(self, task: TaskRecord, *, release_bytes: int) -> server_pb2.TaskStatus:
        """The status of a task, with its newest releases of at most ``release_bytes`` together."""
        published = self.storage.published_version(task.sha256)
        wait = None if task.state in _OVER else self.waits_for(task.sha256)
        rounds = self.storage.rounds(task.sha256)
        with_release = _newest_that_fit(rounds, release_bytes)
        return server_pb2.TaskStatus(
            task=task.signed,
            state=server_pb2.TaskStatus.State.Name(task.state),
            failure=task.failure,
            rounds=[
                server_pb2.RoundStatus(
                    round=entry.round,
                    state=server_pb2.RoundStatus.State.Name(entry.state),
                    contributions=entry.contributions,
                    opened=entry.opened,
                    closed=entry.closed,
                    release=self.storage.release(task.sha256, entry.round) if entry.round in with_release else None,
                )
                for entry in rounds
            ],
            planned_rounds=task.planned_rounds,
            model=None if published is None else published.signed,
            distributor_address=self.distributor_of(task.sha256),
            aggregator_address=self.aggregator_address,
            waits_for=None if wait is None else server_pb2.TaskWait(reason=wait.reason, until=wait.until or 0.0),
            epsilon_spent=self._epsilon_spent(task.sha256, rounds),
            paused=task.paused,
            reports=0 if task.planned_rounds or self.desk is None else self.desk.count(task.sha256),
        )

    def _epsilon_spent(self, task: bytes, rounds: list[RoundRecord]) -> float:
        """The total epsilon in the newest release; 0 before the first."""
        newest = next((entry.round for entry in reversed(rounds) if entry.release_bytes), None)
        if newest is None:
            return 0.0
        if (task, newest) not in self._epsilons:
            release = common_pb2.Release.FromString(self.storage.release(task, newest).release)
            self._epsilons[task, newest] = release.epsilon_spent
        return self._epsilons[task, newest]


@dataclass(frozen=True, kw_only=True)
class TaskAdmission:
    """Which new tasks the server accepts.

    Attributes:
      storage, populations, log: of the server.
      check_task: raises ServiceError where the aggregator could not begin a task.
      require_catalogue: refuses a task that may not name its catalogue version.
    """

    storage: Storage
    populations: Populations
    check_task: Callable[[common_pb2.SignedTask], object] = lambda task: None
    require_catalogue: Callable[[common_pb2.TaskDefinition], None] = lambda definition: None
    log: Log

    def require(self, task: TaskRecord, definition: common_pb2.TaskDefinition) -> None:
        """Returns if a new task is accepted. If the aggregator does not answer, the driver asks it later.

        Raises:
          ConfigurationError: its catalogue, its count or its periods are refused.
          PrivacyError: the aggregator refuses it.
        """
        self.require_catalogue(definition)
        require_count(self.storage, definition)
        if not task.planned_rounds:
            require_periods(self.populations, open_task(task.signed))
            return
        try:
            self.check_task(task.signed)
        except ServiceError as error:
            if error.code in _REFUSED:
                raise PrivacyError(str(error)) from error
            self.log.warning("task_not_checked", task=short(task.sha256), name=task.name, reason=str(error))


class ServerService:
    """The methods of the service, one per RPC. ``wake`` is called after a change."""

    def __init__(
        self,
        *,
        storage: Storage,
        board: Board,
        populations: Populations,
        key: SigningKey,
        statuses: TaskStatuses,
        admission: TaskAdmission,
        wake: Callable[[], None],
        log: Log,
    ) -> None:
        self._storage = storage
        self._board = board
        self._populations = populations
        self._key = key
        self._statuses = statuses
        self._admission = admission
        self._wake = wake
        self._log = log

    def check_in(self, request: server_pb2.CheckInRequest) -> server_pb2.CheckInResponse:
        if not self._board.knows(request.population):
            identifier(population=request.population)
        return self._board.answer(request.population)

    def get_model(self, request: server_pb2.GetModelRequest) -> server_pb2.GetModelResponse:
        if (model := self._board.model(request.population, of_examples=request.of_examples)) is None:
            identifier(population=request.population)
            kind = "predicts of examples" if request.of_examples else "scores items"
            raise NotFound(f"population {request.population!r} has no trained model yet that {kind}; ask again later")
        return model

    def submit_task(self, requests: Iterator[server_pb2.SubmitTaskRequest]) -> server_pb2.SubmitTaskResponse:
        request = whole_request(requests)
        task = checked_task(request, self._key)
        if self._storage.task(task.sha256) is None:
            self._admission.require(task, request.definition)
        if self._storage.add_task(task, item_features=request.item_features):
            self._log.event("task_submitted", task=short(task.sha256), name=task.name, population=task.population)
            self._changed()
        return server_pb2.SubmitTaskResponse(task_sha256=task.sha256)

    def get_task(self, request: server_pb2.GetTaskRequest) -> server_pb2.GetTaskResponse:
        task = self._task(request.task_sha256)
        return server_pb2.GetTaskResponse(status=self._statuses.of(task, release_bytes=_RELEASES_PER_ANSWER))

    def list_tasks(self, _: server_pb2.ListTasksRequest) -> server_pb2.ListTasksResponse:
        left, tasks = _RELEASES_PER_ANSWER, []
        for task in self._storage.tasks():
            tasks.append(self._statuses.of(task, release_bytes=left))
            left -= sum(len(entry.release.release) for entry in tasks[-1].rounds)
        return server_pb2.ListTasksResponse(tasks=tasks)

    def cancel_task(self, request: server_pb2.CancelTaskRequest) -> server_pb2.CancelTaskResponse:
        task = self._task(request.task_sha256)
        # The count first: a kill in between leaves a training that its count ends.
        for ended in (unneeded_count(self._storage, task), task):
            if ended is not None and self._storage.end_task(ended.sha256, TaskState.CANCELLING):
                self._log.event("task_cancelled", task=short(ended.sha256), name=ended.name)
                self._changed()
        return server_pb2.CancelTaskResponse()

    def pause_task(self, request: server_pb2.PauseTaskRequest) -> server_pb2.PauseTaskResponse:
        self._set_paused(request.task_sha256, True)
        return server_pb2.PauseTaskResponse()

    def resume_task(self, request: server_pb2.ResumeTaskRequest) -> server_pb2.ResumeTaskResponse:
        self._set_paused(request.task_sha256, False)
        return server_pb2.ResumeTaskResponse()

    def get_population(self, request: server_pb2.GetPopulationRequest) -> server_pb2.GetPopulationResponse:
        identifier(population=request.population)
        charter = self._populations.refreshed(request.population)
        return server_pb2.GetPopulationResponse(charter=charter, server_key=self._key.public)

    def change_population(self, request: server_pb2.ChangePopulationRequest) -> server_pb2.ChangePopulationResponse:
        signed, missing = self._populations.change(request.charter)
        if not missing:
            self._changed()
        return server_pb2.ChangePopulationResponse(charter=signed, missing=missing)

    def _task(self, sha256: bytes) -> TaskRecord:
        check_length("task_sha256", sha256, HASH_BYTES)
        if (task := self._storage.task(sha256)) is None:
            raise NotFound(f"task {short(sha256)} is not known to this server; ListTasks lists the known ones")
        return task

    def _set_paused(self, sha256: bytes, paused: bool) -> None:
        task = self._task(sha256)
        if not task.planned_rounds:
            raise ConfigurationError(f"task {task.name!r} of local trust has no rounds between which it could pause")
        if task.state is not TaskState.ACTIVE:
            raise ConfigurationError(f"task {task.name!r} is over: its state is {task.state.name}")
        if self._storage.set_paused(task.sha256, paused):
            self._log.event("task_paused" if paused else "task_resumed", task=short(task.sha256), name=task.name)
            self._changed()

    def _changed(self) -> None:
        self._board.refresh()
        self._wake()


def server_servicer(
    service: ServerService, *, operator: OperatorToken, log: Log
) -> server_pb2_grpc.ServerServiceServicer:
    """The gRPC face of ``service``: whatever devices do not call needs the operator's token."""

    def operator_only(method: Callable[[Any], object]) -> Callable[[Any, Any], object]:
        def checked(request: object, context: grpc.ServicerContext) -> object:
            operator.require(context)
            return method(request)

        return checked

    return servicer(
        server_pb2_grpc.ServerServiceServicer,
        log,
        {
            "CheckIn": lambda request, _: service.check_in(request),
            "GetModel": lambda request, _: service.get_model(request),
            "SubmitTask": operator_only(service.submit_task),
            "GetTask": operator_only(service.get_task),
            "ListTasks": operator_only(service.list_tasks),
            "CancelTask": operator_only(service.cancel_task),
            "PauseTask": operator_only(service.pause_task),
            "ResumeTask": operator_only(service.resume_task),
            "GetPopulation": operator_only(service.get_population),
            "ChangePopulation": operator_only(service.change_population),
        },
    )


def whole_request(requests: Iterator[server_pb2.SubmitTaskRequest]) -> server_pb2.SubmitTaskRequest:
    """The messages of a submission as one. Raises ConfigurationError if a later one has more than item features."""
    whole = next(requests, None) or server_pb2.SubmitTaskRequest()
    features = bytearray(whole.item_features)
    largest = _LARGEST_START if whole.definition.network.start_sha256 else _LARGEST_FEATURES
    for request in requests:
        if request.HasField("definition"):
            raise ConfigurationError("Expected the task definition in the first message alone")
        if len(features) + len(request.item_features) > largest:
            raise ConfigurationError(f"Expected item_features of at most {largest} bytes")
        features += request.item_features
    whole.item_features = bytes(features)
    return whole


def checked_task(request: server_pb2.SubmitTaskRequest, key: SigningKey) -> TaskRecord:
    """The task of a request, signed and ready to be stored.

    Raises ConfigurationError, one line, for whatever would make an enclave or a device refuse it later: a field out of
    its range, a field that this version does not know, releases that do not fit one message, or a matrix that
    is not the one which the definition names.
    """
    if not request.HasField("definition"):
        raise ConfigurationError("Expected a task definition, got none")
    unsigned = request.definition
    if unsigned.ByteSize() > LARGEST_DEFINITION:
        raise ConfigurationError(
            f"Expected a task definition of at most {LARGEST_DEFINITION} bytes, got {unsigned.ByteSize()}"
        )
    if unsigned.developer_key not in (b"", key.public):
        raise ConfigurationError("Expected developer_key to be empty: the server fills in its own")
    _refuse_unknown_fields(unsigned)
    signed = sign_task(unsigned, key)
    definition = open_task(signed)
    algorithm = algorithm_for(definition)
    algorithm.public_matrix_from(request.item_features)
    # Every release has a number per item: this refuses most of the too large ones before their arrays are made.
    _check_release_bytes(definition, _INTEGER_BYTES * definition.model.items)
    before: object = None
    for number, releases in enumerate(algorithm.planned_releases()):
        _check_release_bytes(definition, release_bytes(releases))
        if releases is not before:
            require_sizes(algorithm.query(number), definition)
        before = releases
    return TaskRecord(
        sha256=task_sha256(signed),
        name=definition.name,
        population=definition.population,
        definition=signed.definition,
        signature=signed.signature,
        planned_rounds=len(algorithm.planned_releases()),
    )


def _check_release_bytes(definition: common_pb2.TaskDefinition, size: int) -> None:
    if definition.HasField("model") and size > LARGEST_ATTACHED_BYTES:
        raise ConfigurationError(
            f"Expected rank={definition.model.rank} with items={definition.model.items} to give releases of at most "
            f"{LARGEST_ATTACHED_BYTES} bytes, got {size}; lower the rank or the items"
        )


def _refuse_unknown_fields(definition: common_pb2.TaskDefinition) -> None:
    # A dropped field would be a term that the developer asked for and nobody keeps.
    understood = common_pb2.TaskDefinition()
    understood.CopyFrom(definition)
    understood.DiscardUnknownFields()
    if understood.ByteSize() != definition.ByteSize():
        raise ConfigurationError("the task definition has fields that this server does not know; upgrade the server")


def _newest_that_fit(rounds: list[RoundRecord], bytes_left: int) -> set[int]:
    chosen = set()
    for entry in reversed(rounds):
        bytes_left -= entry.release_bytes
        if bytes_left < 0:
            break
        chosen.add(entry.round)
    return chosen
