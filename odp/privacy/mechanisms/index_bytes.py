"""Integers below a public limit as bytes of a fixed width: the size of a report depends on nothing that it says."""

from __future__ import annotations

import numpy as np

from odp import _validate
from odp.errors import DataError
from odp.numerics.arrays import Int64Array

MOST = 2**62


def width(limit: int) -> int:
    """Bytes of an integer from 0 to ``limit`` - 1: the fewest that hold the largest, 1 at least.

    Raises:
      ConfigurationError: ``limit`` is not a whole number from 1 to 2^62.
    """
    _validate.integer(low=1, high=MOST, limit=limit)
    return max(1, -(-(limit - 1).bit_length() // 8))


def to_bytes(values: Int64Array, limit: int) -> bytes:
    """``values``, int64 [n] from 0 to ``limit`` - 1, little-endian in ``width(limit)`` bytes each."""
    return values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, : width(limit)].tobytes()


def from_bytes(data: bytes, limit: int) -> Int64Array:
    """What ``to_bytes`` wrote, int64 [n].

    Raises:
      DataError: ``data`` has part of an integer, or one that is not below ``limit``.
    """
    size = width(limit)
    if len(data) % size:
        raise DataError(f"Expected reports of {size} bytes each (got {len(data)} bytes)")
    wide = np.zeros((len(data) // size, 8), dtype=np.uint8)
    wide[:, :size] = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    indices = wide.view("<i8").reshape(-1).astype(np.int64, copy=False)
    if indices.size and not indices.max() < limit:
        raise DataError(f"Expected every report to be below {limit} (got {indices.max()})")
    return indices
