"""Tasks of local trust over the real platform: devices report to the server alone, and no enclave sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
from callers import control_channel
from e2e.world import World

import device_runtime
import odp
from device_runtime.host.provision import provision
from device_runtime.store.schema import State
from device_runtime.store.store import Store, store_path
from odp.algorithms.dense.population import records_of
from odp.algorithms.draw_and_discard.model import LocalModel
from odp.algorithms.local_heavy_hitters.terms import Terms
from odp.algorithms.local_reports import LocalReports
from odp.algorithms.local_seam import SourceWords
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.algorithms.registry import algorithm_for
from odp.datasets import Ratings
from odp.privacy.mechanisms.random_source import RandomSource
from odp.services.connection import TaskHandle
from odp.signed.task import open_task
from odp.transport.channel import connect
from odp.v1 import aggregator_pb2, local_pb2, local_pb2_grpc, server_pb2
from server.clients import AggregatorClient

LIMITS = device_runtime.Limits(min_cohort=20, max_local_epsilon=50.0)


def statistics(users: int, **changes: object) -> odp.Statistics:
    given: dict[str, object] = {
        "name": "stars", "population": "films", "trust": "local",
        "queries": {"seen": odp.Histogram(bins=5), "stars": odp.Mean(low=0, high=6)},
        "privacy": odp.UserLevelDP(epsilon=4, delta=1e-5),
        "cohort": odp.Cohort(minimum=20, goal=users),
    }  # fmt: skip
    return odp.Statistics(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.representative
def test_the_server_counts_what_each_device_reports_once(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one word for all coins, the reports of devices are those of the same users in one computation."""
    word = np.uint64(0xC123456789ABCDEF)
    monkeypatch.setattr(SourceWords, "words", lambda self, purpose, attempt=0: np.full(self._users, word))
    world = World(tmp_path).start(stack)
    handle = world.connection.submit(statistics(24))
    status = world.finish(handle, world.devices(ratings, limits=LIMITS))
    assert (status.reports, list(status.rounds), status.planned_rounds) == (24, [], 0)
    terms = ReportTerms.of(open_task(status.task).local_statistics.reports)
    own = dict.fromkeys(("seen", "stars"), records_of(ratings, 0, 24))
    cells = terms.reports(own, SourceWords(RandomSource(), 24), users=24)
    found = handle.results()
    assert (found.contributions, found.delta) == (24, 0.0)
    counts = np.bincount(cells, minlength=terms.cells)
    from odp.algorithms.local_statistics.results import answers_of

    assert found.to_json() == answers_of(terms, counts, epsilon=terms.epsilon, delta=0.0).to_json()
    for device in range(24):
        with Store.open(store_path(world.root / "devices", device)) as store:
            (line,) = store.ledger()
            assert (line.state, line.recipient, line.image_digest, line.refusal) == (State.SENT, b"", "", None)
            assert store.empty_contributions() == 0
            assert line.sealed is None


def test_devices_train_instances_of_a_model_and_come_back_when_due(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    world = World(tmp_path, with_tokens=False).start(stack)
    generator = np.random.default_rng(1)
    people = odp.data.ExampleColumns.of_users(
        {"x": generator.random(60), "label": generator.integers(0, 2, 60).astype(np.float64)}, np.arange(60) // 3
    )
    task = odp.DrawAndDiscard(
        name="clicks", population="films", features={"x": odp.Number()}, epsilon=2.0, instances=5, most_reports=3,
        seconds_between=1, most_updates=60, false_alarms=0.0,
    )  # fmt: skip
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(examples=people, limits=device_runtime.Limits(
        max_epsilon=50.0, max_total_epsilon=50.0, max_total_epsilon_30_days=50.0, max_developer_epsilon=50.0,
        max_developer_epsilon_30_days=50.0,
    )))  # fmt: skip
    assert status.reports == 60
    assert status.state == server_pb2.TaskStatus.STATE_FINISHED
    found = handle.results()
    assert isinstance(found, LocalModel)
    assert found.contributions == 60
    assert set(found.named) == {"intercept", "x"}
    assert 0 < found.deviation < 1


def test_devices_report_words_whose_counts_are_those_of_one_computation(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with the words of apps; one device has none."""
    word = np.uint64(0x8123456789ABCDEF)
    monkeypatch.setattr(SourceWords, "words", lambda self, purpose, attempt=0: np.full(self._users, word))
    words = ("cab",) * 12 + ("cad",) * 11
    provision(tmp_path / "devices", ratings)
    for device, text in enumerate(words):
        with Store.open(store_path(tmp_path / "devices", device)) as store:
            store.data("keyboard").add_event("typed", {"word": text}, time=1e9)
    world = World(tmp_path, with_tokens=False).start(stack)
    asked = odp.HeavyHitters(
        name="new-words", population="films", trust="local", alphabet="abcd", length=4,
        events=odp.Events(service="keyboard", type="typed", item="word"),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5), cohort=odp.Cohort(minimum=20, goal=24),
    )  # fmt: skip
    handle = world.connection.submit(asked)
    status = world.finish(handle, world.devices(ratings, limits=LIMITS))
    assert status.reports == 24
    terms = Terms.of(open_task(status.task))
    coins = SourceWords(RandomSource(), 24)
    cells = terms.reports(np.arange(len(words)), np.array(words), coins, users=24)
    algorithm = algorithm_for(open_task(status.task))
    assert isinstance(algorithm, LocalReports)
    expected = algorithm.answers_of_counts(np.bincount(cells, minlength=terms.cells))
    assert handle.results().to_json() == expected.to_json()


def test_reports_need_a_token_where_the_population_says_so(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """Who runs no enrolled device changes no row, and who shows another device's token neither."""
    world = World(tmp_path).start(stack)
    people = odp.data.ExampleColumns.of_users(
        {"x": np.full(4, 0.5), "label": np.array([0.0, 1.0, 0.0, 1.0])}, np.arange(4)
    )
    task = odp.DrawAndDiscard(
        name="clicks", population="films", features={"x": odp.Number()}, epsilon=2.0, instances=3, most_updates=5,
        false_alarms=0.0,
    )  # fmt: skip
    with pytest.raises(odp.errors.ServiceError, match="seconds_between=60"):
        # Each of the reports would need a token of its own.
        world.connection.submit(dataclasses.replace(task, most_reports=2, seconds_between=60))
    handle = world.connection.submit(task)
    devices, pause = world.devices(examples=people, limits=LIMITS), threading.Event()
    for _ in range(600):
        if handle.status().reports == 4:
            break
        pause.wait(0.1)
    devices.stop()
    status = handle.status()
    assert status.reports == 4
    sent = [_sent(world, device) for device in range(4)]
    with connect(world.server.address, world.ca.read_bytes()) as channel:
        stub = local_pb2_grpc.LocalServiceStub(channel)
        row = stub.Draw(local_pb2.DrawRequest(task_sha256=handle.task_sha256), timeout=30).row
        for token in (b"", bytes(256), bytes(255)):
            request = local_pb2.ReportRequest(
                task_sha256=handle.task_sha256, report_id=bytes(32), report=row, token=token, period=0
            )
            assert stub.Report(request, timeout=30).refusal == aggregator_pb2.REFUSAL_NO_TOKEN
            request.period = 7
            assert stub.Report(request, timeout=30).refusal == aggregator_pb2.REFUSAL_NO_TOKEN
        again = local_pb2.ReportRequest(task_sha256=handle.task_sha256, report_id=sent[0], report=row)
        assert stub.Report(again, timeout=30).refusal == 0, "it was taken before, and counts no second time"
        for request, code in (
            (local_pb2.ReportRequest(task_sha256=bytes(32), report_id=bytes(32)), grpc.StatusCode.NOT_FOUND),
            (local_pb2.ReportRequest(task_sha256=bytes(3), report_id=bytes(32)), grpc.StatusCode.INVALID_ARGUMENT),
            (
                local_pb2.ReportRequest(task_sha256=handle.task_sha256, report_id=bytes(16)),
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                stub.Report(request, timeout=30)
            assert refused.value.code() is code
        with pytest.raises(grpc.RpcError) as refused:
            stub.GetResults(local_pb2.GetResultsRequest(task_sha256=handle.task_sha256), timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert handle.status().reports == 4
    before = handle.results()
    handle.cancel()
    assert handle.status().state == server_pb2.TaskStatus.STATE_CANCELLED or _cancelled(handle)
    assert handle.results().to_json() == before.to_json(), "what was reported stays readable"


def _sent(world: World, device: int) -> bytes:
    with Store.open(store_path(world.root / "devices", device)) as store:
        (line,) = store.ledger()
        return line.contribution_id


def _cancelled(handle: TaskHandle) -> bool:
    pause = threading.Event()
    for _ in range(600):
        if handle.status().state == server_pb2.TaskStatus.STATE_CANCELLED:
            return True
        pause.wait(0.05)
    return False


def test_an_enclave_that_is_handed_such_a_task_refuses_it(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    world = World(tmp_path, with_tokens=False).start(stack)
    task = odp.DrawAndDiscard(name="clicks", population="films", features={"x": odp.Number()}, epsilon=2.0)
    handle = world.connection.submit(task)
    control = stack.enter_context(control_channel(world.aggregator, tmp_path, tmp_path / "ca"))
    public = stack.enter_context(connect(world.aggregator.address, world.ca.read_bytes()))
    client = AggregatorClient(
        public, control, address=world.aggregator.address, control_address=world.aggregator.control_address
    )
    with pytest.raises(odp.errors.ServiceError, match="Expected a task with rounds"):
        client.check_task(handle.status().task)
