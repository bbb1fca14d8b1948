"""What a server takes in of another one's changes, and what it says and does while the database is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from conformance.postgresql import PostgresqlServer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odp.errors import StateError, StoreUnreachable
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.random_source import RandomSource
from odp.transport.channel import call, connect
from odp.transport.logs import Log
from odp.v1 import local_pb2, local_pb2_grpc, server_pb2, server_pb2_grpc
from server.local.steps import reporter_of
from server.program import Config, RunningServer, start
from server.replica import EVERY, Follower, Replica, place_of
from server.shared_log import SharedLog
from server.storage import TaskState
from tests.server.conftest import Lines
from tests.server.test_local_desk import statistics
from tests.server.test_shared_log import KEY

SECONDS = 30.0
_pause = threading.Event().wait


def until(true: Callable[[], object], *, what: str) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if true():
            return
        _pause(0.02)
    pytest.fail(f"{what} did not happen in {SECONDS:.0f} s")


class Switch:
    """A database that a test takes away, and what health checks are told."""

    def __init__(self) -> None:
        self.lost = False
        self.told: list[bool] = []
        self.looks = 0

    def look(self) -> None:
        self.looks += 1
        if self.lost:
            raise StoreUnreachable("database db/odp cannot be reached: no route; check the address, and that it runs")


@pytest.fixture
def switch() -> Iterator[tuple[Switch, Lines]]:
    made, lines = Switch(), Lines()
    log = Log("server", stream=lines)  # type: ignore[arg-type]  # the two methods that Log calls
    replica = Replica(renew=made.look, look=made.look, serving=made.told.append, log=log)
    replica.start()
    yield made, lines
    replica.stop()


def test_a_lost_database_is_one_line_and_not_serving_until_it_is_back(switch: tuple[Switch, Lines]) -> None:
    made, lines = switch
    until(lambda: made.looks > 3, what="a look")
    assert made.told == []
    made.lost = True
    until(lambda: made.told == [False], what="the end of serving")
    looks = made.looks
    until(lambda: made.looks > looks + 3, what="further looks")
    made.lost = False
    until(lambda: made.told == [False, True], what="serving")
    text = lines.text
    assert text.count("database_lost") == 1
    assert "db/odp cannot be reached" in text
    assert text.count("database_answers_again") == 1


def test_a_copy_of_a_state_folder_is_another_place(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert place_of(tmp_path / "one") == place_of(tmp_path / "link") != place_of(tmp_path / "two")
    assert len(place_of(tmp_path)) <= 64


class Nothing:
    """Stands for what a test does not look at."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_a_follower_shows_what_the_leader_did_and_reads_nothing_where_nothing_changed(
    world: Any, definition: Any, tmp_path: Path
) -> None:
    files = SharedLog.join(tmp_path / "log", KEY, world.storage.log_rows, clock=world.clock)
    populations, board = world.populations(), world.board()
    follower = Follower(
        files=files, populations=populations, board=board, values=Nothing(), local=Nothing(), leads=Nothing(),
        log=world.log,
    )  # fmt: skip
    sha256 = world.submit(definition)
    world.aggregator.contributions = 1
    world.run(world.driver())
    assert not board.answer("viewers").HasField("assignment"), "not seen yet"
    for _ in range(EVERY):
        follower.look()
    assert board.answer("viewers").assignment.round == 0
    before = board.answer("viewers")
    for _ in range(EVERY):
        follower.look()
    assert board.answer("viewers") is before, "it was not made again"
    world.storage.end_task(sha256, TaskState.CANCELLING)
    for _ in range(EVERY):
        follower.look()
    assert not board.knows("viewers")
    files.close()


@pytest.fixture
def configs(world: Any, tmp_path: Path, postgresql: PostgresqlServer) -> Callable[..., Config]:
    schema = f"program_{abs(hash(tmp_path))}"
    postgresql.execute(f"CREATE SCHEMA {schema}")

    def config(name: str, **changes: Any) -> Config:
        given: dict[str, Any] = {
            "state": tmp_path / name,
            "listen": "127.0.0.1:0",
            "distributor": "127.0.0.1:1",
            "aggregator": world.services.aggregator_address,
            "distributor_control": world.services.distributor_control,
            "aggregator_control": world.services.aggregator_control,
            "ca_folder": world.services.ca_folder,
            "database": postgresql.url(schema=schema),
        }
        return Config(**(given | changes))

    return config


def copy_keys(one: Path, two: Path) -> None:
    two.mkdir(mode=0o700)
    for name in ("developer.key", "operator.token", "log.key"):
        (two / name).write_bytes((one / name).read_bytes())
        (two / name).chmod(0o600)


def states(running: RunningServer) -> list[server_pb2.TaskStatus]:
    token = running.token_path.read_text().strip()
    with connect(running.address, running.ca_pem) as channel:
        reply: server_pb2.ListTasksResponse = call(
            server_pb2_grpc.ServerServiceStub(channel).ListTasks, server_pb2.ListTasksRequest(), timeout=10.0,
            what="list tasks", address=running.address, metadata=[("authorization", f"Bearer {token}")],
        )  # fmt: skip
    return list(reply.tasks)


def test_a_server_with_other_keys_is_refused_and_one_with_copies_serves_the_same_tasks(
    configs: Callable[..., Config], world: Any, definition: Any
) -> None:
    world.aggregator.contributions = 5
    one = start(configs("one"))
    try:
        with pytest.raises(StateError, match=r"developer\.key of this state folder is not that of the servers"):
            start(configs("strange"))
        copy_keys(configs("one").state, configs("two").state)
        two = start(configs("two"))
        try:
            assert one.developer_key == two.developer_key
            assert one.log_key == two.log_key
            definition.developer_key = one.developer_key
            token = two.token_path.read_text().strip()
            with connect(f"{one.address},{two.address}", two.ca_pem) as channel:
                call(
                    server_pb2_grpc.ServerServiceStub(channel).SubmitTask,
                    iter([server_pb2.SubmitTaskRequest(definition=definition)]), timeout=10.0, what="submit a task",
                    address=two.address, metadata=[("authorization", f"Bearer {token}")],
                )  # fmt: skip
            for running in (one, two):
                until(
                    lambda running=running: states(running)[0].state == server_pb2.TaskStatus.STATE_FINISHED,
                    what="the end of the task",
                )
            # By the charter of a world without a log, the order of a task is the same for both servers.
            assert states(one)[0].rounds == states(two)[0].rounds
            assert len(world.aggregator.drawn) == 3
        finally:
            two.stop()
    finally:
        one.stop()


def test_reports_of_local_trust_are_taken_by_both_servers_until_the_task_has_all(
    configs: Callable[..., Config], world: Any
) -> None:
    one = start(configs("one"))
    copy_keys(configs("one").state, configs("two").state)
    two = start(configs("two"))
    try:
        definition = statistics(goal=4).definition()
        definition.developer_key = one.developer_key
        token = one.token_path.read_text().strip()
        with connect(one.address, one.ca_pem) as channel:
            reply = server_pb2_grpc.ServerServiceStub(channel).SubmitTask(
                iter([server_pb2.SubmitTaskRequest(definition=definition)]), timeout=10.0,
                metadata=[("authorization", f"Bearer {token}")],
            )  # fmt: skip
        reporter = reporter_of(definition)
        request = server_pb2.CheckInRequest(population=definition.population)
        for number in range(4):
            running = (one, two)[number % 2]
            with connect(running.address, running.ca_pem) as channel:
                server = server_pb2_grpc.ServerServiceStub(channel)
                until(lambda server=server: server.CheckIn(request, timeout=10.0).HasField("local"), what="the task")
                content = reporter.empty_report(b"", source=RandomSource(SeededNoise(number)))
                answer = local_pb2_grpc.LocalServiceStub(channel).Report(
                    local_pb2.ReportRequest(
                        task_sha256=reply.task_sha256, report_id=number.to_bytes(32, "big"), report=content
                    ),
                    timeout=10.0,
                )
                assert answer == local_pb2.ReportResponse()
        for running in (one, two):
            until(
                lambda running=running: states(running)[0].state == server_pb2.TaskStatus.STATE_FINISHED,
                what="the end of the task",
            )
            assert states(running)[0].reports == 4
            with connect(running.address, running.ca_pem) as channel:
                server = server_pb2_grpc.ServerServiceStub(channel)
                until(
                    lambda server=server: not server.CheckIn(request, timeout=10.0).HasField("local"),
                    what="the end of reports",
                )
    finally:
        two.stop()
        one.stop()


def health(running: RunningServer) -> int:
    with connect(running.address, running.ca_pem) as channel:
        return int(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10.0).status)


@pytest.mark.slow
def test_a_database_that_crashes_in_the_middle_is_waited_for_and_nothing_is_lost(
    configs: Callable[..., Config], world: Any, definition: Any
) -> None:
    """A database of its own, which is stopped as a crash does and started again."""
    serving = health_pb2.HealthCheckResponse
    with PostgresqlServer.started() as postgresql:
        running = start(configs("one", database=postgresql.url()), log=world.log)
        try:
            definition.developer_key = running.developer_key
            token = running.token_path.read_text().strip()
            metadata = [("authorization", f"Bearer {token}")]
            with connect(running.address, running.ca_pem) as channel:
                stub = server_pb2_grpc.ServerServiceStub(channel)
                stub.SubmitTask(
                    iter([server_pb2.SubmitTaskRequest(definition=definition)]), timeout=10.0, metadata=metadata
                )
                check_in = server_pb2.CheckInRequest(population="viewers")
                until(lambda: stub.CheckIn(check_in, timeout=10.0).HasField("assignment"), what="the first round")
                postgresql.stop()
                until(lambda: health(running) == serving.NOT_SERVING, what="the end of serving")
                with pytest.raises(grpc.RpcError) as refused:
                    stub.ListTasks(server_pb2.ListTasksRequest(), timeout=30.0, metadata=metadata)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
                assert refused.value.details() == "the service cannot use its storage; see its log"
                assert stub.CheckIn(check_in, timeout=10.0).HasField("assignment"), "from memory"
                world.aggregator.contributions = 5
                postgresql.start()
                until(lambda: health(running) == serving.SERVING, what="serving")
                until(
                    lambda: states(running)[0].state == server_pb2.TaskStatus.STATE_FINISHED, what="the end of the task"
                )
            assert len(world.aggregator.drawn) == 3
            assert world.lines.text.count("database_lost") == 1
        finally:
            running.stop()
