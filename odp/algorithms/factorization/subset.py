"""Which of its items a device uses in a round: those of smallest hash of (seed, round, item).

A device that has more items than places takes a uniformly random subset, a fresh one each round. The hash orders the
items, and prefixes of that order nest: the items that a device contributes are always among the slices it fetches.
"""

from __future__ import annotations

import numpy as np

from odp.crypto.keyed_hash import round_hashes
from odp.numerics.arrays import Int64Array


def hash_order(seed: int, round: int, items: Int64Array) -> Int64Array:
    """The positions of ``items`` (distinct, int64 [k]) in the order in which the device uses them in ``round``."""
    return np.argsort(round_hashes(np.array([seed], dtype=np.uint64), round, items), kind="stable")
