"""Public features of a data set's items: genres and years."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odp.datasets import Ratings, item_features, load, synthetic_movielens
from odp.errors import DataError


def ratings(**attributes: object) -> Ratings:
    return Ratings.from_triples(
        "films", [0, 0, 1], [0, 1, 2], [1.0, 2.0, 3.0], low=1.0, high=5.0, n_items=3, **attributes
    )


def test_genres_have_norm_one_and_years_stand_between_their_knots() -> None:
    flags = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=np.float32)
    found = item_features(ratings(features=flags, titles=("A (1975)", "B (1985)", "C (1890)")))
    assert found.dtype == np.float32
    assert found.shape == (3, 3 + 11)
    np.testing.assert_allclose(np.linalg.norm(found[:, :3], axis=1), [1, 1, 0], atol=1e-6)
    years = found[:, 3:]
    np.testing.assert_allclose(years.sum(axis=1), 1.0, atol=1e-6)
    assert sorted(years[0][years[0] > 0]) == [0.5, 0.5]
    assert years[1].max() == 1.0
    assert years[2, 0] == 1.0, "what is older than the first knot counts as of its time"


def test_an_item_without_a_year_has_none_and_few_years_are_no_features() -> None:
    found = item_features(ratings(titles=("A (1975)", "B (1985)", "C")))
    assert not found[2].any()
    flags = np.ones((3, 2), dtype=np.float32)
    assert item_features(ratings(features=flags, titles=("A (1975)", "B", "C"))).shape == (3, 2)


def test_a_data_set_without_anything_public_says_so() -> None:
    with pytest.raises(DataError, match="no genres and no years"):
        item_features(ratings())


def test_features_are_the_same_whatever_people_rated() -> None:
    whole = synthetic_movielens(n_users=30, n_items=40, ratings_per_user=8, seed=1)
    part = whole.take(np.arange(whole.n_ratings) % 2 == 0)
    np.testing.assert_array_equal(item_features(whole), item_features(part))


def test_movielens_has_eighteen_genres_and_eleven_knots(shared_data: Path) -> None:
    found = item_features(load(shared_data / "ml-1m"))
    assert found.shape == (3706, 29)
    assert np.isfinite(found).all()
    assert (np.abs(found).sum(axis=1) > 0).all()
