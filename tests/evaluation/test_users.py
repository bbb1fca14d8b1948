"""What is drawn about simulated users: repeatable, at random, and for each without regard to anybody else."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import odp
from odp.datasets.ratings import Ratings
from odp.evaluation.users import chosen_entries, draw_users, user_seeds
from odp.privacy.events import Sampling

RATINGS = odp.data.synthetic_movielens(n_users=400, n_items=30, ratings_per_user=15, seed=4)
ABSENT = RATINGS.select_users([user for user in range(400) if user != 7])
ZEROED = RATINGS.take(RATINGS.users() != 7)


def test_seeds_depend_on_the_runs_seed_and_on_the_user_alone() -> None:
    seeds = user_seeds(RATINGS, 1)
    assert seeds.dtype == np.uint64
    assert len(set(seeds.tolist())) == 400
    assert not set(seeds.tolist()) & set(user_seeds(RATINGS, 2).tolist())
    np.testing.assert_array_equal(user_seeds(ZEROED, 1), seeds)
    np.testing.assert_array_equal(user_seeds(ABSENT, 1), np.delete(seeds, 7))


def test_each_user_counts_with_the_tasks_probability_anew_in_every_round() -> None:
    """Exact binomial test over 200 rounds of 400 users, fixed seed; false alarm 1e-6."""
    sampling = Sampling(0.3, 500, 500)
    draws = [draw_users(RATINGS, sampling, round=number, seed=7) for number in range(200)]
    assert stats.binomtest(sum(map(len, draws)), 80_000, 0.3).pvalue > 1e-6
    assert len({draw.tobytes() for draw in draws}) == 200
    np.testing.assert_array_equal(draws[5], draw_users(RATINGS, sampling, round=5, seed=7))
    assert not len(draw_users(RATINGS, Sampling(0.9, 500, 50), round=0, seed=7))
    assert not len(draw_users(RATINGS, Sampling(1e-6, 500, 500), round=0, seed=1))


@pytest.mark.parametrize("fewer", [ZEROED, ABSENT])
def test_without_a_user_the_same_others_count_in_every_round(fewer: Ratings) -> None:
    sampling = Sampling(0.3, 500, 500)
    for round in range(20):
        mine, theirs = (draw_users(one, sampling, round=round, seed=3) for one in (RATINGS, fewer))
        assert set(RATINGS.user_keys[mine]) - {7} == set(fewer.user_keys[theirs]) - {7}


def test_at_most_so_many_entries_of_each_user_are_chosen_at_random() -> None:
    """Chi-square of which of ten equal places is chosen, over 400 users and 30 seeds; false alarm 1e-6."""
    full = Ratings.from_triples("full", np.arange(4000) // 10, np.arange(4000) % 10, np.ones(4000), low=0, high=1)
    hits = np.zeros(10)
    for seed in range(30):
        chosen = chosen_entries(full, 3, seed=seed)
        assert (np.bincount(full.users()[chosen]) == 3).all()
        hits += np.bincount(full.items[chosen], minlength=10)
    assert stats.chisquare(hits).pvalue > 1e-6
    counts = np.bincount(RATINGS.users()[chosen_entries(RATINGS, 12, seed=1)], minlength=400)
    np.testing.assert_array_equal(counts, np.minimum(RATINGS.counts(), 12))


@pytest.mark.parametrize("fewer", [ZEROED, ABSENT])
def test_without_a_user_the_same_entries_of_all_others_are_chosen(fewer: Ratings) -> None:
    def chosen(ratings: Ratings) -> set[tuple[int, int]]:
        entries = chosen_entries(ratings, 5, seed=2)
        users, items = ratings.user_keys[ratings.users()[entries]], ratings.items[entries]
        return {(user, item) for user, item in zip(users.tolist(), items.tolist(), strict=True) if user != 7}

    assert chosen(fewer) == chosen(RATINGS)
