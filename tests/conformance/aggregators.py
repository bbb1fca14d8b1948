"""The stores of an aggregator's host that ``trusted_aggregator/test_storage.py`` holds to what ``Storage`` promises."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
import sqlalchemy as sa
from conformance.postgresql import PostgresqlServer

from odp._system.files.state_folder import StateFolder
from odp.storage.postgresql import postgresql_place
from trusted_aggregator.host.postgresql_storage import open_storage
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.host.storage import Storage


class AggregatorStores(Protocol):
    """One implementation. A place is a state folder; what a store keeps belongs to it, wherever it lies."""

    def open(self, state: StateFolder) -> Storage:
        """Opens the store of a state folder, made on first use."""
        ...

    def copy(self, place: Path, into: Path) -> Path:
        """Makes ``into`` a place whose store holds the same; nobody has the first one open."""
        ...

    def traces(self, place: Path, secret: bytes) -> bool:
        """Whether the bytes can be read from the disk of the store, as far as it promises to erase them."""
        ...


class SqliteStores:
    """Files in the state folder."""

    def open(self, state: StateFolder) -> Storage:
        return SqliteStorage(state)

    def copy(self, place: Path, into: Path) -> Path:
        shutil.copytree(place, into)
        return into

    def traces(self, place: Path, secret: bytes) -> bool:
        return any(secret in path.read_bytes() for path in place.rglob("*") if path.is_file())


class PostgresqlStores:
    """A schema for each state folder, all in one database of ``server``."""

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server

    def url(self, place: Path) -> str:
        schema = _schema(place)
        self._server.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        return self._server.url(schema=schema)

    def open(self, state: StateFolder) -> Storage:
        return open_storage(state, self.url(state.root))

    def copy(self, place: Path, into: Path) -> Path:
        shutil.copytree(place, into)
        with StateFolder.open(into, "aggregator") as state:
            self.open(state).close()
        self._server.execute(
            *(f"INSERT INTO {name} SELECT * FROM {_schema(place)}.{name}" for name in TABLES), schema=_schema(into)
        )
        return into

    def traces(self, place: Path, secret: bytes) -> bool:
        engine = postgresql_place(self.url(place), program="tests").engine(1)
        with engine.connect() as connection:
            rows = [row for name in TABLES for row in connection.execute(sa.text(f"SELECT * FROM {name}"))]
        engine.dispose()
        values = [bytes(value) for row in rows for value in row if isinstance(value, bytes)]
        values += [path.read_bytes() for path in place.rglob("*") if path.is_file()]
        return any(secret in value for value in values)


TABLES = tuple(f"aggregator_{name}" for name in ("contributions", "sealed_records", "ledgers", "charters", "work"))


def _schema(place: Path) -> str:
    return "place_" + hashlib.sha256(bytes(place)).hexdigest()[:16]


def _on_postgresql(request: pytest.FixtureRequest) -> AggregatorStores:
    return PostgresqlStores(request.getfixturevalue("postgresql"))


#: Every implementation, by name.
AGGREGATOR_STORES: dict[str, Callable[[pytest.FixtureRequest], AggregatorStores]] = {
    "sqlite": lambda request: SqliteStores(),
    "postgresql": _on_postgresql,
}
