"""Standard errors of differences between two methods on the same users."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from odp.algorithms.dpam.experiment import QUALITY
from odp.algorithms.implicit.experiment import QUALITY as IMPLICIT_QUALITY
from odp.datasets.ratings import Ratings
from odp.evaluation.paired import difference_error, mean_influence, rmse_influence
from odp.evaluation.trials import rmse
from odp.research.simulation.methods import RANKING_METHODS, RATING_METHODS


def _both(rng: np.random.Generator, users: int, *, apart: float) -> tuple[Ratings, np.ndarray, np.ndarray]:
    """Ratings of 0, and two methods' predictions of them, which err alike on the same user."""
    entries = rng.integers(1, 40, users)
    offsets = np.concatenate(([0], np.cumsum(entries)))
    number = int(offsets[-1])
    items = np.arange(number) - np.repeat(offsets[:-1], entries)
    targets = Ratings("tests", offsets, items.astype(np.int32), np.zeros(number, np.float32), 40, -99.0, 99.0)
    hard = np.repeat(rng.gamma(2.0, 0.5, users), entries)
    ours, others = (np.sqrt(hard + shift + 0.1 * rng.random(number)) for shift in (0.0, apart))
    return targets, ours, others


def _error(targets: Ratings, ours: np.ndarray, others: np.ndarray) -> float:
    return difference_error(rmse_influence(ours, targets), rmse_influence(others, targets))


def test_the_error_of_an_rmse_difference_is_that_of_a_jackknife_over_users() -> None:
    targets, ours, others = _both(np.random.default_rng(1), 400, apart=0.2)

    def root(predicted: np.ndarray, left_out: int) -> float:
        return math.sqrt(float(np.mean(predicted[targets.users() != left_out] ** 2)))

    without = np.array([root(others, user) - root(ours, user) for user in range(400)])
    jackknife = math.sqrt(399 / 400 * ((without - without.mean()) ** 2).sum())
    assert _error(targets, ours, others) == pytest.approx(jackknife, rel=0.05)
    # Unpaired, users that are hard for both would hide the difference.
    assert _error(targets, ours, others) < _error(targets, ours, np.zeros(len(ours))) / 5


def test_two_samples_of_the_same_methods_lie_within_the_errors_as_often_as_a_normal_says() -> None:
    """False alarm of the band 0.58 to 0.78 for 300 draws at .683: below 2e-4 on each side."""
    rng, inside = np.random.default_rng(2), 0
    targets, ours, others = _both(rng, 40_000, apart=0.1)
    truth = rmse(others, targets) - rmse(ours, targets)
    for _ in range(300):
        users = rng.integers(0, 40_000, 250)
        entries = np.concatenate([np.arange(targets.offsets[user], targets.offsets[user + 1]) for user in users])
        tests = targets.select_users(users)
        difference = rmse(others[entries], tests) - rmse(ours[entries], tests)
        inside += abs(difference - truth) <= _error(tests, ours[entries], others[entries])
    assert 0.58 <= inside / 300 <= 0.78


def test_users_without_entries_change_little_and_one_user_has_no_error() -> None:
    targets, ours, others = _both(np.random.default_rng(3), 50, apart=0.2)
    more = dataclasses.replace(targets, offsets=np.append(targets.offsets, np.full(7, targets.offsets[-1])))
    assert _error(more, ours, others) == pytest.approx(_error(targets, ours, others), rel=0.002)
    alone = targets.select_users(np.array([0]))
    assert math.isnan(_error(alone, ours[: alone.n_ratings], others[: alone.n_ratings]))
    assert _error(targets, np.zeros(len(ours)), np.zeros(len(ours))) == 0.0
    assert math.isnan(difference_error(mean_influence(np.ones(1)), mean_influence(np.zeros(1))))
    recall = mean_influence(np.array([1.0, 0.0, 1.0, 0.0]))
    assert difference_error(recall, mean_influence(np.zeros(4))) == pytest.approx(math.sqrt(1 / 3) / 2)


@pytest.mark.parametrize(
    ("quality", "methods"),
    [(QUALITY, RATING_METHODS), (IMPLICIT_QUALITY, RANKING_METHODS)],
    ids=["ratings", "implicit"],
)
def test_a_run_compares_with_each_private_method_of_odp_compare_or_names_it(quality: object, methods: tuple) -> None:
    run = [label.partition(",")[0] for label in quality.baselines.values()]
    assert sorted([*run, *quality.not_run]) == sorted(
        {*run, *(method.name for method in methods if method.spends and method.name != "DPAM")}
    )
