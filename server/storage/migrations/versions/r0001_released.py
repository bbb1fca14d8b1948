"""The tables of the first releases, which kept no number of their schema; the earliest ones had fewer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from server.storage.schema import dialect_of

revision = "0001"
down_revision = None

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


def upgrade() -> None:
    """Makes those that are missing."""
    connection = op.get_bind()
    METADATA.create_all(connection)
    for statement in dialect_of(connection).append_only(HISTORY):
        connection.exec_driver_sql(statement)
