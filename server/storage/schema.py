"""The tables of the server, whose history is append-only, and the SQL that differs between databases.

The table of kinds of databases is closed: on any other the history would silently not be append-only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import sqlalchemy as sa

from odp.errors import ConfigurationError
from odp.storage.migrations import Schema, bring_up, changing, note_new

_ID_BYTES = 32
# 64 bits in every database: counts and numbers of rounds are unsigned 32-bit integers. In SQLite, INTEGER has them, and
# only a key of that type is drawn by the database.
_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

METADATA = sa.MetaData()
TASKS = sa.Table(
    "tasks",
    METADATA,
    sa.Column("sequence", _INTEGER, primary_key=True, autoincrement=True),
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), nullable=False, unique=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("population", sa.String(64), nullable=False),
    sa.Column("definition", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
    sa.Column("planned_rounds", _INTEGER, nullable=False),
    sa.Column("state", _INTEGER, nullable=False, index=True),
    sa.Column("failure", sa.Text, nullable=False),
    # When the aggregator was known to have ended it; null before, and of tasks that were never ended.
    sa.Column("abandoned", sa.Float, nullable=True),
    # Since when it opens no further round; null where it does.
    sa.Column("paused", sa.Double, nullable=True),
)
# All charters of the populations of these tasks, in force now or before.
CHARTERS = sa.Table(
    "charters",
    METADATA,
    sa.Column("population", sa.String(64), primary_key=True),
    sa.Column("sequence", _INTEGER, primary_key=True, autoincrement=False),
    sa.Column("signed", sa.LargeBinary, nullable=False),
)
# Only of tasks with public item features: what their definition names by its hash.
ITEM_FEATURES = sa.Table(
    "item_features",
    METADATA,
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), sa.ForeignKey("tasks.task_sha256"), primary_key=True),
    sa.Column("matrix", sa.LargeBinary, nullable=False),
)
VERSIONS = sa.Table(
    "versions",
    METADATA,
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), sa.ForeignKey("tasks.task_sha256"), primary_key=True),
    sa.Column("version", _INTEGER, primary_key=True, autoincrement=False),
    sa.Column("manifest", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
    sa.Column("published", sa.Float, nullable=True),
    # Only the newest version keeps them: its successor's transaction clears both.
    sa.Column("state", sa.LargeBinary, nullable=True),
    sa.Column("tables", sa.LargeBinary, nullable=True),
)
ROUNDS = sa.Table(
    "rounds",
    METADATA,
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), sa.ForeignKey("tasks.task_sha256"), primary_key=True),
    sa.Column("round", _INTEGER, primary_key=True, autoincrement=False),
    sa.Column("state", _INTEGER, nullable=False),
    sa.Column("contributions", _INTEGER, nullable=False),
    sa.Column("opened", sa.Float, nullable=False),
    sa.Column("closed", sa.Float, nullable=False),
    sa.Column("release", sa.LargeBinary, nullable=False),
    sa.Column("release_signature", sa.LargeBinary, nullable=False),
    # Serialized SignedRoundKey: what contributions are sealed to while the round is open.
    sa.Column("round_key", sa.LargeBinary, nullable=False),
)
# Of the rounds whose contributions need tokens: what they were opened with.
TOKEN_KEYS = sa.Table(
    "token_keys",
    METADATA,
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), sa.ForeignKey("tasks.task_sha256"), primary_key=True),
    sa.Column("round", _INTEGER, primary_key=True, autoincrement=False),
    sa.Column("signed", sa.LargeBinary, nullable=False),
)
# Of tasks of local trust (``reports.py``): the rows that reports overwrite, and how often each was.
LOCAL_ROWS = sa.Table(
    "local_rows",
    METADATA,
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), sa.ForeignKey("tasks.task_sha256"), primary_key=True),
    sa.Column("place", _INTEGER, primary_key=True, autoincrement=False),
    sa.Column("overwritten", _INTEGER, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
# One line per report; without content where it overwrote a row.
LOCAL_REPORTS = sa.Table(
    "local_reports",
    METADATA,
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), sa.ForeignKey("tasks.task_sha256"), primary_key=True),
    sa.Column("report_id", sa.LargeBinary(_ID_BYTES), primary_key=True),
    sa.Column("received", sa.Float, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
HISTORY = sa.Table(
    "task_history",
    METADATA,
    sa.Column("sequence", _INTEGER, primary_key=True, autoincrement=True),
    sa.Column("task_sha256", sa.LargeBinary(_ID_BYTES), sa.ForeignKey("tasks.task_sha256"), nullable=False, index=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("event", sa.String(32), nullable=False),
    sa.Column("round", _INTEGER, nullable=True),
    sa.Column("detail", sa.Text, nullable=False),
)

# Who leads what (``leases.py``): a task by its id, and the transparency log. A row stays; its token only grows.
LEASES = sa.Table(
    "leases",
    METADATA,
    sa.Column("name", sa.LargeBinary(_ID_BYTES), primary_key=True),
    sa.Column("token", _INTEGER, nullable=False),
    sa.Column("holder", sa.String(64), nullable=False),
    sa.Column("place", sa.String(64), nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
    # What the task waits for, as its leader said last; empty where it does not wait.
    sa.Column("wait_reason", sa.Text, nullable=False),
    sa.Column("wait_until", sa.Double, nullable=True),
)
# The transparency log of servers that share it (``log_rows.py``), and the keys that they share.
LOG_ENTRIES = sa.Table(
    "log_entries",
    METADATA,
    sa.Column("number", _INTEGER, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
)
LOG_CHECKPOINT = sa.Table(
    "log_checkpoint",
    METADATA,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("size", _INTEGER, nullable=False),
    sa.Column("note", sa.LargeBinary, nullable=False),
)
SHARED_KEYS = sa.Table(
    "shared_keys",
    METADATA,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# Serialized TableRecord of each public table of servers that share them.
PUBLIC_TABLES = sa.Table(
    "public_tables",
    METADATA,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("record", sa.LargeBinary, nullable=False),
)


#: Of the newest revision in ``migrations/versions``.
HEAD = "0003"
_SCHEMA = Schema("server_schema", head=HEAD, mark=TASKS.name, folder=Path(__file__).with_name("migrations"))


def create_tables(engine: sa.Engine) -> None:
    """Creates the tables of a new store, and brings those of an older one to this schema, in one transaction.

    Raises StateError for a store of a newer schema.
    """
    dialect = dialect_of(engine)
    with engine.connect() as connection, changing(connection, exclusive=dialect.exclusive):
        if bring_up(connection, _SCHEMA):
            return
        METADATA.create_all(connection)
        for statement in dialect.append_only(HISTORY):
            connection.exec_driver_sql(statement)
        note_new(connection, _SCHEMA)


@dataclass(frozen=True)
class Dialect:
    """One kind of database.

    Attributes:
      append_only: the statements after which a table refuses UPDATE and DELETE; they can be repeated.
      exclusive: the statements after which no other process makes tables until the transaction ends.
      now: the database's own clock, in seconds since the epoch; None where it has none but the program's.
    """

    append_only: Callable[[sa.Table], tuple[str, ...]]
    exclusive: tuple[str, ...] = ()
    now: sa.ColumnElement[float] | None = None


def dialect_of(engine: sa.Engine | sa.Connection) -> Dialect:
    """The dialect of a database. Raises ConfigurationError for a database without a dialect here."""
    if (dialect := _DIALECTS.get(engine.dialect.name)) is None:
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
        "sqlite": Dialect(_sqlite_triggers),
        "postgresql": Dialect(_postgresql_triggers, exclusive=(_POSTGRESQL_LOCK,), now=_POSTGRESQL_NOW),
    }
)
