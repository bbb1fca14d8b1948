"""The tasks that run DP item means on devices: their releases are the baseline's, and so are their errors or less."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import odp
from odp.algorithms.dpam.experiment import NO_USER_BIAS
from odp.algorithms.registry import algorithm_for
from odp.datasets import random_split, synthetic_movielens
from odp.evaluation.baselines import dp_item_mean, dp_item_user_bias, item_mean_events

SPLIT = random_split(synthetic_movielens(n_users=400, n_items=100, seed=3), seed=1)
ITEMS = 100


def task_of(training: odp.DPAM, *, epsilon: float = math.inf) -> odp.Task:
    return odp.Task(
        name="means",
        model=odp.MatrixFactorization(items=ITEMS, rank=0),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=epsilon, delta=1e-5, max_items_per_user=ITEMS),
        training=training,
        cohort=odp.Cohort(minimum=20, goal=400),
    )


def test_a_task_of_rank_0_releases_the_counts_and_sums_of_the_dp_item_mean() -> None:
    """With equal weights, values within the range around its middle, and no users' biases to take out first."""
    train, half = SPLIT.train, 2.0
    literal = odp.DPAM(
        weighting="uniform",
        user_bias_ridge=NO_USER_BIAS,
        centre=3.0,
        bias_target_clip=half,
        bias_vector_clip=half,
        count_share=0.2,
        mass_share=1e-3,
    )
    algorithm = algorithm_for(task_of(literal, epsilon=4.0).definition())
    server, population = algorithm.server(), algorithm.population()
    seeds = np.arange(train.n_users, dtype=np.uint64)
    model = server.broadcast(server.start())
    counts = population.contribute(model, train, round=0, seeds=seeds)["counts"]
    sums = population.contribute(model, train, round=1, seeds=seeds)["sums"]
    (counted,), (_, summed) = algorithm.planned_releases()
    users_per_item = np.bincount(train.items, minlength=ITEMS)
    np.testing.assert_allclose(counts * counted.step, users_per_item, rtol=1e-12)
    exact = np.bincount(train.items, weights=train.values.astype(np.float64) - 3.0, minlength=ITEMS)
    # A weight of 1 is 102 of 102.4 units, and no user's bias is quite 0.
    np.testing.assert_allclose(sums * summed.step, exact, atol=0.01 * half * users_per_item.max())
    baseline = item_mean_events(epsilon=4.0, delta=1e-5, low=1, high=5, n_items=ITEMS, max_items_per_user=ITEMS)
    for release, event in zip((counted, summed), baseline, strict=True):
        assert release.sensitivity == pytest.approx(event.sensitivity)
        # The baseline has no release of masses, which are counts again: a thousandth of the sums' share.
        assert release.noise_std == pytest.approx(event.noise_std, rel=2e-3)


@pytest.mark.parametrize(
    ("score", "training"),
    [(dp_item_mean, odp.DPAM(user_bias_ridge=NO_USER_BIAS)), (dp_item_user_bias, odp.DPAM())],
    ids=["mean", "bias"],
)
@pytest.mark.slow
def test_the_tasks_that_comparisons_name_are_as_good_as_the_baselines(score: object, training: odp.DPAM) -> None:
    """Without noise within one percent; with noise no worse beyond that of seeds."""
    free = task_of(training)
    baseline = score(free, SPLIT, 1).scores[0]  # type: ignore[operator]
    assert odp.simulate(free, SPLIT, seed=1).metrics["test_rmse"] == pytest.approx(baseline, rel=0.01)
    noisy = dataclasses.replace(free, privacy=dataclasses.replace(free.privacy, epsilon=4.0))
    theirs = [score(noisy, SPLIT, seed).scores[0] for seed in range(1, 5)]  # type: ignore[operator]
    ours = [odp.simulate(noisy, SPLIT, seed=seed).metrics["test_rmse"] for seed in range(1, 5)]
    assert np.mean(ours) <= np.mean(theirs) + np.std(theirs) + np.std(ours)
