"""Which of its items a device uses in a round: those of smallest hash of (seed, round, item).

A device that has more items than places takes a uniformly random subset, a fresh one each round. The hash orders the
items, and prefixes of that order nest: the items that a device contributes are always among the slices it fetches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp.crypto.keyed_hash import splitmix64

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]


def places(seeds: UInt64Array, round: int, items: Int64Array) -> UInt64Array:
    """Hash of each (seed, round, item), uint64; arguments broadcast. Equal seeds and rounds never collide."""
    stream = splitmix64(splitmix64(seeds) ^ np.uint64(round))
    return splitmix64(stream ^ splitmix64(items.astype(np.uint64)))


def hash_order(seed: int, round: int, items: Int64Array) -> Int64Array:
    """The positions of ``items`` (distinct, int64 [k]) in the order in which the device uses them in ``round``."""
    return np.argsort(places(np.array([seed], dtype=np.uint64), round, items), kind="stable")
