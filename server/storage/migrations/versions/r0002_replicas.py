"""The tables of servers that share a database: leases, and the log, keys and tables of all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ID_BYTES = 32
_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
METADATA = sa.MetaData()
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


def upgrade() -> None:
    """Makes them, unless the program that had them before it had this number has."""
    METADATA.create_all(op.get_bind())
