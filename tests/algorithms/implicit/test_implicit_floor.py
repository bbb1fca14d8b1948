"""Popularity is the floor of a model of implicit feedback: people without tastes, and people without items."""

from __future__ import annotations

import numpy as np

import odp
from odp.datasets import RatingModel, random_split, synthetic_ratings
from odp.datasets.ratings import merge
from odp.evaluation.ranking import evaluate, item_scores
from odp.research.simulation.presets import preset_task


def recalls(rank: int, signal: float) -> tuple[float, float]:
    """Test Recall@20 of the default at epsilon 8 and of its own counts, on 1,000 people and 200 items."""
    shape = RatingModel(n_users=1000, n_items=200, ratings_per_user=20, rank=rank, signal=signal, implicit=True)
    ratings = synthetic_ratings(shape, seed=11)
    split = random_split(ratings, seed=1)
    run = odp.simulate(preset_task("auto", ratings, epsilon=8.0, delta=1e-6), split, seed=1)
    popular = evaluate(item_scores(np.asarray(run.item_counts)), merge(split.train, split.validation), split.test)
    return run.metrics["test_ranking"].recall[20], popular.recall[20]


def test_where_people_have_no_tastes_the_ranking_is_nearly_that_of_counts() -> None:
    """Fixed seed. Of directions that no round confirmed, the ratio was .86."""
    model, popular = recalls(0, 0.0)
    assert model > 0.97 * popular


def test_tastes_that_rounds_confirm_are_worth_more_than_counts() -> None:
    model, popular = recalls(2, 1.5)
    assert model > 1.2 * popular
