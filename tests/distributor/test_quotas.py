"""What one developer may take of a distributor, and hints of tables that many ask for at once."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributor import enclave, static_tables
from distributor.enclave import DistributorCore
from distributor.model_folders import ModelFolders
from distributor.static_tables import StaticTables
from odp.algorithms.registry import algorithm_for
from odp.crypto import HpkeKey
from odp.errors import Busy, ConfigurationError
from odp.transport.logs import Log
from odp.v1 import retrieval_pb2

KEY = HpkeKey.generate()
SECONDS = 20.0


def of(kit: Any, number: int, name: str = "films") -> Any:
    return kit.Developer(name, key=bytes(31) + bytes([number]))


def install(core: DistributorCore, model: Any) -> tuple[bytes, ...]:
    return core.install(model.task, model.manifest, model.tables)


def test_r170_a_developer_fills_its_own_share_and_others_publish_on(kit: Any) -> None:
    greedy = [of(kit, 1, f"task-{number}").model(0) for number in range(4)]
    core = DistributorCore(KEY, capacity_bytes=len(greedy[0].payload) * 9 // 2)
    for model in greedy[:2]:
        install(core, model)
    for model in greedy[2:]:
        with pytest.raises(ConfigurationError, match=r"has 2 models of .* bytes here, of at most .* end tasks"):
            core.require_room(model.task, model.manifest)
        with pytest.raises(ConfigurationError, match="has 2 models"):
            install(core, model)
    install(core, of(kit, 2).model(0))
    core.forget(greedy[0].id)
    install(core, greedy[2])


def test_r170_the_number_of_a_developers_models_is_bounded_too(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enclave, "DEVELOPER_MODELS", 3)
    core = DistributorCore(KEY)
    for number in range(3):
        install(core, of(kit, 1, f"task-{number}").model(0))
    with pytest.raises(ConfigurationError, match=r"has 3 models of .* of at most 3 models"):
        install(core, of(kit, 1, "one-more").model(0))
    install(core, of(kit, 2).model(0))


def test_r170_a_task_that_replaces_its_versions_never_meets_the_limit(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enclave, "DEVELOPER_MODELS", enclave.KEPT_VERSIONS)
    core = DistributorCore(KEY)
    for version in range(enclave.KEPT_VERSIONS + 3):
        install(core, of(kit, 1).model(version))
    assert len(core.models()) == enclave.KEPT_VERSIONS


class Place:
    """A distributor's tables of last models, whose hints take as long as the test wants."""

    def __init__(self, folder: Path, kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = ModelFolders(folder)
        self.models = []
        self.go = threading.Event()
        self.making: list[str] = []
        self.most = 0
        made = static_tables.lwe.hint

        def slow(database: Any) -> bytes:
            self.making.append(threading.current_thread().name)
            self.most = max(self.most, len(self.making))
            assert self.go.wait(SECONDS)
            self.making.pop()
            return made(database)

        monkeypatch.setattr(static_tables.lwe, "hint", slow)
        for number in range(8):
            developer = of(kit, 1, f"task-{number}")
            model = developer.model(len(algorithm_for(developer.definition).planned_releases()))
            with self.store.receive(model.id, model.task, model.manifest, len(model.payload)) as incoming:
                for table in model.tables.values():
                    incoming.write_table([table])
                incoming.commit()
            self.models.append(model)
        service: Any = SimpleNamespace(require=lambda _: None)
        self.tables = StaticTables(service, self.store, Log("distributor", stream=io.StringIO()))

    def describe(self, number: int) -> retrieval_pb2.DescribeHintResponse:
        request = retrieval_pb2.DescribeHintRequest(model_sha256=self.models[number].id, table="items")
        return self.tables.describe(request)

    def wait_for(self, number: int) -> retrieval_pb2.DescribeHintResponse:
        pause = threading.Event()
        for _ in range(int(SECONDS / 0.01)):
            try:
                return self.describe(number)
            except Busy:
                pause.wait(0.01)
        raise AssertionError("the hint never came")


@pytest.fixture
def place(tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path / "models", kit, monkeypatch)
    yield made
    made.go.set()


def in_time(call: Callable[[], object]) -> None:
    """Fails where ``call`` waits for a hint that is being made."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(call())
        except Busy as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "it waits for somebody else's hint"
    assert answers


def test_r172_whoever_asks_for_a_hint_that_is_made_holds_no_thread_and_others_are_answered(place: Place) -> None:
    place.go.set()
    place.store.keep_hint(place.models[0].id, b"")
    with pytest.raises(Busy):
        place.describe(0)
    place.wait_for(0)
    place.go.clear()
    for number in (1, 1, 2, 1):
        in_time(lambda number=number: place.describe(number))
    in_time(lambda: place.describe(0))
    place.go.set()
    assert place.wait_for(1).shape
    assert place.wait_for(2).shape


def test_r172_many_that_ask_for_many_hints_cost_one_at_a_time_and_few_tables_in_memory(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    database = StaticTables._database

    def counted(self: StaticTables, model: bytes) -> Any:
        loaded.append(model)
        return database(self, model)

    monkeypatch.setattr(StaticTables, "_database", counted)
    for _ in range(3):
        for number in range(8):
            with pytest.raises(Busy, match="try again in a moment"):
                place.describe(number)
    assert len(loaded) == static_tables._MOST_MAKING
    assert place.most <= 1
    place.go.set()
    for number in range(8):
        place.wait_for(number)
    assert place.most == 1
