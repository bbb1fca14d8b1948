"""What stores hold, for tests that look for it byte by byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sqlcipher3 import dbapi2 as sqlcipher

from device_runtime.store.database import PAGE_BYTES, connected
from device_runtime.store.keys import folder_of, host_key


def decrypted(path: Path) -> bytes:
    """The bytes of an unencrypted copy of a store, its free pages left out as they are not copied."""
    connection = connected(path, host_key(folder_of(path)).of_store(path))
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain"
        connection.execute("ATTACH DATABASE ? AS plain KEY ''", (str(plain),))
        connection.execute("SELECT sqlcipher_export('plain')")
        connection.close()
        return plain.read_bytes()


def pages_of(path: Path, table: str) -> list[int]:
    """The numbers of the pages, from 1, that only this table's rows are on; its root first."""
    key = host_key(folder_of(path)).of_store(path)
    content = path.read_bytes()
    connection = connected(path, key)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()

    def readable(path: Path, name: str) -> bool:
        connection = connected(path, key)
        try:
            connection.execute(f"SELECT * FROM {name}").fetchall()
        except sqlcipher.DatabaseError:
            return False
        finally:
            connection.close()
        return True

    found = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for page in range(2, len(content) // PAGE_BYTES + 1):
            damaged = bytearray(content)
            damaged[PAGE_BYTES * (page - 1) + 100] ^= 1
            copy.write_bytes(damaged)
            if not readable(copy, table) and readable(copy, "pruning"):
                found.append(page)
    return sorted(found, key=lambda page: (page != root, page))
