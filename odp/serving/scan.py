"""The best items of a catalogue by a pass over all of it, in exact arithmetic.

The person's row is rounded to whole steps as well, as fine as float32 can add exactly: a product of it with a row of
int8 has at most 24 bits, whatever the order of its sums. So every machine, BLAS and number of threads gives the same
scores, and equal scores rank by item number.

    score = float32(float32(steps . row) * scale * unit) + bias

Blocks of int8 become float32 where the cache holds them, and BLAS multiplies them. Whoever has a block's scores keeps
those that are better than the k-th so far, which are few after the first blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics import parallel
from odp.numerics.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from odp.serving.item_index import ItemIndex
from odp.serving.quantised import STEPS, Int8Array, UInt16Array, UInt32Array, bias_values, scale_values

#: Whole numbers up to this are exact as float32.
_EXACT = 2**24
_FURTHEST = 2.0**40  # of a person's row from 0: scores are then finite
_NEAREST = 2.0**-80  # smaller units would be subnormal as float32
_PRODUCT = 2**11  # rows that become float32 at a time
_BLOCK = 2**15  # scores that are looked at together
_FEWEST = 2**17  # items that are worth another thread


@dataclass(frozen=True)
class Best:
    """``items`` int64 [n], best first, and their ``scores`` float32 [n]."""

    items: Int64Array = field(repr=False)
    scores: Float32Array = field(repr=False)


@dataclass(frozen=True)
class PersonRow:
    """A person's row in whole steps, float32 [r], and what a step is worth."""

    steps: Float32Array = field(repr=False)
    unit: np.float32 = field(repr=False)


def person_row(vector: Float64Array) -> PersonRow:
    """``vector`` float64 [r] in steps.

    Numbers that are not finite count as 0, those beyond 2^40 as that, and a vector within 2^-80 of 0 as 0.
    """
    usable = np.clip(np.where(np.isfinite(vector), vector, 0.0), -_FURTHEST, _FURTHEST)
    largest = float(np.abs(usable).max(initial=0.0))
    most = _EXACT // (STEPS * max(1, len(vector)))
    unit = np.float32(largest / most)
    if largest < _NEAREST:
        return PersonRow(np.zeros(len(vector), dtype=np.float32), np.float32(0))
    steps = np.clip(np.rint(usable / np.float64(unit)), -most, most)
    return PersonRow(steps.astype(np.float32), unit)


def best(
    index: ItemIndex,
    vector: Float64Array,
    k: int,
    *,
    excluded: Int64Array | None = None,
    candidates: Int64Array | None = None,
    threads: int | None = 1,
) -> Best:
    """The ``k`` items with the highest scores, fewer where there are fewer; equal scores rank by item number.

    Args:
      index: the catalogue.
      vector: the person's row float64 [r].
      k: how many, at least 1.
      excluded: items that are left out, int64, in any order; those that the index lacks count for nothing.
      candidates: the items that are looked at, int64, in any order; by default all. Those that the index lacks are
        left out.
      threads: that share the work; None is the number of processors.

    Raises:
      ConfigurationError: ``k`` is not positive, or the vector has another rank than the index.
    """
    _validate.integer(low=1, high=2**31, k=k)
    if np.shape(vector) != (index.rank,):
        raise ConfigurationError(f"Expected a row of {index.rank} numbers, as the index (got {list(np.shape(vector))})")
    row = person_row(vector)
    without = np.unique(np.asarray([] if excluded is None else excluded, dtype=np.int64))
    if candidates is not None:
        items = np.setdiff1d(candidates, without)
        items = items[(items >= 0) & (items < len(index))]
        scores = np.empty(len(items), dtype=np.float32)
        with parallel.one_blas_thread():
            _fill(row, index.steps[items], index.scales[items], index.biases[items], scores)
        return _ranked(*_largest(items, scores, k))
    parts = min(parallel.processors(threads), max(1, len(index) // _FEWEST))
    edges = [len(index) * part // parts for part in range(parts + 1)]

    def scan(part: int) -> tuple[Int64Array, Float32Array]:
        return _best_between(index, row, k, without, edges[part], edges[part + 1])

    with parallel.one_blas_thread():
        parts_best = parallel.each(scan, range(parts), threads=parts)
    return _ranked(*_merged(parts_best, k))


def _best_between(
    index: ItemIndex, row: PersonRow, k: int, without: Int64Array, first: int, end: int
) -> tuple[Int64Array, Float32Array]:
    """(items int64 ascending, their scores) of the best of a range."""
    items, scores = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    block, least = np.empty(min(_BLOCK, end - first), dtype=np.float32), -np.inf
    for start in range(first, end, _BLOCK):
        here = slice(start, min(start + _BLOCK, end))
        some = block[: here.stop - start]
        _fill(row, index.steps[here], index.scales[here], index.biases[here], some)
        # An item that is as good as the k-th so far has a larger number than that one.
        better = np.flatnonzero(some > least)
        if not better.size:
            continue
        new = better + start
        excluded = _among(new, without)
        items, scores = _largest(
            np.concatenate((items, new[~excluded])), np.concatenate((scores, some[better[~excluded]])), k
        )
        least = scores.min() if len(scores) == k else -np.inf
    return items, scores


def _fill(row: PersonRow, steps: Int8Array, scales: UInt16Array, biases: UInt32Array, out: Float32Array) -> None:
    """Writes the scores of items into ``out``."""
    buffer = np.empty((min(_PRODUCT, len(steps)), steps.shape[1]), dtype=np.float32)
    for start in range(0, len(steps), _PRODUCT):
        block = steps[start : start + _PRODUCT]
        wide = buffer[: len(block)]
        np.copyto(wide, block)
        np.dot(wide, row.steps, out=out[start : start + _PRODUCT])
    out *= scale_values(scales)
    out *= row.unit
    out += bias_values(biases)


def _among(items: Int64Array, sorted_items: Int64Array) -> BoolArray:
    if not len(sorted_items):
        return np.zeros(len(items), dtype=np.bool_)
    return np.asarray(sorted_items[np.minimum(np.searchsorted(sorted_items, items), len(sorted_items) - 1)] == items)


def _largest(items: Int64Array, scores: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """The best k of items that ascend, in that order."""
    if len(items) <= k:
        return items, scores
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    chosen = scores > least
    chosen[np.flatnonzero(scores == least)[: k - int(chosen.sum())]] = True
    return items[chosen], scores[chosen]


def _merged(parts: Sequence[tuple[Int64Array, Float32Array]], k: int) -> tuple[Int64Array, Float32Array]:
    items, scores = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    return _largest(items, scores, k)


def _ranked(items: Int64Array, scores: Float32Array) -> Best:
    order = np.argsort(-scores, kind="stable")
    return Best(items[order], scores[order])
