"""Which items of a released model are alike: those whose rows point the same way.

Two items with the same direction move every person's prediction alike. Popularity and the general opinion of an item
are in its bias, and count for nothing here. The model was released, so what is read of it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Int64Array
from odp.serving.item_index import ItemIndex, trust_values

_BLOCK = 2**14  # items that are compared at a time


@dataclass(frozen=True)
class Neighbour:
    """``item``: its key. ``similarity``: the cosine of both rows, -1 to 1.

    ``trust``: how much the item's row counts where a person's own is solved, 0 to 1. The row of an item that few
    people have is mostly noise, and so are its neighbours.
    """

    item: str
    similarity: float
    trust: float


def neighbours(index: ItemIndex, items: Sequence[int], k: int) -> list[list[Neighbour]]:
    """For each of ``items`` the ``k`` others that are most alike, the nearest first; equal ones by item number.

    Items whose row is zero, of which nothing was learnt, are neighbours of nobody and have none.

    Raises:
      ConfigurationError: ``k`` is not positive, or the index has no such item.
    """
    _validate.integer(low=1, high=2**31, k=k)
    wanted = np.asarray(items, dtype=np.int64)
    if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(index):
        raise ConfigurationError(f"Expected items from 0 to {len(index) - 1} (got {wanted.min()} to {wanted.max()})")
    rows = _directions(index, wanted)
    nearest, cosines = np.empty((len(wanted), 0), dtype=np.int64), np.empty((len(wanted), 0), dtype=np.float32)
    for start in range(0, len(index), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(index)))
        others = _directions(index, block)
        similar = rows @ others.T
        similar[:, ~np.any(others, axis=1)] = -np.inf
        similar[wanted[:, None] == block] = -np.inf
        nearest = np.concatenate((nearest, np.broadcast_to(block, similar.shape)), axis=1)
        cosines = np.concatenate((cosines, similar), axis=1)
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        nearest, cosines = np.take_along_axis(nearest, order, axis=1), np.take_along_axis(cosines, order, axis=1)
    trusts = trust_values(index.biases[nearest])
    learnt = np.any(rows, axis=1).tolist()
    return [
        [
            Neighbour(index.keys[int(other)], float(cosine), float(trust))
            for other, cosine, trust in zip(nearest[place], cosines[place], trusts[place], strict=True)
            if learnt[place] and cosine > -np.inf
        ]
        for place in range(len(wanted))
    ]


def _directions(index: ItemIndex, items: Int64Array) -> Float32Array:
    """Rows of length 1, float32 [n, r]; a row of zeros stays one."""
    rows = index.steps[items].astype(np.float32)  # a row's scale changes its length alone
    rows[index.scales[items] == 0] = 0.0
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0), dtype=np.float32)
