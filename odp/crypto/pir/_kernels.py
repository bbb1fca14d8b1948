"""The scan of ``scanning.py`` and the product of ``lwe.py`` in machine code; the same numbers. Import needs numba.

Masks are made in one function and used in another: what the second one sees is a word from memory, of which no
compiler knows that it is all ones or zero, so that it cannot become a branch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_SEVEN, _THREE = np.uint32(7), np.uint32(3)
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@numba.njit(nogil=True, cache=True)
def masks(shares: Any, bits: Any, stored: Any) -> None:
    """See ``scanning.masks``."""
    for row in range(bits.shape[0]):
        for query in range(shares.shape[0]):
            for table in range(bits.shape[1]):
                bit = bits[row, table]
                picked = np.uint64(shares[query, bit >> _THREE]) >> np.uint64(bit & _SEVEN)
                stored[row, query, table] = _ZERO - (picked & _ONE)


@numba.njit(nogil=True, cache=True)
def fold(records: Any, buckets: Any, stored: Any, found: Any) -> None:
    """See ``scanning.fold``."""
    for row in range(records.shape[0]):
        for query in range(found.shape[0]):
            for table in range(buckets.shape[1]):
                mask = stored[row, query, table]
                bucket = buckets[row, table]
                for line in range(records.shape[1]):
                    for word in range(8):
                        found[query, bucket, line, word] ^= records[row, line, word] & mask


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, queries: Any, found: Any) -> None:
    """See ``lwe.multiply``; ``found`` uint32 [queries, rows]. Four rows share the reads of a query."""
    rows, columns = matrix.shape
    fours = rows // 4 * 4
    for row in range(0, fours, 4):
        for query in range(queries.shape[0]):
            first, second, third, fourth = np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)
            for column in range(columns):
                value = queries[query, column]
                first = np.uint32(first + np.uint32(value * np.uint32(matrix[row, column])))
                second = np.uint32(second + np.uint32(value * np.uint32(matrix[row + 1, column])))
                third = np.uint32(third + np.uint32(value * np.uint32(matrix[row + 2, column])))
                fourth = np.uint32(fourth + np.uint32(value * np.uint32(matrix[row + 3, column])))
            found[query, row], found[query, row + 1] = first, second
            found[query, row + 2], found[query, row + 3] = third, fourth
    for row in range(fours, rows):
        for query in range(queries.shape[0]):
            total = np.uint32(0)
            for column in range(columns):
                total = np.uint32(total + np.uint32(queries[query, column] * np.uint32(matrix[row, column])))
            found[query, row] = total
