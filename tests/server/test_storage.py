"""Compare-and-set transitions, the append-only history, and what a second process sees."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from odp.errors import StateError
from odp.signed.task import task_sha256
from odp.v1 import common_pb2, server_pb2
from server.schema import RoundState, TaskState
from server.storage import NewVersion, Storage, TaskRecord

ID = bytes(range(32))
MODEL = common_pb2.TaskDefinition(model=common_pb2.MatrixFactorizationModel(items=3)).SerializeToString()
RELEASE = common_pb2.SignedRelease(release=b"release", signature=b"s" * 64)


def task(sha256: bytes = ID, population: str = "viewers") -> TaskRecord:
    return TaskRecord(
        sha256=sha256, name="films", population=population, definition=MODEL, signature=b"s", planned_rounds=3
    )


def version(number: int) -> NewVersion:
    manifest = common_pb2.SignedManifest(manifest=b"m%d" % number, signature=b"s")
    return NewVersion(version=number, state=b"state%d" % number, tables=b"tables%d" % number, manifest=manifest)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path / "server.sqlite", clock=lambda: 7.0)
    yield made
    made.close()


def released(storage: Storage) -> None:
    storage.add_task(task())
    storage.add_first_version(ID, version(0))
    storage.mark_published(ID, 0)
    storage.open_round(ID, 0)
    storage.release_round(ID, 0, RELEASE, contributions=5)


def test_the_states_are_those_of_the_protocol() -> None:
    for states, messages in (
        (TaskState, server_pb2.TaskStatus.State),
        (RoundState, server_pb2.RoundStatus.State),
    ):
        named = {f"STATE_{state.name}": int(state) for state in states}
        assert dict(messages.items()) == {"STATE_UNSPECIFIED": 0, **named}


def test_a_task_is_added_once(storage: Storage) -> None:
    assert storage.add_task(task())
    assert not storage.add_task(task())
    assert [entry.event for entry in storage.history(ID)] == ["submitted"]


def test_tasks_come_newest_first(storage: Storage) -> None:
    ids = [bytes([number]) * 32 for number in (3, 1, 2)]
    for sha256 in ids:
        storage.add_task(task(sha256))
    storage.end_task(ids[1], TaskState.CANCELLED)
    assert [entry.sha256 for entry in storage.tasks()] == ids[::-1]
    assert [entry.sha256 for entry in storage.tasks(TaskState.ACTIVE)] == [ids[2], ids[0]]


@pytest.mark.parametrize("first", [TaskState.FINISHED, TaskState.CANCELLED, TaskState.FAILED])
def test_a_task_ends_once(storage: Storage, first: TaskState) -> None:
    storage.add_task(task())
    assert storage.end_task(ID, first, failure="why")
    for second in (TaskState.FINISHED, TaskState.CANCELLED, TaskState.FAILED):
        assert not storage.end_task(ID, second, failure="later")
    assert storage.task(ID) is not None
    assert (storage.task(ID).state, storage.task(ID).failure) == (first, "why")  # type: ignore[union-attr]


def test_a_task_that_ended_opens_no_round(storage: Storage) -> None:
    storage.add_task(task())
    storage.end_task(ID, TaskState.CANCELLED)
    assert not storage.add_first_version(ID, version(0))
    assert not storage.open_round(ID, 0)
    assert storage.rounds(ID) == []


def test_a_round_goes_through_its_states_in_order_and_once(storage: Storage) -> None:
    storage.add_task(task())
    storage.add_first_version(ID, version(0))
    assert not storage.release_round(ID, 0, RELEASE, contributions=5)
    assert not storage.apply_round(ID, 0, version(1))
    assert storage.open_round(ID, 0)
    assert not storage.open_round(ID, 0)
    assert storage.set_contributions(ID, 0, 4)
    assert not storage.apply_round(ID, 0, version(1))
    assert storage.release_round(ID, 0, RELEASE, contributions=5)
    assert not storage.release_round(ID, 0, RELEASE, contributions=6)
    assert not storage.set_contributions(ID, 0, 6)
    assert storage.apply_round(ID, 0, version(1))
    assert not storage.apply_round(ID, 0, version(1))
    (entry,) = storage.rounds(ID)
    assert (entry.state, entry.contributions, entry.opened, entry.closed) == (RoundState.APPLIED, 5, 7.0, 7.0)
    assert storage.release(ID, 0) == RELEASE


def test_applying_stores_the_next_version_and_drops_the_bytes_of_the_last(storage: Storage) -> None:
    released(storage)
    storage.apply_round(ID, 0, version(1))
    assert storage.state_and_tables(ID, 0) is None
    assert storage.state_and_tables(ID, 1) == (b"state1", b"tables1")
    newest, published = storage.newest_version(ID), storage.published_version(ID)
    assert newest is not None
    assert published is not None
    assert (newest.version, newest.published) == (1, None)
    assert (published.version, published.published) == (0, 7.0)


def test_of_many_writers_one_applies_a_round(storage: Storage, tmp_path: Path) -> None:
    released(storage)
    others = [Storage(tmp_path / "server.sqlite", clock=lambda: 8.0) for _ in range(4)]
    start = threading.Barrier(len(others))
    won: list[bool] = []

    def apply(own: Storage) -> None:
        start.wait()
        won.append(own.apply_round(ID, 0, version(1)))

    threads = [threading.Thread(target=apply, args=(own,)) for own in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, False, False, True]
    assert [entry.event for entry in storage.history(ID)].count("round_applied") == 1
    for own in others:
        own.close()


@pytest.mark.parametrize("statement", ["UPDATE task_history SET event = 'x'", "DELETE FROM task_history"])
def test_the_history_can_only_grow(storage: Storage, tmp_path: Path, statement: str) -> None:
    storage.add_task(task())
    connection = sqlite3.connect(tmp_path / "server.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()


def test_open_rounds_names_every_active_task_and_its_open_round(storage: Storage) -> None:
    storage.add_task(task())
    other, done = b"o" * 32, b"d" * 32
    storage.add_task(task(other, "readers"))
    storage.add_task(task(done, "gone"))
    storage.end_task(done, TaskState.FINISHED)
    storage.add_first_version(ID, version(0))
    storage.open_round(ID, 0)
    first, second = storage.open_rounds()
    assert (first.population, first.round) == ("viewers", 0)
    assert first.model is not None
    assert first.model.manifest == b"m0"
    assert (second.population, second.round, second.model) == ("readers", None, None)


def trained(storage: Storage, sha256: bytes, *, state: TaskState | None = None, newest: int = 2) -> None:
    """A task whose version ``newest`` is published."""
    for number in range(newest + 1):
        storage.add_first_version(sha256, version(number))
        storage.mark_published(sha256, number)
    if state is not None:
        storage.end_task(sha256, state)


def models(storage: Storage) -> dict[str, bytes]:
    """By population: the task whose model devices predict with."""
    return {entry.population: task_sha256(entry.task) for entry in storage.published_models()}


def submitted(storage: Storage, number: int, population: str = "viewers") -> bytes:
    definition = common_pb2.TaskDefinition(name=f"task-{number}", model=common_pb2.MatrixFactorizationModel(items=3))
    record = dataclasses.replace(task(ID, population), definition=definition.SerializeToString())
    record = dataclasses.replace(record, sha256=task_sha256(record.signed))
    storage.add_task(record)
    return record.sha256


def test_a_population_has_the_model_of_its_newest_finished_task(storage: Storage) -> None:
    assert models(storage) == {}
    first = submitted(storage, 1)
    trained(storage, first, state=TaskState.FINISHED)
    other = submitted(storage, 2, "readers")
    trained(storage, other, state=TaskState.FINISHED, newest=4)
    assert models(storage) == {"viewers": first, "readers": other}
    second = submitted(storage, 3)
    trained(storage, second, state=TaskState.FINISHED)
    assert models(storage) == {"viewers": second, "readers": other}
    found = {entry.population: entry.model.manifest for entry in storage.published_models()}
    assert found == {"viewers": b"m2", "readers": b"m4"}


@pytest.mark.parametrize("newest", [0, 1, 2])
@pytest.mark.parametrize("end", [None, TaskState.FAILED, TaskState.CANCELLING])
def test_a_task_that_is_not_finished_leaves_the_population_the_model_that_it_had(
    storage: Storage, newest: int, end: TaskState | None
) -> None:
    first = submitted(storage, 1)
    trained(storage, first, state=TaskState.FINISHED)
    second = submitted(storage, 2)
    assert models(storage) == {"viewers": first}
    trained(storage, second, state=end, newest=newest)
    assert models(storage) == {"viewers": first}
    storage.mark_abandoned(second)
    assert models(storage) == {"viewers": first}


def test_a_first_task_has_a_model_once_more_than_counts_went_into_it(storage: Storage) -> None:
    first = submitted(storage, 1)
    trained(storage, first, newest=1)
    assert models(storage) == {}
    trained(storage, first)
    assert models(storage) == {"viewers": first}
    failed = submitted(storage, 2)
    trained(storage, failed, state=TaskState.FAILED)
    assert models(storage) == {"viewers": first}
    storage.end_task(first, TaskState.CANCELLING)
    assert models(storage) == {"viewers": failed}


def test_a_task_of_statistics_leaves_the_population_the_model_that_it_had(storage: Storage) -> None:
    first = submitted(storage, 1)
    trained(storage, first, state=TaskState.FINISHED)
    asked = dataclasses.replace(task(b"2" * 32), definition=common_pb2.TaskDefinition(name="hours").SerializeToString())
    storage.add_task(asked)
    trained(storage, asked.sha256, state=TaskState.FINISHED)
    assert models(storage) == {"viewers": first}


def test_a_file_that_is_no_database_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "server.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match=r"server\.sqlite is damaged"):
        Storage(path)
