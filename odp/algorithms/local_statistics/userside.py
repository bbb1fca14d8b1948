"""From records to one report per user, for one user or for many: the same arithmetic on a device and in a simulation.

Guarantee: the query and the slot that a report answers are drawn without a look at any data, and its answer is k-ary
randomised response of the part's epsilon, whatever the records are. So a report is epsilon-locally private for the
largest epsilon of the parts, in the sense of ``any_two_inputs``; that of a person without data is a report like others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from odp.algorithms.dense.grid import Entries
from odp.algorithms.dense.records import Records
from odp.algorithms.local_seam import Words, below, fractions
from odp.algorithms.local_statistics.layout import ReportPart
from odp.algorithms.statistics.parts import HistogramPart, MeanPart, entries_of, records_read
from odp.numerics.arrays import Float64Array, Int64Array

# Purposes of words per part: the slot, two roundings, the uniform answer, the coin.
_PER_PART = 8
_SLOT, _FIRST, _SECOND, _UNIFORM, _COIN = range(5)


def reports(parts: Sequence[ReportPart], records: Mapping[str, Records], words: Words, *, users: int) -> Int64Array:
    """One cell per user, int64 [users]. ``records`` are the rows of each query, by its name."""
    question_draw = fractions(words, 0)
    answered = np.minimum(
        np.searchsorted(np.cumsum([part.share for part in parts]), question_draw, side="right"), len(parts) - 1
    )
    cells = np.zeros(users, dtype=np.int64)
    for number, part in enumerate(parts):
        first = 1 + number * _PER_PART
        slot = below(words, first + _SLOT, part.slots)
        truth = truths(part, records[part.name], slot, words, first=first)
        uniform = below(words, first + _UNIFORM, part.choices)
        noisy = words.words(first + _COIN) < np.uint64(part.response.noise)
        cell = part.offset + slot * part.choices + np.where(noisy, uniform, truth)
        cells = np.where(answered == number, cell, cells)
    return cells


def truths(part: ReportPart, records: Records, slot: Int64Array, words: Words, *, first: int = 1) -> Int64Array:
    """The answer of every user before randomised response, int64 [users], from 0 to ``part.choices`` - 1.

    Args:
      part: the query.
      records: the rows of all users.
      slot: int64 [users], which bin a user answers about where there is one slot per bin.
      words: the coins of rounding.
      first: the first purpose of words that is the part's.
    """
    entries = entries_of(part.kind, records_read(part.table, records))
    if isinstance(part.kind, MeanPart):
        return _of_mean(
            part, entries, records.users, fractions(words, first + _FIRST), fractions(words, first + _SECOND)
        )
    if part.chooses_bins:
        return _of_bins(part.kind, entries, records.users, fractions(words, first + _FIRST))
    return _of_counts(part, part.kind, entries, slot, fractions(words, first + _FIRST))


def _of_bins(kind: HistogramPart, entries: Entries, users: int, uniform: Float64Array) -> Int64Array:
    """A bin with the probability that is the user's share of it; what is missing to 1 is "no data"."""
    total = np.cumsum(entries.value)
    ends = np.searchsorted(entries.user, np.arange(users), side="right")
    starts = np.concatenate(([0], ends[:-1]))
    base = np.where(starts > 0, total[np.maximum(starts, 1) - 1], 0.0) if len(total) else np.zeros(users)
    place = np.maximum(np.searchsorted(total, base + uniform, side="right"), starts)
    bins: Int64Array = np.full(users, kind.bins, dtype=np.int64)
    inside = place < ends
    bins[inside] = entries.place[place[inside]]
    return bins


def _of_counts(
    part: ReportPart, kind: HistogramPart, entries: Entries, slot: Int64Array, uniform: Float64Array
) -> Int64Array:
    keys = entries.user * np.int64(kind.bins) + entries.place  # ascending
    wanted = np.arange(len(slot), dtype=np.int64) * kind.bins + slot
    value = np.zeros(len(slot))
    if len(keys):
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        value = np.where(keys[place] == wanted, entries.value[place], 0.0)
    return _level(value / part.bound, part.levels, uniform)


def _of_mean(
    part: ReportPart, entries: Entries, users: int, present: Float64Array, uniform: Float64Array
) -> Int64Array:
    half = len(entries.user) // 2
    user, total, weight = entries.user[:half], entries.value[:half], entries.value[half:]
    mean, share = np.zeros(users), np.zeros(users)
    mean[user] = total / weight
    share[user] = weight / part.bound
    level = _level(0.5 * (mean + 1.0), part.levels, uniform)
    return np.where(present < share, level, part.levels + 1)


def _level(value: Float64Array, levels: int, uniform: Float64Array) -> Int64Array:
    """Numbers in [0, 1] in steps of 1 / ``levels``, rounded to a neighbour without bias."""
    return np.clip(np.floor(value * levels + uniform), 0, levels).astype(np.int64)
