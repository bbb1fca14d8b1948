"""The public shape of a table for private queries: the parameters that devices and servers must agree on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.domains import PIR_SHAPE
from odp.crypto.pir import records
from odp.crypto.pir.layout import MOST_KEYS, Layout
from odp.errors import ConfigurationError

__all__ = ["MOST_ROWS", "MOST_ROW_BYTES", "SEED_BYTES", "Shape"]

MOST_ROWS = 2**26
MOST_ROW_BYTES = 2**20
#: Length of the seed of a layout.
SEED_BYTES = 32

_VERSION = 1
_HASH_BYTES = 32
_HEADER_BYTES = 1 + 4 + 4 + 2 + SEED_BYTES + _HASH_BYTES


@dataclass(frozen=True)
class Shape:
    """A table's public description, the same for all devices; the same table, keys and seed give the same one.

    Attributes:
      rows: 1 .. MOST_ROWS.
      row_bytes: of one row, 1 .. MOST_ROW_BYTES.
      keys: most different rows of one query, 1 .. MOST_KEYS; a query looks the same for fewer.
      seed: 32 public random bytes, from which the layout follows.
      table_sha256: 32 bytes, what the signed manifest says of the table.
      cap: the nodes against which rows are checked (``records``), at most 16 KiB.

    Raises:
      ConfigurationError: a value is out of its range, or a length is wrong.
    """

    rows: int
    row_bytes: int
    keys: int
    seed: bytes
    table_sha256: bytes
    cap: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_ROWS, rows=self.rows)
        _validate.integer(low=1, high=MOST_ROW_BYTES, row_bytes=self.row_bytes)
        _validate.integer(low=1, high=MOST_KEYS, keys=self.keys)
        expected = records.cap_nodes(self.rows, self.row_bytes) * records.NODE_BYTES
        lengths = (("seed", self.seed, SEED_BYTES), ("table_sha256", self.table_sha256, _HASH_BYTES))
        for name, value, length in (*lengths, ("cap", self.cap, expected)):
            if not isinstance(value, bytes) or len(value) != length:
                raise ConfigurationError(f"Expected {name} of a table's shape to be {length} bytes")

    def to_bytes(self) -> bytes:
        """The wire form: version, rows, bytes per row, keys, seed, hash, cap; numbers big-endian."""
        numbers = self.rows.to_bytes(4, "big") + self.row_bytes.to_bytes(4, "big") + self.keys.to_bytes(2, "big")
        return bytes([_VERSION]) + numbers + self.seed + self.table_sha256 + self.cap

    @classmethod
    def from_bytes(cls, data: bytes) -> Shape:
        """The shape that ``to_bytes`` gave.

        Raises:
            ConfigurationError: ``data`` is no shape.
        """
        if len(data) < _HEADER_BYTES or data[0] != _VERSION:
            raise ConfigurationError(f"Expected a table's shape of version {_VERSION}, at least {_HEADER_BYTES} bytes")
        rows, row_bytes, keys = (int.from_bytes(data[a:b], "big") for a, b in ((1, 5), (5, 9), (9, 11)))
        hash_start = 11 + SEED_BYTES
        return cls(rows, row_bytes, keys, data[11:hash_start], data[hash_start:_HEADER_BYTES], data[_HEADER_BYTES:])

    @functools.cached_property
    def digest(self) -> bytes:
        """A 32-byte hash of the whole shape; queries are bound to it."""
        return hashlib.sha256(PIR_SHAPE + self.to_bytes()).digest()

    @functools.cached_property
    def layout(self) -> Layout:
        """The buckets; they follow from the seed and the table's hash."""
        return Layout(self.rows, self.keys, self.seed + self.table_sha256)

    @property
    def record_bytes(self) -> int:
        """Length of a row with its hashes."""
        return records.record_bytes(self.rows, self.row_bytes)

    def distinct(
        self, keys: Sequence[int] | npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
        """The distinct rows of ``keys``, and for every key the index of its row.

        Raises:
            ConfigurationError: a key is out of range, or there are more different ones than ``keys`` of the shape.
        """
        array = np.asarray(keys)
        if array.size == 0:
            array = array.astype(np.int64).reshape(0)
        # The message holds no key: they are private.
        if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any() or (array >= self.rows).any():
            raise ConfigurationError(f"Expected keys to be a list of whole numbers from 0 to {self.rows - 1}")
        rows, inverse = np.unique(array.astype(np.int64), return_inverse=True)
        if len(rows) > self.keys:
            raise ConfigurationError(f"Expected at most {self.keys} distinct keys, got {len(rows)}")
        return rows, inverse
