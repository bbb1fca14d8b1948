"""Coverage, inequality and popularity bias of lists: against a plain computation, and at the extremes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets import Ratings
from odp.errors import ConfigurationError
from odp.evaluation.exposure import exposure, gini
from odp.evaluation.ranking import item_scores


def ratings(users: int, items: int, pairs: set[tuple[int, int]]) -> Ratings:
    user, item = (np.array([pair[place] for pair in sorted(pairs)], dtype=np.int64) for place in (0, 1))
    return Ratings.from_triples(
        "made", user, item, np.ones(len(pairs)), low=0.0, high=1.0, n_users=users, n_items=items
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), users=st.integers(1, 12), items=st.integers(2, 15), cutoff=st.integers(1, 6))
def test_figures_are_those_of_a_loop_over_lists(seed: int, users: int, items: int, cutoff: int) -> None:
    generator = np.random.default_rng(seed)
    cutoff = min(cutoff, items)
    table = generator.normal(size=(users, items)).astype(np.float32)
    counts = generator.integers(0, 50, items).astype(np.float64)
    cells = generator.choice(3, size=(users, items))
    history = ratings(users, items, set(zip(*map(list, np.nonzero(cells == 1)), strict=True)))
    liked = ratings(users, items, set(zip(*map(list, np.nonzero(cells == 2)), strict=True)))
    found = exposure(
        lambda block: table[block],
        item_scores(counts),
        history,
        liked,
        popularity=counts,
        baseline_name="x",
        cutoff=cutoff,
    )

    times: Counter[int] = Counter()
    means, profiles = [], []
    for user in range(users):
        known = set(history.user(user)[0].tolist())
        listed = [item for item in np.argsort(-table[user], kind="stable") if item not in known][:cutoff]
        times.update(int(item) for item in listed)
        means.append(counts[listed].mean() if listed else 0.0)
        if known:
            profiles.append(counts[sorted(known)].mean())
    assert found.model.coverage == pytest.approx(len(times) / items)
    assert found.model.popularity == pytest.approx(np.mean(means))
    assert sum(found.model.exposure) == pytest.approx(1.0 if times else 0.0)
    if profiles and np.mean(profiles) > 0:
        assert found.model.lift == pytest.approx(np.mean(means) / np.mean(profiles) - 1)
    if liked.n_ratings:
        assert sum(fifth.relevance or 0.0 for fifth in found.fifths) == pytest.approx(1.0)
    assert sum(fifth.members for fifth in found.fifths) == items


def test_a_ranking_by_popularity_shows_one_list_and_is_more_popular_than_any_history() -> None:
    history = ratings(4, 20, {(user, 15 + user) for user in range(4)})
    counts = np.arange(20, dtype=np.float64)[::-1]
    everyone = exposure(
        item_scores(counts), item_scores(-counts), history, history, popularity=counts, baseline_name="x", cutoff=2
    )
    assert everyone.model.coverage == 2 / 20
    assert everyone.model.gini == pytest.approx(0.9)
    assert everyone.model.lift is not None
    assert everyone.baseline.lift is not None
    assert everyone.model.lift > 0 > everyone.baseline.lift
    assert everyone.model.exposure == (0.0, 0.0, 0.0, 0.0, 1.0)


def test_the_gini_coefficient_is_zero_of_equals_and_near_one_where_one_has_everything() -> None:
    assert gini(np.full(7, 3.0)) == pytest.approx(0.0)
    assert gini(np.eye(1, 50)[0]) == pytest.approx(49 / 50)
    assert gini(np.zeros(3)) == 0.0


def test_a_list_longer_than_the_catalogue_is_refused() -> None:
    known = ratings(2, 3, {(0, 1)})
    with pytest.raises(ConfigurationError, match="cutoff"):
        exposure(
            item_scores(np.ones(3)),
            item_scores(np.ones(3)),
            known,
            known,
            popularity=np.ones(3),
            baseline_name="x",
            cutoff=4,
        )
