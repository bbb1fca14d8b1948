"""DP-SGD keeps its clip for every user, charges every step and fits its budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import ConfigurationError
from odp.evaluation.als import residuals, start_rows
from odp.evaluation.baselines import rmse
from odp.evaluation.dp_sgd import _GRID, DpSgd, _clipped_gradients, dp_sgd
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
    whole = _clipped_gradients(residuals(ratings, 0.5), rows, chosen)
    without = _clipped_gradients(residuals(ratings.take(ratings.users() < 3), 0.5), rows, chosen)
    assert np.linalg.norm((whole - without) * _GRID) <= clip * (1 + 1e-12)


def test_the_clip_is_reached_so_the_bound_is_not_slack() -> None:
    one = Ratings.from_triples("one", [0, 0], [0, 1], [5.0, 1.0], low=1.0, high=5.0, n_items=2)
    total = _clipped_gradients(residuals(one, 3.5), start_rows(2, rank=0, seed=1), DpSgd(clip=0.5))
    assert np.linalg.norm(total * _GRID) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("budget", [0.5, 4.0, 30.0])
def test_every_step_is_charged_and_the_steps_fit_the_budget(budget: float) -> None:
    done = dp_sgd(SPLIT, SPLIT.test, epsilon=budget, delta=1e-4, seed=1, settings=DpSgd(rank=2, steps=7))
    assert len(done.charges) == 7
    assert all(event.coordinates == 50 * 3 for event in done.charges)
    assert 0.999 * budget < epsilon(done.charges, delta=1e-4) <= budget


def test_it_learns_and_the_seed_repeats_it() -> None:
    start = rmse(np.full(SPLIT.test.n_ratings, float(SPLIT.train.values.mean())), SPLIT.test)
    first, again = (
        dp_sgd(SPLIT, SPLIT.test, epsilon=math.inf, delta=1e-4, seed=1, settings=DpSgd(rate=0.2)) for _ in range(2)
    )
    assert rmse(first.predictions, SPLIT.test) < start - 0.05
    assert np.array_equal(first.predictions, again.predictions)
    assert first.charges == ()


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (("rank", 65), ("steps", 0), ("clip", 0.0), ("rate", math.nan), ("momentum", 1.0)):
        with pytest.raises(ConfigurationError, match=name):
            DpSgd(**{name: value})
