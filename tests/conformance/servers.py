"""The stores of a server that ``server/test_storage.py`` holds to what ``server.storage.Storage`` promises."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from conformance.postgresql import PostgresqlServer

from server.storage import Storage
from server.storage.postgresql import open_postgresql
from server.storage.schema import HISTORY, METADATA, TASKS
from server.storage.sqlite import open_sqlite

NOW = 7.0


class ServerStores(Protocol):
    """One implementation. A place is a folder; what a store keeps belongs to it, wherever it lies."""

    def open(
        self, place: Path, clock: Callable[[], float] = lambda: NOW, lease_clock: Callable[[], float] | None = None
    ) -> Storage:
        """Opens the store of ``place``, made on first use; any number of processes may have it open."""
        ...

    def execute(self, place: Path, statement: str) -> None:
        """Runs a statement on the store's database as somebody else would; raises what the database does."""
        ...

    def copy(self, place: Path, into: Path) -> Path:
        """Makes ``into`` a place whose store holds the same; nobody has the first one open."""
        ...


class SqliteStores:
    """A file in each place."""

    def open(
        self, place: Path, clock: Callable[[], float] = lambda: NOW, lease_clock: Callable[[], float] | None = None
    ) -> Storage:
        return open_sqlite(place / "server.sqlite", clock=clock, lease_clock=lease_clock)

    def execute(self, place: Path, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(place / "server.sqlite")) as connection, connection:
            connection.execute(statement)

    def copy(self, place: Path, into: Path) -> Path:
        into.mkdir()
        for path in place.glob("server.sqlite*"):
            (into / path.name).write_bytes(path.read_bytes())
        return into


class PostgresqlStores:
    """A schema for each place, all in one database of ``server``: a database of its own would be 14 MB to write."""

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server

    def open(
        self, place: Path, clock: Callable[[], float] = lambda: NOW, lease_clock: Callable[[], float] | None = None
    ) -> Storage:
        schema = _schema(place)
        self._server.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        return open_postgresql(self._server.url(schema=schema), clock=clock, lease_clock=lease_clock)

    def execute(self, place: Path, statement: str) -> None:
        self._server.execute(statement, schema=_schema(place))

    def copy(self, place: Path, into: Path) -> Path:
        into.mkdir()
        self.open(into).close()
        tables = METADATA.sorted_tables  # what others refer to comes first
        rows = [f"INSERT INTO {table.name} SELECT * FROM {_schema(place)}.{table.name}" for table in tables]
        # The next number of a row that the database numbers is no part of the rows.
        numbers = [
            f"SELECT setval(pg_get_serial_sequence('{table.name}', 'sequence'), 1000)" for table in (TASKS, HISTORY)
        ]
        self._server.execute(*rows, *numbers, schema=_schema(into))
        return into


def _schema(place: Path) -> str:
    return "place_" + hashlib.sha256(bytes(place)).hexdigest()[:16]
