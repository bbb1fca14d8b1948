"""Update scale and between-client variance: estimates from releases against the exact values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from spreads import exact_spread

from odp.algorithms.dense.update_spread import SpreadTerms
from odp.errors import ConfigurationError, DataError


def updates(users: int, size: int, *, clip: float, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    found = random.normal(size=size) + random.normal(size=(users, size))
    return found / np.maximum(1.0, np.linalg.norm(found, axis=1) / clip)[:, None]


def test_without_noise_the_estimates_are_exact():
    own = updates(50, 7, clip=2.0)
    terms, truth = SpreadTerms(size=7, clip=2.0), exact_spread(own)
    found = terms.estimates(terms.contributions(own).sum(axis=0), cohort=50.0, noise_std=0.0)
    assert found.scale == pytest.approx(truth.scale, rel=1e-12)
    assert found.variance == pytest.approx(truth.variance, rel=1e-12)
    assert (found.scale_std, found.variance_std) == (0.0, 0.0)


def test_with_noise_they_are_unbiased_and_have_the_stated_spread():
    """4,000 releases: means within 5 standard errors (a false alarm of 6e-7 each), spreads within 10 %."""
    own, times = updates(200, 20, clip=1.0), 4000
    terms, truth, noise = SpreadTerms(size=20, clip=1.0), exact_spread(own), 4.0
    total = terms.contributions(own).sum(axis=0)
    draws = np.random.default_rng(1).normal(size=(times, 21)) * noise
    found = [terms.estimates(total + draw, cohort=200.0, noise_std=noise) for draw in draws]
    for name in ("scale", "variance"):
        values = np.array([getattr(one, name) for one in found])
        stated = np.array([getattr(one, f"{name}_std") for one in found])
        assert abs(values.mean() - getattr(truth, name)) < 5.0 * values.std() / math.sqrt(times)
        assert values.std() == pytest.approx(np.sqrt(np.square(stated).mean()), rel=0.1)


@given(weight=st.floats(0.0, 1.0), clip=st.floats(1e-3, 1e3), scale=st.floats(0.0, 10.0), size=st.integers(1, 20))
@settings(max_examples=100)
def test_one_user_moves_the_joint_query_by_at_most_its_sensitivity(weight, clip, scale, size):
    random = np.random.default_rng(size)
    own = random.normal(size=(5, size)) * scale * clip
    own /= np.maximum(1.0, np.linalg.norm(own, axis=1) / clip)[:, None]
    terms = SpreadTerms(size=size, clip=clip, weight=weight)
    rows = terms.contributions(own)
    assert rows.shape == (5, terms.width)
    assert np.linalg.norm(rows, axis=1).max() <= terms.sensitivity * (1 + 1e-9)


def test_a_weight_of_a_tenth_costs_half_a_percent_and_none_costs_nothing():
    assert SpreadTerms(size=9, clip=1.0).sensitivity == pytest.approx(1.004988, abs=1e-6)
    terms = SpreadTerms(size=9, clip=1.0, weight=0.0)
    own = updates(10, 9, clip=1.0)
    assert terms.sensitivity == pytest.approx(1.0, rel=1e-12)
    assert terms.contributions(own) is own
    found = terms.estimates(own.sum(axis=0), cohort=10.0, noise_std=0.0)
    assert found.variance is None
    assert found.scale == pytest.approx(exact_spread(own).scale)


def test_updates_that_were_not_clipped_and_wrong_sizes_are_refused():
    terms = SpreadTerms(size=3, clip=1.0)
    with pytest.raises(DataError, match="clip them first"):
        terms.contributions(np.full((1, 3), 0.6))
    with pytest.raises(DataError, match="clip them first"):
        terms.contributions(np.full((1, 3), np.nan))
    with pytest.raises(DataError, match="3 numbers"):
        terms.contributions(np.zeros((1, 4)))
    with pytest.raises(DataError, match="4 released"):
        terms.estimates(np.zeros(3), cohort=1.0, noise_std=1.0)
    with pytest.raises(ConfigurationError, match="weight"):
        SpreadTerms(size=3, clip=1.0, weight=1.1)
