"""Rows with proofs: each carries the hashes that lead from it to tree nodes that the device has.

A binary hash tree stands over the rows of a table. Its lower levels go with the rows, which makes them records; the
nodes above those levels, the cap, are public and short, and a device fetches them once per table version. For a given
cap there is one valid record per row number, unless somebody finds a second preimage of a truncated SHA-256 (128
bits): record bytes that differ anywhere, the padding included, are not valid. So a change that a server makes to an
answer is noticed whatever row was asked for, and whether it is noticed tells the server nothing about the row.

A leaf is a hash of the table's id, the row's number and its bytes; a node that has no rows below it is zero.

Sources: Merkle 1987; Colombo et al. 2023, "Authenticated private information retrieval", section 4.1 (records with
Merkle proofs: integrity without selective failures).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odp.crypto.domains import PIR_NODE, PIR_ROW
from odp.errors import ConfigurationError, ServiceError

__all__ = ["NODE_BYTES", "WrongRowsError", "build", "cap_nodes", "check", "plain_rows", "record_bytes"]

UInt8Array = npt.NDArray[np.uint8]

NODE_BYTES = 16

#: Records are whole cache lines.
_LINE = 64
_CAP_LEVELS = 10


class WrongRowsError(ServiceError):
    """An answer does not contain the rows of the table: a server lies, or has another table. It is discarded."""


def _levels(rows: int, row_bytes: int) -> int:
    """Levels of the tree that go with the rows: down from a cap of 2^10 nodes, and what still fits the cache line."""
    depth = (rows - 1).bit_length()
    least = max(0, depth - _CAP_LEVELS)
    spare = -(row_bytes + least * NODE_BYTES) % _LINE
    return min(depth, least + spare // NODE_BYTES)


def record_bytes(rows: int, row_bytes: int) -> int:
    """Length of a record: the row, its hashes, zeros up to a multiple of 64."""
    return -(-(row_bytes + _levels(rows, row_bytes) * NODE_BYTES) // _LINE) * _LINE


def cap_nodes(rows: int, row_bytes: int) -> int:
    """Nodes of the cap, at most 2^10."""
    return -(-rows // (1 << _levels(rows, row_bytes)))


def plain_rows(rows: npt.NDArray[np.float32] | UInt8Array) -> UInt8Array:
    """The bytes of ``rows`` [n, width]: uint8 [n, bytes]. Raises ConfigurationError for any other type or shape."""
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype not in (np.float32, np.uint8):
        raise ConfigurationError(
            f"Expected rows to be float32 or uint8 [rows, width], not empty, got {rows.dtype} {rows.shape}"
        )
    if rows.dtype == np.uint8:
        return np.ascontiguousarray(rows).astype(np.uint8, copy=False)
    return np.ascontiguousarray(rows, dtype="<f4").view(np.uint8)


def build(rows: UInt8Array, table_sha256: bytes) -> tuple[UInt8Array, bytes]:
    """Records uint8 [n, record] of ``rows`` uint8 [n, bytes], and the cap."""
    count, row_bytes = rows.shape
    levels = _levels(count, row_bytes)
    records = np.zeros((count, record_bytes(count, row_bytes)), dtype=np.uint8)
    records[:, :row_bytes] = rows
    # One hash per row and node: hashlib has no call for many of them.
    leaves = b"".join([_leaf(table_sha256, number, row.tobytes()) for number, row in enumerate(rows)])
    nodes = np.frombuffer(leaves, dtype=np.uint8).reshape(count, NODE_BYTES)
    places = np.arange(count)
    for level in range(levels):
        nodes = np.concatenate((nodes, np.zeros((len(nodes) % 2, NODE_BYTES), dtype=np.uint8)))
        start = row_bytes + level * NODE_BYTES
        records[:, start : start + NODE_BYTES] = nodes[(places >> level) ^ 1]
        pairs = nodes.reshape(-1, 2 * NODE_BYTES)
        above = b"".join([_node(pair.tobytes()) for pair in pairs])
        nodes = np.frombuffer(above, dtype=np.uint8).reshape(-1, NODE_BYTES)
    return records, nodes.tobytes()


def check(records: UInt8Array, numbers: Sequence[int], *, rows: int, row_bytes: int, table: bytes, cap: bytes) -> None:
    """Accepts ``records`` uint8 [k, record] if they are those of rows ``numbers`` [k]; -1 stands for a record of zeros.

    All records are checked, those that nobody asked for too: else a server would learn which these are.

    Raises:
        WrongRowsError: a record is not valid; the error does not name it.
    """
    levels = _levels(rows, row_bytes)
    valid = True
    for number, record in zip(numbers, records, strict=True):
        valid &= _valid(record.tobytes(), number, row_bytes, levels, table, cap)
    if not valid:
        raise WrongRowsError(
            "the answer does not contain the rows of the table: a server lies, or has another version of it"
        )


def _valid(record: bytes, number: int, row_bytes: int, levels: int, table: bytes, cap: bytes) -> bool:
    if number < 0:
        return not any(record)
    node = _leaf(table, number, record[:row_bytes])
    for level in range(levels):
        start = row_bytes + level * NODE_BYTES
        sibling = record[start : start + NODE_BYTES]
        node = _node(sibling + node if (number >> level) & 1 else node + sibling)
    place = (number >> levels) * NODE_BYTES
    return node == cap[place : place + NODE_BYTES] and not any(record[row_bytes + levels * NODE_BYTES :])


def _leaf(table_sha256: bytes, number: int, row: bytes) -> bytes:
    return hashlib.sha256(PIR_ROW + table_sha256 + number.to_bytes(4, "big") + row).digest()[:NODE_BYTES]


def _node(children: bytes) -> bytes:
    return hashlib.sha256(PIR_NODE + children).digest()[:NODE_BYTES]
