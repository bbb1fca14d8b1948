"""The aggregator's store on a PostgreSQL that goes away, comes back, and is opened by two."""

from __future__ import annotations

import os
import threading

import pytest
from conformance.postgresql import PostgresqlServer

from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError, DiskFull, StateError, StoreUnreachable
from odp.storage import database as odp_database
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host.postgresql_storage import open_storage
from trusted_aggregator.state.records import SealedRecord

TASK = bytes(32)


@pytest.fixture
def schema(postgresql: PostgresqlServer, tmp_path) -> str:
    name = f"aggregator_{abs(hash(tmp_path))}"
    postgresql.execute(f"CREATE SCHEMA {name}")
    return name


@pytest.fixture
def url(postgresql: PostgresqlServer, schema: str) -> str:
    return postgresql.url(schema=schema)


@pytest.fixture
def folder(tmp_path):
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        yield state


def test_a_database_that_comes_back_is_waited_for_and_has_each_contribution_once(postgresql, url, folder):
    storage = open_storage(folder, url)
    storage.add([SealedContribution(TASK, 0, b"before")])
    storage.apply([SealedRecord("a", b"1")])
    postgresql.stop()
    adding = threading.Thread(target=storage.add, args=([SealedContribution(TASK, 0, b"meanwhile")],))
    adding.start()
    try:
        assert adding.is_alive()
    finally:
        postgresql.start()
    adding.join(60)
    assert list(storage.contributions(TASK, 0)) == [b"before", b"meanwhile"]
    assert storage.records() == {"a": b"1"}
    storage.close()


def test_a_database_that_stays_away_is_one_line_and_stops_contributions(postgresql, url, folder, monkeypatch):
    monkeypatch.setattr(odp_database, "PATIENCE_SECONDS", 0.2)
    storage = open_storage(folder, url)
    postgresql.stop()
    try:
        with pytest.raises(StoreUnreachable, match="check") as refused:
            storage.add([SealedContribution(TASK, 0, b"row")])
        assert "\n" not in str(refused.value)
    finally:
        postgresql.start()
    with pytest.raises(StateError):
        storage.add([SealedContribution(TASK, 0, b"row")])
    storage.close()
    again = open_storage(folder, url)
    assert list(again.contributions(TASK, 0)) == []
    again.close()


@pytest.mark.parametrize("at_commit", [False, True])
def test_a_full_database_stops_contributions_and_loses_none_that_was_stored(postgresql, url, schema, folder, at_commit):
    storage = open_storage(folder, url)
    storage.add([SealedContribution(TASK, 0, b"before")])
    with postgresql.full_disk("aggregator_contributions", schema=schema, at_commit=at_commit):
        with pytest.raises(DiskFull, match="disk full: free some space there; nothing was lost") as refused:
            storage.add([SealedContribution(TASK, 0, b"first"), SealedContribution(TASK, 0, b"second")])
        assert "\n" not in str(refused.value)
    with pytest.raises(DiskFull):
        storage.add([SealedContribution(TASK, 0, b"later")])
    storage.close()
    again = open_storage(folder, url)
    again.add([SealedContribution(TASK, 0, b"after")])
    assert list(again.contributions(TASK, 0)) == [b"before", b"after"]
    again.close()


@pytest.mark.parametrize("at_commit", [False, True])
def test_sealed_records_that_find_a_full_database_stay_as_they_were(postgresql, url, schema, folder, at_commit):
    storage = open_storage(folder, url)
    storage.apply([SealedRecord("a", b"1")])
    with (
        postgresql.full_disk("aggregator_sealed_records", schema=schema, at_commit=at_commit),
        pytest.raises(DiskFull),
    ):
        storage.apply([SealedRecord("a", b"2"), SealedRecord("b", b"3")])
    assert storage.records() == {"a": b"1"}
    storage.apply([SealedRecord("a", b"4")])
    assert storage.records() == {"a": b"4"}
    storage.close()


def test_erased_contributions_are_in_no_table_once_no_round_is_open(postgresql, url, folder):
    secret = os.urandom(32)
    storage = open_storage(folder, url)
    storage.add([SealedContribution(TASK, 0, secret)])
    assert postgresql.in_tables(secret)
    storage.erase(TASK, 0)
    assert postgresql.in_tables(secret)
    storage.finish_erasing()
    assert not postgresql.in_tables(secret)
    storage.close()


def test_a_reader_that_keeps_what_was_erased_is_named_and_stops_no_contributions(postgresql, url, schema, folder):
    secret = os.urandom(32)
    storage = open_storage(folder, url)
    storage.add([SealedContribution(TASK, 0, secret)])
    with postgresql.reading("aggregator_contributions", schema=schema):
        storage.erase(TASK, 0)
        with pytest.raises(StateError, match="another program reads the database; end it"):
            storage.finish_erasing()
        storage.add([SealedContribution(TASK, 1, b"next")])
        assert list(storage.contributions(TASK, 1)) == [b"next"]
        storage.erase(TASK, 1)
    storage.finish_erasing()
    assert not postgresql.in_tables(secret)
    storage.close()


def test_two_programs_cannot_have_it_open(url, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(odp_database, "_LOCK_SECONDS", 0.1)
    storage = open_storage(folder, url)
    with (
        StateFolder.open(tmp_path / "another", "aggregator") as another,
        pytest.raises(StateError, match="another program uses aggregator_host"),
    ):
        open_storage(another, url)
    storage.apply([SealedRecord("a", b"1")])
    storage.close()


def test_who_was_away_while_another_took_it_changes_nothing(postgresql, url, folder, tmp_path):
    storage = open_storage(folder, url)
    storage.apply([SealedRecord("a", b"1")])
    postgresql.stop()
    postgresql.start()
    with StateFolder.open(tmp_path / "another", "aggregator") as another:
        successor = open_storage(another, url)
        with pytest.raises(StateError, match="another program has taken"):
            storage.apply([SealedRecord("a", b"2")])
        assert successor.records() == {"a": b"1"}
        successor.close()
    storage.close()


def test_a_folder_stays_with_the_kind_of_store_that_it_has(url, folder, tmp_path):
    open_storage(folder, url).close()
    with pytest.raises(StateError, match="give --database"):
        open_storage(folder, None)
    with StateFolder.open(tmp_path / "files", "aggregator") as files:
        open_storage(files, None).close()
        with pytest.raises(StateError, match="start without --database"):
            open_storage(files, url)


def test_a_url_of_something_else_is_refused(folder):
    with pytest.raises(ConfigurationError, match="Expected url to be postgresql://"):
        open_storage(folder, "mysql://a:secret@b/c")
