"""Standard errors of differences between two methods on the same users."""

from __future__ import annotations

import math

import numpy as np
import pytest

from odp.algorithms.dpam.experiment import QUALITY
from odp.algorithms.implicit.experiment import QUALITY as IMPLICIT_QUALITY
from odp.evaluation.paired import mean_error, rmse_error
from odp.research.simulation.methods import RANKING_METHODS, RATING_METHODS


def _errors(rng: np.random.Generator, users: int, *, apart: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of squared errors of two methods by user, and entries; methods err alike on the same user."""
    entries = rng.integers(1, 40, users)
    hard = rng.gamma(2.0, 0.5, users)
    squares, others = (entries * (hard + shift + 0.1 * rng.random(users)) for shift in (0.0, apart))
    return squares, others, entries


def test_the_error_of_an_rmse_difference_is_that_of_a_jackknife_over_users() -> None:
    squares, others, entries = _errors(np.random.default_rng(1), 400, apart=0.2)

    def root(values: np.ndarray, left_out: int) -> float:
        return math.sqrt((values.sum() - values[left_out]) / (entries.sum() - entries[left_out]))

    without = np.array([root(others, user) - root(squares, user) for user in range(400)])
    jackknife = math.sqrt(399 / 400 * ((without - without.mean()) ** 2).sum())
    assert rmse_error(squares, others, entries) == pytest.approx(jackknife, rel=0.05)
    # Unpaired, users that are hard for both would hide the difference.
    apart_alone = rmse_error(squares, np.zeros(400), entries)
    assert rmse_error(squares, others, entries) < apart_alone / 5


def test_two_samples_of_the_same_methods_lie_within_the_errors_as_often_as_a_normal_says() -> None:
    """False alarm of the band 0.58 to 0.78 for 300 draws at .683: below 2e-4 on each side."""
    rng, inside = np.random.default_rng(2), 0
    everyone = _errors(rng, 200_000, apart=0.1)
    truth = math.sqrt(everyone[1].sum() / everyone[2].sum()) - math.sqrt(everyone[0].sum() / everyone[2].sum())
    for _ in range(300):
        sample = rng.integers(0, 200_000, 250)
        squares, others, entries = (values[sample] for values in everyone)
        difference = math.sqrt(others.sum() / entries.sum()) - math.sqrt(squares.sum() / entries.sum())
        inside += abs(difference - truth) <= rmse_error(squares, others, entries)
    assert 0.58 <= inside / 300 <= 0.78


def test_users_without_entries_change_nothing_and_one_user_has_no_error() -> None:
    squares, others, entries = _errors(np.random.default_rng(3), 50, apart=0.2)
    more = [np.append(values, np.zeros(7, dtype=values.dtype)) for values in (squares, others, entries)]
    assert rmse_error(*more) == pytest.approx(rmse_error(squares, others, entries), rel=1e-9)
    assert math.isnan(rmse_error(squares[:1], others[:1], entries[:1]))
    assert rmse_error(np.zeros(3), np.zeros(3), np.ones(3, dtype=np.int64)) == 0.0
    assert math.isnan(mean_error(np.ones(1), np.zeros(1)))
    assert mean_error(np.array([1.0, 0.0, 1.0, 0.0]), np.zeros(4)) == pytest.approx(math.sqrt(1 / 3) / 2)


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
