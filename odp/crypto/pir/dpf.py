"""Distributed point functions: two keys, each without information about the point, whose evaluations XOR to a one
there.

``generate`` splits the function that is 1 at one place of [0, size) and 0 elsewhere. Whoever holds one key sees random
bytes, whatever the place. Many functions of one size are handled at once: every level of all trees is one call of AES.

The tree ends seven levels early: a leaf gives 128 bits, one for each place below it. The hash of a seed x is
AES(s) XOR s with s = (high XOR low, high) of x, under three fixed public keys: left child, right child, leaf.

    >>> import secrets
    >>> leader, helper = generate([5], 200, random_bytes=secrets.token_bytes)
    >>> found = evaluate(leader, 200) ^ evaluate(helper, 200)
    >>> np.flatnonzero(np.unpackbits(found, axis=1, bitorder="little"))
    array([5])

Sources: Boyle, Gilboa, Ishai 2016, "Function secret sharing: improvements and extensions", figure 1 and section 3.2.1
(early termination); Guo et al. 2020, "Efficient and secure multiparty computation from fixed-key block ciphers",
section 7.2 (the hash).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from odp import _validate
from odp.crypto.domains import PIR_PRG
from odp.errors import ConfigurationError

__all__ = ["LARGEST", "SEED_BYTES", "Keys", "evaluate", "generate", "key_bytes"]

UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]
RandomBytes = Callable[[int], bytes]

#: Places of the largest function.
LARGEST = 2**31
SEED_BYTES = 16

_LEAF_BITS = 7
_ONE = np.uint64(1)
_LEFT, _RIGHT, _LEAF = (hashlib.sha256(PIR_PRG + bytes([which])).digest()[:16] for which in range(3))


@dataclass(frozen=True)
class Keys:
    """One party's keys of ``count`` functions of one size; a level corrects the seeds and the control bits below it.

    Shapes: ``seeds`` uint64 [count, 2], ``corrections`` uint64 [count, levels, 2], ``controls`` uint64 0 or 1 [count,
    levels, 2] (left, right), ``leaves`` uint64 [count, 2].
    """

    party: int
    seeds: UInt64Array
    corrections: UInt64Array
    controls: UInt64Array
    leaves: UInt64Array

    def to_bytes(self) -> bytes:
        """All seeds, then all corrections, all control bits, all leaves; words little-endian."""
        count, levels = self.controls.shape[:2]
        controls = self.controls.reshape(count, 2 * levels).astype(np.uint8)
        packed = np.packbits(controls, axis=1, bitorder="little")
        return _wire(self.seeds) + _wire(self.corrections) + packed.tobytes() + _wire(self.leaves)

    @classmethod
    def from_bytes(cls, data: bytes, *, party: int, count: int, size: int) -> Keys:
        """The keys that ``to_bytes`` gave.

        Raises:
            ConfigurationError: ``data`` is no such keys of ``count`` functions of ``size`` places.
        """
        levels = _levels(size)
        if len(data) != count * key_bytes(size):
            raise ConfigurationError(
                f"Expected {count} point function keys of {key_bytes(size)} bytes each, got {len(data)} bytes together"
            )
        lengths = np.cumsum([16 * count, 16 * count * levels, count * _control_bytes(levels)])
        seeds, corrections, packed, leaves = (
            data[start:end] for start, end in zip((0, *lengths), (*lengths, len(data)), strict=True)
        )
        bits = np.frombuffer(packed, dtype=np.uint8).reshape(count, _control_bytes(levels))
        controls = np.unpackbits(bits, axis=1, bitorder="little")
        if controls[:, 2 * levels :].any():
            raise ConfigurationError("Expected the unused control bits of a point function key to be zero")
        return cls(
            party,
            _words(seeds).reshape(count, 2),
            _words(corrections).reshape(count, levels, 2),
            controls[:, : 2 * levels].reshape(count, levels, 2).astype(np.uint64),
            _words(leaves).reshape(count, 2),
        )


def key_bytes(size: int) -> int:
    """Length of one key of a function of ``size`` places.

    Raises:
        ConfigurationError: ``size`` is not within 1 .. LARGEST.
    """
    levels = _levels(size)
    return 2 * SEED_BYTES + levels * SEED_BYTES + _control_bytes(levels)


def generate(places: npt.ArrayLike, size: int, *, random_bytes: RandomBytes) -> tuple[Keys, Keys]:
    """Keys of both parties for the functions that are 1 at ``places`` [count].

    Args:
        places: whole numbers within [0, size).
        size: places of each function, 1 .. LARGEST.
        random_bytes: a cryptographic source: ``os.urandom``, or a fixed stream in a test.

    Raises:
        ConfigurationError: a place or the size is out of range.
    """
    points = np.asarray(places)
    levels = _levels(size)
    if points.ndim != 1 or points.dtype.kind not in "iu" or (points < 0).any() or (points >= size).any():
        raise ConfigurationError(f"Expected a list of whole numbers from 0 to {size - 1} as places")
    points = points.astype(np.uint64)
    count = len(points)
    seeds = _words(random_bytes(2 * count * SEED_BYTES)).reshape(2, count, 2).copy()
    seeds[..., 0] &= ~_ONE
    states = seeds
    control = np.zeros((2, count), dtype=np.uint64)
    control[1] = _ONE
    corrections = np.zeros((count, levels, 2), dtype=np.uint64)
    controls = np.zeros((count, levels, 2), dtype=np.uint64)
    each = np.arange(count)
    for level in range(levels):
        bit = (points >> np.uint64(levels - 1 - level + _LEAF_BITS)) & _ONE
        children, bits = _children(states)  # [2, count, side, 2], [2, count, side]
        lost = children[:, each, (bit ^ _ONE).astype(np.intp)]
        corrections[:, level] = lost[0] ^ lost[1]
        controls[:, level] = bits[0] ^ bits[1]
        controls[:, level, 0] ^= bit ^ _ONE
        controls[:, level, 1] ^= bit
        side = bit.astype(np.intp)
        states = children[:, each, side] ^ (_full(control)[..., None] & corrections[:, level])
        control = bits[:, each, side] ^ (control & controls[each, level, side])
    last = _hash(_LEAF, states)
    leaves = last[0] ^ last[1]
    low = points & np.uint64(2**_LEAF_BITS - 1)
    leaves[each, (low >> np.uint64(6)).astype(np.intp)] ^= _ONE << (low & np.uint64(63))
    first, second = (Keys(party, seeds[party], corrections, controls, leaves) for party in range(2))
    return first, second


def evaluate(keys: Keys, size: int) -> UInt8Array:
    """The party's share at every place: uint8 [count, 16 ceil(size / 128)]; place p is bit p % 8 of byte p // 8.

    What is computed at which address depends on the count and the size alone.
    """
    levels, count = _levels(size), len(keys.seeds)
    states = keys.seeds[:, None, :]
    control = np.full((count, 1), keys.party, dtype=np.uint64)
    for level in range(levels):
        children, bits = _children(states)
        chosen = _full(control)[:, :, None]
        children ^= chosen[..., None] & keys.corrections[:, None, level, None, :]
        bits ^= chosen & keys.controls[:, None, level, :]
        # Subtrees that lie beyond the size are not grown.
        nodes = -(-size // 2 ** (levels - 1 - level + _LEAF_BITS))
        states = children.reshape(count, -1, 2)[:, :nodes]
        control = bits.reshape(count, -1)[:, :nodes]
    leaves = _hash(_LEAF, states)
    leaves ^= _full(control)[..., None] & keys.leaves[:, None, :]
    return np.ascontiguousarray(leaves).astype("<u8", copy=False).view(np.uint8).reshape(count, -1)


def _children(states: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Seeds [.., side, 2] and control bits [.., side] of both children of ``states`` [.., 2]."""
    children = np.stack((_hash(_LEFT, states), _hash(_RIGHT, states)), axis=-2)
    bits = children[..., 0] & _ONE
    children[..., 0] &= ~_ONE
    return children, bits


def _hash(key: bytes, states: UInt64Array) -> UInt64Array:
    mixed = np.empty(states.shape, dtype="<u8")
    mixed[..., 0] = states[..., 1]
    mixed[..., 1] = states[..., 0] ^ states[..., 1]
    encrypted = Cipher(AES(key), ECB()).encryptor().update(mixed.tobytes())
    mixed ^= np.frombuffer(encrypted, dtype="<u8").reshape(mixed.shape)
    return mixed.astype(np.uint64, copy=False)


def _full(bits: Any) -> UInt64Array:
    """All bits of a word where ``bits`` is 1, none where it is 0."""
    words: UInt64Array = np.uint64(0) - bits
    return words


def _levels(size: int) -> int:
    _validate.integer(low=1, high=LARGEST, size=size)
    return max(0, (size - 1).bit_length() - _LEAF_BITS)


def _control_bytes(levels: int) -> int:
    return -(-2 * levels // 8)


def _words(data: bytes) -> UInt64Array:
    return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)


def _wire(words: UInt64Array) -> bytes:
    return words.astype("<u8").tobytes()
