"""Leases in every store: one holder at a time, tokens that only grow, and the fence around what a leader stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.servers import PostgresqlStores, ServerStores, SqliteStores

from odp.v1 import common_pb2
from server.storage import NewVersion, Storage, TaskRecord, TaskState
from server.storage.leases import Deposed, Holder, Lease, Note

TASK, OTHER = bytes(range(32)), bytes(32)
ONE, TWO = Holder("one", "here"), Holder("two", "there")
RELEASE = common_pb2.SignedRelease(release=b"release", signature=b"s" * 64)


class Clock:
    """The clock of the database, in the hand of a test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest) -> ServerStores:
    if request.param == "sqlite":
        return SqliteStores()
    return PostgresqlStores(request.getfixturevalue("postgresql"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(stores: ServerStores, tmp_path: Path, clock: Clock) -> Iterator[Storage]:
    made = stores.open(tmp_path, lease_clock=clock)
    yield made
    made.close()


def test_a_lease_has_one_holder_until_it_expires_and_its_token_grows(storage: Storage, clock: Clock) -> None:
    assert storage.leases.take([TASK], ONE, seconds=3) == [Lease(TASK, 1)]
    clock.now += 2.9
    assert storage.leases.take([TASK, OTHER], TWO, seconds=3) == [Lease(OTHER, 1)]
    clock.now += 0.1
    assert storage.leases.take([TASK], TWO, seconds=3) == [Lease(TASK, 2)]
    assert storage.leases.take([TASK], ONE, seconds=3) == []


def test_r378_a_lease_of_a_dead_server_ends_also_where_the_databases_clock_was_set_back(
    storage: Storage, clock: Clock
) -> None:
    [lease] = storage.leases.take([TASK], ONE, seconds=3)
    clock.now -= 0.5
    assert storage.leases.take([TASK], TWO, seconds=3) == [], "a clock is corrected by a little all the time"
    clock.now -= 86_400.0
    assert storage.leases.renew({lease: Note()}, ONE, seconds=3) == {lease}, "a leader that lives has it on"
    assert storage.leases.take([TASK], TWO, seconds=3) == []
    clock.now -= 86_400.0
    assert storage.leases.take([TASK], TWO, seconds=3) == [Lease(TASK, 2)]
    assert storage.leases.renew({lease: Note()}, ONE, seconds=3) == set()


def test_a_renewed_lease_lasts_from_then_on_and_one_that_was_taken_is_not_renewed(
    storage: Storage, clock: Clock
) -> None:
    [lease] = storage.leases.take([TASK], ONE, seconds=3)
    clock.now += 2
    assert storage.leases.renew({lease: Note()}, ONE, seconds=3) == {lease}
    clock.now += 2
    assert storage.leases.take([TASK], TWO, seconds=3) == []
    clock.now += 1
    [later] = storage.leases.take([TASK], TWO, seconds=3)
    assert storage.leases.renew({lease: Note()}, ONE, seconds=3) == set()
    clock.now += 100
    assert storage.leases.renew({later: Note()}, TWO, seconds=3) == {later}, "nobody took it meanwhile"
    assert storage.leases.take([TASK], ONE, seconds=3) == []


def test_a_lease_that_was_given_back_is_free_at_once_and_keeps_its_token(storage: Storage) -> None:
    storage.leases.take([TASK], ONE, seconds=3)
    storage.leases.take([OTHER], TWO, seconds=3)
    storage.leases.give_back(ONE)
    assert storage.leases.take([TASK, OTHER], TWO, seconds=3) == [Lease(TASK, 2)]


def test_a_successor_at_the_same_place_does_not_wait_and_one_elsewhere_does(storage: Storage) -> None:
    storage.leases.take([TASK], ONE, seconds=1e12)
    storage.leases.recover(TWO)
    assert storage.leases.take([TASK], TWO, seconds=3) == []
    again = Holder("three", ONE.place)
    storage.leases.recover(again)
    assert storage.leases.take([TASK], again, seconds=3) == [Lease(TASK, 2)]


def test_what_a_leader_says_is_known_to_all_until_its_lease_ends(storage: Storage, clock: Clock) -> None:
    assert storage.leases.note(TASK) is None
    [lease] = storage.leases.take([TASK], ONE, seconds=3)
    storage.leases.renew({lease: Note("5 contributions", 7.5)}, ONE, seconds=3)
    assert storage.leases.note(TASK) == Note("5 contributions", 7.5)
    clock.now += 3
    assert storage.leases.note(TASK) is None


def test_of_many_that_take_a_lease_at_once_one_gets_it(
    stores: ServerStores, storage: Storage, tmp_path: Path, clock: Clock
) -> None:
    others = [stores.open(tmp_path, lease_clock=clock) for _ in range(4)]
    for token in (1, 2, 3):
        start, taken = threading.Barrier(4), []

        def run(number: int) -> None:
            start.wait()  # noqa: B023  # all threads end in this turn of the loop
            holder = Holder(f"holder-{number}", f"place-{number}")
            taken.extend(others[number].leases.take([TASK], holder, seconds=3))  # noqa: B023

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert taken == [Lease(TASK, token)]
        clock.now += 3
    for other in others:
        other.close()


def version(number: int) -> NewVersion:
    manifest = common_pb2.SignedManifest(manifest=b"m%d" % number, signature=b"s")
    return NewVersion(version=number, state=b"state", tables=b"tables", manifest=manifest)


def test_nothing_that_a_deposed_leader_stores_has_an_effect(storage: Storage, clock: Clock) -> None:
    """Every transition, in its place: refused under the old lease, and stored under the new one."""
    task = TaskRecord(
        sha256=TASK, name="films", population="viewers", definition=b"d", signature=b"s", planned_rounds=1
    )
    storage.add_task(task)
    [old] = storage.leases.take([TASK], ONE, seconds=3)
    clock.now += 3
    [new] = storage.leases.take([TASK], TWO, seconds=3)
    steps = [
        lambda: storage.add_first_version(TASK, version(0)),
        lambda: storage.mark_published(TASK, 0),
        lambda: storage.open_round(TASK, 0),
        lambda: storage.set_round_key(TASK, 0, common_pb2.SignedRoundKey(hpke_key=b"k")),
        lambda: storage.set_contributions(TASK, 0, 5),
        lambda: storage.release_round(TASK, 0, RELEASE, contributions=5),
        lambda: storage.apply_round(TASK, 0, version(1)),
        lambda: storage.end_task(TASK, TaskState.FAILED, failure="why"),
        lambda: storage.mark_abandoned(TASK),
    ]
    for step in steps:
        before = (storage.tasks(), storage.rounds(TASK), storage.newest_version(TASK), storage.history(TASK))
        with pytest.raises(Deposed), storage.leases.fenced(old):
            step()
        assert before == (storage.tasks(), storage.rounds(TASK), storage.newest_version(TASK), storage.history(TASK))
        with storage.leases.fenced(new):
            assert step()
    events = [entry.event for entry in storage.history(TASK)]
    assert events == [
        "submitted", "published", "round_opened", "round_released", "round_applied", "failed", "abandoned",
    ]  # fmt: skip


def test_a_fence_is_of_its_thread_and_ends_with_its_block(storage: Storage, clock: Clock) -> None:
    [old] = storage.leases.take([TASK], ONE, seconds=3)
    clock.now += 3
    storage.leases.take([TASK], TWO, seconds=3)
    record = TaskRecord(sha256=TASK, name="films", population="p", definition=b"d", signature=b"s", planned_rounds=1)
    added: list[bool] = []
    with storage.leases.fenced(old):
        thread = threading.Thread(target=lambda: added.append(storage.add_task(record)))
        thread.start()
        thread.join()
    assert added == [True]
    assert storage.end_task(TASK, TaskState.CANCELLING)


def test_a_transaction_that_was_paused_does_not_keep_others_from_leading(request: pytest.FixtureRequest) -> None:
    """A leader that stands still in the middle of a transaction holds its locks; the database ends it."""
    postgresql = request.getfixturevalue("postgresql")
    postgresql.execute("CREATE SCHEMA paused")
    from server.storage.postgresql import open_postgresql

    one, two = (open_postgresql(postgresql.url(schema="paused")) for _ in range(2))
    [lease] = one.leases.take([TASK], ONE, seconds=0.1)
    paused, go_on, raised = threading.Event(), threading.Event(), []

    def run() -> None:
        try:
            with one.leases.fenced(lease), one._transaction() as connection:  # type: ignore[attr-defined]
                one.leases.check(connection)  # type: ignore[attr-defined]
                paused.set()
                go_on.wait(30)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert paused.wait(10)
    taken: list[Lease] = []
    while not taken:
        taken = two.leases.take([TASK], TWO, seconds=60)
    assert taken == [Lease(TASK, 2)]
    go_on.set()
    thread.join()
    assert raised, "its transaction is gone"
    one.close()
    two.close()
