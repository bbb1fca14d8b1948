"""Randomised Hadamard rotations: orthogonal, in O(n log n), of vectors of any length, without padding.

A rotation spreads a vector evenly over its numbers, so that few bits per number are enough. Let P be the largest power
of two that is at most the size n. The first P numbers get random signs and the transform H / sqrt(P); where P < n, the
last P of the result then get signs of their own and the transform again. Each step is orthogonal, so norms stay.

Every rotated number is a sum of a vector's numbers with random signs, and is sub-Gaussian: it is beyond
``t |x| / sqrt(P)`` with probability at most 2 exp(-t^2 / 2) (Hoeffding), whatever the vector.

Sources: Ailon and Chazelle 2009 (randomised Hadamard transforms); Suresh et al. 2017, "Distributed mean estimation with
limited communication" (rotation before quantisation).
"""

from __future__ import annotations

import functools
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import key_of, keyed_hash
from odp.errors import DataError

MOST_SIZE = 2**26

# Numbers that one product with a small Hadamard matrix mixes: BLAS beats additions up to about this.
_BASE_BITS = 5
_WORD = 64

_Floats = TypeVar("_Floats", npt.NDArray[np.float32], npt.NDArray[np.float64])


def largest_power(size: int) -> int:
    """The largest power of two that is at most ``size``. Raises ConfigurationError for a size out of range."""
    _validate.integer(low=1, high=MOST_SIZE, size=size)
    return 1 << (size.bit_length() - 1)


def transform(vectors: _Floats) -> _Floats:
    """The Walsh-Hadamard transform of each row of ``vectors`` [rows, 2^k], not normalised, as a new array.

    By products with Kronecker factors: H of 2^(a + b) is the product of H of 2^a and H of 2^b, on an axis each.

    Raises:
        DataError: the rows are not as long as a power of two.
    """
    rows, size = vectors.shape
    if size < 1 or size & (size - 1):
        raise DataError(f"Expected rows of a power of two numbers (got {size})")
    left, inner, result = size.bit_length() - 1, 1, vectors
    while left:
        bits = min(left, _BASE_BITS)
        small = _matrix(bits).astype(vectors.dtype, copy=False)
        outer = size // (inner << bits)
        # [rows, outer, 2^bits, inner]: the small matrix mixes the third axis.
        result = (
            result.reshape(rows * outer, 1 << bits) @ small
            if inner == 1
            else np.matmul(small, result.reshape(rows * outer, 1 << bits, inner))
        ).reshape(rows, size)
        left, inner = left - bits, inner << bits
    return result.copy() if result is vectors else result


class Rotation:
    """The rotation of vectors of one size that a public seed gives: the same for everybody in a round.

    The signs are public, and the guarantee of a release does not rest on them: they bound how often a number is out of
    range, of vectors that were chosen before the seed.

    Args:
        size: numbers of a vector.
        seed: public numbers, such as the task's own and the round.
    """

    def __init__(self, size: int, *seed: int) -> None:
        self.size = size
        self.power = largest_power(size)
        key = key_of("rotation", *seed)
        self._starts = [0] if self.power == size else [0, size - self.power]
        self._signs = [_signs(key, number, self.power) for number in range(len(self._starts))]

    def apply(self, vectors: _Floats) -> _Floats:
        """Rotated rows of ``vectors`` float32 or float64 [rows, size], of the same type."""
        result = vectors.copy()
        self.rotate(result)
        return result

    def rotate(self, vectors: _Floats) -> None:
        """``apply`` in place, for vectors that fill the memory."""
        self._require(vectors)
        for start, signs in zip(self._starts, self._signs, strict=True):
            part = vectors[:, start : start + self.power]
            part *= signs
            part[...] = self._mixed(part)

    def undo(self, vectors: _Floats) -> _Floats:
        """The rows that ``apply`` rotated, up to float rounding."""
        self._require(vectors)
        result = vectors.copy()
        for start, signs in zip(reversed(self._starts), reversed(self._signs), strict=True):
            part = result[:, start : start + self.power]
            part[...] = self._mixed(part)
            part *= signs
        return result

    def _mixed(self, part: _Floats) -> _Floats:
        mixed = transform(part)
        mixed *= mixed.dtype.type(self.power**-0.5)
        return mixed

    def _require(self, vectors: npt.NDArray[np.generic]) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.size:
            raise DataError(f"Expected vectors of {self.size} numbers (got shape {list(vectors.shape)})")


@functools.cache
def _matrix(bits: int) -> npt.NDArray[np.float64]:
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _signs(key: np.uint64, number: int, count: int) -> npt.NDArray[np.float32]:
    """``count`` signs +1 or -1, float32: the bits of hashes."""
    words = np.arange(-(-count // _WORD), dtype=np.int64)
    hashes = keyed_hash(key, np.full(len(words), number, dtype=np.int64), words)
    bits = np.unpackbits(hashes.astype("<u8").view(np.uint8), count=count)
    return np.where(bits == 1, np.float32(-1.0), np.float32(1.0))
