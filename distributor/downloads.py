"""Whole tables, what is left of them, and the blocks of them that changed: read from the host's disk, piece by piece.

Tables are public to everybody who knows their model's id. A request that resumes a download, or lists missing blocks,
reveals which version of the table its device has, and nothing else about it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distributor.model_store import ModelStore
from odp._system.recent import Recent
from odp.errors import ConfigurationError
from odp.protocol.wire.tables import block_count, block_hashes
from odp.transport.channel import CHUNK_BYTES
from odp.v1 import distributor_pb2

#: Lists kept in memory, of at most 512 KiB each.
_MOST_LISTS = 64
_NUMBER = np.dtype("<u4")


def pieces(store: ModelStore, request: distributor_pb2.DownloadRequest, index: int, size: int) -> Iterator[bytes]:
    """The bytes that ``request`` asks for, of table ``index`` with ``size`` bytes, in pieces of at most 1 MiB; opened
    at once.

    Raises:
      ConfigurationError: ``first_chunk`` or ``blocks`` is not within the table, or both are given.
      FileNotFoundError: the model is not stored.
    """
    chunks = -(-size // CHUNK_BYTES)
    if request.first_chunk >= chunks:
        raise ConfigurationError(f"Expected first_chunk={request.first_chunk} to be below {chunks}")
    if not request.blocks:
        return store.chunks(request.model_sha256, index, CHUNK_BYTES, start=request.first_chunk * CHUNK_BYTES)
    if request.first_chunk:
        raise ConfigurationError("Expected first_chunk or blocks, not both")
    return store.blocks(request.model_sha256, index, _numbers(request.blocks, block_count(size)))


def _numbers(blocks: bytes, count: int) -> list[int]:
    if len(blocks) % _NUMBER.itemsize or len(blocks) > count * _NUMBER.itemsize:
        raise ConfigurationError(f"Expected at most {count} blocks of 4 bytes each, got {len(blocks)} bytes")
    numbers = np.frombuffer(blocks, dtype=_NUMBER).astype(np.int64)
    if not (np.diff(numbers) > 0).all() or numbers[-1] >= count:
        raise ConfigurationError(f"Expected blocks to be ascending and below {count}")
    return [int(number) for number in numbers]


class BlockLists:
    """Lists of blocks of stored tables, each computed once; thread-safe."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._lists: Recent[tuple[bytes, int], bytes] = Recent(_MOST_LISTS)

    def of(self, model: bytes, index: int) -> bytes:
        """The list of a table. Raises FileNotFoundError if the model is not stored."""
        return self._lists.get_or_make(
            (model, index), lambda: block_hashes(self._store.chunks(model, index, CHUNK_BYTES))
        )
