"""From numbers of reports per cell to words: depth by depth, the prefixes of the largest estimates are extended.

Of n reports of a depth, a share S supports a prefix: its function puts the prefix into the answered bucket. A device
with the prefix supports it with the probability p of a true answer, another one with 1 / buckets over the functions, so

    count = N (S - 1 / buckets) / (p - 1 / buckets),   variance  N^2 / n  (1 / b)(1 - 1 / b) / (p - 1 / b)^2

plus collisions with frequent prefixes, since all devices share the functions of a depth. For prefixes c, c' that the
share A of the functions puts into one bucket, with q the probability of a single other answer,

    (S(c) - 1 / b) / (p - q) = sum over c' of (share of users with c') (A(c, c') - 1 / b)

so the prefixes of the largest supports are solved for together, and taken out of the others. Nearly all other
candidates are prefixes of nobody: the spread of what the equations leave of them shows the rest. A word that ended is
estimated at every depth from its end on, by devices of their own; the count is the mean of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odp.algorithms.heavy_hitters.terms import END
from odp.algorithms.local_heavy_hitters.terms import Terms, prefix_codes
from odp.numerics.arrays import Float64Array, Int64Array, UInt64Array

_AT_ONCE = 2**22  # hashes: bounds memory
# Candidates that are estimated, for each that is followed up; and others that show the spread.
_TOGETHER = 4
# Independent numbers of a sketch for each unknown that is solved for.
_EQUATIONS = 8
_OTHERS, _LEAST_OTHERS = 1000, 100
_NORMAL_MEDIAN = 0.6744897501960817  # median of the absolute value of a standard normal


@dataclass(frozen=True)
class Decoded:
    """Words in order of their counts: int64 [n, length], their counts and standard deviations, float64 [n] each."""

    words: Int64Array
    counts: Float64Array
    stds: Float64Array


def decode(terms: Terms, counts: Int64Array) -> Decoded:
    """The words in ``counts``, int64 [cells], whose estimate is above the threshold."""
    block = counts.reshape(len(terms.depths), terms.hashes, terms.buckets).astype(np.float64)
    users = float(counts.sum())
    prefixes = np.zeros((1, 0), dtype=np.int64)
    total, variance, depths = np.zeros(1), np.zeros(1), np.zeros(1)
    for place, depth in enumerate(terms.depths):
        parent, prefixes = _extended(terms, prefixes, depth)
        ended = (prefixes == END).any(axis=1) | (depth == terms.words.length)
        # What a prefix had before it ended says nothing about the word.
        old = np.isin(parent, np.flatnonzero(depths > 0))
        sketch = _Sketch(terms, block[place], place, users)
        candidates, estimate, spread = sketch.largest(prefix_codes(prefixes))
        parent, prefixes, ended, old = parent[candidates], prefixes[candidates], ended[candidates], old[candidates]
        total = np.where(old, total[parent], 0.0) + estimate
        variance = np.where(old, variance[parent], 0.0) + spread
        depths = np.where(ended, np.where(old, depths[parent], 0.0) + 1.0, 0.0)
        mean = np.where(depths > 0, total / np.maximum(depths, 1.0), estimate)
        best = np.argsort(-mean, kind="stable")[: terms.prefixes]
        prefixes, depths = prefixes[best], depths[best]
        total, variance = np.where(depths > 0, total[best], 0.0), np.where(depths > 0, variance[best], 0.0)
    mean, std = total / depths, np.sqrt(variance) / depths
    above = np.flatnonzero((mean >= terms.threshold * std) & (mean > 0))
    return Decoded(prefixes[above], mean[above], std[above])


def _extended(terms: Terms, prefixes: Int64Array, depth: int) -> tuple[Int64Array, Int64Array]:
    """(row of the shorter prefix, int64 [n]; all continuations to ``depth``, int64 [n, depth])."""
    parent = np.arange(len(prefixes))
    for place in range(prefixes.shape[1], depth):
        going = np.ones(len(prefixes), dtype=np.bool_) if place == 0 else prefixes[:, -1] != END
        # A word has one character at least.
        options = np.arange(1 if place == 0 else 0, terms.words.base)
        longer = np.repeat(prefixes[going], len(options), axis=0)
        longer = np.column_stack((longer, np.tile(options, int(going.sum()))))
        over = np.column_stack((prefixes[~going], np.full(int((~going).sum()), END)))
        parent = np.concatenate((np.repeat(parent[going], len(options)), parent[~going]))
        prefixes = np.concatenate((longer, over))
    return parent, prefixes


class _Sketch:
    """The reports of one depth, float64 [hashes, buckets]."""

    def __init__(self, terms: Terms, counts: Float64Array, place: int, users: float) -> None:
        self._terms, self._counts, self._place, self._users = terms, counts, place, users
        self._reports = counts.sum()
        ratio = float(terms.response.ratio)
        self._true = ratio / (ratio + terms.buckets - 1.0)
        self._other = 1.0 / (ratio + terms.buckets - 1.0)
        self._mean = 1.0 / terms.buckets

    def largest(self, codes: UInt64Array) -> tuple[Int64Array, Float64Array, Float64Array]:
        """(rows of ``codes`` int64 [k], their counts float64 [k], the variances of these float64 [k])."""
        most = _TOGETHER * self._terms.prefixes
        if not self._reports:
            return np.arange(len(codes))[:most], *np.repeat([[0.0], [self._users**2]], min(most, len(codes)), axis=1)
        support = self._support(codes)
        order = np.argsort(-support, kind="stable")
        best, others = order[:most], order[most:]
        # Of more unknowns together, the equations would amplify the noise.
        joint = best[: max(1, self._terms.hashes * (self._terms.buckets - 1) // _EQUATIONS)]
        joint_buckets = self._buckets(codes[joint])
        solved = np.linalg.lstsq(self._common(joint_buckets, joint_buckets), self._scaled(support[joint]), rcond=None)[
            0
        ].astype(np.float64)
        shares = np.concatenate((solved, self._left(codes, support, best[len(joint) :], joint_buckets, solved)))
        alone = self._scale**2 / self._reports
        likely = np.clip(support[best], self._mean, self._true)
        variance = alone * likely * (1.0 - likely)
        if len(others) >= _LEAST_OTHERS:
            others = others[:: max(1, len(others) // _OTHERS)]
            left = self._left(codes, support, others, joint_buckets, solved)
            shown = float(np.median(np.abs(left - np.median(left)))) / _NORMAL_MEDIAN
            variance += max(0.0, (self._users * shown) ** 2 - alone * self._mean * (1.0 - self._mean))
        return best.astype(np.int64), (self._users * shares).astype(np.float64), variance

    def _left(
        self,
        codes: UInt64Array,
        support: Float64Array,
        rows: Int64Array,
        solved_buckets: Int64Array,
        solved: Float64Array,
    ) -> Float64Array:
        """The share of the users with each prefix in ``rows``, float64, without collisions with those solved for."""
        collided = self._common(self._buckets(codes[rows]), solved_buckets) @ solved
        return (self._scaled(support[rows]) - collided) / (1.0 - self._mean)

    @property
    def _scale(self) -> float:
        return self._users / (self._true - self._mean)

    def _scaled(self, support: Float64Array) -> Float64Array:
        return (support - self._mean) / (self._true - self._other)

    def _buckets(self, codes: UInt64Array) -> Int64Array:
        return self._terms.bucket(codes[:, None], self._place, np.arange(self._terms.hashes))

    def _support(self, codes: UInt64Array) -> Float64Array:
        """The share of the reports that support each prefix, float64 [n]."""
        functions = np.arange(self._terms.hashes)
        sums = np.empty(len(codes))
        at_once = max(1, _AT_ONCE // self._terms.hashes)
        for start in range(0, len(codes), at_once):
            part = self._buckets(codes[start : start + at_once])
            sums[start : start + at_once] = self._counts[functions, part].sum(axis=1)
        shares: Float64Array = sums / self._reports
        return shares

    def _common(self, left: Int64Array, other: Int64Array) -> Float64Array:
        """A - 1 / buckets of two lists of buckets [n, hashes] and [m, hashes], weighted by reports: float64 [n, m]."""
        collisions = np.full((len(left), len(other)), -self._mean)
        for weight, first, second in zip(self._counts.sum(axis=1) / self._reports, left.T, other.T, strict=True):
            collisions += weight * (first[:, None] == second)
        return collisions
