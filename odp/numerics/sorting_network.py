"""Sorting and compaction whose sequence of memory accesses depends on the length of the input alone.

Guarantee: which positions are read, compared and written, and in which order, follows from the shape of the arguments.
Nothing here indexes by data, branches on data or selects by a mask: two values are ordered by ``minimum`` and
``maximum``, a row moves by ``and`` and ``xor`` with a stored mask. Numpy applies each of these to every element.

No compiled kernel: a compiler may turn a mask back into a branch, which no reader of the source would see.

Source: Batcher 1968 (bitonic sort); Goodrich 2011 (arXiv 1103.5102), order-preserving compaction by a butterfly.
"""

from __future__ import annotations

import numpy as np

from odp.numerics.arrays import Int64Array, UInt64Array

# Below this distance, one call per offset is faster than rows of so few elements.
_SHORT = 16


def padded_length(length: int) -> int:
    """The smallest power of two that is at least ``length`` and 2."""
    return 1 << max(1, (length - 1).bit_length())


def sort(words: UInt64Array) -> None:
    """Sorts ``words`` [n] in place, ascending; n is a power of two: n log(n) (log(n) + 1) / 4 comparisons.

    Raises:
      ValueError: n is no power of two.
    """
    length = len(words)
    if length < 2 or length & (length - 1):
        raise ValueError(f"Expected a power of two of words, got {length}")
    size = 2
    while size <= length:
        half = size // 2
        halves = words.reshape(-1, size)
        # Each half is ascending; against the other in reverse, both halves become bitonic and none of the first
        # exceeds one of the second.
        _order(halves[:, :half], halves[:, : half - 1 : -1])
        distance = half // 2
        while distance:
            if distance < _SHORT:
                for offset in range(distance):
                    _order(words[offset :: 2 * distance], words[offset + distance :: 2 * distance])
            else:
                pairs = words.reshape(-1, 2, distance)
                _order(pairs[:, 0], pairs[:, 1])
            distance //= 2
        size *= 2


def compact(chosen: Int64Array, columns: Int64Array) -> None:
    """Moves the kept positions of every column to the front, in their order; zeros follow.

    Args:
      chosen: int64 [n], 1 where a position is kept, else 0.
      columns: int64 [c, n], changed in place.
    """
    length = len(chosen)
    # How far to the left a position goes: as many places as were not kept before it. Rightmost bit: kept at all.
    distance = np.add.accumulate(1 - chosen)
    route = ((distance << 1) | 1) * chosen
    columns *= chosen
    for bit in range((length - 1).bit_length()):
        # Lowest bit first: then two kept positions never meet.
        step = 1 << bit
        mask = -((route >> (bit + 1)) & 1)
        for row in (route, *columns):
            moving = row & mask
            row ^= moving
            row[:-step] |= moving[step:]


def _order(first: UInt64Array, second: UInt64Array) -> None:
    smaller = np.minimum(first, second)
    np.maximum(first, second, out=second)
    first[...] = smaller
