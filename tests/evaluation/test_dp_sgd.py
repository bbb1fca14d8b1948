"""DP-SGD keeps its clip for every user, charges every step and fits its budget."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import ConfigurationError
from odp.evaluation.als import residuals, start_rows
from odp.evaluation.baselines import user_mean_predictions
from odp.evaluation.dp_sgd import _GRID, GRID, DpSgd, _clipped_gradients, cleaned, dp_sgd, masses, tuned_dp_sgd
from odp.evaluation.trials import TRIALS, rmse
from odp.privacy.accounting import epsilon

DATA = synthetic_movielens(n_users=400, n_items=50, ratings_per_user=15)
SPLIT = random_split(DATA, seed=1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rank=st.integers(0, 4),
    clip=st.floats(0.05, 50.0),
    size=st.integers(0, 12),
    scale=st.floats(0.0, 30.0),
)
def test_removing_a_user_moves_the_sum_by_at_most_the_clip(
    seed: int, rank: int, clip: float, size: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    users = np.concatenate((np.repeat(np.arange(3), 6), np.full(size, 3)))
    items = np.concatenate([rng.choice(12, 6, replace=False) for _ in range(3)] + [rng.choice(12, size, replace=False)])
    values = rng.uniform(-5.0, 5.0, len(users))
    ratings = Ratings.from_triples("real", users, items, values, low=-5.0, high=5.0, n_users=4, n_items=12)
    rows = start_rows(12, rank=rank, seed=seed)
    rows[:, [0, *range(2, 2 + rank)]] += scale * rng.normal(size=(12, 1 + rank))
    chosen = DpSgd(rank=rank, clip=clip)
    whole = _clipped_gradients(residuals(ratings, 0.5), rows, chosen, unit=1.0)
    without = _clipped_gradients(residuals(ratings.take(ratings.users() < 3), 0.5), rows, chosen, unit=1.0)
    assert np.linalg.norm((whole - without) * _GRID) <= clip * (1 + 1e-12)


def test_the_clip_is_reached_so_the_bound_is_not_slack() -> None:
    one = Ratings.from_triples("one", [0, 0], [0, 1], [5.0, 1.0], low=1.0, high=5.0, n_items=2)
    total = _clipped_gradients(residuals(one, 3.5), start_rows(2, rank=0, seed=1), DpSgd(clip=0.5), unit=1.0)
    assert np.linalg.norm(total * _GRID) == pytest.approx(0.5, rel=1e-3)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(0, 12), min_size=2, max_size=5))
def test_the_masses_of_a_user_are_a_vector_of_length_one(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(len(sizes)), sizes)
    items = np.concatenate([rng.choice(12, size, replace=False) for size in sizes])
    ratings = Ratings.from_triples(
        "sizes", users, items, np.ones(len(users)), low=0.0, high=1.0, n_users=len(sizes), n_items=12
    )
    moved = (masses(ratings, grid=_GRID) - masses(ratings.take(ratings.users() > 0), grid=_GRID)) * _GRID
    assert np.linalg.norm(moved) <= 1.0
    assert np.linalg.norm(moved) == pytest.approx(float(sizes[0] > 0), abs=1e-3)


def test_cleaned_masses_are_nearer_to_the_truth_than_noisy_ones() -> None:
    rng = np.random.default_rng(1)
    truth = 20.0 * rng.pareto(1.5, 500)
    noisy = truth + 15.0 * rng.normal(size=500)
    found = cleaned(noisy, noise_std=15.0)
    assert (found > 0).all()
    assert np.abs(found - truth).mean() < 0.75 * np.abs(noisy - truth).mean()
    np.testing.assert_allclose(cleaned(truth, noise_std=0.0), truth, atol=1e-3 * truth.max())


@pytest.mark.parametrize("budget", [0.5, 4.0, 30.0])
def test_masses_and_every_step_are_charged_and_fit_the_budget(budget: float) -> None:
    done = dp_sgd(SPLIT.train, epsilon=budget, delta=1e-4, seed=1, settings=DpSgd(rank=2, steps=7))
    assert [event.name for event in done.charges] == ["masses"] + ["gradients"] * 7
    assert [event.coordinates for event in done.charges] == [50] + [50 * 3] * 7
    assert 0.999 * budget < epsilon(done.charges, delta=1e-4) <= budget


def test_the_noise_is_the_one_that_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    class Recorder:
        def __init__(self, _seed: int, _round: int) -> None: ...

        def sample(self, ratio: float, count: int) -> np.ndarray:
            asked.append((ratio, count))
            return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr("odp.evaluation.dp_sgd.RoundedNormals", Recorder)
    masses, *steps = dp_sgd(
        SPLIT.train, epsilon=2.0, delta=1e-4, seed=1, settings=DpSgd(rank=1, steps=3)
    ).charges  # fmt: skip
    unit = (DATA.high - DATA.low) / 4.5
    assert asked[0] == (masses.noise_std / _GRID, 50)
    assert asked[1:] == [(event.noise_std / (_GRID * unit), 100) for event in steps]


def test_it_learns_and_the_seed_repeats_it() -> None:
    start = rmse(np.full(SPLIT.test.n_ratings, float(SPLIT.train.values.mean())), SPLIT.test)
    first, again = (
        dp_sgd(SPLIT.train, epsilon=math.inf, delta=1e-4, seed=1, settings=DpSgd()).predict(SPLIT.train, SPLIT.test)
        for _ in range(2)
    )
    assert rmse(first, SPLIT.test) < start - 0.05
    assert np.array_equal(first, again)


@pytest.mark.parametrize(("users", "items"), [(30, 400), (400, 50)])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_no_setting_diverges_on_few_users_many_items_or_another_scale(users: int, items: int, scale: float) -> None:
    data = synthetic_movielens(n_users=users, n_items=items, ratings_per_user=12)
    data = dataclasses.replace(data, values=scale * data.values, low=scale * data.low, high=scale * data.high)
    split = random_split(data, seed=1)
    alone = rmse(user_mean_predictions(split), split.test)
    for chosen in GRID:
        model = dp_sgd(split.train, epsilon=0.3, delta=1e-4, seed=1, settings=DpSgd(**chosen))
        assert rmse(model.predict(split.train, split.test), split.test) < 1.25 * alone


def test_rates_start_at_one_and_their_noise_averages_out() -> None:
    plain = DpSgd(steps=8, rate=1.0)
    np.testing.assert_allclose(plain.rates, 1.0 / np.arange(1, 9))
    assert plain.averaged == pytest.approx(1 / 8), "the mean of eight steps"
    assert DpSgd(steps=1).averaged == 1.0
    assert plain.averaged < DpSgd(steps=8, rate=4.0).averaged < 1.0


def test_the_settings_of_least_validation_error_are_taken_and_named() -> None:
    found = tuned_dp_sgd(SPLIT, epsilon=4.0, delta=1e-4, seed=1)
    errors = [
        rmse(
            dp_sgd(SPLIT.train, epsilon=4.0, delta=1e-4, seed=1, settings=DpSgd(**chosen)).predict(
                SPLIT.train, SPLIT.validation
            ),
            SPLIT.validation,
        )
        for chosen in GRID
    ]
    assert len(GRID) == TRIALS
    assert found.settings == GRID[int(np.argmin(errors))]


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (("rank", 65), ("steps", 0), ("clip", 0.0), ("rate", math.nan), ("rate", 0.5)):
        with pytest.raises(ConfigurationError, match=name):
            DpSgd(**{name: value})
