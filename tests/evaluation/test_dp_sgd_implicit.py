"""DP-SGD for implicit feedback keeps both bounds for every user, charges every release and ranks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import ConfigurationError
from odp.evaluation.als import pairs, solve_rows
from odp.evaluation.dp_sgd_implicit import (
    _GRID,
    _ROW_GRID,
    GRID,
    ImplicitDpSgd,
    _contributions,
    dp_sgd_implicit,
    tuned_dp_sgd_implicit,
)
from odp.evaluation.ranking import evaluate, item_scores
from odp.privacy.accounting import epsilon


@pytest.fixture(scope="module")
def seen() -> Ratings:
    rated = synthetic_movielens(n_users=500, n_items=60, ratings_per_user=15)
    values = np.ones(rated.n_ratings, dtype=np.float32)
    return dataclasses.replace(rated, implicit=True, values=values, low=1.0, high=1.0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rank=st.integers(1, 4),
    clip=st.floats(0.05, 50.0),
    size=st.integers(0, 12),
    scale=st.floats(0.0, 30.0),
)
def test_a_user_moves_gradients_and_gramian_by_at_most_their_bounds(
    seed: int, rank: int, clip: float, size: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    users = np.concatenate((np.repeat(np.arange(3), 6), np.full(size, 3)))
    items = np.concatenate([rng.choice(12, 6, replace=False) for _ in range(3)] + [rng.choice(12, size, replace=False)])
    seen = Ratings.from_triples("s", users, items, np.ones(len(users)), low=0.0, high=1.0, n_users=4, n_items=12)
    table = scale * rng.normal(size=(12, 1 + rank))
    chosen = ImplicitDpSgd(rank=rank, clip=clip)

    def sums(part: Ratings) -> tuple[np.ndarray, np.ndarray]:
        rows = solve_rows(pairs(part), table, unobserved_weight=0.02, ridge=1.0)
        return _contributions(pairs(part), rows, table, chosen)

    whole, without = sums(seen), sums(seen.take(seen.users() < 3))
    assert np.linalg.norm((whole[0] - without[0]) * _GRID) <= clip * (1 + 1e-12)
    assert np.linalg.norm((whole[1] - without[1]) * _ROW_GRID**2) <= chosen.gramian_clip * (1 + 1e-12)


def test_one_of_the_bounds_is_reached_by_every_user(seen: Ratings) -> None:
    one = seen.take(seen.users() == 7)
    table = np.random.default_rng(1).normal(size=(60, 9))
    rows = solve_rows(pairs(one), table, unobserved_weight=0.02, ridge=1.0)
    gradient, gramian = _contributions(pairs(one), rows, table, ImplicitDpSgd(rank=8))
    share = (
        np.linalg.norm(gradient * _GRID),
        np.linalg.norm(gramian * _ROW_GRID**2) / ImplicitDpSgd(rank=8).gramian_clip,
    )
    assert max(share) == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("budget", [0.5, 8.0])
def test_every_release_is_charged_and_they_fit_the_budget(budget: float, seen: Ratings) -> None:
    done = dp_sgd_implicit(seen, epsilon=budget, delta=1e-4, seed=1, settings=ImplicitDpSgd(rank=3, steps=2))
    assert [(event.name, event.coordinates) for event in done.charges] == [
        ("masses", 60), ("gradients", 180), ("gramian", 10), ("gradients", 180), ("gramian", 10),
    ]  # fmt: skip
    assert 0.999 * budget < epsilon(done.charges, delta=1e-4) <= budget


def test_the_noise_is_the_one_that_is_charged(monkeypatch: pytest.MonkeyPatch, seen: Ratings) -> None:
    asked: list[tuple[float, int]] = []

    class Recorder:
        def __init__(self, _seed: int, _round: int) -> None: ...

        def sample(self, ratio: float, count: int) -> np.ndarray:
            asked.append((ratio, count))
            return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr("odp.evaluation.dp_sgd_implicit.RoundedNormals", Recorder)
    done = dp_sgd_implicit(seen, epsilon=2.0, delta=1e-4, seed=1, settings=ImplicitDpSgd(rank=2, steps=1))
    masses, gradients, gramian = done.charges
    assert asked == [
        (masses.noise_std / _GRID, 60),
        (gradients.noise_std / _GRID, 120),
        (pytest.approx(gramian.noise_std / _ROW_GRID**2 / math.sqrt(2)), 3),
        (pytest.approx(gramian.noise_std / _ROW_GRID**2), 3),
    ]


def test_it_ranks_better_than_popularity_without_noise_and_where_noise_drowns_all_popularity_is_left() -> None:
    rng = np.random.default_rng(1)
    tastes = rng.random((300, 1)) < 0.5
    chance = np.where(tastes == (np.arange(60) < 30), 0.35, 0.02) * rng.uniform(0.3, 1.0, 60)
    users, items = np.nonzero(rng.random((300, 60)) < chance)
    seen = Ratings.from_triples("tastes", users, items, np.ones(len(users)), low=1.0, high=1.0, implicit=True)
    split = random_split(seen, seed=1)
    counts = np.bincount(split.train.items, minlength=60).astype(np.float64)
    popular = evaluate(item_scores(counts), split.train, split.validation, cutoffs=(5,)).recall[5]

    chosen = ImplicitDpSgd(rank=4, steps=6)
    free, drowned = (
        dp_sgd_implicit(split.train, epsilon=budget, delta=1e-4, seed=1, settings=chosen)
        for budget in (math.inf, 0.001)
    )
    recall = evaluate(free.scores(split.train), split.train, split.validation, cutoffs=(5,)).recall[5]
    assert recall > 1.15 * popular
    learned = [np.abs(model.items[:, 1:]).max() / model.items[:, 0].max() for model in (free, drowned)]
    assert learned[1] < 0.1 < learned[0]


def test_the_tuned_ranking_names_its_settings_and_the_seed_repeats_it(seen: Ratings) -> None:
    split = random_split(seen, seed=1)
    found = tuned_dp_sgd_implicit(split, epsilon=4.0, delta=1e-4, seed=1)
    assert found.settings in GRID
    assert tuned_dp_sgd_implicit(split, epsilon=4.0, delta=1e-4, seed=1) == found


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (("rank", 0), ("steps", 0), ("clip", 0.0), ("unobserved_weight", math.nan), ("rate", 0.5)):
        with pytest.raises(ConfigurationError, match=name):
            ImplicitDpSgd(**{name: value})
