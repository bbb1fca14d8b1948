"""What stores hold, for tests that look for it byte by byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

from device_runtime.database import connected
from device_runtime.keys import folder_of, host_key


def decrypted(path: Path) -> bytes:
    """The bytes of an unencrypted copy of a store, its free pages left out as they are not copied."""
    connection = connected(path, host_key(folder_of(path)).of_store(path))
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain"
        connection.execute("ATTACH DATABASE ? AS plain KEY ''", (str(plain),))
        connection.execute("SELECT sqlcipher_export('plain')")
        connection.close()
        return plain.read_bytes()
