"""SQL that differs between databases: inserts that ignore an existing row, append-only tables, making tables once.

The table of kinds is closed: on any other the history would silently not be append-only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from odp.errors import ConfigurationError


@dataclass(frozen=True)
class Dialect:
    """One kind of database.

    Attributes:
      insert: SQLAlchemy's ``insert`` with ``ON CONFLICT``.
      append_only: the statements after which a table refuses UPDATE and DELETE; they can be repeated.
      exclusive: the statements after which no other process makes tables until the transaction ends.
      now: the database's own clock, in seconds since the epoch; None where it has none but the program's.
    """

    insert: Callable[[sa.Table], Any]
    append_only: Callable[[sa.Table], tuple[str, ...]]
    exclusive: tuple[str, ...] = ()
    now: sa.ColumnElement[float] | None = None


def dialect_of(engine: sa.Engine | sa.Connection) -> Dialect:
    """The dialect of a database. Raises ConfigurationError for a database without a dialect here."""
    dialect = _DIALECTS.get(engine.dialect.name)
    if dialect is None:
        raise ConfigurationError(
            f"Expected database={engine.dialect.name!r} to be one of {', '.join(_DIALECTS)}: on any other the history "
            "of tasks would not be append-only"
        )
    return dialect


def _sqlite_triggers(table: sa.Table) -> tuple[str, ...]:
    return tuple(
        f"CREATE TRIGGER IF NOT EXISTS {table.name}_refuses_{change.lower()} BEFORE {change} ON {table.name} "
        f"BEGIN SELECT RAISE(ABORT, '{table.name} is append-only'); END"
        for change in ("UPDATE", "DELETE")
    )


def _postgresql_triggers(table: sa.Table) -> tuple[str, ...]:
    # Of each statement, not of each row: TRUNCATE fires no trigger of rows.
    return (
        f"CREATE OR REPLACE FUNCTION {table.name}_refuses_changes() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{table.name} is append-only'; END $$",
        f"CREATE OR REPLACE TRIGGER {table.name}_refuses_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table.name}_refuses_changes()",
    )


# PostgreSQL looks whether a table exists before it locks its name, so that of two makers one would fail. The number of
# the lock is the ASCII of "odp".
_POSTGRESQL_LOCK = "SELECT pg_advisory_xact_lock(7300208)"
# Of this moment: ``now()`` would be that of the transaction's begin, and may be long ago.
_POSTGRESQL_NOW = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)

_DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        "sqlite": Dialect(sqlite.insert, _sqlite_triggers),
        "postgresql": Dialect(
            postgresql.insert, _postgresql_triggers, exclusive=(_POSTGRESQL_LOCK,), now=_POSTGRESQL_NOW
        ),
    }
)
