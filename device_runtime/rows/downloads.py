"""Downloads a whole table with as few bytes as possible: from the cache, as changed blocks, or by a resumed download.

In every case, the result has the SHA-256 of the signed manifest. The distributor learns which version of the table a
device holds, where it holds one, and nothing else about it (docs/partial-broadcast.md).
"""

from __future__ import annotations

import hashlib

import numpy as np

from device_runtime.network.services import Services, Traffic
from device_runtime.rows.table_cache import TableCache
from odp.errors import ServiceError
from odp.protocol.wire.tables import BLOCK_BYTES, HASH_BYTES, block_count, block_hashes, changed_blocks, entry_bytes
from odp.transport.channel import CHUNK_BYTES
from odp.v1 import common_pb2, distributor_pb2

#: A list of fewer blocks is not worth asking for.
_FEWEST_BLOCKS = 2


def fetch_table(
    services: Services,
    address: str,
    model_sha256: bytes,
    entry: common_pb2.TableManifest,
    cache: TableCache,
    *,
    traffic: Traffic | None = None,
) -> bytes:
    """The table of ``entry``, and caches it if it fits; ``traffic`` counts the bytes of all calls.

    A download that ends early leaves its chunks in the cache, and the next call goes on behind them.

    Raises:
      ServiceError: the distributor sent another table than the one of the manifest, or failed.
      ServiceUnavailable: nobody answers.
    """
    if (held := cache.find(entry.sha256)) is not None:
        return held
    size = entry_bytes(entry)
    data = _by_blocks(services, address, model_sha256, entry, cache.latest(size), traffic)
    started = cache.started(entry.sha256, CHUNK_BYTES)
    if data is None and 0 < len(started) <= size:
        data = (
            _rest(services, address, model_sha256, entry, cache, started, traffic) if len(started) < size else started
        )
        if not _is(data, entry):
            cache.give_up(entry.sha256)
            data = None
    if data is None:
        data = _rest(services, address, model_sha256, entry, cache, b"", traffic)
    if not _is(data, entry):
        cache.give_up(entry.sha256)
        raise ServiceError(
            f"the distributor at {address} sent a wrong table {entry.name!r}: its SHA-256 is not that of the manifest"
        )
    cache.keep(entry.sha256, data)
    return data


def _by_blocks(
    services: Services,
    address: str,
    model_sha256: bytes,
    entry: common_pb2.TableManifest,
    base: bytes | None,
    traffic: Traffic | None,
) -> bytes | None:
    """The table from ``base`` and the changed blocks; None if that saves nothing or gives another table."""
    count = block_count(len(base)) if base is not None else 0
    if base is None or count < _FEWEST_BLOCKS:
        return None
    wanted = services.block_list(address, model_sha256, entry, traffic)
    if len(wanted) != count * HASH_BYTES:
        return None
    changed = changed_blocks(block_hashes([base]), wanted)
    lengths = [min(BLOCK_BYTES, len(base) - number * BLOCK_BYTES) for number in changed]
    if sum(lengths) + len(wanted) >= len(base):
        return None
    data = bytearray(base)
    if changed:
        request = distributor_pb2.DownloadRequest(
            model_sha256=model_sha256, table=entry.name, blocks=np.array(changed, dtype="<u4").tobytes()
        )
        sent = memoryview(b"".join(services.table_chunks(address, request, sum(lengths), traffic)))
        for number, length in zip(changed, lengths, strict=True):
            data[number * BLOCK_BYTES : number * BLOCK_BYTES + length] = sent[:length]
            sent = sent[length:]
    table = bytes(data)
    return table if _is(table, entry) else None


def _rest(
    services: Services,
    address: str,
    model_sha256: bytes,
    entry: common_pb2.TableManifest,
    cache: TableCache,
    held: bytes,
    traffic: Traffic | None,
) -> bytes:
    size = entry_bytes(entry)
    request = distributor_pb2.DownloadRequest(
        model_sha256=model_sha256, table=entry.name, first_chunk=len(held) // CHUNK_BYTES
    )
    chunks = services.table_chunks(address, request, size - len(held), traffic)
    return held + b"".join(cache.noting(entry.sha256, held, chunks, size))


def _is(data: bytes, entry: common_pb2.TableManifest) -> bool:
    return hashlib.sha256(data).digest() == entry.sha256
