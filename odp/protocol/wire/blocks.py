"""Blocks of a table's bytes, by which a device with another version downloads only the changes.

A table is cut at every 64 KiB; a list of its blocks is the SHA-256 of each, one after the other. A list is signed by
nobody: whoever puts a table together by one compares the whole with the SHA-256 of the signed manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

BLOCK_BYTES = 2**16
HASH_BYTES = 32


def block_count(size: int) -> int:
    """Blocks of a table of ``size`` bytes; the last one may be shorter."""
    return -(-size // BLOCK_BYTES)


def block_hashes(pieces: Iterable[bytes | memoryview]) -> bytes:
    """The list of a table that comes in ``pieces``, each but the last a multiple of 64 KiB."""
    return b"".join(
        hashlib.sha256(piece[start : start + BLOCK_BYTES]).digest()
        for piece in pieces
        for start in range(0, len(piece), BLOCK_BYTES)
    )


def changed_blocks(held: bytes, wanted: bytes) -> list[int]:
    """Numbers of the blocks in which two lists of one length differ, ascending."""
    places = range(0, len(wanted), HASH_BYTES)
    return [
        place // HASH_BYTES
        for place in places
        if held[place : place + HASH_BYTES] != wanted[place : place + HASH_BYTES]
    ]
