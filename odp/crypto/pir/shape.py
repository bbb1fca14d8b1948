"""The public shape of a table for private queries: the parameters that devices and servers must agree on.

The layout of a table in buckets, so that one pass of a server answers many keys.

A table of n rows is laid out ``tables`` times; each time a public pseudorandom permutation of [0, n) deals its rows to
``buckets`` buckets like cards. So every bucket of a layout has one place for each of n / buckets rows, bucket and place
of a row follow from its number alone, and no server stores a map or a copy of rows. A device with up to ``keys``
different rows asks every bucket once: for the one of its rows that was assigned to it, or for the row at place 0.
A server works through n rows for each layout, instead of n rows for each key.

Rows are assigned by maximum matching. Where even that leaves a row without a bucket, the device asks all buckets
alike and misses the row. For rows that were chosen without the seed in mind this happens with a probability below
2^-40, by a union bound over all sets of keys whose buckets are fewer than they (Hall's theorem).

Sources: Angel et al. 2018, "PIR with compressed queries and amortized query processing", section 4.1 (probabilistic
batch codes by cuckoo hashing); Luby and Rackoff 1988 (the permutation, with AES as its round function); Black and
Rogaway 2002, "Ciphers with arbitrary finite domains", section 3 (walking the cycle back into the domain).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from odp import _validate
from odp.crypto.domains import PIR_LAYOUT, PIR_SHAPE
from odp.crypto.pir import records
from odp.errors import ConfigurationError

Int64Array = npt.NDArray[np.int64]

#: Most keys of one query.
MOST_KEYS = 512

_MOST_TABLES = 4
_ROUNDS = 8


class Layout:
    """Buckets of ``rows`` rows for queries of up to ``keys`` keys.

    Args:
        rows: 1 or more.
        keys: 1 .. MOST_KEYS.
        seed: public, any length; bind the table's hash into it.
    """

    def __init__(self, rows: int, keys: int, seed: bytes) -> None:
        _validate.integer(low=1, high=MOST_KEYS, keys=keys)
        self.rows = rows
        self.tables, self.per_table = _sizes(keys)
        #: Places of every bucket: public, and the same for all.
        self.places = -(-rows // self.per_table)
        bits = (rows - 1).bit_length()
        self._left_bits, self._right_bits = bits // 2, bits - bits // 2
        self._rounds = [self._round_tables(seed, table) for table in range(self.tables)]

    @property
    def buckets(self) -> int:
        """Total number of buckets in all tables: the sub-queries of every query."""
        return self.tables * self.per_table

    def cells(self, rows: npt.ArrayLike) -> Int64Array:
        """Bucket and place of rows [k] in every layout: int64 [k, tables, 2]."""
        wanted = np.asarray(rows, dtype=np.int64)
        cells = np.empty((len(wanted), self.tables, 2), dtype=np.int64)
        for table in range(self.tables):
            dealt = self._permuted(wanted, table, backwards=False)
            cells[:, table, 0] = table * self.per_table + dealt % self.per_table
            cells[:, table, 1] = dealt // self.per_table
        return cells

    def first_rows(self) -> Int64Array:
        """The row at place 0 of every bucket, int64 [buckets]; -1 where the bucket is empty."""
        first = np.full((self.tables, self.per_table), -1, dtype=np.int64)
        dealt = np.arange(min(self.per_table, self.rows))
        for table in range(self.tables):
            first[table, : len(dealt)] = self._permuted(dealt, table, backwards=True)
        return first.reshape(-1)

    def assign(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Which of the different ``rows`` every bucket is asked for, and at which place: int64 [buckets] each.

        The first is an index into ``rows``, or -1: then the place is 0.
        """
        cells = self.cells(rows)
        assigned = _matching(cells[:, :, 0].tolist(), self.buckets)
        places = np.zeros(self.buckets, dtype=np.int64)
        buckets = np.flatnonzero(assigned >= 0)
        places[buckets] = cells[assigned[buckets], buckets // self.per_table, 1]
        return assigned, places

    def _round_tables(self, seed: bytes, table: int) -> list[Int64Array]:
        """The outputs of every round function for all its inputs: half of a number has few values."""
        key = hashlib.sha256(PIR_LAYOUT + hashlib.sha256(seed).digest() + bytes([table])).digest()
        tables = []
        for number in range(_ROUNDS):
            input_bits, bits = (
                (self._right_bits, self._left_bits) if number % 2 == 0 else (self._left_bits, self._right_bits)
            )
            blocks = np.zeros((2**input_bits, 2), dtype="<u8")
            blocks[:, 0], blocks[:, 1] = np.arange(2**input_bits), number
            encrypted = Cipher(AES(key), ECB()).encryptor().update(blocks.tobytes())
            words = np.frombuffer(encrypted, dtype="<u8").reshape(-1, 2)[:, 0]
            tables.append((words & np.uint64(2**bits - 1)).astype(np.int64))
        return tables

    def _permuted(self, values: Int64Array, table: int, *, backwards: bool) -> Int64Array:
        permuted = self._feistel(values, table, backwards=backwards)
        outside = np.flatnonzero(permuted >= self.rows)
        # Ends: the walk from a value of the domain comes back to one at the latest at that value.
        while len(outside):
            permuted[outside] = self._feistel(permuted[outside], table, backwards=backwards)
            outside = outside[permuted[outside] >= self.rows]
        return permuted

    def _feistel(self, values: Int64Array, table: int, *, backwards: bool) -> Int64Array:
        left, right = values >> self._right_bits, values & (2**self._right_bits - 1)
        order = range(_ROUNDS - 1, -1, -1) if backwards else range(_ROUNDS)
        for number in order:
            outputs = self._rounds[table][number]
            if number % 2 == 0:
                left = left ^ outputs[right]
            else:
                right = right ^ outputs[left]
        mixed: Int64Array = (left << self._right_bits) | right
        return mixed


def _sizes(keys: int) -> tuple[int, int]:
    """Tables, and buckets of each: about 1.5 buckets per key, more for few keys, whose buckets collide more easily."""
    if keys <= _MOST_TABLES:
        return keys, 1  # each row has a whole table to itself
    return _MOST_TABLES, max(-(-3 * keys // 8), 11 + -(-keys // 8))


def _matching(choices: list[list[int]], buckets: int) -> Int64Array:
    """The index of the row that every bucket serves, or -1: as many rows as possible (augmenting paths)."""
    owner = [-1] * buckets
    for row in range(len(choices)):
        # Breadth first from the row to a free bucket; ``reached`` says through which row a bucket was seen.
        reached: dict[int, int] = {}
        queue, free = [row], -1
        for current in queue:
            for bucket in choices[current]:
                if bucket not in reached:
                    reached[bucket] = current
                    if owner[bucket] < 0:
                        free = bucket
                        break
                    queue.append(owner[bucket])
            if free >= 0:
                break
        while free >= 0:
            current = reached[free]
            previous = next((bucket for bucket in choices[current] if owner[bucket] == current), -1)
            owner[free] = current
            free = previous if current != row else -1
    return np.array(owner, dtype=np.int64)


__all__ = ["MOST_KEYS", "MOST_ROWS", "MOST_ROW_BYTES", "SEED_BYTES", "Layout", "Shape"]

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
