"""A keyed hash of whole numbers, for random choices about one user or item that are independent of all others.

A choice that is drawn from one stream for all users changes for all of them when one is taken out. A choice that is a
hash of the user's own identity does not. The hash is fast and well mixed, and no cryptographic one: where somebody must
not be able to predict it, the key has to be secret and the hash another.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (output function of SplitMix64).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from odp.numerics.arrays import Int64Array, UInt64Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(numbers: UInt64Array) -> UInt64Array:
    """A bijection on 64-bit numbers whose outputs look independent."""
    with np.errstate(over="ignore"):
        mixed = numbers + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def key_of(purpose: str, *numbers: int) -> np.uint64:
    """The key for one purpose and some public numbers, such as a seed: other numbers give unrelated hashes."""
    digest = hashlib.sha256(f"odp {purpose} {numbers}".encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def keyed_hash(key: np.uint64 | UInt64Array, *columns: npt.NDArray[np.integer]) -> UInt64Array:
    """Hash of each row of ``columns`` (whole numbers, equal shapes), uint64; the key may be one per row."""
    mixed = np.asarray(key, dtype=np.uint64)
    for column in columns:
        mixed = splitmix64(mixed ^ splitmix64(np.asarray(column).astype(np.uint64)))
    return mixed


def round_hashes(seeds: UInt64Array, round: int, numbers: Int64Array) -> UInt64Array:
    """Hash of each (seed, round, number), uint64; arguments broadcast. Equal seeds and rounds never collide."""
    stream = splitmix64(splitmix64(seeds) ^ np.uint64(round))
    return splitmix64(stream ^ splitmix64(numbers.astype(np.uint64)))


def fraction_of(hashes: UInt64Array) -> npt.NDArray[np.float64]:
    """Hashes as numbers in [0, 1), float64."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
