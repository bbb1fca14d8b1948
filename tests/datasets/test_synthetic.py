"""The generator: deterministic, of the stated shape, and with a signal that a model can learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import ConfigurationError


def rmse(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def biases(train: Ratings) -> tuple[float, np.ndarray, np.ndarray]:
    """Mean, user biases and item biases, by a few rounds of ridge-regularised averages."""
    users, mean = train.users(), float(train.values.mean())
    user, item = np.zeros(train.n_users), np.zeros(train.n_items)
    for _ in range(5):
        left = train.values - mean - user[users]
        item = np.bincount(train.items, left, train.n_items) / (np.bincount(train.items, minlength=train.n_items) + 3)
        left = train.values - mean - item[train.items]
        user = np.bincount(users, left, train.n_users) / (train.counts() + 3)
    return mean, user, item


def solve(
    groups: np.ndarray, others: np.ndarray, factors: np.ndarray, target: np.ndarray, size: int, ridge: float
) -> np.ndarray:
    """Ridge least squares of every group at once: [size, rank]."""
    rank = factors.shape[1]
    rows = factors[others]
    gram = np.zeros((size, rank, rank))
    right = np.zeros((size, rank))
    np.add.at(gram, groups, rows[:, :, None] * rows[:, None, :])
    np.add.at(right, groups, rows * target[:, None])
    return np.linalg.solve(gram + ridge * np.eye(rank), right[:, :, None])[:, :, 0]


def test_the_same_arguments_give_the_same_data_and_another_seed_gives_other_data() -> None:
    first, same, other = (synthetic_movielens(n_users=50, n_items=60, seed=seed) for seed in (1, 1, 2))
    for name in ("offsets", "items", "values", "order", "features"):
        assert np.array_equal(getattr(first, name), getattr(same, name)), name
    assert first.titles == same.titles
    assert not np.array_equal(first.values[:100], other.values[:100])


def test_ratings_are_whole_or_half_stars_within_one_to_five() -> None:
    whole = synthetic_movielens(n_users=200, n_items=100)
    half = synthetic_movielens(n_users=200, n_items=100, half_stars=True)
    assert set(whole.values.tolist()) == {1, 2, 3, 4, 5}
    assert set(half.values.tolist()) == {1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5}
    assert (whole.low, whole.high) == (1.0, 5.0)


def test_activity_and_popularity_are_skewed_and_every_user_has_five_ratings() -> None:
    ratings = synthetic_movielens()
    counts = np.sort(ratings.counts())
    popularity = np.sort(np.bincount(ratings.items, minlength=ratings.n_items))
    assert counts[0] >= 5
    assert ratings.n_ratings / ratings.n_users == pytest.approx(40, rel=0.1)
    assert counts[-100:].sum() > 0.25 * counts.sum(), "the most active tenth of the users"
    assert popularity[-60:].sum() > 0.3 * popularity.sum(), "the most popular tenth of the items"


def test_titles_name_the_genres_that_the_flags_mark() -> None:
    ratings = synthetic_movielens(n_users=20, n_items=40)
    assert ratings.titles is not None
    assert ratings.features is not None
    assert ratings.feature_names is not None
    for number, (title, row) in enumerate(zip(ratings.titles, ratings.features, strict=True), start=1):
        names = [name for name, flag in zip(ratings.feature_names, row, strict=True) if flag]
        assert title == f"Film {number:04d} ({', '.join(names)})"
        assert 1 <= len(names) <= 3


def test_many_genres_get_distinct_names() -> None:
    names = synthetic_movielens(n_users=5, n_items=40, ratings_per_user=5, n_genres=40).feature_names
    assert names is not None
    assert len(set(names)) == 40


def test_biases_explain_part_of_unseen_ratings_and_factors_explain_more() -> None:
    """Fixed seed, so no false alarms; the observed ratios are 0.82 and 0.87."""
    ratings = synthetic_movielens(n_users=800, n_items=300, ratings_per_user=80, rank=2)
    split = random_split(ratings)
    train, test = split.train, split.test
    users, unseen = train.users(), test.users()
    mean, user, item = biases(train)
    constant = rmse(test.values - mean)
    biased = rmse(test.values - mean - user[unseen] - item[test.items])
    left = train.values - mean - user[users] - item[train.items]
    q = np.random.default_rng(0).standard_normal((ratings.n_items, 2)) * 0.3
    for _ in range(8):
        p = solve(users, train.items, q, left, ratings.n_users, 4.0)
        q = solve(train.items, users, p, left, ratings.n_items, 4.0)
    signal = np.einsum("nr,nr->n", p[unseen], q[test.items])
    factored = rmse(test.values - mean - user[unseen] - item[test.items] - signal)
    assert biased < 0.9 * constant
    assert factored < 0.93 * biased
    assert factored > 0.7, "the noise is not predictable"


def test_genre_flags_explain_part_of_the_item_means() -> None:
    ratings = synthetic_movielens(n_users=2000, n_items=300, ratings_per_user=100)
    assert ratings.features is not None
    counts = np.bincount(ratings.items, minlength=ratings.n_items)
    seen = counts > 50
    means = np.bincount(ratings.items, ratings.values, ratings.n_items)[seen] / counts[seen]
    design = np.column_stack([np.ones(int(seen.sum())), ratings.features[seen]])
    fitted = design @ np.linalg.lstsq(design, means, rcond=None)[0]
    assert 0.15 < 1 - np.var(means - fitted) / np.var(means) < 0.6
    assert float(means.std()) == pytest.approx(0.5, abs=0.15)


def test_without_noise_bias_and_signal_remain() -> None:
    quiet = synthetic_movielens(n_users=300, n_items=100, noise=0.0)
    assert 0.5 < float(quiet.values.std()) < float(synthetic_movielens(n_users=300, n_items=100).values.std())


@pytest.mark.parametrize(
    "changes",
    [
        {"n_users": 0}, {"n_items": 4}, {"rank": 0}, {"n_genres": 0}, {"noise": -1.0}, {"noise": float("nan")},
        {"ratings_per_user": 4}, {"ratings_per_user": 601}, {"seed": -1}, {"n_users": 10.5},
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        synthetic_movielens(**changes)


def test_users_may_rate_every_item() -> None:
    full = synthetic_movielens(n_users=3, n_items=5, ratings_per_user=5)
    assert full.density == 1.0
