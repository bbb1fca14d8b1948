"""SQLite through SQLAlchemy Core, opened the same way by every service: WAL, enforced foreign keys, one-line errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event

from odp.errors import DiskFull, StateError
from odp.transport.private_files import make_private
from odp.transport.state_folder import state_errors

_BUSY_SECONDS = 30


def open_database(path: Path, *, durable: bool = True) -> sqlalchemy.Engine:
    """An engine on the SQLite file ``path``, created on first use.

    ``durable=True`` syncs every commit to the disk (a ledger survives a power cut); ``False`` syncs at checkpoints
    only: a commit survives the death of the process, and a power cut may take the last ones, never the file.
    Raises StateError for a file that is not a database.
    """
    with state_errors(path.parent):
        # SQLite gives its journal the mode of the file, so that has to be right before the first byte.
        make_private(path)
    engine = sqlalchemy.create_engine(
        sqlalchemy.URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    try:
        with database_errors(path), engine.connect() as connection:
            connection.execute(sqlalchemy.text("SELECT count(*) FROM sqlite_master"))
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextlib.contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turns what SQLite says of a full disk, a corrupt or locked file into a one-line StateError."""
    try:
        yield
    except sqlalchemy.exc.DatabaseError as error:
        reason = str(error.orig).lower()
        if "full" in reason or "disk i/o" in reason:
            raise DiskFull(f"database {path}: disk full; free some space and start again, nothing was lost") from error
        if "malformed" in reason or "not a database" in reason:
            raise StateError(f"database {path} is damaged ({error.orig}); restore it from a backup") from error
        if "locked" in reason:
            raise StateError(f"database {path} is locked by another program; stop it") from error
        if "unable to open" in reason or "readonly" in reason:
            raise StateError(f"database {path}: {error.orig}; check the path and its permissions") from error
        raise
