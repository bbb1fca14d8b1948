"""References are tuned alike: six settings, the best on the validation part, and that one on the test part."""

from __future__ import annotations

import math

import numpy as np
import pytest

from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.evaluation import baselines, ceilings, dp_covariance, dp_sgd, dp_sgd_implicit, rating_ceilings
from odp.evaluation.trials import TRIALS, best, rmse, tuned_rmse

SPLIT = random_split(synthetic_movielens(n_users=100, n_items=20, ratings_per_user=8), seed=1)


def test_the_settings_of_least_loss_win_and_the_first_of_equal_ones() -> None:
    grid = [{"x": value} for value in (3.0, 1.0, 2.0, 1.0)]
    made: list[float] = []

    def one(x: float) -> float:
        made.append(x)
        return x

    assert best(grid, one, lambda value: value) == (1.0, grid[1])
    assert made == [3.0, 1.0, 2.0, 1.0], "each is made once"
    assert best(grid, one, lambda value: math.nan if value == 1.0 else value) == (2.0, grid[2])
    assert best(grid, one, None) == (3.0, grid[0])


def test_settings_are_chosen_on_the_validation_part_with_training_ratings_alone() -> None:
    asked: list[tuple[Ratings, Ratings]] = []

    def made(value: float) -> object:
        def predict(history: Ratings, targets: Ratings) -> np.ndarray:
            asked.append((history, targets))
            return np.full(targets.n_ratings, value)

        return predict

    grid = [{"value": value} for value in (1.0, 3.5, 5.0)]
    found = tuned_rmse(SPLIT, grid, made)
    assert found.settings == {"value": 3.5}
    assert found.scores == (rmse(np.full(SPLIT.test.n_ratings, 3.5), SPLIT.test),)
    assert [targets is SPLIT.validation for _, targets in asked] == [True, True, True, False]
    assert all(history is SPLIT.train for history, _ in asked[:3])
    assert asked[3][0].n_ratings == SPLIT.train.n_ratings + SPLIT.validation.n_ratings


@pytest.mark.parametrize(
    "grid",
    [
        baselines.USER_MEAN_GRID,
        baselines.ITEM_MEAN_GRID,
        baselines.USER_BIAS_GRID,
        dp_sgd.GRID,
        dp_sgd_implicit.GRID,
        dp_covariance.GRID,
        rating_ceilings.ALS_GRID,
        rating_ceilings.KNN_GRID,
        rating_ceilings.EASE_GRID,
        ceilings.IALS_GRID,
        ceilings.EASE_GRID,
        ceilings.KNN_GRID,
    ],
)
def test_every_reference_has_the_same_number_of_trials(grid: object) -> None:
    assert len({tuple(settings.items()) for settings in grid}) == TRIALS
