"""How a store in PostgreSQL is opened: what is refused, in one line, and without the password."""

from __future__ import annotations

import threading

import pytest
from conformance.postgresql import PostgresqlServer

from odp.errors import ConfigurationError, DiskFull, StateError
from server.storage import TaskRecord
from server.storage.postgresql import open_postgresql


@pytest.mark.parametrize("url", ["sqlite:///x", "mysql://a:secret@b/c", "no url: secret"])
def test_a_url_of_something_else_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected url to be postgresql://") as refused:
        open_postgresql(url)
    assert "secret" not in str(refused.value)


def test_a_database_that_is_missing_or_does_not_run_is_a_state_error_of_one_line(postgresql: PostgresqlServer) -> None:
    for url, match in (
        (postgresql.url(database="missing"), "missing"),
        (postgresql.url(user="nobody_known"), "nobody_known"),
        ("postgresql://odp:secret@/odp?host=/nonexistent", "cannot be reached"),
    ):
        with pytest.raises(StateError, match=match) as refused:
            open_postgresql(url)
        assert "\n" not in str(refused.value)
        assert "secret" not in str(refused.value)


def test_many_processes_can_create_the_tables_at_once(postgresql: PostgresqlServer) -> None:
    postgresql.execute("CREATE SCHEMA at_once")
    start = threading.Barrier(6)
    failures: list[Exception] = []

    def run() -> None:
        start.wait()
        try:
            open_postgresql(postgresql.url(schema="at_once")).close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_history_cannot_be_truncated(postgresql: PostgresqlServer) -> None:
    postgresql.execute("CREATE SCHEMA truncated")
    open_postgresql(postgresql.url(schema="truncated")).close()
    with pytest.raises(Exception, match="append-only"):
        postgresql.execute("TRUNCATE task_history", schema="truncated")


@pytest.mark.parametrize("at_commit", [False, True])
def test_a_full_database_stores_nothing_of_a_change_and_goes_on_when_it_has_space(
    postgresql: PostgresqlServer, at_commit: bool
) -> None:
    schema = f"full_{at_commit}"
    postgresql.execute(f"CREATE SCHEMA {schema}")
    storage = open_postgresql(postgresql.url(schema=schema))
    task = TaskRecord(
        sha256=bytes(32), name="films", population="viewers", definition=b"d", signature=b"s", planned_rounds=3
    )
    # The history is written by a trigger, after the task.
    with postgresql.full_disk("task_history", schema=schema, at_commit=at_commit):
        with pytest.raises(DiskFull, match="disk full: free some space there; nothing was lost") as refused:
            storage.add_task(task)
        assert "\n" not in str(refused.value)
        assert storage.tasks() == []
    assert storage.add_task(task)
    storage.close()
