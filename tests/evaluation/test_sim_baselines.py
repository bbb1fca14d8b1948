"""Baselines: right on data whose answer is known, private where they say so, refused where they mean nothing."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from odp.datasets import Ratings, Split, random_split, synthetic_movielens
from odp.errors import DataError
from odp.evaluation.als import als
from odp.evaluation.baselines import Baselines, baseline_outcomes, rmse
from odp.research.simulation.presets import preset_task

DATA = synthetic_movielens(n_users=500, n_items=60, ratings_per_user=20)
SPLIT = random_split(DATA, seed=1)


def at(epsilon: float) -> object:
    return Baselines.of(baseline_outcomes(preset_task("auto", DATA, epsilon=epsilon, delta=1e-4), SPLIT, seed=1))


def test_less_noise_never_hurts_and_the_ceiling_is_best() -> None:
    tight, loose, free = (vars(at(epsilon)) for epsilon in (0.5, 8.0, math.inf))
    for name in ("dp_item_mean", "dp_item_user_bias"):
        assert tight[name] > loose[name] > free[name] - 1e-3
    for name in ("global_mean", "user_mean", "als_ceiling"):
        assert tight[name] == loose[name] == free[name]
    assert min(free, key=lambda name: free[name]) == "als_ceiling"


def test_user_bias_on_the_device_improves_item_means() -> None:
    found = vars(at(8.0))
    assert found["dp_item_user_bias"] < found["dp_item_mean"]


def test_the_seed_repeats_every_baseline() -> None:
    assert at(2.0) == at(2.0)


def test_the_global_mean_is_the_mean_of_the_training_part() -> None:
    expected = float(np.sqrt(np.mean((SPLIT.test.values - SPLIT.train.values.mean()) ** 2)))
    assert vars(at(2.0))["global_mean"] == pytest.approx(expected, rel=1e-6)


def test_als_recovers_a_table_of_low_rank() -> None:
    rng = np.random.default_rng(1)
    table = 3 + rng.normal(size=(80, 1)) @ rng.normal(size=(1, 30)) / 2
    users, items = np.indices(table.shape).reshape(2, -1)
    full = Ratings.from_triples("low", users, items, table.ravel(), low=-20, high=20)
    split = random_split(full, seed=1)
    predict = als(split.train, rank=2, ridge=0.008, seed=1)
    assert rmse(predict(split.train, split.test), split.test) < 0.15


def test_als_does_not_depend_on_the_unit_of_the_values() -> None:
    stretched = [
        dataclasses.replace(part, values=5 * part.values, low=5 * part.low, high=5 * part.high)
        for part in (SPLIT.train, SPLIT.test)
    ]
    plain = als(SPLIT.train, rank=3, ridge=0.08, seed=1)(SPLIT.train, SPLIT.test)
    # The random start has a length of its own, and is forgotten after twelve sweeps but for a trace.
    found = als(stretched[0], rank=3, ridge=0.08, seed=1)(*stretched)
    assert np.sqrt(np.mean((found / 5 - plain) ** 2)) < 0.05 * plain.std()


def test_implicit_feedback_and_empty_parts_are_refused() -> None:
    task = preset_task("auto", DATA, epsilon=2.0, delta=1e-4)
    implicit = Split(
        *(dataclasses.replace(part, implicit=True) for part in (SPLIT.train, SPLIT.validation, SPLIT.test))
    )
    with pytest.raises(DataError, match="implicit"):
        baseline_outcomes(task, implicit, seed=1)
    nothing = dataclasses.replace(SPLIT, test=SPLIT.test.take(np.zeros(SPLIT.test.n_ratings, bool)))
    with pytest.raises(DataError, match="test part of data set 'synthetic' has no ratings"):
        baseline_outcomes(task, nothing, seed=1)
