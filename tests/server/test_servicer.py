"""ServerService: who may ask what, and which tasks are refused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings, strategies as st

import odp
from odp._system.files.state_folder import StateFolder
from odp.cli.task import _summary
from odp.errors import OdpError, ServiceError
from odp.models.item_features import item_features_sha256
from odp.signed.task import open_task, task_sha256
from odp.transport.channel import connect
from odp.transport.service import serve
from odp.transport.tls import development_identity
from odp.v1 import common_pb2, server_pb2, server_pb2_grpc
from server import servicer as service_module
from server.operator_token import OperatorToken
from server.servicer import ServerService, TaskAdmission, TaskStatuses, checked_task, server_servicer
from server.storage import RoundState, TaskState
from server.waits import Wait
from tests.server.stepping import step_once

TOKEN = "t" * 43
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)
ID = bytes(32)
OPERATOR_CALLS = {
    "SubmitTask": server_pb2.SubmitTaskRequest(),
    "GetTask": server_pb2.GetTaskRequest(task_sha256=ID),
    "ListTasks": server_pb2.ListTasksRequest(),
    "CancelTask": server_pb2.CancelTaskRequest(task_sha256=ID),
}


class Served:
    """The servicer behind TLS; ``wakes`` counts how often the driver was woken."""

    def __init__(self, world: Any, tls: Any) -> None:
        self.wakes = 0
        self.refuses: OdpError | None = None
        self.wait: Wait | None = None
        self.board = world.board()
        populations = world.populations()
        service = ServerService(
            storage=world.storage,
            board=self.board,
            populations=populations,
            key=world.key,
            statuses=TaskStatuses(
                storage=world.storage,
                waits_for=lambda sha256: self.wait,
                distributor_of=lambda task: "distributor.example:7201",
                aggregator_address="aggregator.example:7202",
            ),
            admission=TaskAdmission(
                storage=world.storage, populations=populations, check_task=self._check, log=world.log
            ),
            wake=self._wake,
            log=world.log,
        )
        answering = server_servicer(service, operator=OperatorToken(TOKEN, "operator.token"), log=world.log)
        self.server = serve(
            address="127.0.0.1:0",
            identity=tls,
            add=lambda server: server_pb2_grpc.add_ServerServiceServicer_to_server(answering, server),
            service_names=[service_module.NAME],
        )
        self.channel = connect(self.server.address, tls.ca_pem)
        self.stub = server_pb2_grpc.ServerServiceStub(self.channel)

    def _check(self, task: common_pb2.SignedTask) -> None:
        if self.refuses is not None:
            raise self.refuses

    def _wake(self) -> None:
        self.wakes += 1

    def submit(self, definition: common_pb2.TaskDefinition) -> bytes:
        request = server_pb2.SubmitTaskRequest(definition=definition)
        return self.stub.SubmitTask(iter([request]), timeout=60, metadata=AUTHORIZED).task_sha256

    def refused(self, method: str, request: Any, metadata: Any = AUTHORIZED) -> tuple[grpc.StatusCode, str]:
        if method == "SubmitTask":
            request = iter([request])
        with pytest.raises(grpc.RpcError) as caught:
            getattr(self.stub, method)(request, timeout=60, metadata=metadata)
        return caught.value.code(), caught.value.details()


@pytest.fixture
def served(world: Any, tmp_path: Any) -> Iterator[Served]:
    with StateFolder.open(tmp_path / "tls", "server") as state:
        made = Served(world, development_identity(state, world.services.ca_folder))
        yield made
        made.channel.close()
        made.server.stop(0.1)


@pytest.mark.parametrize("method", OPERATOR_CALLS)
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", ""),),
        (("authorization", "Bearer "),),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN[:-1]}"),),
        (("authorization", f"Bearer {TOKEN}x"),),
        (("token", f"Bearer {TOKEN}"),),
    ],
)
@pytest.mark.slow
def test_an_operators_call_without_the_token_is_refused_with_the_place_of_the_token(
    served: Served, method: str, metadata: Any
) -> None:
    code, details = served.refused(method, OPERATOR_CALLS[method], metadata)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "operator.token" in details
    assert "/" not in details
    assert TOKEN not in details
    assert "\n" not in details


def test_a_check_in_needs_no_token(served: Served) -> None:
    retry = served.stub.CheckIn(server_pb2.CheckInRequest(population="nobody"), timeout=60).retry
    assert (retry.min_seconds, retry.max_seconds) == (30, 60)


@pytest.mark.parametrize("population", ["", "Nobody", "a b", "x" * 65])
def test_a_check_in_with_a_name_that_no_population_has_is_refused(served: Served, population: str) -> None:
    code, details = served.refused("CheckIn", server_pb2.CheckInRequest(population=population), ())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "population" in details


def test_a_check_in_between_rounds_is_told_to_come_back_soon(served: Served, definition: Any) -> None:
    served.submit(definition)
    retry = served.stub.CheckIn(server_pb2.CheckInRequest(population="viewers"), timeout=60).retry
    assert (retry.min_seconds, retry.max_seconds) == (1, 2)


def test_a_check_in_asks_no_storage(world: Any, definition: Any) -> None:
    world.submit(definition)
    board = world.board()
    world.run(world.driver(board=board))
    world.storage.open_rounds = world.storage.published_models = None  # any use would raise
    answers = {id(board.answer("viewers")) for _ in range(1000)}
    assert len(answers) == 1
    assert board.answer("viewers").assignment.distributor_address == "distributor.example:7201"


def test_a_device_gets_the_newest_published_model_also_after_the_last_round(
    served: Served, world: Any, definition: Any
) -> None:
    request = server_pb2.GetModelRequest(population="viewers")
    code, details = served.refused("GetModel", request, ())
    assert code is grpc.StatusCode.NOT_FOUND
    assert "viewers" in details
    served.submit(definition)
    driver = world.driver(board=served.board)
    world.run(driver)
    assert served.refused("GetModel", request, ())[0] is grpc.StatusCode.NOT_FOUND, "untrained"
    world.aggregator.contributions = 5
    world.run(driver)
    found = served.stub.GetModel(request, timeout=60)
    assert common_pb2.ModelManifest.FromString(found.model.manifest).version == 3
    assert open_task(found.task).population == "viewers"
    assert found.distributor_address == "distributor.example:7201"


def test_a_task_that_is_submitted_and_cancelled_changes_no_recommendation(
    served: Served, world: Any, definition: Any
) -> None:
    """From its submission to its end, devices predict with the trained model of the task before."""
    request = server_pb2.GetModelRequest(population="viewers")
    driver = world.driver(board=served.board)
    first = served.submit(definition)
    world.aggregator.contributions = 5
    world.run(driver)
    trained = served.stub.GetModel(request, timeout=60)
    world.aggregator.contributions = 0
    definition.name = "films-2"
    second = served.submit(definition)
    for contributions in (0, 5):
        world.aggregator.contributions = contributions
        assert step_once(driver)
        step_once(driver)
        assert served.stub.GetModel(request, timeout=60) == trained
    served.stub.CancelTask(server_pb2.CancelTaskRequest(task_sha256=second), timeout=60, metadata=AUTHORIZED)
    assert served.stub.GetModel(request, timeout=60) == trained
    world.run(driver)
    assert world.storage.task(second).state is TaskState.CANCELLED
    assert served.stub.GetModel(request, timeout=60) == trained
    assert task_sha256(trained.task) == first


@pytest.mark.parametrize("population", ["", "Nobody", "x" * 65])
def test_a_model_of_a_name_that_no_population_has_is_refused(served: Served, population: str) -> None:
    code, _details = served.refused("GetModel", server_pb2.GetModelRequest(population=population), ())
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def told_of_two_tasks(world: Any, definition: Any, *, count: int) -> list[str]:
    """The names in ``count`` answers of a board with tasks "films" and "films-2"."""
    world.submit(definition)
    definition.name = "films-2"
    world.submit(definition)
    board = world.board()
    world.run(world.driver(board=board))
    return [open_task(board.answer("viewers").assignment.task).name for _ in range(count)]


def test_two_tasks_of_one_population_take_turns(world: Any, definition: Any) -> None:
    names = told_of_two_tasks(world, definition, count=4)
    assert sorted(names) == ["films", "films", "films-2", "films-2"]
    assert names[0] != names[1]


def test_two_callers_that_take_turns_each_see_both_tasks(world: Any, definition: Any) -> None:
    """Of 40 answers each; the false alarm is 2^-39."""
    names = told_of_two_tasks(world, definition, count=80)
    assert set(names[::2]) == set(names[1::2]) == {"films", "films-2"}


def test_a_submitted_task_is_signed_by_the_server_and_wakes_the_driver(
    served: Served, world: Any, definition: Any
) -> None:
    sha256 = served.submit(definition)
    task = world.storage.task(sha256)
    assert open_task(task.signed).developer_key == world.key.public
    assert task.planned_rounds == 3
    assert served.wakes == 1


def test_a_task_that_the_aggregator_would_refuse_is_refused_when_it_is_submitted(
    served: Served, world: Any, definition: Any
) -> None:
    served.refuses = ServiceError("could not begin the task: Expected cohort.minimum=3 to be at least 20")
    served.refuses.code = grpc.StatusCode.FAILED_PRECONDITION
    request = server_pb2.SubmitTaskRequest(definition=definition)
    with pytest.raises(grpc.RpcError) as refused:
        served.stub.SubmitTask(iter([request]), timeout=60, metadata=AUTHORIZED)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "to be at least 20" in refused.value.details()
    assert world.storage.tasks() == []
    assert served.wakes == 0


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED])
def test_a_task_is_accepted_where_the_aggregator_cannot_be_asked(
    served: Served, world: Any, definition: Any, code: grpc.StatusCode
) -> None:
    served.refuses = ServiceError("nobody answers")
    served.refuses.code = code
    assert world.storage.task(served.submit(definition)).state is TaskState.ACTIVE
    assert "task_not_checked" in world.lines.text


def test_a_known_task_is_not_asked_about_again(served: Served, definition: Any) -> None:
    first = served.submit(definition)
    served.refuses = ServiceError("round 0 is void")
    served.refuses.code = grpc.StatusCode.FAILED_PRECONDITION
    assert served.submit(definition) == first


def test_the_same_definition_again_is_the_same_task(served: Served, world: Any, definition: Any) -> None:
    first = served.submit(definition)
    world.storage.end_task(first, TaskState.CANCELLED)
    assert served.submit(definition) == first
    definition.developer_key = world.key.public
    assert served.submit(definition) == first
    assert len(world.storage.tasks()) == 1
    assert world.storage.task(first).state is TaskState.CANCELLED
    definition.name = "other"
    assert served.submit(definition) != first


def test_a_cancelled_task_says_so_until_it_is_ended_and_stays_so(served: Served, world: Any, definition: Any) -> None:
    sha256 = served.submit(definition)
    for _ in range(2):
        served.stub.CancelTask(server_pb2.CancelTaskRequest(task_sha256=sha256), timeout=60, metadata=AUTHORIZED)
    request = server_pb2.GetTaskRequest(task_sha256=sha256)
    status = served.stub.GetTask(request, timeout=60, metadata=AUTHORIZED).status
    assert status.state == server_pb2.TaskStatus.STATE_CANCELLING
    world.storage.mark_abandoned(sha256)
    status = served.stub.GetTask(request, timeout=60, metadata=AUTHORIZED).status
    assert status.state == server_pb2.TaskStatus.STATE_CANCELLED
    assert served.wakes == 2
    retry = served.stub.CheckIn(server_pb2.CheckInRequest(population="viewers"), timeout=60).retry
    assert retry.min_seconds == 30


def test_r437_a_cancelled_training_cancels_its_count(served: Served, world: Any) -> None:
    task = odp.Task(
        name="clicks", population="readers", model=odp.Glm("logistic", features=3), training=odp.DPFedAvg(rounds=2),
        data=odp.Examples({"x": odp.Tensor((3,), low=-1, high=1)}, label="clicked"),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5), cohort=odp.Cohort(minimum=20, goal=100),
        count_usable=odp.CountUsable(share=0.25),
    )  # fmt: skip
    question, definition = task.usable_question(), task.definition()
    assert question is not None
    count = served.submit(question.definition())
    definition.count_first.task_sha256 = count
    training = served.submit(definition)
    served.stub.CancelTask(server_pb2.CancelTaskRequest(task_sha256=training), timeout=60, metadata=AUTHORIZED)
    states = [world.storage.task(sha256).state for sha256 in (count, training)]
    assert states == [TaskState.CANCELLING, TaskState.CANCELLING]


def test_a_paused_task_says_so_and_devices_come_back_later(served: Served, world: Any, definition: Any) -> None:
    sha256 = served.submit(definition)

    def status() -> server_pb2.TaskStatus:
        request = server_pb2.GetTaskRequest(task_sha256=sha256)
        return served.stub.GetTask(request, timeout=60, metadata=AUTHORIZED).status

    def waits() -> int:
        return int(served.stub.CheckIn(server_pb2.CheckInRequest(population="viewers"), timeout=60).retry.min_seconds)

    for _ in range(2):
        served.stub.PauseTask(server_pb2.PauseTaskRequest(task_sha256=sha256), timeout=60, metadata=AUTHORIZED)
        assert (status().paused, status().state) == (True, server_pb2.TaskStatus.STATE_ACTIVE)
        assert waits() == 30
    for _ in range(2):
        served.stub.ResumeTask(server_pb2.ResumeTaskRequest(task_sha256=sha256), timeout=60, metadata=AUTHORIZED)
        assert not status().paused
        assert waits() == 1
    assert served.wakes == 3
    with pytest.raises(grpc.RpcError) as refused:
        served.stub.PauseTask(server_pb2.PauseTaskRequest(task_sha256=sha256), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    served.stub.CancelTask(server_pb2.CancelTaskRequest(task_sha256=sha256), timeout=60, metadata=AUTHORIZED)
    with pytest.raises(grpc.RpcError) as refused:
        served.stub.PauseTask(server_pb2.PauseTaskRequest(task_sha256=sha256), timeout=60, metadata=AUTHORIZED)
    assert "is over" in refused.value.details()


def test_a_new_task_has_a_status_without_rounds_and_model(served: Served, definition: Any) -> None:
    request = server_pb2.GetTaskRequest(task_sha256=served.submit(definition))
    status = served.stub.GetTask(request, timeout=60, metadata=AUTHORIZED).status
    assert status.state == server_pb2.TaskStatus.STATE_ACTIVE
    assert not status.rounds
    assert not status.HasField("model")


def test_a_failed_task_says_why(served: Served, world: Any, definition: Any) -> None:
    sha256 = served.submit(definition)
    world.storage.end_task(sha256, TaskState.FAILED, failure="over budget")
    listed = served.stub.ListTasks(server_pb2.ListTasksRequest(), timeout=60, metadata=AUTHORIZED).tasks
    assert [(task.state, task.failure) for task in listed] == [(server_pb2.TaskStatus.STATE_FAILED, "over budget")]


def test_tasks_are_listed_newest_first(served: Served, definition: Any) -> None:
    names = ["first", "second", "third"]
    for name in names:
        definition.name = name
        served.submit(definition)
    listed = served.stub.ListTasks(server_pb2.ListTasksRequest(), timeout=60, metadata=AUTHORIZED).tasks
    assert [open_task(task.task).name for task in listed] == names[::-1]


def test_an_answer_that_would_be_too_long_leaves_out_the_oldest_releases(
    served: Served, world: Any, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = served.submit(definition)
    world.aggregator.contributions = 5
    world.run(world.driver())
    sizes = [entry.release_bytes for entry in world.storage.rounds(sha256)]
    monkeypatch.setattr(service_module, "_RELEASES_PER_ANSWER", sizes[1] + sizes[2])
    request = server_pb2.GetTaskRequest(task_sha256=sha256)
    status = served.stub.GetTask(request, timeout=60, metadata=AUTHORIZED).status
    assert [len(entry.release.release) for entry in status.rounds] == [0, *sizes[1:]]


def test_the_epsilon_that_was_spent_is_told_while_a_round_is_open_and_where_releases_are_left_out(
    served: Served, world: Any, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = served.submit(definition)
    request = server_pb2.GetTaskRequest(task_sha256=sha256)
    driver = world.driver()

    def spent() -> float:
        status = served.stub.GetTask(request, timeout=60, metadata=AUTHORIZED).status
        assert _summary(status)["epsilon"] == status.epsilon_spent
        return status.epsilon_spent

    assert spent() == 0.0
    world.aggregator.contributions = 5
    while world.storage.round(sha256, 1) is None:
        assert spent() in (0.0, 1.0)
        step_once(driver)
    assert world.storage.round(sha256, 1).state is RoundState.OPEN
    assert spent() == 1.0
    world.run(driver)
    monkeypatch.setattr(service_module, "_RELEASES_PER_ANSWER", 0)
    assert spent() == 3.0


@pytest.mark.parametrize("method", ["GetTask", "CancelTask"])
def test_an_unknown_task_is_not_found_and_a_malformed_id_is_refused(served: Served, method: str) -> None:
    kind = type(OPERATOR_CALLS[method])
    assert served.refused(method, kind(task_sha256=ID))[0] is grpc.StatusCode.NOT_FOUND
    assert served.refused(method, kind(task_sha256=b"short"))[0] is grpc.StatusCode.INVALID_ARGUMENT


def _set(path: str, value: Any) -> Any:
    def change(definition: common_pb2.TaskDefinition) -> None:
        *parents, name = path.split(".")
        message: Any = definition
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, name, value)

    return change


MALFORMED = {
    "clip of a square beyond floats": _set("dpam.row_clip", 1e200),
    "no name": _set("name", ""),
    "name with spaces": _set("name", "my films"),
    "name of two lines": _set("name", "films\nfilms"),
    "no population": _set("population", ""),
    "no table": _set("data.table", ""),
    "no items": _set("model.items", 0),
    "rank above items": _set("model.rank", 13),
    "empty range": _set("data.low", 5.0),
    "infinite range": _set("data.high", math.inf),
    "no epsilon": _set("privacy.epsilon", 0.0),
    "epsilon is nan": _set("privacy.epsilon", math.nan),
    "delta above 1": _set("privacy.delta", 1.5),
    "no items per user": _set("privacy.max_items_per_user", 0),
    "no cohort": _set("cohort.minimum", 0),
    "goal below minimum": _set("cohort.goal", 2),
    "no round time": _set("cohort.round_seconds", 0),
    "noise of zero": _set("dpam.count_noise_std", 0.0),
    "negative noise": _set("dpam.gram_noise", -1.0),
    "noise is nan": _set("dpam.target_noise", math.nan),
    "unknown weighting": _set("dpam.weighting", 7),
    "too few slices": _set("dpam.slices_per_device", 1),
    "no training": lambda definition: definition.ClearField("dpam"),
    "another developer's key": _set("developer_key", b"k" * 32),
    "a key of another length": _set("developer_key", b"k"),
    "releases above one message": _set("model.items", 2**22),
    "a field that nobody knows": lambda definition: definition.MergeFromString(b"\xf8\x07\x01"),
    "a field that nobody knows, inside": lambda definition: definition.dpam.MergeFromString(b"\xf8\x07\x01"),
    "too long": lambda definition: definition.MergeFromString(b"\xfa\x07\x80\x80\x08" + bytes(2**17)),
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_definition_is_refused_in_one_line(
    served: Served, world: Any, definition: Any, change: Any
) -> None:
    change(definition)
    code, details = served.refused("SubmitTask", server_pb2.SubmitTaskRequest(definition=definition))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details
    assert "\n" not in details
    assert world.storage.tasks() == []
    assert served.wakes == 0


def test_a_request_without_a_definition_is_refused(served: Served) -> None:
    code, details = served.refused("SubmitTask", server_pb2.SubmitTaskRequest())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "definition" in details


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_definition_with_changed_bytes_is_a_valid_task_or_refused_in_one_line(
    world: Any, definition: Any, data: st.DataObject
) -> None:
    encoded = bytearray(definition.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    request = server_pb2.SubmitTaskRequest()
    try:
        request.definition.ParseFromString(bytes(encoded))
    except DecodeError:
        return  # gRPC refuses what is not a message
    reason = ""
    try:
        assert open_task(checked_task(request, world.key).signed).developer_key == world.key.public
    except OdpError as error:
        reason = str(error)
    assert "\n" not in reason


def test_item_features_are_stored_with_the_task_that_names_them(served: Served, world: Any, definition: Any) -> None:
    matrix = np.arange(24, dtype="<f4").reshape(12, 2)
    definition.model.item_features_width = 2
    definition.model.item_features_sha256 = item_features_sha256(matrix)
    request = server_pb2.SubmitTaskRequest(definition=definition, item_features=matrix.tobytes())
    sha256 = served.stub.SubmitTask(iter([request]), timeout=60, metadata=AUTHORIZED).task_sha256
    assert world.storage.item_features(sha256) == matrix.tobytes()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (b"", "96 bytes"),
        (np.zeros(23, dtype="<f4").tobytes(), "96 bytes"),
        (np.zeros(24, dtype="<f4").tobytes(), "SHA-256"),
        (np.full(24, np.nan, dtype="<f4").tobytes(), "finite"),
    ],
    ids=["none", "short", "another", "not a number"],
)
def test_features_other_than_the_named_ones_are_refused(
    served: Served, definition: Any, features: bytes, message: str
) -> None:
    named = features if message == "finite" else np.ones(24, dtype="<f4").tobytes()
    definition.model.item_features_width = 2
    definition.model.item_features_sha256 = hashlib.sha256(named).digest()
    request = server_pb2.SubmitTaskRequest(definition=definition, item_features=features)
    code, details = served.refused("SubmitTask", request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message in details
    assert "\n" not in details


def test_features_for_a_task_without_any_are_refused(served: Served, definition: Any) -> None:
    request = server_pb2.SubmitTaskRequest(definition=definition, item_features=bytes(4))
    code, details = served.refused("SubmitTask", request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "0 bytes" in details


@pytest.mark.parametrize(
    ("ended", "over"),
    [(TaskState.CANCELLING, TaskState.CANCELLED), (TaskState.FAILED, None)],
    ids=["cancelled", "failed"],
)
def test_a_task_that_is_being_ended_says_whom_that_waits_for_until_it_is(
    served: Served, world: Any, definition: Any, ended: TaskState, over: TaskState | None
) -> None:
    sha256 = served.submit(definition)
    served.wait = Wait("could not end the task at the aggregator: nobody answers; tried 2 times", 5.0)
    request = server_pb2.GetTaskRequest(task_sha256=sha256)

    def status() -> server_pb2.TaskStatus:
        return served.stub.GetTask(request, timeout=60, metadata=AUTHORIZED).status

    world.storage.end_task(sha256, ended)
    assert (status().waits_for.reason, status().waits_for.until) == (served.wait.reason, 5.0)
    world.storage.mark_abandoned(sha256)
    if over is not None:
        assert status().state == int(over)
        assert not status().HasField("waits_for")
