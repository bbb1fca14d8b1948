"""How ratings are cut into parts: at random, the same everywhere, and each user's without regard to anybody else's."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from odp.datasets import Ratings, Split, permutation_split, random_split, time_split
from odp.errors import DataError
from odp.evaluation.ranking import StrongSplit, strong_split

WHOLE = Ratings.from_triples(
    "many", np.arange(4000) // 20, np.arange(4000) % 20 + np.arange(4000) // 20 % 7, np.ones(4000), low=0, high=1
)


def parts_of(split: Split | StrongSplit, *, but: int) -> dict[tuple[int, int], str]:
    """Which part each rating is in, by who rated what; ``but`` leaves a user out."""
    found = {}
    for field in dataclasses.fields(split):
        part = getattr(split, field.name)
        users, items = part.user_keys[part.users()].tolist(), part.item_keys[part.items].tolist()
        found |= {(user, item): field.name for user, item in zip(users, items, strict=True) if user != but}
    return found


def without(ratings: Ratings, user: int) -> list[Ratings]:
    """The neighbours of a data set: a user without ratings, a user who is not there, and with other numbers."""
    zeroed = ratings.take(ratings.users() != user)
    absent = ratings.select_users([other for other in range(ratings.n_users) if other != user])
    return [zeroed, absent]


@settings(max_examples=30, deadline=None)
@given(user=st.integers(0, 199), seed=st.integers(0, 2**40), named=st.booleans())
def test_taking_a_user_out_leaves_everybody_elses_ratings_where_they_were(user: int, seed: int, named: bool) -> None:
    ids = np.arange(200) * 31 + 5 if named else None
    whole = dataclasses.replace(WHOLE, user_ids=ids)
    name = int(whole.user_keys[user])
    expected = parts_of(random_split(whole, seed=seed), but=name)
    for fewer in without(whole, user):
        assert parts_of(random_split(fewer, seed=seed), but=name) == expected


def test_other_numbers_for_the_same_items_change_nothing() -> None:
    """A loader numbers the items that somebody rated: without one user there may be one item less."""
    shifted = dataclasses.replace(
        WHOLE, items=WHOLE.items + 3, n_items=WHOLE.n_items + 3, item_ids=np.arange(WHOLE.n_items + 3) - 3
    )
    assert parts_of(random_split(shifted, seed=4), but=-1) == parts_of(random_split(WHOLE, seed=4), but=-1)


@settings(max_examples=20, deadline=None)
@given(user=st.integers(0, 199), seed=st.integers(0, 2**40))
def test_who_is_held_out_does_not_depend_on_what_anybody_rated(user: int, seed: int) -> None:
    expected = parts_of(strong_split(WHOLE, held_out=50, seed=seed), but=user)
    zeroed, absent = without(WHOLE, user)
    assert parts_of(strong_split(zeroed, held_out=50, seed=seed), but=user) == expected
    # With a user less, one more may be among the first 50; nobody else changes the part.
    moved = set(parts_of(strong_split(absent, held_out=50, seed=seed), but=user).items()) ^ set(expected.items())
    assert len({rating[0] for rating, _ in moved}) <= 1


def test_the_parts_are_the_same_on_every_machine() -> None:
    """Written down once: other numbers would make every stated result one of another split."""
    split = random_split(WHOLE, seed=1)
    found = hashlib.sha256("".join(map(str, sorted(parts_of(split, but=-1).items()))).encode()).hexdigest()
    assert (found[:16], split.train.n_ratings) == ("ec000d19a3d38144", 3162)


def test_each_rating_is_in_a_part_with_the_chance_of_its_share() -> None:
    """Binomial tests over 40 seeds of 4,000 ratings, and of single items and users; false alarm 1e-6 each."""
    counts, own = np.zeros(3), np.zeros(3)
    for seed in range(40):
        split = random_split(WHOLE, fractions=(0.5, 0.3, 0.2), seed=seed)
        parts = (split.train, split.validation, split.test)
        counts += [part.n_ratings for part in parts]
        own += [part.counts()[17] + (part.items == 3).sum() for part in parts]
    for found in (counts, own):
        for hits, share in zip(found, (0.5, 0.3, 0.2), strict=True):
            assert stats.binomtest(int(hits), int(found.sum()), share).pvalue > 1e-6
    # The same test rejects a split that is off by a tenth.
    assert stats.binomtest(int(1.1 * counts[0]), int(counts.sum()), 0.5).pvalue < 1e-6


def test_two_ratings_of_one_user_are_in_parts_that_do_not_depend_on_each_other() -> None:
    """Chi-square of neighbours in one user's list, and of one item for neighbours in number; false alarm 1e-6 each."""
    chosen = np.stack([random_split(WHOLE, fractions=(0.5, 0.5, 0.0), seed=seed).train.counts() for seed in range(60)])
    train = np.zeros((60, WHOLE.n_ratings), dtype=bool)
    for seed in range(60):
        inside = random_split(WHOLE, fractions=(0.5, 0.5, 0.0), seed=seed).train
        keys = WHOLE.users() * WHOLE.n_items + WHOLE.items
        train[seed] = np.isin(keys, inside.users() * WHOLE.n_items + inside.items)
    assert chosen.shape == (60, 200)
    for gap in (1, 20):
        table = np.histogram2d(train[:, :-gap].ravel(), train[:, gap:].ravel(), bins=2)[0]
        assert stats.chi2_contingency(table).pvalue > 1e-6


@pytest.mark.parametrize("cut", [random_split, permutation_split])
def test_a_split_depends_on_the_seed_and_on_nothing_else(cut: object) -> None:
    first, same, other = (parts_of(cut(WHOLE, seed=seed), but=-1) for seed in (1, 1, 2))  # type: ignore[operator]
    assert first == same != other


def test_one_permutation_of_all_ratings_cuts_everybody_anew() -> None:
    """Why the split of published comparisons is for numbers of a simulation alone."""
    expected = parts_of(permutation_split(WHOLE, seed=1), but=0)
    zeroed, _ = without(WHOLE, 0)
    found = parts_of(permutation_split(zeroed, seed=1), but=0)
    assert sum(found[rating] != part for rating, part in expected.items()) > 1000


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), last=st.sampled_from([0.0, 0.1, 0.3]))
def test_by_time_nobody_is_trained_on_what_comes_after_a_test(seed: int, last: float) -> None:
    generator = np.random.default_rng(seed)
    sizes = np.array([0, 1, 2, 3, 9, 10, 40])
    users = np.repeat(np.arange(7), sizes)
    items = np.concatenate([generator.permutation(50)[:size] for size in sizes])
    whole = Ratings.from_triples(
        "timed", users, items, np.ones(len(users)), low=0, high=1, n_users=7, n_items=50,
        times=generator.integers(0, 10**6, len(users)),
    )  # fmt: skip
    split = time_split(whole, fractions=(0.9 - last, 0.1, last))
    assert sum(part.n_ratings for part in (split.train, split.validation, split.test)) == whole.n_ratings
    for user, size in enumerate(sizes):
        parts = (split.train, split.validation, split.test)
        times = [part.order[part.offsets[user] : part.offsets[user + 1]] for part in parts]  # type: ignore[index]
        assert len(times[0]) >= min(size, 1)
        assert len(times[2]) >= (last > 0 and size > 1)
        joined = np.concatenate([np.sort(one) for one in times])
        np.testing.assert_array_equal(joined, np.sort(joined))
    expected = parts_of(split, but=6)
    for fewer in without(whole, 6)[:1]:
        assert parts_of(time_split(fewer, fractions=(0.9 - last, 0.1, last)), but=6) == expected


def test_a_split_by_time_needs_times() -> None:
    with pytest.raises(DataError, match="'many' has no times"):
        time_split(WHOLE)
