"""The set of devices that contributed to a round, in a compact form, in memory until the round ends.

A contribution takes 88 bytes (its id, the SHA-256 of its payload, two keyed hashes), and 12 to 23 in two tables that
find it. Tables are open-addressed with linear probing from a hash under a secret key of the round: devices choose their
ids, and could otherwise choose them so that all fall into one place; and where a pseudonym stands shows nothing that
lasts from round to round.

Guarantee: an id is compared in full; a pseudonym by 128 bits of its keyed hash, so that of a million honest devices one
is refused for another with a probability of less than 2^-88.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_ID, _PAIR, _PLACE, _PSEUDONYM = 32, 64, 8, 16
_RECORD = _PAIR + _PLACE + _PSEUDONYM
_IN_BLOCK = 4096
_KEY_BYTES = 32

_FEWEST_BITS = 10
_MOST_FULL = 0.7
# No wrapping around: longer runs than this behind the last place do not occur, and would only make the table grow.
_TAIL = 256


class AcceptedSet:
    """The accepted contributions of one round. Not thread-safe: its owner calls it under a lock."""

    def __init__(self) -> None:
        self._key = os.urandom(_KEY_BYTES)
        # Blocks, so that growing copies nothing and what is not used yet takes no memory.
        self._blocks: list[bytearray] = []
        self._count = 0
        self._ids, self._pseudonyms = _Table(), _Table()

    def __len__(self) -> int:
        return self._count

    def holds(self, contribution_id: bytes, pseudonym: bytes) -> bool:
        """Whether the id or the pseudonym (32 bytes each) is in the set."""
        return self._held(contribution_id, *self._hashes(contribution_id, pseudonym))

    def add(self, contribution_id: bytes, pseudonym: bytes, digest: bytes) -> bool:
        """Adds a contribution with the SHA-256 of its payload; False, and no change, if it is in the set."""
        place, tag = self._hashes(contribution_id, pseudonym)
        if self._held(contribution_id, place, tag):
            return False
        block, start = divmod(self._count, _IN_BLOCK)
        if block == len(self._blocks):
            self._blocks.append(bytearray(_IN_BLOCK * _RECORD))
        start *= _RECORD
        self._blocks[block][start : start + _RECORD] = contribution_id + digest + place + tag
        for table, hashed, first in ((self._ids, place, _PAIR), (self._pseudonyms, tag, _PAIR + _PLACE)):
            if not table.put(_number(hashed), self._count):
                table.rebuild(self._column(first, first + _PLACE, self._count + 1))
        self._count += 1
        return True

    def sha256(self) -> bytes:
        """SHA-256 over the sorted pairs of id and digest."""
        pairs = np.ascontiguousarray(self._column(0, _PAIR, self._count))
        # As byte strings of fixed length, which numpy compares like bytes: both orders are lexicographic.
        return hashlib.sha256(np.sort(pairs.view(f"S{_PAIR}").ravel()).tobytes()).digest()

    def _hashes(self, contribution_id: bytes, pseudonym: bytes) -> tuple[bytes, bytes]:
        place = hashlib.blake2b(contribution_id, key=self._key, person=b"id", digest_size=_PLACE)
        tag = hashlib.blake2b(pseudonym, key=self._key, person=b"pseudonym", digest_size=_PSEUDONYM)
        return place.digest(), tag.digest()

    def _held(self, contribution_id: bytes, place: bytes, tag: bytes) -> bool:
        for table, hashed, wanted, first in (
            (self._ids, place, contribution_id, 0),
            (self._pseudonyms, tag, tag, _PAIR + _PLACE),
        ):
            for number in table.candidates(_number(hashed)):
                block, start = divmod(number, _IN_BLOCK)
                start = start * _RECORD + first
                if self._blocks[block][start : start + len(wanted)] == wanted:
                    return True
        return False

    def _column(self, first: int, last: int, count: int) -> npt.NDArray[np.uint8]:
        parts = [
            np.frombuffer(block, dtype=np.uint8).reshape(_IN_BLOCK, _RECORD)[:, first:last] for block in self._blocks
        ]
        return np.concatenate(parts)[:count] if parts else np.empty((0, last - first), dtype=np.uint8)


class _Table:
    """Maps 64-bit hashes to record numbers. Hashes may collide, so the records have to be compared."""

    def __init__(self) -> None:
        self._bits = _FEWEST_BITS
        self._used = 0
        self._places = _empty(self._bits)

    def candidates(self, hashed: int) -> Sequence[int]:
        """Numbers of the records that may have this hash."""
        places, place = self._places, hashed >> (64 - self._bits)
        numbers = []
        while place < len(places) and places[place]:
            numbers.append(places[place] - 1)
            place += 1
        return numbers

    def put(self, hashed: int, number: int) -> bool:
        """Adds a record; False if the table is too full and has to be rebuilt."""
        places, place = self._places, hashed >> (64 - self._bits)
        if self._used >= _MOST_FULL * (1 << self._bits):
            return False
        while place < len(places):
            if not places[place]:
                places[place] = number + 1
                self._used += 1
                return True
            place += 1
        return False

    def rebuild(self, hashes: npt.NDArray[np.uint8]) -> None:
        """Makes a larger table of all records, given their hashes, uint8 [n, 8], little-endian."""
        values = np.ascontiguousarray(hashes).view("<u8").ravel()
        order = np.argsort(values, kind="stable")
        numbers = np.arange(len(values), dtype=np.int64)
        while True:
            self._bits += 1
            # In the order of their places, each goes to its own, or behind the one before it.
            wanted = (values[order] >> np.uint64(64 - self._bits)).astype(np.int64)
            taken = numbers + np.maximum.accumulate(wanted - numbers)
            self._places = _empty(self._bits)
            if not len(taken) or int(taken[-1]) < len(self._places):
                break
        np.frombuffer(self._places, dtype=np.uint32)[taken] = order + 1
        self._used = len(values)


def _number(hashed: bytes) -> int:
    return int.from_bytes(hashed[:_PLACE], "little")


def _empty(bits: int) -> memoryview:
    # A memoryview's items are read several times faster than those of an array of numpy.
    return memoryview(bytearray(4 * ((1 << bits) + _TAIL))).cast("I")
