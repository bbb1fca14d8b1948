"""Tasks that are paused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """No task of an older store is paused."""
    op.add_column("tasks", sa.Column("paused", sa.Double, nullable=True))
