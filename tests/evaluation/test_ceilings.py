"""References without privacy: closed forms beside plain loops, and settings that the task does not change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import odp
from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import DataError
from odp.evaluation import ceilings
from odp.evaluation.ceilings import ease_weights, knn_weights, tuned_ease, tuned_ials, tuned_item_knn
from odp.research.simulation.methods import contest_for


@pytest.fixture(scope="module")
def seen() -> Ratings:
    rated = synthetic_movielens(n_users=300, n_items=60, ratings_per_user=15)
    values = np.ones(rated.n_ratings, dtype=np.float32)
    return dataclasses.replace(rated, implicit=True, values=values, low=1.0, high=1.0)


def _matrix(seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).random((40, 9)) < 0.3).astype(np.float64)


def test_ease_is_a_ridge_regression_of_each_item_on_all_others():
    matrix, ridge = _matrix(), 2.0
    found = ease_weights(matrix.T @ matrix, ridge)
    for item in range(matrix.shape[1]):
        others = np.delete(np.arange(matrix.shape[1]), item)
        design = matrix[:, others]
        expected = np.linalg.solve(design.T @ design + ridge * np.eye(len(others)), design.T @ matrix[:, item])
        np.testing.assert_allclose(found[others, item], expected, atol=1e-12)
        assert found[item, item] == 0.0


@pytest.mark.parametrize(("neighbours", "shrinkage"), [(2, 0.0), (3, 5.0), (50, 1.0)])
def test_neighbours_are_those_of_a_plain_loop(neighbours, shrinkage):
    from scipy import sparse

    matrix = _matrix(2)
    gram = matrix.T @ matrix
    found = knn_weights(sparse.csr_array(gram), neighbours=neighbours, shrinkage=shrinkage).toarray()
    for item in range(len(gram)):
        cosines = [
            0.0 if other == item else gram[other, item] / (np.sqrt(gram[other, other] * gram[item, item]) + shrinkage)
            for other in range(len(gram))
        ]
        kept = sorted(range(len(gram)), key=lambda other: (-cosines[other], other))[:neighbours]
        expected = np.zeros(len(gram))
        expected[kept] = np.array(cosines)[kept]
        np.testing.assert_allclose(found[:, item], expected, atol=1e-12)


@pytest.mark.parametrize("tuned", [tuned_ials, tuned_ease, tuned_item_knn])
def test_the_best_of_six_on_the_validation_part_is_better_than_chance(tuned, seen):
    split = random_split(seen, seed=1)
    found = tuned(split, seed=1)
    # A random ranking of 60 items has a recall at 20 of about a third.
    assert found.ranking.recall[20] > 0.45
    assert tuned(split, seed=1) == found


def test_the_setting_of_largest_validation_recall_is_taken(monkeypatch, seen):
    split = random_split(seen, seed=2)
    found = tuned_ease(split)
    worst: list[float] = []
    for ridge in (30.0, 100.0, 300.0, 1e3, 3e3, 1e4):
        gram = ceilings._gram(split.train).toarray()
        scores = ceilings._linear_scores(split.train, ease_weights(gram, ridge).astype(np.float32))
        worst.append(ceilings.evaluate(scores, split.train, split.validation, cutoffs=(20,)).recall[20])
    assert found.settings == {"ridge": (30.0, 100.0, 300.0, 1e3, 3e3, 1e4)[int(np.argmax(worst))]}


def test_a_catalogue_that_is_too_large_for_ease_is_refused_and_has_no_row(monkeypatch, seen):
    assert "EASE, all data in one place" in [method.name for method in contest_for(seen, preset="auto").methods]
    monkeypatch.setattr("odp.evaluation.ceilings.MOST_ITEMS", 50)
    monkeypatch.setattr("odp.research.simulation.methods.MOST_ITEMS", 50)
    with pytest.raises(DataError, match="60 items are more than 50"):
        tuned_ease(random_split(seen, seed=1))
    assert "EASE, all data in one place" not in [method.name for method in contest_for(seen, preset="auto").methods]


def test_ceilings_do_not_depend_on_the_budgets_beside_them(seen):
    name = "iALS, all data in one place"
    few, many = (odp.compare(seen, epsilons=epsilons, seeds=1, methods=[name]) for epsilons in ((1.0,), (1.0, 20.0)))
    assert few.mean(name, 0) == many.mean(name, 1)
