"""The transparency log of servers that share a database, as rows; and the public keys that they have to share.

One row has the newest checkpoint. Whoever appends holds that row locked from the look at its size to the commit, so
entries are numbered without gaps, and no two trees of one size are signed. ``server.shared_log`` signs and verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa

from server.storage.schema import LOG_CHECKPOINT, LOG_ENTRIES, PUBLIC_TABLES, SHARED_KEYS

# One log per database; the column tells a second one apart if there ever is one.
_LOG = "log"


class LogChange:
    """A transaction on a log; within ``LogRows.changing`` nobody else changes the log meanwhile."""

    def __init__(self, connection: sa.Connection, insert: Callable[[sa.Table], Any]) -> None:
        self._connection, self._insert = connection, insert

    def newest(self) -> tuple[int, bytes]:
        """(number of entries, signed checkpoint); (0, empty) before the first."""
        query = sa.select(LOG_CHECKPOINT.c.size, LOG_CHECKPOINT.c.note).where(LOG_CHECKPOINT.c.name == _LOG)
        row = self._connection.execute(query).first()
        return (0, b"") if row is None else (int(row.size), bytes(row.note))

    def entries(self, start: int, count: int) -> list[bytes]:
        """Up to ``count`` entries from number ``start`` on."""
        of = (LOG_ENTRIES.c.number >= start, LOG_ENTRIES.c.number < start + count)
        query = sa.select(LOG_ENTRIES.c.entry).where(*of).order_by(LOG_ENTRIES.c.number)
        return [bytes(entry) for entry in self._connection.execute(query).scalars()]

    def append(self, start: int, entries: Sequence[bytes]) -> None:
        """Stores entries from number ``start`` on; ``sign`` has to come after."""
        rows = [{"number": number, "entry": entry} for number, entry in enumerate(entries, start)]
        self._connection.execute(sa.insert(LOG_ENTRIES), rows)

    def sign(self, size: int, note: bytes) -> None:
        """Stores the signed checkpoint of the tree of ``size`` entries."""
        change = sa.update(LOG_CHECKPOINT).where(LOG_CHECKPOINT.c.name == _LOG)
        self._connection.execute(change.values(size=size, note=note))

    def lock(self) -> None:
        first = self._insert(LOG_CHECKPOINT).values(name=_LOG, size=0, note=b"").on_conflict_do_nothing()
        self._connection.execute(first)
        query = sa.select(LOG_CHECKPOINT.c.size).where(LOG_CHECKPOINT.c.name == _LOG)
        self._connection.execute(query.with_for_update())


class LogRows:
    """The log in the database. Raises StateError, Deposed as ``Storage``.

    ``transaction`` and ``reading`` are those of ``server.storage.sql.Storage``.
    """

    def __init__(
        self,
        *,
        transaction: Callable[[], AbstractContextManager[sa.Connection]],
        reading: Callable[[], AbstractContextManager[sa.Connection]],
        insert: Callable[[sa.Table], Any],
    ) -> None:
        self._transaction, self._reading, self._insert = transaction, reading, insert

    def newest(self) -> tuple[int, bytes]:
        with self._reading() as connection:
            return LogChange(connection, self._insert).newest()

    def entries(self, start: int, count: int) -> list[bytes]:
        with self._reading() as connection:
            return LogChange(connection, self._insert).entries(start, count)

    @contextmanager
    def changing(self) -> Iterator[LogChange]:
        """A change: stored as a whole when it ends, and not at all where it raises."""
        with self._transaction() as connection:
            rows = LogChange(connection, self._insert)
            rows.lock()
            yield rows

    def shared_key(self, name: str, value: str) -> str:
        """The public key under ``name``: that which the first server stored, or else ``value`` from now on."""
        first = self._insert(SHARED_KEYS).values(name=name, value=value).on_conflict_do_nothing()
        query = sa.select(SHARED_KEYS.c.value).where(SHARED_KEYS.c.name == name)
        with self._transaction() as connection:
            connection.execute(first)
            return str(connection.execute(query).scalar_one())

    def table(self, name: str) -> bytes | None:
        """The record of a public table."""
        query = sa.select(PUBLIC_TABLES.c.record).where(PUBLIC_TABLES.c.name == name)
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else bytes(row.record)

    def set_table(self, name: str, record: bytes, *, before: bytes | None) -> bool:
        """Stores the record of a public table; False where it is not ``before`` any more."""
        if before is None:
            change = self._insert(PUBLIC_TABLES).values(name=name, record=record).on_conflict_do_nothing()
        else:
            change = sa.update(PUBLIC_TABLES).where(PUBLIC_TABLES.c.name == name, PUBLIC_TABLES.c.record == before)
            change = change.values(record=record)
        with self._transaction() as connection:
            return connection.execute(change.execution_options(preserve_rowcount=True)).rowcount == 1

    def count_tables(self) -> int:
        """Public tables with a record."""
        with self._reading() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(PUBLIC_TABLES)).scalar_one())

    def where(self, name: str) -> str:
        """Where the record of a table lies, for the operator."""
        return f"row {name!r} of {PUBLIC_TABLES.name} in the database"
