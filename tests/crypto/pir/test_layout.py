"""The layout deals every row to one place per table, and rows find buckets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.pir.shape import MOST_KEYS, Layout
from odp.errors import ConfigurationError


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 700), keys=st.integers(1, 60), seed=st.binary(max_size=4))
def test_every_row_has_a_place_of_its_own_in_every_table(rows: int, keys: int, seed: bytes) -> None:
    layout = Layout(rows, keys, seed)
    cells = layout.cells(np.arange(rows))
    assert cells[:, :, 1].max() < layout.places
    assert np.array_equal(cells[:, :, 0] // layout.per_table, np.tile(np.arange(layout.tables), (rows, 1)))
    for table in range(layout.tables):
        assert len({tuple(cell) for cell in cells[:, table].tolist()}) == rows
    first = layout.first_rows()
    for bucket, row in enumerate(first.tolist()):
        if row >= 0:
            assert cells[row, bucket // layout.per_table].tolist() == [bucket, 0]
        else:
            assert bucket not in cells[:, :, 0]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rows=st.integers(1, 3000), keys=st.integers(1, 60))
def test_rows_are_assigned_to_buckets_that_hold_them(data: st.DataObject, rows: int, keys: int) -> None:
    layout = Layout(rows, keys, b"seed")
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1), max_size=min(keys, rows)))), dtype=np.int64)
    assigned, places = layout.assign(wanted)
    assert sorted(assigned[assigned >= 0].tolist()) == list(range(len(wanted)))
    cells = layout.cells(wanted)
    for bucket, (row, place) in enumerate(zip(assigned.tolist(), places.tolist(), strict=True)):
        assert [bucket, place] in cells[row].tolist() if row >= 0 else place == 0


def test_many_queries_of_all_keys_are_placed() -> None:
    generator = np.random.default_rng(0)
    for keys in (5, 12, 50):
        layout = Layout(5000, keys, b"seed")
        for _ in range(150):
            assigned, _ = layout.assign(np.sort(generator.choice(5000, keys, replace=False)))
            assert (assigned >= 0).sum() == keys


def test_the_matching_is_the_largest_there_is_where_rows_share_their_buckets() -> None:
    layout = Layout(40_000, 12, b"seed")
    cells = layout.cells(np.arange(40_000))[:, :, 0]
    crowded = np.flatnonzero((cells[:, :3] == cells[0, :3]).all(axis=1))[:12]
    assert len(crowded) == 12
    assigned, _ = layout.assign(crowded)
    # All of them share three buckets; each of the others has the fourth.
    assert (assigned >= 0).sum() == min(12, 3 + len(np.unique(cells[crowded, 3]))) < 12


def unplaced_bound(keys: int) -> float:
    """An upper bound on the probability that some of ``keys`` rows find no bucket, for a random layout.

    By Hall's theorem a smallest set of s such rows has s - 1 buckets; the bound sums over all s and all such sets of
    buckets, where a row falls into a given share of each table independently.
    """
    layout = Layout(1000, keys, b"")
    tables, buckets = layout.tables, layout.per_table
    total = 0.0
    for size in range(tables + 1, keys + 1):
        counts = range(min(buckets, size) + 1)
        within = np.array([math.comb(buckets, count) * (count / buckets) ** size for count in counts])
        shared = within
        for _ in range(tables - 1):
            shared = np.convolve(shared, within)[:size]
        total += math.comb(keys, size) * float(shared[size - 1] if len(shared) == size else 0.0)
    return total


@pytest.mark.parametrize("keys", [*range(1, 130), 200, 300, 400, MOST_KEYS])
def test_rows_without_a_bucket_are_rarer_than_once_in_2_to_the_40(keys: int) -> None:
    assert unplaced_bound(keys) < 2**-40


def test_the_buckets_are_about_one_and_a_half_per_key_and_few_keys_scan_no_more_than_they_would_alone() -> None:
    assert [Layout(1000, keys, b"").buckets for keys in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert Layout(1000, 50, b"").buckets == 76
    assert Layout(1000, 400, b"").buckets == 600
    assert max(Layout(1000, keys, b"").tables for keys in (5, 50, MOST_KEYS)) == 4


def test_another_seed_deals_other_places() -> None:
    one, other = (Layout(1000, 50, seed).cells(np.arange(1000)) for seed in (b"a", b"b"))
    assert (one == other).all(axis=2).mean() < 0.1


@pytest.mark.parametrize("keys", [0, MOST_KEYS + 1])
def test_a_number_of_keys_out_of_range_is_refused(keys: int) -> None:
    with pytest.raises(ConfigurationError, match="keys"):
        Layout(10, keys, b"")
