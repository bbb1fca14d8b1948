"""Recovery of a damaged store: it is set aside and rebuilt from its readable rows, but never without its ledger.

Every page of a store is authenticated, so damage is found where it is read, and never read as something else. A store
of which all of identity, decisions, tasks and ledger can be read is rebuilt, with as many of the other rows as are
left. Any other is only set aside: without its ledger the device would spend the same epsilon a second time.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlcipher3 import dbapi2 as _sqlcipher

from device_runtime.store.database import connected, errors
from device_runtime.store.keys import PLAIN_HEADER, HostKey, StoreKey, folder_lock, folder_of, host_key
from device_runtime.store.schema import CREATE, DATA_TABLES, LEDGER_TABLES, SCHEMA_VERSION
from odp._system.files.durability import put_in_place
from odp.errors import StateError, StoreDamaged

_ASIDE = ".damaged"
_UNFINISHED = ".rebuilding"


@dataclass(frozen=True)
class Repair:
    """The outcome of a repair: the new place of the damaged file, and the tables that lost rows.

    ``aside`` is None where nothing was damaged.
    """

    aside: Path | None
    incomplete: tuple[str, ...] = ()


class PlainStore(StateError):
    """An unencrypted store of an earlier version."""


def set_aside_path(path: Path) -> Path:
    """The path for a damaged store that is set aside."""
    return path.with_name(path.name + _ASIDE)


def refuse_set_aside(path: Path) -> None:
    """Raises StoreDamaged if the store was set aside and there is no new one."""
    aside = set_aside_path(path)
    if aside.exists():
        raise StoreDamaged(
            f"device store {path} was damaged and is set aside as {aside}, since its ledger cannot be read; restore "
            f"{path.name} from a backup, or remove {aside.name} to start with an empty store and an empty ledger"
        )


def opened_version(path: Path, connection: Any, key: StoreKey) -> int:
    """The version of an open store: the first read, which tells a wrong key from damage.

    Raises:
      PlainStore: it is not encrypted.
      StateError: the file was made with another key; nothing was changed.
    """
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except _sqlcipher.OperationalError:
        raise  # locked, or no room: that is no damage
    except _sqlcipher.DatabaseError as error:
        with path.open("rb") as file:
            header = file.read(len(key.salt))
        if header == key.salt:
            raise
        if header == PLAIN_HEADER:
            raise PlainStore(f"device store {path} is not encrypted") from None
        raise StateError(
            f"device store {path} is damaged at its start, or encrypted with another key than this "
            "host's; nothing was changed; restore it from a backup"
        ) from error


def repair(path: Path, *, key: HostKey | None = None) -> Repair:
    """Rebuilds a damaged store, or sets it aside; leaves an intact one as it is. Safe against a kill.

    Raises:
      StoreDamaged: its ledger cannot be read; the file was set aside under the name that the message has.
      StateError: it was made with another key, or is in use; nothing was changed.
    """
    store_key = (host_key(folder_of(path)) if key is None else key).of_store(path)
    with folder_lock(path.parent), errors(path):
        if not path.exists():
            refuse_set_aside(path)
            raise StateError(f"device store {path} does not exist")
        try:
            tables, incomplete = _read(path, store_key)
        except _sqlcipher.OperationalError:
            raise  # locked, or no room: that is no damage
        except _sqlcipher.DatabaseError:
            aside = set_aside_path(path)
            path.replace(aside)
            refuse_set_aside(path)
            raise
        if not incomplete:
            return Repair(None)
        unfinished = path.with_name(path.name + _UNFINISHED)
        unfinished.unlink(missing_ok=True)
        try:
            _write(unfinished, store_key, tables)
            aside = set_aside_path(path)
            aside.unlink(missing_ok=True)
            # Of two names for the damaged file, one stays when the rebuilt one takes its place.
            os.link(path, aside)
            put_in_place(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        return Repair(aside, incomplete)


def _read(path: Path, key: StoreKey) -> tuple[dict[str, list[tuple]], tuple[str, ...]]:  # type: ignore[type-arg]  # rows of any columns
    """The rows of each table, and the tables that lost rows. Raises DatabaseError if the ledger lost any."""
    connection = connected(path, key)
    try:
        if (version := opened_version(path, connection, key)) != SCHEMA_VERSION:
            raise StateError(f"device store {path} has version {version}; use the version of the program that made it")
        connection.execute("BEGIN IMMEDIATE")
        tables = {table: _rows(path, key, table, "ASC", {}) for table in LEDGER_TABLES}
        incomplete = []
        for table in DATA_TABLES:
            rows: dict[tuple, None] = {}  # type: ignore[type-arg]  # rows of any columns
            try:
                _rows(path, key, table, "ASC", rows)
            except _sqlcipher.DatabaseError:
                incomplete.append(table)
                # From the other end to the damage.
                with contextlib.suppress(_sqlcipher.DatabaseError):
                    _rows(path, key, table, "DESC", rows)
            tables[table] = list(rows)
        # Also pages that no row is on, and the order of what is on the others.
        if not incomplete and _other_damage(connection):
            incomplete.append("none (an index, or free space)")
        return tables, tuple(incomplete)
    finally:
        connection.close()


def _rows(path: Path, key: StoreKey, table: str, order: str, rows: dict[tuple, None]) -> list[tuple]:  # type: ignore[type-arg]  # rows of any columns
    """Adds a table's rows to ``rows`` up to the damage; a connection that met damage can read nothing else."""
    connection = connected(path, key)
    try:
        for row in connection.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY 1 {order}"):
            rows[row] = None
    finally:
        connection.close()
    return list(rows)


def _other_damage(connection: Any) -> bool:
    try:
        if connection.execute("PRAGMA cipher_integrity_check").fetchall():
            return True
        return bool(connection.execute("PRAGMA quick_check").fetchone()[0] != "ok")
    except _sqlcipher.OperationalError:
        raise
    except _sqlcipher.DatabaseError:
        return True


def _write(path: Path, key: StoreKey, tables: dict[str, list[tuple]]) -> None:  # type: ignore[type-arg]  # rows of any columns
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = connected(path, key)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in CREATE:
            connection.execute(statement)
        for table, rows in tables.items():
            if rows:
                places = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({places})", rows)
        connection.execute("COMMIT")
    finally:
        connection.close()
