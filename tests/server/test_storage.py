"""What ``server.storage.Storage`` promises, of every implementation: the conformance suite of the server's stores.

Compare-and-set transitions, the append-only history, order and uniqueness, what a second process sees, and what is left
by one that was killed between any two statements.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from conformance.dying import deaths
from conformance.servers import PostgresqlStores, ServerStores, SqliteStores

from odp.errors import ConfigurationError, StateError
from odp.signed.task import task_sha256
from odp.v1 import common_pb2, enrolment_pb2, population_pb2, server_pb2
from server.storage import NewVersion, RoundState, Storage, TaskRecord, TaskState
from server.storage.schema import dialect_of
from server.storage.sqlite import open_sqlite

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


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest) -> ServerStores:
    """Every implementation; that of PostgreSQL is skipped where it is not installed."""
    if request.param == "sqlite":
        return SqliteStores()
    return PostgresqlStores(request.getfixturevalue("postgresql"))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.proof)])
def mortal_stores(request: pytest.FixtureRequest) -> ServerStores:
    """Stores whose every step is died at: CI does so on files, as on PostgreSQL one step takes a second.

    A death there ends a connection, which ends its transaction: ``e2e/test_one_database.py`` and
    ``e2e/test_replicas.py`` kill programs on it.
    """
    if request.param == "sqlite":
        return SqliteStores()
    return PostgresqlStores(request.getfixturevalue("postgresql"))


@pytest.fixture
def storage(stores: ServerStores, tmp_path: Path) -> Iterator[Storage]:
    made = stores.open(tmp_path)
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


def test_a_pause_is_stored_once_and_ends_once(storage: Storage) -> None:
    assert not storage.set_paused(ID, True)
    storage.add_task(task())
    assert not storage.task(ID).paused  # type: ignore[union-attr]
    assert not storage.set_paused(ID, False)
    assert [entry.round for entry in storage.open_rounds()] == [None]
    assert storage.set_paused(ID, True)
    assert not storage.set_paused(ID, True)
    assert storage.task(ID).paused  # type: ignore[union-attr]
    assert [entry.paused for entry in storage.open_rounds()] == [True], "no round is coming"
    storage.add_first_version(ID, version(0))
    storage.open_round(ID, 0, ROUND_KEY)
    assert [entry.round for entry in storage.open_rounds()] == [0], "a round that is open goes on"
    assert storage.set_paused(ID, False)
    assert not storage.tasks()[0].paused
    storage.end_task(ID, TaskState.CANCELLED)
    assert not storage.set_paused(ID, True)
    assert [entry.event for entry in storage.history(ID)][1:] == ["paused", "round_opened", "resumed", "cancelled"]


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


def test_of_many_writers_one_applies_a_round(storage: Storage, stores: ServerStores, tmp_path: Path) -> None:
    released(storage)
    others = [stores.open(tmp_path, clock=lambda: 8.0) for _ in range(4)]
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
def test_the_history_can_only_grow(storage: Storage, stores: ServerStores, tmp_path: Path, statement: str) -> None:
    storage.add_task(task())
    with pytest.raises(Exception, match="append-only"):
        stores.execute(tmp_path, statement)
    assert [entry.event for entry in storage.history(ID)] == ["submitted"]


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


def test_a_population_has_a_model_of_each_kind_and_no_question_replaces_one(storage: Storage) -> None:
    items = submitted(storage, 1)
    trained(storage, items, state=TaskState.FINISHED)
    network = common_pb2.TaskDefinition(name="network", fedavg={}, glm={})
    question = common_pb2.TaskDefinition(name="question", model_evaluation={}, glm={})
    kinds = []
    for definition in (network, question):
        record = dataclasses.replace(task(ID, "viewers"), definition=definition.SerializeToString())
        record = dataclasses.replace(record, sha256=task_sha256(record.signed))
        storage.add_task(record)
        trained(storage, record.sha256, state=TaskState.FINISHED, newest=1)
        kinds.append({entry.of_examples: task_sha256(entry.task) for entry in storage.published_models()})
    assert kinds[0][False] == items
    assert set(kinds[0]) == {False, True}
    assert kinds[1] == kinds[0]


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


CHARTERS = [population_pb2.SignedCharter(charter=b"charter %d" % number) for number in range(3)]
TOKEN_KEYS = [enrolment_pb2.SignedTokenKey(token_key=b"key %d" % number, signature=b"s") for number in range(2)]
ROUND_KEY = common_pb2.SignedRoundKey(hpke_key=b"round key", signature=b"s")


def test_charters_come_in_the_order_of_their_numbers_and_the_first_of_a_number_stays(storage: Storage) -> None:
    for number in (1, 0, 2):
        assert storage.add_charter("viewers", number, CHARTERS[number])
    assert not storage.add_charter("viewers", 1, CHARTERS[0])
    assert storage.add_charter("readers", 1, CHARTERS[0])
    assert storage.charters("viewers") == CHARTERS
    assert storage.charters("readers") == CHARTERS[:1]
    assert storage.charters("nobody") == []


def test_a_round_has_one_token_key_the_newest(storage: Storage) -> None:
    storage.add_task(task())
    assert storage.token_key(ID, 0) is None
    assert storage.newest_token_key(ID) is None
    for signed in TOKEN_KEYS:
        storage.set_token_key(ID, 0, signed)
    storage.set_token_key(ID, 1, TOKEN_KEYS[0])
    assert [storage.token_key(ID, number) for number in (0, 1, 2)] == [TOKEN_KEYS[1], TOKEN_KEYS[0], None]
    assert storage.newest_token_key(ID) == 1


def test_a_round_has_the_key_that_it_was_opened_with_last(storage: Storage) -> None:
    storage.add_task(task())
    storage.add_first_version(ID, version(0))
    assert not storage.set_round_key(ID, 0, ROUND_KEY)
    storage.open_round(ID, 0)
    assert storage.open_rounds()[0].round_key == common_pb2.SignedRoundKey()
    assert storage.set_round_key(ID, 0, ROUND_KEY)
    assert storage.open_rounds()[0].round_key == ROUND_KEY


def test_rounds_come_oldest_first_and_history_in_the_order_of_its_events(storage: Storage) -> None:
    released(storage)
    storage.apply_round(ID, 0, version(1))
    storage.mark_published(ID, 1)
    storage.open_round(ID, 1)
    assert [entry.round for entry in storage.rounds(ID)] == [0, 1]
    assert [(entry.event, entry.round) for entry in storage.history(ID)] == [
        ("submitted", None), ("published", 0), ("round_opened", 0), ("round_released", 0), ("round_applied", 0),
        ("published", 1), ("round_opened", 1),
    ]  # fmt: skip
    assert storage.history(b"o" * 32) == []


def test_values_come_back_as_they_were(stores: ServerStores, tmp_path: Path) -> None:
    at = 1_790_000_000.123456
    storage = stores.open(tmp_path, clock=lambda: at)
    matrix, release = bytes(range(256)) * 8192, common_pb2.SignedRelease(release=bytes(2**21), signature=b"\0" * 64)
    storage.add_task(dataclasses.replace(task(), name="n" * 64, population="p" * 64), item_features=matrix)
    storage.add_task(task(b"o" * 32))
    storage.add_first_version(ID, dataclasses.replace(version(0), state=b"", tables=matrix))
    storage.open_round(ID, 0)
    storage.release_round(ID, 0, release, contributions=2**31 - 1)
    storage.end_task(ID, TaskState.FAILED, failure="it ε-failed: 'quoted' \"twice\"; " * 100)
    again = stores.open(tmp_path)
    record, entry = again.task(ID), again.round(ID, 0)
    assert record is not None
    assert (record.name, record.population, record.signed) == ("n" * 64, "p" * 64, task().signed)
    assert record.failure == "it ε-failed: 'quoted' \"twice\"; " * 100
    assert (again.item_features(ID), again.item_features(b"o" * 32)) == (matrix, b"")
    assert again.state_and_tables(ID, 0) == (b"", matrix)
    assert entry is not None
    assert (entry.opened, entry.closed, entry.contributions) == (at, at, 2**31 - 1)
    assert (entry.release_bytes, again.release(ID, 0)) == (2**21, release)
    for one in (storage, again, again):
        one.close()


def test_what_is_not_stored_is_none_and_changes_nothing(storage: Storage) -> None:
    assert [read(ID) for read in (storage.task, storage.newest_version, storage.published_version)] == [None] * 3
    assert (storage.round(ID, 0), storage.state_and_tables(ID, 0)) == (None, None)
    assert (storage.item_features(ID), storage.release(ID, 0)) == (b"", common_pb2.SignedRelease())
    changes = {name: change for name, (_, change) in CHANGES.items() if name not in ANYWHERE}
    assert {name for name, change in changes.items() if change(storage)} == set()
    assert content(storage) == NOTHING


#: What precedes each change, and the change.
CHANGES: dict[str, tuple[Callable[[Storage], object], Callable[[Storage], Any]]] = {
    "add_task": (lambda _: None, lambda storage: storage.add_task(task(), item_features=b"matrix")),
    "end_task": (
        lambda storage: storage.add_task(task()),
        lambda storage: storage.end_task(ID, TaskState.CANCELLING, failure="why"),
    ),
    "set_paused": (lambda storage: storage.add_task(task()), lambda storage: storage.set_paused(ID, True)),
    "mark_abandoned": (
        lambda storage: (storage.add_task(task()), storage.end_task(ID, TaskState.CANCELLING)),
        lambda storage: storage.mark_abandoned(ID),
    ),
    "add_first_version": (
        lambda storage: storage.add_task(task()),
        lambda storage: storage.add_first_version(ID, version(0)),
    ),
    "mark_published": (
        lambda storage: (storage.add_task(task()), storage.add_first_version(ID, version(0))),
        lambda storage: storage.mark_published(ID, 0),
    ),
    "open_round": (
        lambda storage: (storage.add_task(task()), storage.add_first_version(ID, version(0))),
        lambda storage: storage.open_round(ID, 0, ROUND_KEY),
    ),
    "set_round_key": (
        lambda storage: (storage.add_task(task()), storage.open_round(ID, 0)),
        lambda storage: storage.set_round_key(ID, 0, ROUND_KEY),
    ),
    "set_contributions": (
        lambda storage: (storage.add_task(task()), storage.open_round(ID, 0)),
        lambda storage: storage.set_contributions(ID, 0, 4),
    ),
    "release_round": (
        lambda storage: (storage.add_task(task()), storage.open_round(ID, 0)),
        lambda storage: storage.release_round(ID, 0, RELEASE, contributions=5),
    ),
    "apply_round": (lambda storage: released(storage), lambda storage: storage.apply_round(ID, 0, version(1))),
    "add_charter": (lambda _: None, lambda storage: storage.add_charter("viewers", 0, CHARTERS[0])),
    "set_token_key": (
        lambda storage: (storage.add_task(task()), storage.set_token_key(ID, 0, TOKEN_KEYS[0])),
        lambda storage: storage.set_token_key(ID, 0, TOKEN_KEYS[1]),
    ),
}  # fmt: skip
#: These need no task that is stored, or fail without one.
ANYWHERE = ("add_task", "add_charter", "set_token_key")
#: These put a value in place of another, and do so again.
REPLACING = ("set_round_key", "set_contributions", "set_token_key")


def content(storage: Storage) -> dict[str, object]:
    """All that can be read of one task and its population."""
    return {
        "tasks": storage.tasks(),
        "to abandon": storage.tasks_to_abandon(),
        "item features": storage.item_features(ID),
        "versions": (storage.newest_version(ID), storage.published_version(ID)),
        "bytes": [storage.state_and_tables(ID, number) for number in range(3)],
        "rounds": storage.rounds(ID),
        "release": storage.release(ID, 0),
        "open rounds": storage.open_rounds(),
        "models": storage.published_models(),
        "charters": storage.charters("viewers"),
        "token key": storage.token_key(ID, 0),
        "history": storage.history(ID),
    }


NOTHING = {
    "tasks": [], "to abandon": [], "item features": b"", "versions": (None, None), "bytes": [None] * 3, "rounds": [],
    "release": common_pb2.SignedRelease(), "open rounds": [], "models": [], "charters": [], "token key": None,
    "history": [],
}  # fmt: skip


def places(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / str(number) for number in itertools.count())


def test_every_change_is_among_those_that_are_tested() -> None:
    reads = {"item_features", "task", "tasks", "tasks_to_abandon", "newest_version", "published_version", "history",
             "state_and_tables", "rounds", "round", "release", "open_rounds", "published_models", "charters",
             "token_key", "newest_token_key", "reports", "leases", "log_rows"}  # fmt: skip
    methods = {name for name in vars(Storage) if not name.startswith("_")}
    assert methods - reads - {"close"} == set(CHANGES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_between_any_two_statements_leaves_all_of_a_change_or_nothing(
    name: str, mortal_stores: ServerStores, tmp_path: Path
) -> None:
    prepare, change = CHANGES[name]
    origin = tmp_path / "origin"
    origin.mkdir()
    storage = mortal_stores.open(origin)
    prepare(storage)
    before = content(storage)
    storage.close()

    def act(place: Path, arm: Callable[[], None]) -> None:
        opened = mortal_stores.open(place)
        arm()
        change(opened)

    left, repeated = [], []
    for place, _ in deaths(act, (mortal_stores.copy(origin, place) for place in places(tmp_path))):
        storage = mortal_stores.open(place)
        left.append(content(storage))
        change(storage)  # by the process that comes next
        repeated.append(content(storage))
        storage.close()
    assert left[0] == before != left[-1]
    assert [number for number, found in enumerate(left) if found not in (before, left[-1])] == []
    assert [number for number, found in enumerate(repeated) if found != left[-1]] == []


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in REPLACING])
@pytest.mark.slow
def test_of_many_writers_one_makes_a_change(name: str, storage: Storage, stores: ServerStores, tmp_path: Path) -> None:
    prepare, change = CHANGES[name]
    prepare(storage)
    noted = len(storage.history(ID))
    others = [stores.open(tmp_path, clock=lambda: 8.0) for _ in range(4)]
    start = threading.Barrier(len(others))
    won: list[bool] = []

    def run(own: Storage) -> None:
        start.wait()
        won.append(change(own))

    threads = [threading.Thread(target=run, args=(own,)) for own in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in others:
        own.close()
    assert sorted(won) == [False, False, False, True]
    assert len(storage.history(ID)) - noted == (name not in ("add_first_version", "add_charter"))


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.proof)])
def test_a_store_that_was_being_made_when_its_process_died_is_whole_at_the_next_start(
    every: int, mortal_stores: ServerStores, tmp_path: Path
) -> None:
    def act(place: Path, arm: Callable[[], None]) -> None:
        place.mkdir()
        arm()
        mortal_stores.open(place)

    for place, _ in deaths(act, places(tmp_path), every=every):
        storage = mortal_stores.open(place)
        released(storage)
        before = content(storage)
        for statement in ("UPDATE task_history SET event = 'x'", "DELETE FROM task_history"):
            with pytest.raises(Exception, match="append-only"):
                mortal_stores.execute(place, statement)
        assert content(storage) == before
        storage.close()


def test_a_file_that_is_no_database_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "server.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match=r"server\.sqlite is damaged"):
        open_sqlite(path)


def test_a_kind_of_database_without_a_store_is_refused_by_name() -> None:
    engine = sqlalchemy.create_mock_engine("mysql://", executor=lambda *_, **__: None)
    with pytest.raises(ConfigurationError, match=r"database='mysql' to be one of sqlite, postgresql.*append-only"):
        dialect_of(engine)
