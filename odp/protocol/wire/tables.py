"""Tables between arrays, bytes and manifests, each in its encoding (``odp.protocol.wire.encoding``).

Blocks of a table's bytes, by which a device with another version downloads only the changes.

A table is cut at every 64 KiB; a list of its blocks is the SHA-256 of each, one after the other. A list is signed by
nobody: whoever puts a table together by one compares the whole with the SHA-256 of the signed manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import decoded, decoded_as_is, encoded, encoding_of, number_of, row_bytes
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from odp.v1 import common_pb2, distributor_pb2


def table_bytes(table: TableValues) -> bytes:
    """The wire form of a table."""
    return encoded(table.rows, table.encoding)


def entry_row_bytes(entry: common_pb2.TableManifest) -> int:
    """Bytes of one row of a declared table."""
    return row_bytes(entry.width, encoding_of(entry.encoding))


def entry_bytes(entry: common_pb2.TableManifest) -> int:
    """Bytes of a declared table."""
    return int(entry.rows * entry_row_bytes(entry))


def manifest_for(broadcast: ModelVersion, task_sha256: bytes) -> common_pb2.ModelManifest:
    """The manifest of a broadcast: versions, shapes and content hashes."""
    return common_pb2.ModelManifest(
        task_sha256=task_sha256,
        version=broadcast.version,
        tables=[
            common_pb2.TableManifest(
                name=table.name,
                rows=table.rows.shape[0],
                width=table.rows.shape[1],
                sha256=hashlib.sha256(table_bytes(table)).digest(),
                keyed=table.keyed,
                encoding=number_of(table.encoding),
            )
            for table in broadcast.tables
        ],
    )


def table_from_bytes(entry: common_pb2.TableManifest, data: bytes | bytearray) -> TableValues:
    """The table of a manifest entry. Raises ConfigurationError unless length and SHA-256 are the manifest's."""
    if len(data) != entry_bytes(entry):
        raise ConfigurationError(f"table {entry.name!r}: expected {entry_bytes(entry)} bytes, got {len(data)}")
    if hashlib.sha256(data).digest() != entry.sha256:
        raise ConfigurationError(f"table {entry.name!r}: its bytes do not have the manifest's SHA-256")
    encoding = encoding_of(entry.encoding)
    try:
        return TableValues(entry.name, decoded(data, entry.width, encoding), entry.keyed, encoding)
    except ConfigurationError as error:
        raise ConfigurationError(f"table {entry.name!r} cannot be used: {error}") from error


def written_rows(entry: common_pb2.TableManifest, data: bytes | bytearray) -> np.ndarray:
    """The encoded rows: uint8 [rows, entry_row_bytes], from checked ``data``."""
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, entry_row_bytes(entry))


def broadcast_from(manifest: common_pb2.ModelManifest, tables: Mapping[str, bytes]) -> ModelVersion:
    """The whole model. Raises ConfigurationError for a missing table or a wrong hash."""
    missing = [entry.name for entry in manifest.tables if entry.name not in tables]
    if missing:
        raise ConfigurationError(f"the model lacks its table {missing[0]!r}")
    return ModelVersion(
        manifest.version, tuple(table_from_bytes(entry, tables[entry.name]) for entry in manifest.tables)
    )


def keyed_entry(manifest: common_pb2.ModelManifest) -> common_pb2.TableManifest:
    """The manifest's keyed table."""
    return next(entry for entry in manifest.tables if entry.keyed)


def padded_keys(keys: Sequence[int] | np.ndarray, count: int) -> bytes:
    """The wire form of a request for ``keys`` (distinct): exactly ``count`` keys; padding repeats the first.

    Raises ConfigurationError for no keys, or more than ``count``.
    """
    wanted = np.asarray(keys, dtype="<u4")
    if not 0 < len(wanted) <= count:
        raise ConfigurationError(f"Expected 1 to {count} keys, got {len(wanted)}")
    return np.concatenate([wanted, np.full(count - len(wanted), wanted[0], dtype="<u4")]).tobytes()


def slices_from(manifest: common_pb2.ModelManifest, keys: np.ndarray, selected: distributor_pb2.SelectedRows) -> Slices:
    """The slices that a device received for its distinct, ascending ``keys`` (without padding).

    Which rows came depends on what the device holds, so nothing *in* them is an error: values may be NaN or infinite,
    and an algorithm's client makes of such a row what it makes of an unknown item.

    Raises ConfigurationError where rows or dense tables do not have the manifest's shape, or a dense table is not the
    manifest's or not finite.
    """
    entry = keyed_entry(manifest)
    size = entry_row_bytes(entry)
    if len(selected.rows) % size or len(selected.rows) < len(keys) * size:
        raise ConfigurationError(f"selected rows of {entry.name!r} have a wrong length of {len(selected.rows)} bytes")
    rows = decoded_as_is(selected.rows[: len(keys) * size], entry.width, encoding_of(entry.encoding))
    dense_entries = [table for table in manifest.tables if not table.keyed]
    if len(selected.dense) != len(dense_entries):
        raise ConfigurationError(f"Expected {len(dense_entries)} dense tables, got {len(selected.dense)}")
    dense = {
        table.name: table_from_bytes(table, data).rows
        for table, data in zip(dense_entries, selected.dense, strict=True)
    }
    return Slices(manifest.version, np.asarray(keys, dtype=np.int64), rows, dense)


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
