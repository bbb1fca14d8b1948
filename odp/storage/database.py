"""A database as a store uses it: transactions that are durable once they return, whichever kind it is.

``SqliteDatabase`` is a file, and ``PostgresqlDatabase`` a server that may be away for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import sqlalchemy as sa

from odp._system.files.durability import Health
from odp.errors import StateError, StoreUnreachable
from odp.storage.postgresql import PostgresqlPlace, check_server
from odp.storage.sqlite import database_errors, open_database

T = TypeVar("T")

_CONNECTIONS = 8
#: How long a program waits for a database that it has lost.
PATIENCE_SECONDS = 60.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_LOCK_SECONDS = 5.0


class Database(Protocol):
    """A database with the tables of one store. Thread-safe."""

    engine: sa.Engine

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Runs ``work`` in one transaction, which is durable when this returns, and undone where ``work`` raises.

        ``work`` may run more than once, also after a first time that was stored: so it sets what it sets whatever was
        there. Raises StateError where the database cannot be used.
        """

    def close(self) -> None:
        """Closes all connections. Idempotent."""


class SqliteDatabase:
    """The file ``path``, made on first use. Raises StateError for a file that is not a database."""

    def __init__(self, path: Path, health: Health) -> None:
        self.path = path
        self.engine = open_database(path, health=health)

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        with database_errors(self.path), self.engine.begin() as connection:
            return work(connection)

    def close(self) -> None:
        self.engine.dispose()


class PostgresqlDatabase:
    """A database of which one program is the only one to use the tables of ``table``.

    A lock of the session keeps others out. It is lost with its connection, so each transaction also looks whether
    ``table`` still has the number that this program has put there: a program that was away finds that another one has
    followed it, and changes nothing.

    Where the database is away, ``run`` tries again, after longer and longer pauses, for ``patience`` seconds
    (default: a minute).

    Args:
        table: has one row, with columns ``id`` and ``token``; made here.
        make: makes the other tables, in the transaction that takes the database.

    Raises:
        ConfigurationError: the driver (the extra ``postgres``) is not installed.
        StateError: the database cannot be used, or another program uses these tables.
    """

    def __init__(
        self, place: PostgresqlPlace, table: sa.Table, make: Callable[[sa.Connection], None],
        *, patience: float | None = None,
    ) -> None:  # fmt: skip
        self._place = place
        self._table = table
        self._patience = PATIENCE_SECONDS if patience is None else patience
        self._closing = threading.Event()
        self.engine = place.engine(_CONNECTIONS)
        self._holding: sa.Connection | None = None
        try:
            with place.errors():
                check_server(self.engine, place.name)
                self._holding = self._locked()
                self._token = self._taken(make)
        except BaseException:
            self.close()
            raise

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        deadline, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            try:
                with self._place.errors(), self.engine.begin() as connection:
                    self._require_mine(connection)
                    return work(connection)
            except StoreUnreachable:
                if time.monotonic() + pause > deadline or self._closing.wait(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE)

    def outside(self, statement: str) -> None:
        """Runs a statement that no transaction may hold, as VACUUM. Raises StateError."""
        with self._place.errors(), self.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(statement)

    def close(self) -> None:
        self._closing.set()
        if self._holding is not None:
            self._holding.close()
            self._holding = None
        self.engine.dispose()

    def _locked(self) -> sa.Connection:
        connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        # Of the schema too: each schema has tables of its own.
        query = "SELECT pg_try_advisory_lock(hashtextextended(current_schema() || %s, 0))"
        deadline = time.monotonic() + _LOCK_SECONDS
        # The database takes a moment to find that a killed program is gone.
        while not connection.exec_driver_sql(query, (f"/{self._table.name}",)).scalar_one():
            if time.monotonic() >= deadline:
                connection.close()
                raise StateError(
                    f"database {self._place.name}: another program uses {self._table.name}; stop it, or give another "
                    "database"
                )
            self._closing.wait(_LONGEST_PAUSE / 10)
        return connection

    def _taken(self, make: Callable[[sa.Connection], None]) -> int:
        with self.engine.begin() as connection:
            # Programs of other kinds may make theirs in the same moment.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7300208)")
            self._table.create(connection, checkfirst=True)
            make(connection)
            if (before := connection.execute(sa.select(self._table.c.token)).scalar_one_or_none()) is None:
                connection.execute(sa.insert(self._table).values(id=1, token=1))
                return 1
            connection.execute(sa.update(self._table).values(token=before + 1))
            return int(before) + 1

    def _require_mine(self, connection: sa.Connection) -> None:
        # Shared: who follows waits for the end of this transaction.
        token = connection.execute(sa.select(self._table.c.token).with_for_update(read=True)).scalar_one_or_none()
        if token != self._token:
            raise StateError(
                f"database {self._place.name}: another program has taken {self._table.name} over; stop one"
            )
