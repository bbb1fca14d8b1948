"""Ceilings of ratings: neighbours and EASE beside plain loops, and better than biases on data with a structure."""

from __future__ import annotations

import numpy as np
import pytest

from odp.datasets import Ratings, random_split
from odp.errors import DataError
from odp.evaluation import rating_ceilings as module
from odp.evaluation.trials import rmse


@pytest.fixture(scope="module")
def rated() -> Ratings:
    """Two tastes: users like one half of the items, and dislike the other."""
    rng = np.random.default_rng(1)
    table = np.sign(rng.normal(size=(150, 1))) * np.repeat([1.0, -1.0], 10) + 0.5 * rng.normal(size=(150, 20))
    known = rng.random(table.shape) < 0.6
    users, items = np.nonzero(known)
    values = np.clip(3 + table[known], 1, 5)
    return Ratings.from_triples("tastes", users, items, values, low=1, high=5, n_users=150, n_items=20)


def test_all_ceilings_find_the_structure_that_biases_miss(rated: Ratings) -> None:
    split = random_split(rated, seed=1)
    biases = rmse(module._Residuals(split.train).biases(split.train, split.test), split.test)
    assert biases > 1.0
    for tuned in (lambda: module.tuned_als(split, seed=1), lambda: module.tuned_rating_knn(split),
                  lambda: module.tuned_rating_ease(split)):  # fmt: skip
        assert tuned().scores[0] < 0.8 * biases


def test_neighbours_are_those_of_a_plain_loop(rated: Ratings) -> None:
    split = random_split(rated, seed=1)
    rest = module._Residuals(split.train)
    similar = np.abs(np.random.default_rng(2).normal(size=(20, 20))).astype(np.float32)
    found = module._neighbours(rest, lambda asked, known: similar[np.ix_(asked, known)], 3, split.train, split.test)
    matrix, history = rest.of(split.train).toarray(), split.train
    for entry in range(0, split.test.n_ratings, 17):
        user, item = int(split.test.users()[entry]), int(split.test.items[entry])
        known = history.items[history.offsets[user] : history.offsets[user + 1]]
        near = sorted(known, key=lambda other: -similar[item, other])[:3]
        expected = sum(similar[item, other] * matrix[user, other] for other in near)
        expected /= sum(similar[item, other] for other in near) + module._FLOOR
        assert found[entry] == pytest.approx(expected, abs=1e-5)


def test_ease_predicts_from_residuals_through_the_weights(rated: Ratings) -> None:
    split = random_split(rated, seed=1)
    rest = module._Residuals(split.train)
    weights = np.random.default_rng(3).normal(size=(20, 20)).astype(np.float32)
    found = module._linear(rest, weights, split.train, split.test)
    expected = (rest.of(split.train).toarray() @ weights)[split.test.users(), split.test.items]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_catalogue_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, rated: Ratings) -> None:
    monkeypatch.setattr(module, "MOST_ITEMS_EASE", 10)
    monkeypatch.setattr(module, "MOST_ITEMS_KNN", 10)
    split = random_split(rated, seed=1)
    for tuned in (module.tuned_rating_ease, module.tuned_rating_knn):
        with pytest.raises(DataError, match="20 items are more than 10"):
            tuned(split)
