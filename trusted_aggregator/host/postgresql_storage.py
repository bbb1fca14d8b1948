"""The host's store in a PostgreSQL database, with files for large ciphertexts in the state folder.

A contribution has a number before it is sent, so that a commit whose answer was lost can be sent again.

Erased rows leave the files of their table with ``finish_erasing`` where no round is open, and else are free space there
until new rows overwrite them. So are records that were replaced. The database's write-ahead log and its backups keep
both as long as it is set up to. Contributions are sealed to keys that the enclave has erased by then.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from odp._system.files.state_folder import StateFolder
from odp.errors import StateError
from odp.storage.database import PostgresqlDatabase
from odp.storage.migrations import Schema
from odp.storage.postgresql import PostgresqlPlace, postgresql_place
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.host.storage import Row, Storage, Tables, make_tables

_PROGRAM = "odp-aggregator"
_EMPTYING_SECONDS = 1
#: PostgreSQL's code for a lock that was not to be had in time.
_NOT_LOCKED = "55P03"
_TABLES = Tables("aggregator_")
_SCHEMA = Schema("aggregator_schema", head="0001", mark=_TABLES.records.name)
_HOST = sa.Table(
    "aggregator_host",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("token", sa.BigInteger, nullable=False),
)
_COLUMNS = ("sequence", "task", "round", "digest", "ciphertext", "masked")
#: The file of a state folder whose store is a database: names it, without a password.
_MARKER = "database"


def open_storage(state: StateFolder, database: str | None) -> Storage:
    """The store of a state folder: files in it, or the database of this URL.

    Raises:
        ConfigurationError: ``database`` is not of PostgreSQL, or its driver is not installed.
        StateError: the store cannot be used, or the folder's store is of the other kind.
    """
    marker = state.read(_MARKER)
    if database is None:
        if marker is not None:
            raise StateError(
                f"state folder {state.root} keeps its data in the database {marker.decode(errors='replace')}; give "
                "--database"
            )
        return SqliteStorage(state)
    place = postgresql_place(database, program=_PROGRAM)
    if state.path("sealed.db").exists():
        raise StateError(
            f"state folder {state.root} keeps its data in files; start without --database, or give another folder"
        )
    storage = PostgresqlStorage(state, place)
    if marker is None:
        try:
            state.write_atomically(_MARKER, place.name.encode())
        except BaseException:
            storage.close()
            raise
    return storage


class PostgresqlStorage(Storage):
    """``Storage`` in a database; no other program may have it open.

    Raises:
        ConfigurationError: the driver is not installed.
        StateError: the database cannot be used, or another aggregator uses it.
    """

    def __init__(self, state: StateFolder, place: PostgresqlPlace) -> None:
        # A store in files does without: these modules are a twentieth of what an aggregator imports.
        from sqlalchemy.dialects.postgresql import insert

        database = PostgresqlDatabase(place, _HOST, _make_tables)
        try:
            super().__init__(database, database, tables=_TABLES, insert=insert, state=state)
            last = database.run(_last)
        except BaseException:
            database.close()
            raise
        self._database = database
        self._new_contributions = insert(_TABLES.contributions).on_conflict_do_nothing()
        self._numbers = itertools.count(last + 1)

    def _inserting(self, rows: Sequence[Row]) -> Callable[[sa.Connection], Any]:
        numbered = [dict(zip(_COLUMNS, (next(self._numbers), *row), strict=True)) for row in rows]
        return lambda connection: connection.execute(self._new_contributions, numbered)

    def _remove_traces(self) -> None:
        for table in _TABLES.of_rounds:
            if not all(self._database.run(functools.partial(check, table)) for check in (_has_no_rows, _emptied)):
                self._database.outside(f"VACUUM {table.name}")


def _make_tables(connection: sa.Connection) -> None:
    make_tables(connection, (*_TABLES.of_rounds, *_TABLES.sealed), _SCHEMA)


def _last(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.max(_TABLES.contributions.c.sequence))).scalar_one() or 0)


def _has_no_rows(table: sa.Table, connection: sa.Connection) -> bool:
    return connection.execute(sa.select(table.c.sequence).limit(1)).first() is None


def _emptied(table: sa.Table, connection: sa.Connection) -> bool:
    """Gives the files of the table back where it has no rows. Raises StateError where another program reads it."""
    # A backup may read for hours, and contributions wait behind whoever waits for this lock.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_EMPTYING_SECONDS}s'")
    try:
        connection.exec_driver_sql(f"LOCK TABLE {table.name} IN ACCESS EXCLUSIVE MODE")
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _NOT_LOCKED:
            raise
        raise StateError(
            f"erased contributions stay in the table {table.name}: another program reads the database; end it"
        ) from error
    if not _has_no_rows(table, connection):
        return False
    connection.exec_driver_sql(f"TRUNCATE {table.name}")
    return True
