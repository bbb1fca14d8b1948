"""The scan of ``scanning.py`` in machine code; the same numbers. Import needs numba.

Masks are made in one function and used in another: what the second one sees is a word from memory, of which no
compiler knows that it is all ones or zero, so that it cannot become a branch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_SIX, _LOW_SIX = np.uint32(6), np.uint32(63)
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@numba.njit(nogil=True, cache=True)
def masks(shares: Any, bits: Any, stored: Any) -> None:
    """See ``scanning.masks``; all arrays are contiguous."""
    flat = bits.reshape(-1)
    for query in range(shares.shape[0]):
        words, out = shares[query], stored[query].reshape(-1)
        for place in range(flat.shape[0]):
            bit = flat[place]
            out[place] = _ZERO - ((words[bit >> _SIX] >> np.uint64(bit & _LOW_SIX)) & _ONE)


@numba.njit(nogil=True, cache=True)
def fold(records: Any, buckets: Any, stored: Any, sums: Any) -> None:
    """See ``scanning.fold``."""
    for row in range(records.shape[0]):
        for query in range(sums.shape[0]):
            for table in range(buckets.shape[1]):
                mask = stored[query, row, table]
                bucket = buckets[row, table]
                for line in range(records.shape[1]):
                    for word in range(8):
                        sums[query, bucket, line, word] ^= records[row, line, word] & mask


@numba.njit(nogil=True, cache=True)
def fold_pairs(records: Any, buckets: Any, stored: Any, sums: Any) -> None:
    """As ``fold`` where every layout is one bucket, ``buckets[.., table] == table``: two rows per visit to it."""
    pairs = records.shape[0] // 2 * 2
    for row in range(0, pairs, 2):
        even, odd = records[row], records[row + 1]
        for query in range(sums.shape[0]):
            for table in range(buckets.shape[1]):
                even_mask, odd_mask = stored[query, row, table], stored[query, row + 1, table]
                out = sums[query, table]
                for line in range(records.shape[1]):
                    for word in range(8):
                        out[line, word] ^= (even[line, word] & even_mask) ^ (odd[line, word] & odd_mask)
    for row in range(pairs, records.shape[0]):
        for query in range(sums.shape[0]):
            for table in range(buckets.shape[1]):
                mask = stored[query, row, table]
                for line in range(records.shape[1]):
                    for word in range(8):
                        sums[query, table, line, word] ^= records[row, line, word] & mask
