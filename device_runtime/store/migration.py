"""Brings a store of an earlier version to this one; at every moment the old store or the new one is complete.

One that is not encrypted is replaced by an encrypted copy; an encrypted one gets the tables that it lacks, in one
transaction.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from device_runtime.store import database
from device_runtime.store.keys import PLAIN_HEADER, StoreKey, folder_lock
from device_runtime.store.schema import ADDED, SCHEMA_VERSION, UPGRADES
from odp._system.files.durability import put_in_place, sync
from odp.errors import StateError

#: The version whose stores are taken over.
PLAIN_VERSION = 2
_UNFINISHED = ".encrypting"
_CHUNK = 1 << 20


def is_plain(path: Path) -> bool:
    """Whether the file is a database that is not encrypted."""
    with database.errors(path), path.open("rb") as file:
        return file.read(len(PLAIN_HEADER)) == PLAIN_HEADER


def encrypt(path: Path, key: StoreKey) -> None:
    """Replaces the file by an encrypted one of this version with the same rows, and overwrites the old content.

    Idempotent, and safe against a kill at any moment. Copies that a file system or a backup keeps are not overwritten.

    Raises:
      StateError: it is of another version, damaged, or in use by another program; it is as it was.
    """
    with folder_lock(path.parent):
        if not is_plain(path):  # another process was faster
            return
        unfinished = path.with_name(path.name + _UNFINISHED)
        with database.errors(path):
            unfinished.unlink(missing_ok=True)
            os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            connection = database.connected(path, None)
            try:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version != PLAIN_VERSION:
                    raise StateError(
                        f"device store {path} has version {version}, not {PLAIN_VERSION} or {SCHEMA_VERSION}; "
                        "use the version of the program that made it"
                    )
                # The lock is kept until the connection is closed: nobody writes to a file that is about to be replaced.
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")
                connection.execute(f"ATTACH DATABASE ? AS encrypted KEY {database.quoted_key(key)}", (str(unfinished),))
                connection.execute(f"PRAGMA encrypted.cipher_page_size={database.PAGE_BYTES}")
                connection.execute("SELECT sqlcipher_export('encrypted')")
                connection.execute("DETACH DATABASE encrypted")
                _complete(unfinished, key)
                with path.open("rb+") as old:
                    put_in_place(unfinished, path)
                    _overwrite(old.fileno(), path)
            finally:
                connection.close()
                unfinished.unlink(missing_ok=True)


def upgrade(path: Path, connection: Any) -> None:
    """Brings an open encrypted store to this version, unless it is.

    Raises:
      StateError: it is of a version that cannot be taken over; it is as it was.
    """
    while (version := connection.execute("PRAGMA user_version").fetchone()[0]) != SCHEMA_VERSION:
        if version not in UPGRADES:
            raise StateError(
                f"device store {path} has version {version}, not {SCHEMA_VERSION}; use the version of the program that "
                "made it"
            )
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have been faster.
            if connection.execute("PRAGMA user_version").fetchone()[0] == version:
                for statement in UPGRADES[version]:
                    connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _complete(path: Path, key: StoreKey) -> None:
    """Adds to the copy the tables that are new in this version."""
    connection = database.connected(path, key)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in ADDED:
            connection.execute(statement)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _overwrite(descriptor: int, path: Path) -> None:
    size = os.fstat(descriptor).st_size
    for start in range(0, size, _CHUNK):
        os.pwrite(descriptor, bytes(min(_CHUNK, size - start)), start)
    sync(descriptor, path)
