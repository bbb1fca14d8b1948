"""A server's scan: XOR of the rows that a share of a point function selects, bucket by bucket.

Every row is read once and folded into its bucket of each layout, behind a mask of all ones or of zeros that was stored
in memory before. Which addresses are touched in which order follows from the public layout. numba is used where it is
installed; numpy gives the same bytes.

Source: Chor et al. 1995, "Private information retrieval", section 3; masks in memory before their use, since a
compiler may turn a mask that it sees into a branch.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MASKS", "NARROW", "fold", "masks", "scan"]

UInt8Array = npt.NDArray[np.uint8]
UInt16Array = npt.NDArray[np.uint16]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

#: Masks that are stored at a time: they stay in the cache until they are used.
MASKS = 2**15
#: Lines of a record up to which two rows at a time are faster, where all rows fall into one bucket.
NARROW = 8


def scan(
    records: UInt64Array, buckets: UInt16Array, bits: UInt32Array, shares: UInt8Array, count: int, *, compiled: bool
) -> UInt64Array:
    """The XOR of picked rows per query and bucket: uint64 [queries, count, lines, 8].

    Args:
        records: uint64 [rows, lines, 8].
        buckets: uint16 [rows, tables], below ``count``: the bucket of a row in each layout.
        bits: uint32 [rows, tables]: which bit of a query's share picks the row there.
        shares: uint8 [queries, bytes], packed bits, whole words of 8 bytes.
        count: buckets.
        compiled: whether numba may be used; the result is the same.
    """
    sums = np.zeros((len(shares), count, *records.shape[1:]), dtype=np.uint64)
    kernels = _kernels() if compiled else None
    pick, add = (masks, fold) if kernels is None else (kernels.masks, kernels.fold)
    if kernels is not None and count == bits.shape[1] and records.shape[1] <= NARROW:
        add = kernels.fold_pairs
    step = max(1, MASKS // (len(shares) * bits.shape[1]))
    words = shares.view("<u8").astype(np.uint64, copy=False)
    stored = np.empty((len(shares), min(step, len(records)), bits.shape[1]), dtype=np.uint64)
    for start in range(0, len(records), step):
        block = slice(start, min(start + step, len(records)))
        if block.stop - start < stored.shape[1]:
            stored = np.empty((len(shares), block.stop - start, bits.shape[1]), dtype=np.uint64)
        pick(words, bits[block], stored)
        add(records[block], buckets[block], stored, sums)
    return sums


@functools.cache
def _kernels() -> Any:
    if importlib.util.find_spec("numba") is None:
        return None
    from odp.crypto.pir import _kernels as kernels

    return kernels


def masks(shares: UInt64Array, bits: UInt32Array, stored: UInt64Array) -> None:
    """Fills ``stored`` [queries, rows, tables]: all ones where the share, words [queries, ..], has the bit, else 0."""
    picked = (shares[:, bits >> np.uint32(6)] >> (bits & np.uint32(63)).astype(np.uint64)) & np.uint64(1)
    np.subtract(np.uint64(0), picked, out=stored)


def fold(records: UInt64Array, buckets: UInt16Array, stored: UInt64Array, sums: UInt64Array) -> None:
    """XORs every row, behind its masks, into its buckets of ``sums`` [queries, count, lines, 8]."""
    for table in range(buckets.shape[1]):
        order = np.argsort(buckets[:, table], kind="stable")
        bucket_of_row = buckets[order, table].astype(np.int64)
        starts = np.flatnonzero(np.diff(bucket_of_row, prepend=-1))
        rows = records[order]
        for query in range(len(sums)):
            masked = rows & stored[query, order, table][:, None, None]
            sums[query, bucket_of_row[starts]] ^= np.bitwise_xor.reduceat(masked, starts, axis=0)
