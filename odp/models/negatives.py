"""Examples of what a person did not choose: items that a device draws by itself, beside those that the person has.

A model that only reads chosen items learns that every item is chosen. So a device adds, to each example of its own,
examples of the same person with other items and the class 0. Draws are a function of the user's seed and the round
alone, and of which items the person has: device and simulator draw the same ones. Nobody is told which.
"""

from __future__ import annotations

import numpy as np

from odp.crypto.keyed_hash import round_hashes
from odp.numerics.arrays import Float32Array, Int64Array

#: The draws of a round have the numbers from here on: those of orders (``odp.models.local_training``) are smaller.
_FIRST_DRAW = 1 << 52

CHOSEN, NOT_CHOSEN = 1.0, 0.0


def with_negatives(
    features: Float32Array, targets: Float32Array, *, items: int, per_example: int, seed: int, round: int
) -> tuple[Float32Array, Float32Array]:
    """One user's examples, and ``per_example`` further ones for each that is of the class 1.

    Items are uniform among those that none of the user's examples has; there are no further examples where it has all.

    Args:
      features: float32 [n, width]; the last number of each row is an item, from 0 to ``items`` - 1.
      targets: float32 [n], 0 or 1.

    Returns:
      Features float32 [n + per_example * chosen, width] and targets, the user's own examples first.
    """
    own_items = np.unique(features[:, -1].astype(np.int64))
    chosen = features[targets == CHOSEN]
    if len(own_items) >= items or not len(chosen) * per_example:
        return features, targets
    further = np.repeat(chosen, per_example, axis=0)
    further[:, -1] = _others(own_items, items, count=len(further), seed=seed, round=round)
    return (
        np.concatenate((features, further)),
        np.concatenate((targets, np.full(len(further), NOT_CHOSEN, dtype=np.float32))),
    )


def _others(own_items: Int64Array, items: int, *, count: int, seed: int, round: int) -> Int64Array:
    """Uniform draws from 0 .. ``items`` - 1 without ``own_items``, which ascends: int64 [count]."""
    numbers = np.arange(count, dtype=np.int64) + _FIRST_DRAW
    draws = round_hashes(np.array([seed], dtype=np.uint64), round, numbers) >> np.uint64(32)
    # The high half of a hash times what is left, over 2^32: each place but for a bias below items / 2^32.
    places = ((draws * np.uint64(items - len(own_items))) >> np.uint64(32)).astype(np.int64)
    # The place-th item that is not own: own_items[j] - j items below own_items[j] are not own.
    return places + np.searchsorted(own_items - np.arange(len(own_items)), places, side="right")
