"""A roster: the devices that may be clients of a SecAgg+ session, or that get tokens of an issuer.

The file has one Ed25519 public key per line, 64 digits of hexadecimal; ``#`` begins a comment. Whoever makes it vouches
that behind each key stands a device of its own: that is what a server must not be able to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from odp.crypto.public_keys import KEY_BYTES, require_ed25519
from odp.errors import ConfigurationError

_LARGEST_FILE = 2**27


def read_roster(path: Path) -> frozenset[bytes]:
    """The keys of a file.

    Raises:
        ConfigurationError: it is missing or empty, or a line is no key (``odp.crypto.public_keys``) or comes twice.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ConfigurationError(f"roster {path} is larger than {_LARGEST_FILE} bytes")
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"roster {path} cannot be read; check the path") from error
    keys: set[bytes] = set()
    for number, line in enumerate(lines, start=1):
        if not (text := line.partition("#")[0].strip()):
            continue
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES or key in keys:
            raise ConfigurationError(
                f"roster {path}, line {number}: Expected one key of {2 * KEY_BYTES} hexadecimal digits, each once"
            )
        require_ed25519(key, name=f"the key of roster {path}, line {number},")
        keys.add(key)
    if not keys:
        raise ConfigurationError(f"roster {path} has no keys")
    return frozenset(keys)


def hash_of(roster: Collection[bytes]) -> bytes:
    """SHA-256 (32 bytes) over the keys in ascending order: a task's reference to its roster."""
    return hashlib.sha256(b"".join(sorted(roster))).digest()
