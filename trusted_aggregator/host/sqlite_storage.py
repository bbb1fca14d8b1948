"""The host's store as two SQLite files.

- ``contributions.db`` takes a row per accepted contribution, many in one commit (``ingest.py``): they share its sync.
- ``sealed.db`` takes the sealed records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy.dialects.sqlite import insert

from odp._system.files.state_folder import StateFolder
from odp.errors import StateError
from odp.storage.database import SqliteDatabase
from odp.storage.migrations import Schema, changing
from odp.storage.sqlite import database_errors, empty_log
from trusted_aggregator.host.storage import Row, Storage, Tables, make_tables

_TABLES = Tables()
_CONTRIBUTIONS = Schema("contributions_schema", head="0001", mark=_TABLES.contributions.name)
_SEALED = Schema("sealed_schema", head="0001", mark=_TABLES.records.name)
_INSERT = "INSERT INTO contributions (task, round, digest, ciphertext, masked) VALUES (?, ?, ?, ?, ?)"


class SqliteStorage(Storage):
    """``Storage`` in a program's state folder.

    Raises:
        StateError: a database cannot be used.
    """

    def __init__(self, state: StateFolder) -> None:
        paths = {name: state.path(f"{name}.db") for name in ("contributions", "sealed")}
        for path in paths.values():
            state.require_kept(path.name)
        state.require_not_lost("contributions.db", beside="sealed.db")
        contributions = SqliteDatabase(paths["contributions"], state.health)
        sealed = SqliteDatabase(paths["sealed"], state.health)
        for database, tables, schema in (
            (contributions, _TABLES.of_rounds, _CONTRIBUTIONS),
            (sealed, _TABLES.sealed, _SEALED),
        ):
            with database_errors(database.path), database.engine.connect() as connection, changing(connection):
                make_tables(connection, tables, schema)
        for path in paths.values():
            state.note_kept(path.name)
        super().__init__(contributions, sealed, tables=_TABLES, insert=insert, state=state)
        self._file = contributions.path

    def _inserting(self, rows: Sequence[Row]) -> Callable[[sqlalchemy.Connection], Any]:
        # As the driver takes it: this is the one statement that runs for every contribution.
        return lambda connection: connection.exec_driver_sql(_INSERT, list(rows))

    def _before_erasing(self, connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("PRAGMA secure_delete=ON")

    def _remove_traces(self) -> None:
        with database_errors(self._file):
            emptied = empty_log(self._contributions.engine)
        if not emptied:
            raise StateError(
                f"erased contributions stay in {self._file}-wal: another program reads the database; end it"
            )
