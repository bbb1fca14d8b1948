from __future__ import annotations

import os
import threading

import pytest
import sqlalchemy

from odp.errors import StateError
from odp.transport.state_folder import StateFolder
from trusted_aggregator.host.storage import Contribution, Storage
from trusted_aggregator.state.records import SealedRecord

TASK, OTHER = bytes(32), bytes([1]) * 32


@pytest.fixture
def folder(tmp_path):
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        yield state


@pytest.fixture
def storage(folder):
    opened = Storage(folder)
    yield opened
    opened.close()


def _full(storage, engine_name):
    """Lets the database grow no further, as a full disk does."""
    engine = getattr(storage, engine_name)

    def limit(connection, _record):
        connection.execute("PRAGMA max_page_count=1")

    sqlalchemy.event.listen(engine, "connect", limit)
    engine.dispose()


def test_contributions_come_back_in_order_by_task_and_round(storage):
    rows = [os.urandom(40) for _ in range(5)]
    for row in rows:
        storage.add([Contribution(TASK, 0, row)])
    storage.add([Contribution(TASK, 1, b"next round")])
    storage.add([Contribution(OTHER, 0, rows[0])])
    assert list(storage.contributions(TASK, 0)) == rows
    assert list(storage.contributions(TASK, 1)) == [b"next round"]
    assert list(storage.contributions(OTHER, 0)) == [rows[0]]
    assert list(storage.contributions(OTHER, 1)) == []


def test_pages_hold_all_rows(storage, monkeypatch):
    monkeypatch.setattr("trusted_aggregator.host.storage._PAGE", 3)
    rows = [os.urandom(8) for _ in range(10)]
    for row in rows:
        storage.add([Contribution(TASK, 0, row)])
    assert list(storage.contributions(TASK, 0)) == rows


def test_contributions_that_come_together_are_stored_together_or_not_at_all(storage):
    storage.add([Contribution(TASK, 0, b"first"), Contribution(TASK, 1, b"other round")])
    storage.add([])
    with pytest.raises(StateError, match="could not be stored"):
        storage.add([Contribution(TASK, 0, b"second"), Contribution(None, 0, b"of no task")])
    assert list(storage.contributions(TASK, 0)) == [b"first"]
    assert list(storage.contributions(TASK, 1)) == [b"other round"]


def test_what_add_returned_for_survives_an_abrupt_end(folder, storage):
    storage.add([Contribution(TASK, 0, b"row")])
    storage.apply([SealedRecord("population/a", b"1")])
    again = Storage(folder)  # the first one was never closed
    assert list(again.contributions(TASK, 0)) == [b"row"]
    assert again.records() == {"population/a": b"1"}
    again.close()


def test_many_threads_share_commits_and_none_is_lost(storage):
    rows = [[os.urandom(16) for _ in range(20)] for _ in range(16)]

    def add(mine):
        for row in mine:
            storage.add([Contribution(TASK, 0, row)])

    threads = [threading.Thread(target=add, args=(mine,)) for mine in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.wait_for(TASK, 0, 320, timeout=1)
    assert sorted(storage.contributions(TASK, 0)) == sorted(row for mine in rows for row in mine)


def test_records_are_replaced_and_erased_together(storage):
    storage.apply([SealedRecord("a", b"1"), SealedRecord("b", b"2"), SealedRecord("release/x", b"3")])
    storage.apply([SealedRecord("a", b"4"), SealedRecord("b", None)])
    assert storage.records() == {"a": b"4"}
    assert storage.record("release/x") == b"3"
    assert storage.record("b") is None


def test_a_write_that_fails_half_way_changes_nothing(storage):
    storage.apply([SealedRecord("a", b"1")])
    with pytest.raises(sqlalchemy.exc.StatementError):
        storage.apply([SealedRecord("a", b"2"), SealedRecord("b", object())])
    assert storage.records() == {"a": b"1"}


def test_a_full_disk_is_never_acknowledged_and_stops_all_further_contributions(folder, storage):
    storage.add([Contribution(TASK, 0, b"before")])
    _full(storage, "_contributions")
    with pytest.raises(StateError, match="disk full"):
        storage.add([Contribution(TASK, 0, bytes(100_000))])
    for call in (
        lambda: storage.add([Contribution(TASK, 0, b"after")]),
        lambda: storage.wait_for(TASK, 0, 9, timeout=1),
    ):
        with pytest.raises(StateError, match="disk full"):
            call()
    again = Storage(folder)
    assert list(again.contributions(TASK, 0)) == [b"before"]
    again.close()


def test_a_full_disk_leaves_the_sealed_records_as_they_were(storage):
    storage.apply([SealedRecord("a", b"1")])
    _full(storage, "_sealed")
    with pytest.raises(StateError, match="disk full"):
        storage.apply([SealedRecord("a", bytes(100_000))])
    assert storage.records() == {"a": b"1"}


def test_waiting_for_what_never_comes_ends(storage):
    storage.add([Contribution(TASK, 0, b"row")])
    storage.wait_for(TASK, 0, 1, timeout=1)
    with pytest.raises(StateError, match="not stored in time"):
        storage.wait_for(TASK, 0, 2, timeout=0.05)


def test_erased_contributions_are_gone_from_the_files(folder, storage):
    secret = os.urandom(32)
    storage.add([Contribution(TASK, 0, secret)])
    storage.add([Contribution(TASK, 1, b"stays")])
    assert any(secret in path.read_bytes() for path in folder.root.glob("contributions.db*"))
    storage.erase(TASK, 0)
    storage.finish_erasing()
    assert not any(secret in path.read_bytes() for path in folder.root.glob("contributions.db*"))
    assert list(storage.contributions(TASK, 1)) == [b"stays"]


def test_keep_only_erases_rounds_that_are_over(storage):
    for task, number in ((TASK, 0), (TASK, 1), (OTHER, 0)):
        storage.add([Contribution(task, number, b"row")])
    storage.keep_only({(TASK, 1)})
    assert list(storage.contributions(TASK, 0)) == list(storage.contributions(OTHER, 0)) == []
    assert list(storage.contributions(TASK, 1)) == [b"row"]


def test_files_are_private(folder, storage):
    assert {path.stat().st_mode & 0o777 for path in folder.root.glob("*.db")} == {0o600}


def test_a_closed_storage_refuses(folder):
    storage = Storage(folder)
    storage.close()
    storage.close()
    with pytest.raises(StateError, match="stopping"):
        storage.add([Contribution(TASK, 0, b"late")])


def test_a_file_that_is_no_database_is_a_one_line_error(folder):
    for name in ("contributions.db", "sealed.db"):
        folder.path(name).write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(StateError, match=r"damaged|not a database"):
        Storage(folder)
