"""Presets read sizes and bounds alone, and always make a task that can run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from odp.algorithms.dpam.config import DPAM
from odp.datasets import Ratings, synthetic_movielens
from odp.errors import ConfigurationError, DataError, PrivacyError
from odp.research.simulation.presets import preset_task


def small(**sizes: int) -> Ratings:
    return synthetic_movielens(**({"n_users": 60, "n_items": 30, "ratings_per_user": 10} | sizes))


def test_auto_follows_the_recommendation_for_the_data_sets_own_size() -> None:
    ratings = small()
    task = preset_task("auto", ratings, epsilon=4.0, delta=1e-4)
    rank, training = DPAM.recommended(epsilon=4.0, delta=1e-4, n_users=60, n_items=30)
    assert (task.model.rank, task.training) == (rank, training)
    assert (task.data.low, task.data.high) == (1.0, 5.0)


def test_ml_1m_is_one_recipe_whatever_the_data_set() -> None:
    tasks = [preset_task("ml-1m", ratings, epsilon=8.0, delta=1e-4) for ratings in (small(), small(n_users=200))]
    assert {(task.model.rank, task.training) for task in tasks} == {(tasks[0].model.rank, tasks[0].training)}
    assert tasks[0].training == DPAM.recommended(epsilon=8.0, delta=1e-4, n_users=6040, n_items=3706)[1]


def test_a_preset_reads_no_rating() -> None:
    ratings = small()
    other = Ratings.from_triples("synthetic", [0], [0], [1.0], low=1.0, high=5.0, n_users=60, n_items=30)
    for name in ("auto", "ml-1m"):
        assert preset_task(name, ratings, epsilon=2.0, delta=1e-4) == preset_task(name, other, epsilon=2.0, delta=1e-4)


def test_without_privacy_no_bound_binds() -> None:
    task = preset_task("ml-1m", small(), epsilon=math.inf, delta=1e-4)
    assert task.privacy.max_items_per_user == 30
    assert task.training.slices_per_device == 30
    task.definition()


@pytest.mark.parametrize("items", [5, 6, 12])
def test_a_small_catalogue_gets_a_rank_that_it_can_carry(items: int) -> None:
    ratings = small(n_items=items, ratings_per_user=5)
    for epsilon in (0.5, 8.0, 50.0, math.inf):
        task = preset_task("auto", ratings, epsilon=epsilon, delta=1e-4)
        assert task.model.rank <= items
        task.definition()


def test_an_unknown_preset_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'ml-1m'"):
        preset_task("ml1m", small(), epsilon=1.0, delta=1e-4)


def test_an_empty_population_is_refused() -> None:
    nobody = Ratings("nobody", np.zeros(1, int), np.zeros(0, int), np.zeros(0), n_items=3, low=1.0, high=5.0)
    with pytest.raises(DataError, match="0 users"):
        preset_task("auto", nobody, epsilon=1.0, delta=1e-4)


def test_a_delta_that_is_no_guarantee_is_refused() -> None:
    with pytest.raises(PrivacyError, match="below 1/users"):
        preset_task("auto", small(n_users=200), epsilon=1.0, delta=5e-3)
