"""SQLite through SQLAlchemy Core, opened the same way by every service: durable, foreign keys enforced, clear errors.

A commit is on the disk before it returns. One that the disk fails ends the program (``odp._system.files.durability``):
nothing is read or written through that engine any more.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event

from odp._system.files.durability import Health, disk_failed, read_from_disk, sync_folder
from odp._system.files.private_files import make_private
from odp._system.files.state_folder import state_errors
from odp.errors import DiskFull, StateError

_BUSY_SECONDS = 30
_EMPTYING_SECONDS = 1
_MILLISECONDS = 1000
# SQLite has a separate code for a full disk; this one stands for a quota, or a limit of a file's size.
_WRITE_FAILED = "SQLITE_IOERR_WRITE"


def open_database(path: Path, *, health: Health | None = None) -> sqlalchemy.Engine:
    """An engine on the SQLite file ``path``, created on first use; every commit survives a power cut.

    ``health`` records the first failure of the disk. Raises StateError for a file that is not a database.
    """
    health = Health() if health is None else health
    with state_errors(path.parent):
        # SQLite gives its journal the mode of the file, so that has to be right before the first byte.
        make_private(path)
        read_from_disk(path.with_name(path.name + "-wal"))
    engine = sqlalchemy.create_engine(
        sqlalchemy.URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "checkout")
    def _require_healthy(_connection: Any, _record: Any, _proxy: Any) -> None:
        health.require()

    @event.listens_for(engine, "handle_error")
    def _note(context: Any) -> None:
        if name := _failed(context.original_exception):
            health.note(disk_failed(path, name))

    try:
        with database_errors(path), engine.connect() as connection:
            connection.execute(sqlalchemy.text("SELECT count(*) FROM sqlite_master"))
        # SQLite does so as well, and does not tell where that fails. The log now has its name for as long as we run.
        with health, state_errors(path.parent):
            sync_folder(path.parent)
    except BaseException:
        engine.dispose()
        raise
    return engine


def empty_log(engine: sqlalchemy.Engine) -> bool:
    """Moves all commits into the database file, and empties its write-ahead log, which may contain deleted data.

    False where somebody reads the database: then the log is as it was.
    """
    with engine.connect() as connection:
        # A reader may read for hours, and callers hold locks.
        connection.exec_driver_sql(f"PRAGMA busy_timeout={_EMPTYING_SECONDS * _MILLISECONDS}")
        try:
            busy, _, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={_BUSY_SECONDS * _MILLISECONDS}")
    return not busy


@contextlib.contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turns SQLite's errors about a full or failing disk, or a corrupt or locked file, into a one-line StateError."""
    try:
        yield
    except sqlalchemy.exc.DatabaseError as error:
        reason, failed = str(error.orig).lower(), _failed(error.orig)
        if failed:
            raise disk_failed(path, failed) from error
        if "full" in reason or _name(error.orig) == _WRITE_FAILED:
            raise DiskFull(f"database {path}: disk full; free some space and start again; nothing was lost") from error
        if "malformed" in reason or "not a database" in reason:
            raise StateError(f"database {path} is damaged ({error.orig}); restore it from a backup") from error
        if "locked" in reason:
            raise StateError(f"database {path} is locked by another program; stop it") from error
        if "unable to open" in reason or "readonly" in reason:
            raise StateError(f"database {path}: {error.orig}; check the path and its permissions") from error
        raise


def _failed(error: object) -> str:
    """SQLite's name of an input or output error; empty for any other.

    A write that failed took its transaction with it, and nothing before: that is a quota, mostly, and not lost data.
    """
    name = _name(error)
    return name if name.startswith("SQLITE_IOERR") and name != _WRITE_FAILED else ""


def _name(error: object) -> str:
    return error.sqlite_errorname if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorname") else ""
