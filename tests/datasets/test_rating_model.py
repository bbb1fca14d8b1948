"""Synthetic ratings: of the stated shape, with as much skew, structure and help by features as the model says."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.datasets import RatingModel, Ratings, synthetic_ratings
from odp.datasets.rating_model import explained
from odp.errors import ConfigurationError


def drawn(seed: int = 1, **changes: Any) -> Ratings:
    return synthetic_ratings(
        RatingModel(**({"n_users": 400, "n_items": 120, "ratings_per_user": 20.0} | changes)), seed=seed
    )


def counts_of_items(ratings: Ratings) -> np.ndarray:
    return np.sort(np.bincount(ratings.items, minlength=ratings.n_items))


def left_over(ratings: Ratings) -> float:
    """The spread that users' and items' means leave, in stars: a few rounds of least squares."""
    users, left = ratings.users(), ratings.values - ratings.values.mean(dtype=np.float64)
    for _ in range(8):
        left = left - (np.bincount(users, left) / ratings.counts())[users]
        counts = np.maximum(np.bincount(ratings.items, minlength=ratings.n_items), 1)
        left = left - (np.bincount(ratings.items, left, ratings.n_items) / counts)[ratings.items]
    return float(left.std())


@settings(max_examples=40, deadline=None)
@given(
    model=st.builds(
        RatingModel,
        n_users=st.integers(1, 60),
        n_items=st.integers(20, 80),
        ratings_per_user=st.floats(5, 20),
        rank=st.integers(1, 8),
        signal=st.floats(0, 2),
        popularity=st.floats(0, 3),
        activity=st.floats(0, 3),
        n_features=st.integers(1, 5),
        feature_share=st.floats(0, 1),
        implicit=st.booleans(),
    ),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_user_has_five_distinct_items_or_more_on_a_declared_scale(model: RatingModel, seed: int) -> None:
    ratings = synthetic_ratings(model, seed=seed)
    assert (ratings.n_users, ratings.n_items, ratings.implicit) == (model.n_users, model.n_items, model.implicit)
    assert ratings.duplicates == 0, "rows of one user and item would have become one"
    assert ratings.inferred == ()
    assert ratings.counts().min() >= 5
    levels = {1.0} if model.implicit else set(np.arange(1.0, 5.5, 0.5))
    assert set(ratings.values.tolist()) <= levels
    assert ratings.features is not None
    assert ratings.features.shape == (model.n_items, model.n_features)
    again = synthetic_ratings(model, seed=seed)
    for name in ("offsets", "items", "values", "features"):
        assert np.array_equal(getattr(ratings, name), getattr(again, name)), name


def test_another_seed_gives_other_data() -> None:
    assert not np.array_equal(drawn(seed=1).items[:100], drawn(seed=2).items[:100])


def test_without_features_a_data_set_has_none() -> None:
    ratings = drawn()
    assert ratings.features is None
    assert ratings.feature_names is None


@pytest.mark.parametrize("implicit", [False, True])
def test_popularity_is_as_skewed_as_the_model_says(implicit: bool) -> None:
    """Share of the most popular tenth: a tenth and chance without skew, and more with each step of the exponent."""
    shares = []
    for popularity in (0.0, 0.5, 1.0, 1.5):
        counts = counts_of_items(drawn(popularity=popularity, implicit=implicit, signal=0.0))
        shares.append(counts[-12:].sum() / counts.sum())
    assert 0.1 < shares[0] < 0.14
    assert np.diff(shares).min() > 0.04


def test_activity_is_as_skewed_as_the_model_says_and_keeps_its_mean() -> None:
    shares = []
    for activity in (0.0, 0.9, 1.6):
        counts = np.sort(drawn(n_users=4000, n_items=400, activity=activity).counts())
        assert counts.mean() == pytest.approx(20, rel=0.1)
        shares.append(counts[-400:].sum() / counts.sum())
    assert shares[0] == pytest.approx(0.1)
    assert shares[1] == pytest.approx(0.28, abs=0.04)
    assert shares[2] > 0.4


def test_signal_adds_variance_that_means_do_not_explain() -> None:
    """Rounding to half stars has a variance of 1/48; clipping at 1 and 5 takes from the largest signals."""
    quiet: dict[str, Any] = {"n_users": 3000, "ratings_per_user": 40.0, "noise": 0.0}
    assert left_over(drawn(rank=0, signal=0.0, **quiet)) < 0.25
    for signal in (0.3, 0.6):
        assert left_over(drawn(rank=3, signal=signal, **quiet)) == pytest.approx(np.hypot(signal, 0.16), rel=0.15)


def test_noise_is_what_nothing_explains() -> None:
    """A little is gone with the means, more at the ends of the scale."""
    assert left_over(drawn(rank=0, signal=0.0, noise=0.7)) == pytest.approx(0.65, abs=0.05)


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 1), columns=st.integers(1, 16), width=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_features_explain_their_share_of_the_variance(share: float, columns: int, width: int, seed: int) -> None:
    """R^2 of a regression on 3,000 items; its standard deviation is .015 at most, and the bound five times that."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((3000, columns))
    rows = explained(rng, features, width, share)
    design = np.column_stack([np.ones(3000), features])
    rest = rows - design @ np.linalg.lstsq(design, rows, rcond=None)[0]
    assert rows.std(axis=0) == pytest.approx(np.ones(width), abs=0.1)
    assert 1 - rest.var(axis=0) / rows.var(axis=0) == pytest.approx(np.full(width, share), abs=0.08)


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0.0, 0.12), (0.8, 0.65, 0.9)])
def test_features_tell_item_means_as_much_as_their_share(share: float, least: float, most: float) -> None:
    ratings = drawn(
        n_users=3000, n_items=200, popularity=0.0, n_features=8, feature_share=share, rank=0, signal=0.0
    )  # fmt: skip
    assert ratings.features is not None
    means = np.bincount(ratings.items, ratings.values) / np.bincount(ratings.items)
    design = np.column_stack([np.ones(200), ratings.features])
    rest = means - design @ np.linalg.lstsq(design, means, rcond=None)[0]
    assert least <= 1 - rest.var() / means.var() <= most


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.6])
def test_popular_items_are_as_much_better_as_the_model_says(correlation: float) -> None:
    ratings = drawn(n_users=4000, n_items=400, popular_bias=correlation)
    counts = np.bincount(ratings.items, minlength=400)
    means = np.bincount(ratings.items, ratings.values, 400) / counts
    assert np.corrcoef(means, np.log(counts))[0, 1] == pytest.approx(correlation, abs=0.12)


def test_tastes_decide_what_users_of_implicit_feedback_pick() -> None:
    """Cosines between users spread by chance alone without tastes, and more the stronger tastes are."""
    spreads = []
    for signal in (0.0, 1.0, 2.0):
        ratings = drawn(implicit=True, signal=signal, popularity=0.0, activity=0.0, rank=2)
        matrix = np.zeros((400, 120))
        matrix[ratings.users(), ratings.items] = 1.0
        cosines = matrix @ matrix.T / 20.0
        spreads.append(cosines[np.triu_indices(400, 1)].std())
    assert spreads[1] > 1.2 * spreads[0]
    assert spreads[2] > 1.3 * spreads[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"n_users": 0}, {"n_users": 10.5}, {"n_items": 4}, {"ratings_per_user": 4}, {"ratings_per_user": 601},
        {"rank": -1}, {"rank": True}, {"signal": -0.1}, {"signal": float("nan")}, {"noise": float("inf")},
        {"popularity": -1}, {"popular_bias": 1.1}, {"activity": 6}, {"n_features": -1}, {"feature_share": 1.5},
        {"signal": 0.5, "rank": 0}, {"feature_share": 0.5, "n_features": 0}, {"popular_bias": 0.5, "implicit": True},
        {"popular_bias": 0.5, "popularity": 0.0},
    ],
)  # fmt: skip
def test_fields_out_of_range_or_without_their_other_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        RatingModel(**changes)


def test_a_seed_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        synthetic_ratings(RatingModel(), seed=-1)


def test_a_model_may_have_every_item_rated_by_every_user() -> None:
    model = dataclasses.replace(RatingModel(), n_users=3, n_items=5, ratings_per_user=5.0)
    assert synthetic_ratings(model).density == 1.0
