"""The scan of ``scanning.py`` and the product of ``lwe.py`` in machine code; the same numbers. Import needs numba.

Masks are made in one function and used in another: what the second one sees is a word from memory, of which no
compiler knows that it is all ones or zero, so that it cannot become a branch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_NONE, _SIX, _LOW_SIX = np.uint32(0), np.uint32(6), np.uint32(63)
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
def fold(records: Any, buckets: Any, stored: Any, found: Any) -> None:
    """See ``scanning.fold``."""
    for row in range(records.shape[0]):
        for query in range(found.shape[0]):
            for table in range(buckets.shape[1]):
                mask = stored[query, row, table]
                bucket = buckets[row, table]
                for line in range(records.shape[1]):
                    for word in range(8):
                        found[query, bucket, line, word] ^= records[row, line, word] & mask


@numba.njit(nogil=True, cache=True)
def fold_pairs(records: Any, buckets: Any, stored: Any, found: Any) -> None:
    """As ``fold`` where every layout is one bucket, ``buckets[.., table] == table``: two rows per visit to it."""
    pairs = records.shape[0] // 2 * 2
    for row in range(0, pairs, 2):
        even, odd = records[row], records[row + 1]
        for query in range(found.shape[0]):
            for table in range(buckets.shape[1]):
                even_mask, odd_mask = stored[query, row, table], stored[query, row + 1, table]
                out = found[query, table]
                for line in range(records.shape[1]):
                    for word in range(8):
                        out[line, word] ^= (even[line, word] & even_mask) ^ (odd[line, word] & odd_mask)
    for row in range(pairs, records.shape[0]):
        for query in range(found.shape[0]):
            for table in range(buckets.shape[1]):
                mask = stored[query, row, table]
                for line in range(records.shape[1]):
                    for word in range(8):
                        found[query, table, line, word] ^= records[row, line, word] & mask


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, queries: Any, found: Any) -> None:
    """See ``lwe.multiply``; ``found`` uint32 [queries, rows]. Eight rows share the reads of a query."""
    rows, columns = matrix.shape
    eights = rows // 8 * 8
    for row in range(0, eights, 8):
        r0, r1, r2, r3 = matrix[row], matrix[row + 1], matrix[row + 2], matrix[row + 3]
        r4, r5, r6, r7 = matrix[row + 4], matrix[row + 5], matrix[row + 6], matrix[row + 7]
        for query in range(queries.shape[0]):
            values = queries[query]
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = _NONE
            for column in range(columns):
                value = values[column]
                # Cut to 32 bits at every step, so that the compiler works with 32-bit lanes.
                s0 = np.uint32(s0 + np.uint32(value * np.uint32(r0[column])))
                s1 = np.uint32(s1 + np.uint32(value * np.uint32(r1[column])))
                s2 = np.uint32(s2 + np.uint32(value * np.uint32(r2[column])))
                s3 = np.uint32(s3 + np.uint32(value * np.uint32(r3[column])))
                s4 = np.uint32(s4 + np.uint32(value * np.uint32(r4[column])))
                s5 = np.uint32(s5 + np.uint32(value * np.uint32(r5[column])))
                s6 = np.uint32(s6 + np.uint32(value * np.uint32(r6[column])))
                s7 = np.uint32(s7 + np.uint32(value * np.uint32(r7[column])))
            out = found[query]
            out[row], out[row + 1], out[row + 2], out[row + 3] = s0, s1, s2, s3
            out[row + 4], out[row + 5], out[row + 6], out[row + 7] = s4, s5, s6, s7
    for row in range(eights, rows):
        for query in range(queries.shape[0]):
            total = _NONE
            for column in range(columns):
                total = np.uint32(total + np.uint32(queries[query, column] * np.uint32(matrix[row, column])))
            found[query, row] = total
