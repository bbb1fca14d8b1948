"""Clusters of item rows: every item has one place, near its centroid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import ConfigurationError
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.signed.tables.candidates import (
    STAMP,
    balanced,
    candidate_tables,
    centroids_of,
    opened_buckets,
    stamp_of,
    table_names,
)

MODEL = bytes(range(32))


def model(items: int, width: int, seed: int = 0) -> ModelVersion:
    rows = np.random.default_rng(seed).normal(size=(items, width)).astype(np.float32)
    return ModelVersion(4, (TableValues("items", rows, True),))


@settings(max_examples=40, deadline=None)
@given(items=st.integers(1, 200), width=st.integers(1, 6), clusters=st.integers(1, 30), seed=st.integers(0, 5))
def test_every_item_is_in_one_bucket_with_its_own_row(items: int, width: int, clusters: int, seed: int) -> None:
    clusters = min(clusters, items)
    broadcast = model(items, width, seed)
    made = candidate_tables("films", broadcast, MODEL, clusters=clusters, buckets_per_request=1, seed=seed)
    assert (made.centroids.name, made.buckets.name) == table_names("films")
    assert made.centroids.rows.shape == (clusters, STAMP + width)
    found, rows = opened_buckets(made.buckets.rows, width)
    assert sorted(found.tolist()) == list(range(items))
    np.testing.assert_array_equal(rows, broadcast.keyed.rows[found])
    for table in (made.centroids, made.buckets):
        np.testing.assert_array_equal(table.rows[:, :STAMP], np.tile(stamp_of(MODEL), (clusters, 1)))


def test_the_stamp_tells_every_model_from_every_other() -> None:
    for place in range(32):
        other = bytearray(MODEL)
        other[place] ^= 1
        assert (stamp_of(bytes(other)) != stamp_of(MODEL)).sum() == 1


def test_groups_that_lie_apart_become_clusters() -> None:
    generator = np.random.default_rng(1)
    centres = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [100.0, 100.0]])
    group = np.repeat(np.arange(4), 50)
    points = centres[group] + generator.normal(size=(200, 2))
    found = centroids_of(points, 4, seed=0)
    assert {tuple(np.round(one / 100).astype(int)) for one in found} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assigned = balanced(points, found, most=50)
    assert all(len(set(assigned[group == number])) == 1 for number in range(4))


def test_a_full_cluster_keeps_its_nearest_points() -> None:
    points = np.array([[0.0], [1.0], [2.0], [3.0], [50.0]])
    assigned = balanced(points, np.array([[0.0], [60.0]]), most=3)
    assert assigned.tolist() == [0, 0, 0, 1, 1]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigurationError, match="room for 5 points, got 4"):
        balanced(np.zeros((5, 1)), np.zeros((2, 1)), most=2)
    with pytest.raises(ConfigurationError, match="clusters=1 to be more"):
        candidate_tables("films", model(9000, 8), MODEL, clusters=1, buckets_per_request=1)
    for clusters, buckets in ((0, 1), (11, 1), (3, 4)):
        with pytest.raises(ConfigurationError):
            candidate_tables("films", model(10, 2), MODEL, clusters=clusters, buckets_per_request=buckets)


def test_the_same_model_gives_the_same_tables() -> None:
    first, second = (candidate_tables("films", model(500, 5), MODEL) for _ in range(2))
    assert first.buckets.content == second.buckets.content
    assert first.centroids.content == second.centroids.content


def opened(records: list[list[float]]) -> tuple[list[int], list[list[float]]]:
    items, rows = opened_buckets(np.concatenate([stamp_of(MODEL), np.ravel(records)])[None].astype(np.float32), 2)
    return items.tolist(), rows.tolist()


@pytest.mark.parametrize("number", [1.5, np.nan, np.inf, -np.inf, 1e30, -2.0])
def test_what_nobody_writes_into_a_bucket_is_left_out(number: float) -> None:
    assert opened([[number, 0.5, 0.5], [7.0, 1.0, 2.0], [7.0, 3.0, 4.0]]) == ([7], [[1.0, 2.0]])


def test_buckets_of_another_width_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="another width"):
        opened([[1.0, 0.5], [2.0, 0.5]])
