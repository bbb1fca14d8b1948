"""ServerService: devices check in, the operator submits and watches tasks.

Devices are anonymous and answered from memory (``server.board``). Everything else needs the operator's token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from server.counting import require_count
from server.local.desk import Desk
from server.local.steps import require_periods
from server.operator_token import OperatorToken
from server.populations import Populations
from server.storage import RoundRecord, Storage, TaskRecord, TaskState
from server.waits import Wait

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


def server_servicer(
    *,
    storage: Storage,
    board: Board,
    populations: Populations,
    key: SigningKey,
    operator: OperatorToken,
    wake: Callable[[], None],
    waits_for: Callable[[bytes], Wait | None] = lambda task_sha256: None,
    check_task: Callable[[common_pb2.SignedTask], object] = lambda task: None,
    distributor_of: Callable[[bytes], str],
    aggregator_address: str,
    desk: Desk | None = None,
    require_catalogue: Callable[[common_pb2.TaskDefinition], None] = lambda definition: None,
    log: Log,
) -> server_pb2_grpc.ServerServiceServicer:
    """The service. ``wake`` is called after a change.

    ``distributor_of`` gives the address of one that holds a task's models.
    ``waits_for`` says what a task waits for; ``check_task`` asks the aggregator whether a task could begin.
    ``desk`` has the tasks of local trust. ``require_catalogue`` refuses a task that may not name its catalogue version.
    """
    # By task and round: a release never changes, and may be long.
    spent: dict[tuple[bytes, int], float] = {}

    def operator_only(method: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
        def checked(request: object, context: grpc.ServicerContext) -> object:
            operator.require(context)
            return method(request, context)

        return checked

    def status(task: TaskRecord, room: int) -> server_pb2.TaskStatus:
        published = storage.published_version(task.sha256)
        wait = None if task.state in _OVER else waits_for(task.sha256)
        rounds = storage.rounds(task.sha256)
        with_release = _newest_that_fit(rounds, room)
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
                    release=storage.release(task.sha256, entry.round) if entry.round in with_release else None,
                )
                for entry in rounds
            ],
            planned_rounds=task.planned_rounds,
            model=None if published is None else published.signed,
            distributor_address=distributor_of(task.sha256),
            aggregator_address=aggregator_address,
            waits_for=None if wait is None else server_pb2.TaskWait(reason=wait.reason, until=wait.until or 0.0),
            epsilon_spent=epsilon_spent(task.sha256, rounds),
            paused=task.paused,
            reports=0 if task.planned_rounds or desk is None else desk.count(task.sha256),
        )

    def require_accepted(task: TaskRecord) -> None:
        """Raises PrivacyError if the aggregator refuses the task; if it does not answer, the driver asks it later."""
        if not task.planned_rounds:
            require_periods(populations, open_task(task.signed))
            return
        try:
            check_task(task.signed)
        except ServiceError as error:
            if error.code in _REFUSED:
                raise PrivacyError(str(error)) from error
            log.warning("task_not_checked", task=short(task.sha256), name=task.name, reason=str(error))

    def epsilon_spent(task: bytes, rounds: list[RoundRecord]) -> float:
        """The total epsilon in the newest release; 0 before the first."""
        newest = next((entry.round for entry in reversed(rounds) if entry.release_bytes), None)
        if newest is None:
            return 0.0
        if (task, newest) not in spent:
            release = common_pb2.Release.FromString(storage.release(task, newest).release)
            spent[task, newest] = release.epsilon_spent
        return spent[task, newest]

    def known_task(sha256: bytes) -> TaskRecord:
        check_length("task_sha256", sha256, HASH_BYTES)
        task = storage.task(sha256)
        if task is None:
            raise NotFound(f"task {short(sha256)} is not known to this server; ListTasks lists the known ones")
        return task

    def check_in(request: server_pb2.CheckInRequest, _: object) -> server_pb2.CheckInResponse:
        if not board.knows(request.population):
            identifier(population=request.population)
        return board.answer(request.population)

    def get_model(request: server_pb2.GetModelRequest, _: object) -> server_pb2.GetModelResponse:
        found = board.model(request.population)
        if found is None:
            identifier(population=request.population)
            raise NotFound(f"population {request.population!r} has no trained model yet; ask again later")
        return found

    def submit_task(requests: Iterator[server_pb2.SubmitTaskRequest], _: object) -> server_pb2.SubmitTaskResponse:
        request = whole_request(requests)
        task = checked_task(request, key)
        if storage.task(task.sha256) is None:
            require_catalogue(request.definition)
            require_count(storage, request.definition)
            require_accepted(task)
        if storage.add_task(task, item_features=request.item_features):
            log.event("task_submitted", task=short(task.sha256), name=task.name, population=task.population)
            board.refresh()
            wake()
        return server_pb2.SubmitTaskResponse(task_sha256=task.sha256)

    def get_task(request: server_pb2.GetTaskRequest, _: object) -> server_pb2.GetTaskResponse:
        return server_pb2.GetTaskResponse(status=status(known_task(request.task_sha256), _RELEASES_PER_ANSWER))

    def list_tasks(*_: object) -> server_pb2.ListTasksResponse:
        room, tasks = _RELEASES_PER_ANSWER, []
        for task in storage.tasks():
            tasks.append(status(task, room))
            room -= sum(len(entry.release.release) for entry in tasks[-1].rounds)
        return server_pb2.ListTasksResponse(tasks=tasks)

    def cancel_task(request: server_pb2.CancelTaskRequest, _: object) -> server_pb2.CancelTaskResponse:
        task = known_task(request.task_sha256)
        if storage.end_task(task.sha256, TaskState.CANCELLING):
            log.event("task_cancelled", task=short(task.sha256), name=task.name)
            board.refresh()
            wake()
        return server_pb2.CancelTaskResponse()

    def set_paused(task: TaskRecord, paused: bool) -> None:
        if not task.planned_rounds:
            raise ConfigurationError(f"task {task.name!r} of local trust has no rounds between which it could pause")
        if task.state is not TaskState.ACTIVE:
            raise ConfigurationError(f"task {task.name!r} is over: its state is {task.state.name}")
        if storage.set_paused(task.sha256, paused):
            log.event("task_paused" if paused else "task_resumed", task=short(task.sha256), name=task.name)
            board.refresh()
            wake()

    def pause_task(request: server_pb2.PauseTaskRequest, _: object) -> server_pb2.PauseTaskResponse:
        set_paused(known_task(request.task_sha256), True)
        return server_pb2.PauseTaskResponse()

    def resume_task(request: server_pb2.ResumeTaskRequest, _: object) -> server_pb2.ResumeTaskResponse:
        set_paused(known_task(request.task_sha256), False)
        return server_pb2.ResumeTaskResponse()

    def get_population(request: server_pb2.GetPopulationRequest, _: object) -> server_pb2.GetPopulationResponse:
        identifier(population=request.population)
        charter = populations.refreshed(request.population)
        return server_pb2.GetPopulationResponse(charter=charter, server_key=key.public)

    def change_population(
        request: server_pb2.ChangePopulationRequest, _: object
    ) -> server_pb2.ChangePopulationResponse:
        signed, missing = populations.change(request.charter)
        if not missing:
            board.refresh()
            wake()
        return server_pb2.ChangePopulationResponse(charter=signed, missing=missing)

    of_the_operator: dict[str, Callable[[Any, Any], object]] = {
        "SubmitTask": submit_task,
        "GetTask": get_task,
        "ListTasks": list_tasks,
        "CancelTask": cancel_task,
        "PauseTask": pause_task,
        "ResumeTask": resume_task,
        "GetPopulation": get_population,
        "ChangePopulation": change_population,
    }
    return servicer(
        server_pb2_grpc.ServerServiceServicer,
        log,
        {
            "CheckIn": check_in,
            "GetModel": get_model,
            **{name: operator_only(method) for name, method in of_the_operator.items()},
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
    given = request.definition
    if given.ByteSize() > LARGEST_DEFINITION:
        raise ConfigurationError(
            f"Expected a task definition of at most {LARGEST_DEFINITION} bytes, got {given.ByteSize()}"
        )
    if given.developer_key not in (b"", key.public):
        raise ConfigurationError("Expected developer_key to be empty: the server fills in its own")
    _refuse_unknown_fields(given)
    signed = sign_task(given, key)
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
    known = common_pb2.TaskDefinition()
    known.CopyFrom(definition)
    known.DiscardUnknownFields()
    if known.ByteSize() != definition.ByteSize():
        raise ConfigurationError("the task definition has fields that this server does not know; upgrade the server")


def _newest_that_fit(rounds: list[RoundRecord], room: int) -> set[int]:
    chosen = set()
    for entry in reversed(rounds):
        room -= entry.release_bytes
        if room < 0:
            break
        chosen.add(entry.round)
    return chosen
