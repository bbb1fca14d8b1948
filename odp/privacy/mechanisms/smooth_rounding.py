"""Rounding to integers whose law moves with the number: an error of floating-point numbers is a factor, and no delta.

A number x becomes one of its two neighbours, with the probabilities that keep its expectation, plus an integer n of
probability 2^-|n| / 3. Guarantee: for any two numbers x, x' and any integer g

    P(g | x) / P(g | x')  <=  exp(|x - x'|)

since P(g | x) is linear between integers, and of any two integers next to each other one is at most twice as probable
as the other. So where a vector was computed with errors that add up to e in steps of its grid, every probability of
the rounded vector is within a factor exp(+-e) of that of the exact vector: a pure epsilon stays pure, at 2 e more.
Rounding to the nearest integer has no such bound: near the middle of two, any error moves probability from 1 to 0.

The variance of a rounded number is 4, and at most 1/4 more.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from odp.numerics.arrays import Float64Array, UInt64Array
from odp.privacy.mechanisms.random_source import RandomSource

#: Of the noise, with the mean of the rounding's over the places between two integers.
VARIANCE = 4.0 + 1.0 / 6.0
#: The coin between two neighbours is off by less than this, which counts as an error of the number.
COIN_ERROR = 2.0**-48
_CHUNK = 1 << 15  # numbers per pass: the temporaries of one pass stay in the processor's cache
# Of a word, two bytes are for the noise and the others for the coin.
_BITS = 16
_LONG = 127  # in the table: a byte of zeros, behind which the coin goes on


def round_smoothly(numbers: Float64Array, *, source: RandomSource) -> None:
    """Rounds ``numbers``, float64 [n, d] and contiguous, in place; magnitudes below 2^50."""
    flat = numbers.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        words = source.words(len(part))
        coin = (words >> np.uint64(_BITS)).astype(np.float64)
        coin += 0.5
        coin *= 2.0 ** (_BITS - 64)
        part += coin
        np.floor(part, out=part)
        _add_noise(part, words, source)


def _add_noise(numbers: Float64Array, words: UInt64Array, source: RandomSource) -> None:
    """Adds integers of probability 2^-|n| / 3: tails before heads of one coin without those of another one."""
    bits = (words & np.uint64((1 << _BITS) - 1)).astype(np.intp)
    difference = _differences()[bits]
    numbers += difference
    long = np.flatnonzero(difference == _LONG)
    if len(long):
        two = np.stack([bits[long] & 255, bits[long] >> 8])
        tails = np.where(two == 0, 8 + source.tails(two.size).reshape(two.shape), _tails_of_byte(two))
        numbers[long] += tails[0] - tails[1] - _LONG


@functools.cache
def _differences() -> npt.NDArray[np.int8]:
    """Of each two bytes, int8 [65536]: tails before heads in the low one without those in the high one."""
    tails = _tails_of_byte(np.arange(256))
    differences = (tails[None, :] - tails[:, None]).astype(np.int8)
    differences[:, 0] = differences[0, :] = _LONG
    return differences.reshape(-1)


def _tails_of_byte(byte: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    tails: npt.NDArray[np.intp] = np.bitwise_count((byte & -byte) - 1).astype(np.intp)
    return tails
