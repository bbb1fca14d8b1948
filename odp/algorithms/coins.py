"""Where the coins of reports come from: the operating system on a device, each user's seed in a simulation."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from odp.crypto.keyed_hash import fraction_of, key_of, keyed_hash
from odp.numerics.arrays import Float64Array, Int64Array, UInt64Array
from odp.privacy.mechanisms.random_source import RandomSource

_WORD = 2**64


class Words(Protocol):
    """Uniform 64-bit words for many users at once, independent between users and between labels."""

    def words(self, purpose: int, attempt: int = 0) -> UInt64Array:
        """One word per user, uint64 [users], for a use that no other call has: (``purpose``, ``attempt``)."""
        ...


class SourceWords:
    """``Words`` of a stream of secret random numbers: each call reads its own."""

    def __init__(self, source: RandomSource, users: int) -> None:
        self._source = source
        self._users = users

    def words(self, purpose: int, attempt: int = 0) -> UInt64Array:
        """uint64 [users]."""
        return self._source.words(self._users)


class HashedWords:
    """``Words`` of simulated users: a hash of each user's seed, which protects nobody and depends on no other user."""

    def __init__(self, seeds: UInt64Array) -> None:
        self._seeds = seeds

    def words(self, purpose: int, attempt: int = 0) -> UInt64Array:
        """uint64 [users]."""
        return keyed_hash(key_of("coins of reports", purpose, attempt), self._seeds)


def fractions(words: Words, purpose: int) -> Float64Array:
    """Uniform numbers in [0, 1), float64 [users]."""
    return fraction_of(words.words(purpose))


def below(words: Words, purpose: int, high: int) -> Int64Array:
    """Uniform whole numbers from 0 to ``high`` - 1, int64 [users]; by rejection, so exactly uniform."""
    random_words = words.words(purpose)
    excess = _WORD % high
    attempt = 0
    while excess and (refused := random_words >= np.uint64(_WORD - excess)).any():
        attempt += 1
        random_words = np.where(refused, words.words(purpose, attempt), random_words)
    return (random_words % np.uint64(high)).astype(np.int64)
