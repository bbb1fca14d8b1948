"""From numbers of reports per cell to words: depth by depth, the prefixes of the largest estimates are extended.

Of n reports of a depth, a share S supports a prefix: its function puts the prefix into the answered bucket. A device
with the prefix supports it with the probability p of a true answer, another one with 1 / buckets over the functions, so

    count = N (S - 1 / buckets) / (p - 1 / buckets),   variance  N^2 / n  (1 / b)(1 - 1 / b) / (p - 1 / b)^2

plus collisions of frequent prefixes within the functions of a depth, which all devices share. Nearly all candidates are
prefixes of nobody, so the spread of all estimates shows both; the larger variance is stated. A word that ended is
estimated at every depth from its end on, by devices of their own; the count is the mean of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odp.algorithms.heavy_hitters.words import END
from odp.algorithms.local_heavy_hitters.terms import Terms, prefix_codes
from odp.numerics.arrays import Float64Array, Int64Array, UInt64Array

_AT_ONCE = 2**22  # hashes: bounds memory
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
        estimate, spread = _estimates(terms, block[place], prefix_codes(prefixes), place, users)
        total = np.where(old, total[parent], 0.0) + estimate
        variance = np.where(old, variance[parent], 0.0) + spread
        depths = np.where(ended, np.where(old, depths[parent], 0.0) + 1.0, 0.0)
        mean = np.where(depths > 0, total / np.maximum(depths, 1.0), estimate)
        kept = np.argsort(-mean, kind="stable")[: terms.prefixes]
        prefixes, depths = prefixes[kept], depths[kept]
        total, variance = np.where(depths > 0, total[kept], 0.0), np.where(depths > 0, variance[kept], 0.0)
    mean, std = total / depths, np.sqrt(variance) / depths
    found = np.flatnonzero((mean >= terms.threshold * std) & (mean > 0))
    return Decoded(prefixes[found], mean[found], std[found])


def _extended(terms: Terms, prefixes: Int64Array, depth: int) -> tuple[Int64Array, Int64Array]:
    """(row of the shorter prefix, int64 [n]; all continuations to ``depth``, int64 [n, depth])."""
    parent = np.arange(len(prefixes))
    for place in range(prefixes.shape[1], depth):
        going = np.ones(len(prefixes), dtype=np.bool_) if place == 0 else prefixes[:, -1] != END
        # A word has one character at least.
        first = 1 if place == 0 else 0
        options = np.arange(first, terms.words.base)
        longer = np.repeat(prefixes[going], len(options), axis=0)
        longer = np.column_stack((longer, np.tile(options, int(going.sum()))))
        over = np.column_stack((prefixes[~going], np.full(int((~going).sum()), END)))
        parent = np.concatenate((np.repeat(parent[going], len(options)), parent[~going]))
        prefixes = np.concatenate((longer, over))
    return parent, prefixes


def _estimates(
    terms: Terms, counts: Float64Array, codes: UInt64Array, place: int, users: float
) -> tuple[Float64Array, Float64Array]:
    """(counts float64 [n], their variances float64 [n]) of prefixes at one depth."""
    reports = counts.sum()
    other = 1.0 / terms.buckets
    ratio = float(terms.response.ratio)
    true = ratio / (ratio + terms.buckets - 1.0)
    if not reports:
        return np.zeros(len(codes)), np.full(len(codes), users**2)
    functions = np.arange(terms.hashes)
    supported = np.empty(len(codes))
    at_once = max(1, _AT_ONCE // terms.hashes)
    for start in range(0, len(codes), at_once):
        part = codes[start : start + at_once, None]
        supported[start : start + at_once] = counts[functions, terms.bucket(part, place, functions)].sum(axis=1)
    share = supported / reports
    scale = users / (true - other)
    likely = np.clip(share, other, true)
    found = scale * (share - other)
    shown = (float(np.median(np.abs(found - np.median(found)))) / _NORMAL_MEDIAN) ** 2
    alone = scale**2 / reports * likely * (1.0 - likely)
    return found, alone + max(0.0, shown - scale**2 / reports * other * (1.0 - other))
