"""Model tables between arrays, bytes and manifests (odp/v1/common.proto: float32 little-endian, row-major)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from odp.algorithms.seam import Broadcast, Slices, Table
from odp.errors import ConfigurationError
from odp.v1 import common_pb2, distributor_pb2


def table_bytes(table: Table) -> bytes:
    """The wire form of a table."""
    return np.ascontiguousarray(table.rows, dtype="<f4").tobytes()


def manifest_for(broadcast: Broadcast, task_sha256: bytes) -> common_pb2.ModelManifest:
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
            )
            for table in broadcast.tables
        ],
    )


def table_from_bytes(entry: common_pb2.TableManifest, data: bytes | bytearray) -> Table:
    """The table of a manifest entry. Raises ConfigurationError unless length and SHA-256 are the manifest's."""
    if len(data) != entry.rows * entry.width * 4:
        raise ConfigurationError(
            f"table {entry.name!r}: expected {entry.rows * entry.width * 4} bytes, got {len(data)}"
        )
    if hashlib.sha256(data).digest() != entry.sha256:
        raise ConfigurationError(f"table {entry.name!r}: its bytes do not have the manifest's SHA-256")
    rows = np.frombuffer(data, dtype="<f4").reshape(entry.rows, entry.width)
    if not np.isfinite(rows).all():
        raise ConfigurationError(f"table {entry.name!r} holds a value that is not finite")
    return Table(entry.name, rows, entry.keyed)


def broadcast_from(manifest: common_pb2.ModelManifest, tables: Mapping[str, bytes]) -> Broadcast:
    """The whole model. Raises ConfigurationError for a missing table or a wrong hash."""
    missing = [entry.name for entry in manifest.tables if entry.name not in tables]
    if missing:
        raise ConfigurationError(f"the model lacks its table {missing[0]!r}")
    return Broadcast(manifest.version, tuple(table_from_bytes(entry, tables[entry.name]) for entry in manifest.tables))


def keyed_entry(manifest: common_pb2.ModelManifest) -> common_pb2.TableManifest:
    """The manifest's keyed table."""
    return next(entry for entry in manifest.tables if entry.keyed)


def padded_keys(keys: Sequence[int] | np.ndarray, count: int) -> bytes:
    """The wire form of a request for ``keys`` (distinct): exactly ``count`` of them, unused places repeat the first.

    Raises ConfigurationError for no keys, or more than ``count``.
    """
    wanted = np.asarray(keys, dtype="<u4")
    if not 0 < len(wanted) <= count:
        raise ConfigurationError(f"Expected 1 to {count} keys, got {len(wanted)}")
    return np.concatenate([wanted, np.full(count - len(wanted), wanted[0], dtype="<u4")]).tobytes()


def slices_from(manifest: common_pb2.ModelManifest, keys: np.ndarray, selected: distributor_pb2.SelectedRows) -> Slices:
    """What a device got for its distinct, ascending ``keys`` (padding cut off).

    Raises ConfigurationError where rows or dense tables do not have the manifest's shape, or are not finite.
    """
    entry = keyed_entry(manifest)
    if len(selected.rows) % (entry.width * 4) or len(selected.rows) < len(keys) * entry.width * 4:
        raise ConfigurationError(f"selected rows of {entry.name!r} have a wrong length of {len(selected.rows)} bytes")
    rows = np.frombuffer(selected.rows, dtype="<f4").reshape(-1, entry.width)[: len(keys)]
    if not np.isfinite(rows).all():
        raise ConfigurationError(f"selected rows of {entry.name!r} hold a value that is not finite")
    dense_entries = [table for table in manifest.tables if not table.keyed]
    if len(selected.dense) != len(dense_entries):
        raise ConfigurationError(f"Expected {len(dense_entries)} dense tables, got {len(selected.dense)}")
    dense = {
        table.name: table_from_bytes(table, data).rows
        for table, data in zip(dense_entries, selected.dense, strict=True)
    }
    return Slices(manifest.version, np.asarray(keys, dtype=np.int64), rows, dense)
