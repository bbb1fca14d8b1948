"""Ranking metrics against a slow reference, and the protocols that hold items or users out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError
from odp.evaluation.ranking import evaluate, factor_scores, first_places, item_scores, strong_split


def events(mask: np.ndarray) -> Ratings:
    user, item = np.nonzero(mask)
    return Ratings.from_triples(
        "made", user, item, np.ones(len(user)), low=0, high=1, n_users=len(mask), n_items=mask.shape[1], implicit=True
    )


def slow(scores: np.ndarray, history: np.ndarray, targets: np.ndarray, k: int, *, capped: bool) -> tuple[float, float]:
    recall, ndcg = [], []
    for row, known, wanted in zip(scores, history, targets, strict=True):
        if not wanted.any():
            continue
        free = [item for item in range(len(row)) if not known[item]]
        first = sorted(free, key=lambda item: (-row[item], item))[:k]
        reachable = min(k, int(wanted.sum()))
        recall.append(sum(bool(wanted[item]) for item in first) / (reachable if capped else wanted.sum()))
        gain = sum(1 / math.log2(place + 2) for place, item in enumerate(first) if wanted[item])
        ndcg.append(gain / sum(1 / math.log2(place + 2) for place in range(reachable)))
    return float(np.mean(recall)), float(np.mean(ndcg))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), users=st.integers(1, 30), items=st.sampled_from([3, 20, 500]), capped=st.booleans())
def test_metrics_equal_a_slow_reference_also_with_ties(seed: int, users: int, items: int, capped: bool) -> None:
    generator = np.random.default_rng(seed)
    kind = generator.random((users, items))
    history, targets = kind < 0.2, kind > 0.9
    targets[0, 0], history[0, 0] = True, False
    scores = generator.integers(0, 6, (users, items)).astype(np.float32)
    cutoffs = tuple(k for k in (1, 2, 5, 20) if k <= items)
    found = evaluate(lambda block: scores[block], events(history), events(targets), cutoffs=cutoffs, capped=capped)
    assert found.users == int(targets.any(axis=1).sum())
    for k in cutoffs:
        recall, ndcg = slow(scores, history, targets, k, capped=capped)
        assert found.recall[k] == pytest.approx(recall)
        assert found.ndcg[k] == pytest.approx(ndcg)


def test_a_perfect_ranking_scores_one_and_history_is_never_recommended() -> None:
    history, targets = np.zeros((2, 200), dtype=bool), np.zeros((2, 200), dtype=bool)
    targets[:, 3:6], history[:, :3] = True, True
    scores = np.linspace(1, 0, 200)
    found = evaluate(item_scores(scores), events(history), events(targets), cutoffs=(3,))
    assert found.recall[3] == pytest.approx(1.0)
    assert found.ndcg[3] == pytest.approx(1.0)


def test_first_places_are_those_of_a_stable_sort() -> None:
    scores = np.random.default_rng(0).normal(size=(40, 3000)).astype(np.float32)
    scores[0] = 0.0
    scores[1, :2990] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(first_places(scores, 20), expected)


def test_scores_of_factors_are_inner_products() -> None:
    left, right = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(4, 2)
    np.testing.assert_allclose(factor_scores(left, right)(np.array([2, 0])), left[[2, 0]] @ right.T)


def test_data_without_targets_and_cutoffs_beyond_the_catalogue_are_refused() -> None:
    empty, full = np.zeros((2, 5), dtype=bool), np.eye(2, 5, dtype=bool)
    with pytest.raises(DataError, match="no held-out items"):
        evaluate(item_scores(np.ones(5)), events(full), events(empty), cutoffs=(5,))
    with pytest.raises(ConfigurationError, match="cutoff=6"):
        evaluate(item_scores(np.ones(5)), events(empty), events(full), cutoffs=(6,))
    with pytest.raises(DataError, match="same users"):
        evaluate(item_scores(np.ones(5)), events(full[:1]), events(full), cutoffs=(1,))


def test_strong_split_holds_users_out_and_keeps_four_fifths_of_their_items_as_history() -> None:
    ratings = events(np.random.default_rng(1).random((50, 40)) < 0.4)
    split = strong_split(ratings, held_out=10, seed=3)
    assert (split.train.n_users, split.history.n_users, split.targets.n_users) == (40, 10, 10)
    sizes = split.history.counts() + split.targets.counts()
    np.testing.assert_array_equal(split.history.counts(), np.ceil(0.8 * sizes).astype(int))
    assert split.train.n_ratings + sizes.sum() == ratings.n_ratings
    mine = split.history.users() * 40 + split.history.items
    assert not np.isin(mine, split.targets.users() * 40 + split.targets.items).any()
    with pytest.raises(DataError, match="held_out=50"):
        strong_split(ratings, held_out=50)
