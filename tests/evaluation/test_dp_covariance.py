"""The DP item covariance keeps its bound for every user, draws the noise that it charges, and learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import ConfigurationError
from odp.evaluation.dp_covariance import _UNITS, DpCovariance, _outer_products, _vectors, dp_covariance
from odp.evaluation.trials import rmse
from odp.privacy.accounting import epsilon

DATA = synthetic_movielens(n_users=600, n_items=40, ratings_per_user=15)
SPLIT = random_split(DATA, seed=1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 12), scale=st.floats(0.0, 1e3))
def test_removing_a_user_moves_the_covariance_by_at_most_one(seed: int, size: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    users = np.concatenate((np.repeat(np.arange(3), 6), np.full(size, 3)))
    items = np.concatenate([rng.choice(12, 6, replace=False) for _ in range(3)] + [rng.choice(12, size, replace=False)])
    values = np.clip(scale * rng.normal(size=len(users)), -1e3, 1e3)
    ratings = Ratings.from_triples("real", users, items, values, low=-1e3, high=1e3, n_users=4, n_items=12)
    means = rng.normal(size=12)
    kept = slice(0, 9)  # a head: the vector is scaled after it is cut
    whole = _outer_products(_vectors(ratings, means)[:, kept])
    without = _outer_products(_vectors(ratings.take(ratings.users() < 3), means)[:, kept])
    assert np.linalg.norm((whole - without) / _UNITS**2) <= 1.0 + 1e-12
    assert np.array_equal(whole, whole.T)


def test_the_bound_is_reached() -> None:
    one = Ratings.from_triples("one", [0, 0, 0], [0, 1, 2], [5.0, 1.0, 2.0], low=1.0, high=5.0, n_items=3)
    assert np.linalg.norm(_outer_products(_vectors(one, np.full(3, 3.5)))) / _UNITS**2 == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("budget", [0.5, 8.0])
def test_three_releases_are_charged_and_fit_the_budget(budget: float) -> None:
    done = dp_covariance(SPLIT.train, epsilon=budget, delta=1e-4, seed=1, settings=DpCovariance(head=10))
    assert [(event.name, event.coordinates) for event in done.charges] == [
        ("counts", 40), ("sums", 40), ("covariance", 55),
    ]  # fmt: skip
    assert 0.999 * budget < epsilon(done.charges, delta=1e-4) <= budget


def test_the_noise_is_the_one_that_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    class Recorder:
        def __init__(self, _seed: int, _round: int) -> None: ...

        def sample(self, ratio: float, count: int) -> np.ndarray:
            asked.append((ratio, count))
            return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr("odp.evaluation.dp_covariance.RoundedNormals", Recorder)
    done = dp_covariance(SPLIT.train, epsilon=2.0, delta=1e-4, seed=1, settings=DpCovariance(head=10))
    counts, sums, covariance = done.charges
    assert asked[:2] == [(counts.noise_std * 2**10, 40), (sums.noise_std * 2**10, 40)]
    off_diagonal, diagonal = asked[2:]
    assert off_diagonal == (pytest.approx(covariance.noise_std * _UNITS**2 / math.sqrt(2)), 45)
    assert diagonal == (pytest.approx(covariance.noise_std * _UNITS**2), 10)


def test_it_learns_rows_without_noise_and_none_where_noise_drowns_everything() -> None:
    alone = dp_covariance(SPLIT.train, epsilon=0.01, delta=1e-4, seed=1, settings=DpCovariance(mean_share=0.9))
    free = dp_covariance(SPLIT.train, epsilon=math.inf, delta=1e-4, seed=1, settings=DpCovariance())
    flat = rmse(free.means[SPLIT.test.items], SPLIT.test)
    assert alone.rows.shape == (40, 0)
    assert free.rows.shape[1] > 0
    assert rmse(free.predict(SPLIT.train, SPLIT.test), SPLIT.test) < flat - 0.03
    assert free.charges == ()


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (("head", 0), ("mean_share", 1.0), ("row_ridge", 0.0), ("items_per_user", 0)):
        with pytest.raises(ConfigurationError, match=name):
            DpCovariance(**{name: value})
