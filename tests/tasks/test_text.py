"""A task as text is the same task when it is read again."""

from __future__ import annotations

import numpy as np
import pytest

import odp
from odp.errors import ConfigurationError
from odp.research.simulation.presets import preset_task
from odp.tasks.file import parse_task
from odp.tasks.text import task_text

RATINGS = odp.data.synthetic_movielens(n_users=150, n_items=40, seed=1)


@pytest.mark.parametrize("epsilon", [0.5, 8.0, float("inf")])
@pytest.mark.parametrize("implicit", [False, True])
def test_presets_come_back(epsilon: float, implicit: bool) -> None:
    ratings = RATINGS
    if implicit:
        ones = np.ones(ratings.n_ratings, dtype=np.float32)
        ratings = odp.data.Ratings("seen", ratings.offsets, ratings.items, ones, 40, 0.0, 1.0, implicit=True)
    task = preset_task("auto", ratings, epsilon=epsilon, delta=1e-6)
    assert parse_task(task_text(task, comment="made by a test")) == task


def test_names_and_choices_come_back() -> None:
    task = odp.Task(
        name="films",
        population="a-b",
        model=odp.MatrixFactorization(items=5, rank=1),
        data=odp.RatingsData(low=-1, high=1, table="own.table_1"),
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        training=odp.DPAM(weighting="uniform"),
    )
    assert parse_task(task_text(task)) == task


def test_arrays_have_no_text_form() -> None:
    task = odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=3, rank=1, item_features=np.ones((3, 2))),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
    )
    with pytest.raises(ConfigurationError, match="item_features"):
        task_text(task)
