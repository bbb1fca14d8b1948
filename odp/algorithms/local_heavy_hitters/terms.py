"""The numbers of one task, read from its definition and checked; and the report that they make of a word.

Guarantee: depth and function are drawn without a look at any data, and the answer is k-ary randomised response of the
bucket, so a report is ``report_epsilon``-locally private for any two inputs, "no words" among them.

Source: Wang, Blocki, Li, Jha 2017, "Locally differentially private protocols for frequency estimation", optimal local
hashing (exp(epsilon) + 1 buckets); Wang, Li, Jha 2019, "Locally differentially private heavy hitter identification"
(prefixes, each device with one depth).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.algorithms.dense.records import check_question
from odp.algorithms.heavy_hitters.terms import WordTerms, chosen
from odp.algorithms.local_seam import Words, below
from odp.crypto.keyed_hash import key_of, keyed_hash, splitmix64
from odp.errors import ConfigurationError
from odp.numerics.arrays import Int64Array, UInt64Array
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON, SMALLEST_EPSILON, RandomizedResponse
from odp.v1 import common_pb2

#: Numbers that a report can be.
MOST_CELLS = 2**18
MOST_HASHES = 2**12
MOST_BUCKETS = 2**10
MOST_PREFIXES = 2**12
_DEPTH, _HASH, _WORD, _NOTHING, _UNIFORM, _COIN = range(6)


@dataclass(frozen=True)
class Terms:
    """A :class:`odp.v1.TaskDefinition` that asks for words by sketches, checked; fields as of its message."""

    words: WordTerms
    report_epsilon: float
    depths: tuple[int, ...]
    hashes: int
    buckets: int
    prefixes: int
    threshold: float

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition. Raises ConfigurationError naming the field."""
        check_question(definition, "local_heavy_hitters")
        message, privacy = definition.local_heavy_hitters, definition.privacy
        words = WordTerms.of(message.words)
        _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, report_epsilon=message.report_epsilon)
        if message.report_epsilon > privacy.epsilon:
            raise ConfigurationError(
                f"Expected report_epsilon={message.report_epsilon!r} to be within the task's "
                f"epsilon={privacy.epsilon!r}"
            )
        depths = tuple(message.depths)
        if not depths or depths[0] < 1 or depths[-1] != words.length or list(depths) != sorted(set(depths)):
            raise ConfigurationError(f"Expected depths={depths!r} to ascend from 1 at least to length={words.length}")
        _validate.integer(low=1, high=MOST_HASHES, hashes=message.hashes)
        _validate.integer(low=2, high=MOST_BUCKETS, buckets=message.buckets)
        _validate.integer(low=1, high=MOST_PREFIXES, prefixes=message.prefixes)
        _validate.within(low=0.0, high=100.0, threshold=message.threshold)
        terms = cls(
            words, message.report_epsilon, depths, message.hashes, message.buckets, message.prefixes, message.threshold
        )  # fmt: skip
        if terms.cells > MOST_CELLS:
            raise ConfigurationError(f"Expected reports of at most {MOST_CELLS:,} cells (got {terms.cells:,})")
        return terms

    @property
    def cells(self) -> int:
        """Numbers that a report can be."""
        return len(self.depths) * self.hashes * self.buckets

    @functools.cached_property
    def response(self) -> RandomizedResponse:
        """What every bucket goes through."""
        return RandomizedResponse(choices=self.buckets, asked=self.report_epsilon)

    def reports(self, user: Int64Array, texts: np.ndarray, words: Words, *, users: int) -> Int64Array:
        """One cell per user, int64 [users].

        Args:
          user: int64 [n], ascending; whose texts these are.
          texts: text [n].
          words: the coins of all users.
          users: their number.
        """
        depth, function = below(words, _DEPTH, len(self.depths)), below(words, _HASH, self.hashes)
        numbers, usable = self.words.numbers(texts)
        chosen_rows = chosen(user, usable, words.words(_WORD))
        truth = below(words, _NOTHING, self.buckets)
        for place, length in enumerate(self.depths):
            here = np.flatnonzero((depth == place) & (chosen_rows >= 0))
            truth[here] = self.bucket(prefix_codes(numbers[chosen_rows[here], :length]), place, function[here])
        uniform = below(words, _UNIFORM, self.buckets)
        noisy = words.words(_COIN) < np.uint64(self.response.noise)
        return (depth * self.hashes + function) * self.buckets + np.where(noisy, uniform, truth)

    def bucket(self, codes: UInt64Array, place: int, function: Int64Array) -> Int64Array:
        """The buckets of prefixes of the depth at ``place`` under functions; arguments broadcast."""
        keys = keyed_hash(key_of("buckets of words", place), function)
        # The upper half of the hash in buckets of equal width: a division would take as long as the hash.
        upper = splitmix64(codes ^ keys) >> np.uint64(32)
        return ((upper * np.uint64(self.buckets)) >> np.uint64(32)).astype(np.int64)


def prefix_codes(numbers: Int64Array) -> UInt64Array:
    """A hash of each row of characters, uint64 [n]."""
    return keyed_hash(np.zeros(len(numbers), dtype=np.uint64), *numbers.T)
