"""Selects rows of a table by secret numbers, at memory addresses that do not depend on the numbers.

Whoever controls a machine can watch which pages or cache lines its enclave touches; a gather touches the rows that a
device asked for. Here every pass reads the whole table, in order, and the sequence of operations and the addresses of
each depend on public numbers alone: keys, rows, width. The rows are those of the gather, bit for bit.

A table of w columns is looked at as one of about 256, of g rows side by side. With key = g (2048 high + low) + place, a
one-hot row [low = ..] times a block of 2,048 such wide rows gives the block's wide row ``low``, for all keys in one
matrix product; the one-hot rows are the same for every block. The product stays where high is the number of the block:
a mask of 0 or 2^32 - 1 is stored first, then applied to all words by AND, and the blocks are put together by OR. The
same masks pick one of the g rows in the end. Per key 2 m w operations for m rows, at the speed of a matrix product.

The product is exact: of a sum one term is 1 times a value, and all others are 0 times a finite value, which is a zero
and changes no value but -0. A block that holds -0, words that are no finite numbers (of rows in another encoding), or
values below the smallest normal one (which a processor may round to 0 or handle more slowly), is multiplied as its
16-bit halves, integers, at three times the cost. Which of the two
depends on the table, which is public.

An observer still learns the keys per request, the requests per pass, rows, and width.

Source: the linear scan as the simplest oblivious RAM, Goldreich and Ostrovsky 1996; masks in memory before their use,
since a compiler may turn a mask that it sees into a branch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
UInt32Array = npt.NDArray[np.uint32]

#: Keys of one pass; their one-hot rows take 4 MiB.
MOST_KEYS = 512

_LOW_BITS = 11
_BLOCK = 1 << _LOW_BITS
_WIDE = 256
_ALL_ONES = np.uint32(2**32 - 1)
_HALF = np.dtype("<u2")


class ScannedTable:
    """A table whose rows are read by whole passes over it.

    Args:
      rows: float32 [m, w], C-contiguous; kept, not copied. Words that are no numbers are taken as any others.
    """

    def __init__(self, rows: Float32Array) -> None:
        count, self._width = rows.shape
        self._side_bits = max(0, (_WIDE // self._width).bit_length() - 1)
        side = 1 << self._side_bits
        whole = count // side
        self._wide = rows[: whole * side].reshape(whole, side * self._width)
        self._rest = np.zeros((side, self._width), dtype=np.float32)
        self._rest[: count - whole * side] = rows[whole * side :]
        self._exact = [_products_are_exact(self._wide[start : start + _BLOCK]) for start in range(0, whole, _BLOCK)]

    def take(self, keys: UInt32Array) -> Float32Array:
        """The rows float32 [k, w] of ``keys`` uint32 [k], each below m: check that with ``in_range``."""
        taken = np.empty((len(keys), self._width), dtype=np.float32)
        for start in range(0, len(keys), MOST_KEYS):
            taken[start : start + MOST_KEYS] = self._pass(keys[start : start + MOST_KEYS])
        return taken

    def _pass(self, keys: UInt32Array) -> Float32Array:
        side = np.arange(1 << self._side_bits, dtype=np.uint32)
        wide_keys = keys >> np.uint32(self._side_bits)
        words = self._wide_rows(wide_keys)  # [k, side * w]
        # The wide row that is not full is the last one, and in no block.
        rest = self._rest.reshape(-1).view(np.uint32)
        np.bitwise_or(words, _mask(wide_keys == np.uint32(len(self._wide)))[:, None] & rest, out=words)
        words = words.reshape(len(keys), len(side), self._width)
        owned = _mask((keys & side[-1])[:, None] == side)
        rows: UInt32Array = np.bitwise_or.reduce(words & owned[:, :, None], axis=1)
        return rows.view(np.float32)

    def _wide_rows(self, keys: UInt32Array) -> UInt32Array:
        """The words of the wide rows of ``keys``; zeros for a key beyond them."""
        high = keys >> np.uint32(_LOW_BITS)
        low = keys & np.uint32(_BLOCK - 1)
        one_hot = (low[:, None] == np.arange(_BLOCK, dtype=np.uint32)).astype(np.float32)  # [k, block]
        rows = np.zeros((len(keys), self._wide.shape[1]), dtype=np.uint32)
        product = np.empty(rows.shape, dtype=np.float32)
        for number, exact in enumerate(self._exact):
            block = self._wide[number * _BLOCK : (number + 1) * _BLOCK]
            if exact:
                words = np.matmul(one_hot[:, : len(block)], block, out=product).view(np.uint32)
            else:
                halves = block.view(_HALF).astype(np.float32)
                words = np.matmul(one_hot[:, : len(block)], halves).astype(_HALF).view(np.uint32)
            np.bitwise_and(words, _mask(high == np.uint32(number))[:, None], out=words)
            np.bitwise_or(rows, words, out=rows)
        return rows


def _mask(chosen: npt.NDArray[np.bool_]) -> UInt32Array:
    """All bits of a word where ``chosen``, else none."""
    return chosen.astype(np.uint32) * _ALL_ONES


def in_range(keys: UInt32Array, rows: int) -> bool:
    """Whether every key is below ``rows``; the memory addresses do not reveal which one is not."""
    return bool(np.all(keys < np.uint32(rows)))


def _products_are_exact(rows: Float32Array) -> bool:
    small = np.abs(rows) < np.finfo(np.float32).tiny
    return bool(np.isfinite(rows).all()) and not bool(np.any(small & (rows.view(np.uint32) != 0)))
