"""Groups of public features: those that tell are kept, those of chance are gone, and nothing is charged for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import odp
from odp.algorithms.dpam import estimation, features
from odp.algorithms.dpam.estimation import relevances
from odp.algorithms.registry import algorithm_for
from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]
Floats = npt.NDArray[np.float64]


def told(signal: float, noise_std: float, *, items: int = 1500, seed: int = 1) -> Floats:
    """Relevance of a group that explains biases with a standard deviation of ``signal``, and of one of chance."""
    generator = np.random.default_rng(seed)
    size = generator.uniform(5.0, 60.0, items)
    useful, chance = (features.components(generator.normal(size=(items, 12)), np.ones(items)) for _ in range(2))
    truth = signal * useful @ generator.normal(size=useful.shape[1]) + 0.3 * generator.normal(size=items)
    sums = size * (truth + generator.normal(size=items) / np.sqrt(size)) + noise_std * generator.normal(size=items)
    mass = estimation.Estimate(size, np.zeros(items))
    return relevances(sums, mass, size, [useful, chance], noise_std=noise_std, residual_variance=0.8)


def test_a_group_that_explains_biases_is_kept_and_one_of_chance_is_left_out() -> None:
    useful, chance = told(0.3, 3.0)
    assert useful > 0.3
    assert chance < 0.05


def test_a_group_that_tells_less_counts_less() -> None:
    strong, weak = told(0.3, 3.0)[0], told(0.06, 3.0)[0]
    assert 0.0 < weak < 0.25 * strong


def test_where_noise_drowns_everything_a_group_keeps_about_the_usual_variance() -> None:
    useful, chance = told(0.3, 1e6)
    assert 0.5 < useful < 1.5
    assert 0.5 < chance < 1.5


def test_no_groups_and_groups_without_columns_have_no_relevance() -> None:
    size = np.ones(4)
    mass = estimation.Estimate(size, np.zeros(4))
    assert relevances(size, mass, size, [], noise_std=1.0, residual_variance=1.0).shape == (0,)
    empty = relevances(size, mass, size, [np.empty((4, 0))], noise_std=1.0, residual_variance=1.0)
    np.testing.assert_array_equal(empty, [0.0])


def test_variances_of_joined_components_add_up_to_the_relevance() -> None:
    generator = np.random.default_rng(2)
    weight = generator.uniform(0.5, 2.0, 60)
    groups = [features.components(generator.normal(size=(60, 5)), weight) for _ in range(3)]
    found = features.joined(groups, np.array([1.0, 0.0, 0.25]), weight)
    assert found.shape == (60, 10)
    assert (weight / weight.sum() @ found**2).sum() == pytest.approx(1.25, abs=1e-5)
    assert features.joined(groups, np.zeros(3), weight).shape == (60, 0)


def rmse(ratings: Ratings, matrix: npt.ArrayLike | dict[str, Floats] | None, rank: int) -> float:
    task = odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=ratings.n_items, rank=rank, item_features=matrix),
        data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-6),
        training=odp.DPAM(steps=0, kernel_variance=0.0),
        cohort=odp.Cohort(minimum=10, goal=ratings.n_users),
    )
    return float(odp.simulate(task, random_split(ratings, seed=1), seed=1).metrics["validation_rmse"])


def test_chance_beside_good_features_costs_nothing() -> None:
    ratings = synthetic_movielens(n_users=3000, n_items=300, ratings_per_user=30, seed=5)
    assert ratings.features is not None
    good = ratings.features.astype(np.float64)
    chance = np.random.default_rng(6).normal(size=(300, 29))
    width = good.shape[1]
    without, alone = rmse(ratings, None, 2), rmse(ratings, good, 2 + width)
    beside = rmse(ratings, {"good": good, "chance": chance}, 2 + width + 29)
    assert alone < without - 0.01
    assert beside < alone + 0.0015
    assert rmse(ratings, chance, 31) < without + 0.0015


def test_groups_change_no_release_and_no_charge_and_bad_ones_are_refused(define: Define) -> None:
    definition = define()
    definition.model.item_features_width, definition.model.item_features_sha256 = 5, bytes(32)
    plain = [len(releases) for releases in algorithm_for(definition).planned_releases()]
    definition.model.item_feature_groups.extend([3, 2])
    assert [len(releases) for releases in algorithm_for(definition).planned_releases()] == plain
    for wrong in ([3, 1], [5, 0], [1] * 17):
        del definition.model.item_feature_groups[:]
        definition.model.item_feature_groups.extend(wrong)
        with pytest.raises(ConfigurationError, match="item_feature_groups"):
            algorithm_for(definition).check()
