"""Rows of int8 with a scale of 16 bits each; a bias and a trust in 32 bits.

A scale is the largest absolute value of the row over 127, rounded up to 9 significant bits: those of a float32 without
its sign, which is always plus, and without its last 15 bits. A value is within half a scale of the given one.

The steps of a row are chosen for the scale as it is kept. So 16 bits for it cost at most 2^-8 of the precision, and
32 bits would cost two bytes more per item.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.numerics.arrays import Float32Array

Int8Array = npt.NDArray[np.int8]
UInt16Array = npt.NDArray[np.uint16]
UInt32Array = npt.NDArray[np.uint32]

#: Steps are from -127 to 127.
STEPS = 127
#: Values are within this of 0: the scores of a scan are then finite as float32.
LARGEST = 2.0**40
#: The largest scale that a file may have.
LARGEST_SCALE = int(np.float32(LARGEST).view(np.uint32)) >> 15

_DROPPED = 15
_TRUST_BITS = 0xFF
# A smaller scale would be subnormal: its products would lose bits.
_SMALLEST_SCALE = int(np.float32(2.0**-126).view(np.uint32)) >> _DROPPED
_BLOCK = 2**16  # rows held in float64 at a time


def quantised(rows: Float32Array) -> tuple[Int8Array, UInt16Array]:
    """(steps int8 [n, r], scales uint16 [n]) of rows float32 [n, r].

    Raises:
      DataError: a value is not finite, or further than 2^40 from 0.
    """
    steps, scales = np.zeros(rows.shape, dtype=np.int8), np.zeros(len(rows), dtype=np.uint16)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        some = rows[block]
        largest = np.abs(some).max(axis=1, initial=0.0)
        if not (largest <= LARGEST).all():  # also false for a value that is not a number
            raise DataError("Expected item factors to be finite and within 2^40 of 0: train the model again")
        bits = (largest / np.float32(STEPS)).astype(np.float32).view(np.uint32)
        codes = (bits + np.uint32(2**_DROPPED - 1)) >> np.uint32(_DROPPED)
        codes[codes < _SMALLEST_SCALE] = 0
        scales[block] = codes
        divisors = scale_values(scales[block])
        positive = divisors > 0
        divisors[~positive] = 1.0
        steps[block] = np.rint(np.where(positive[:, None], some, np.float32(0)) / divisors[:, None].astype(np.float64))
    return steps, scales


def scale_values(scales: UInt16Array) -> Float32Array:
    """The scales as float32, exact."""
    return (scales.astype(np.uint32) << np.uint32(_DROPPED)).view(np.float32)


def decoded(steps: Int8Array, scales: UInt16Array) -> Float32Array:
    """The rows float32 [n, r] that steps and scales stand for: one exact product each."""
    return steps.astype(np.float32) * scale_values(scales)[:, None]


def joined(biases: Float32Array, trust: Float32Array) -> UInt32Array:
    """Biases of 16 significant bits as float32, and in its last 8 bits trusts in 255ths, uint32 [n].

    Raises:
      DataError: a bias is not finite, or further than 2^40 from 0.
    """
    if not (np.abs(biases) <= LARGEST).all():  # also false for a value that is not a number
        raise DataError("Expected item biases to be finite and within 2^40 of 0: train the model again")
    bits = np.ascontiguousarray(biases, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(_TRUST_BITS // 2 + 1)) & ~np.uint32(_TRUST_BITS)
    steps = np.rint(np.clip(np.nan_to_num(trust), 0.0, 1.0) * _TRUST_BITS).astype(np.uint32)
    return np.asarray(rounded | steps)


def bias_values(both: UInt32Array) -> Float32Array:
    """The biases of ``joined``, float32."""
    return (both & ~np.uint32(_TRUST_BITS)).view(np.float32)


def trust_values(both: UInt32Array) -> Float32Array:
    """The trusts of ``joined``, float32 from 0 to 1."""
    return (both & np.uint32(_TRUST_BITS)).astype(np.float32) / np.float32(_TRUST_BITS)
