"""The adaptive clip norm: its joint charge, and that it finds the quantile of norms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.evaluation.noise import SeededNoise
from odp.privacy import accounting
from odp.privacy.adaptive_clip import ClipState, ClipTerms
from odp.privacy.events import GaussianRelease, SampledRound, Sampling
from odp.privacy.mechanisms import GaussianNoise


def published(cohort: float) -> ClipTerms:
    """The published defaults: the median, rate .2, noise of a twentieth of the cohort, from .1 on."""
    return ClipTerms(start=0.1, cohort=cohort, bit_std=cohort / 20.0)


@pytest.mark.parametrize(
    ("noise", "cohort", "golden"), [(1.0, 100, 1.005038), (1.0, 50, 1.020621), (2.0, 100, 2.041241)]
)
def test_the_noise_that_is_left_for_the_update_has_its_golden_values(noise, cohort, golden):
    assert published(cohort).split(noise) == pytest.approx(golden, abs=5e-7)


@given(noise=st.floats(0.3, 5.0), bit_std=st.floats(3.0, 1e4))
def test_update_and_bit_together_have_the_wanted_noise_multiplier(noise, bit_std):
    terms = ClipTerms(start=1.0, cohort=100.0, bit_std=bit_std)
    update = GaussianRelease("update", 1.0, terms.split(noise), 10)
    joint = SampledRound((update, terms.event()), Sampling(0.1, 1000, 1000))
    assert joint.noise_multiplier == pytest.approx(noise, rel=1e-12)
    assert accounting.mu([update, terms.event()]) == pytest.approx(1.0 / noise, rel=1e-12)


def test_a_bit_that_costs_as_much_as_the_whole_is_refused():
    terms = ClipTerms(start=1.0, cohort=10.0, bit_std=0.5)
    with pytest.raises(PrivacyError, match="below 1"):
        terms.split(1.0)
    assert terms.split(0.999) > 20.0


@pytest.mark.parametrize("bit_std", [0.1, 2.5, 31.9, 32.0, 1000.0])
def test_one_user_moves_the_sum_of_bits_by_half_at_most_on_a_fine_grid(bit_std):
    terms = ClipTerms(start=1.0, cohort=100.0, bit_std=bit_std)
    norms = np.array([0.0, 1.0, np.nextafter(1.0, 2.0), np.inf, np.nan, 1e-300])
    bits = terms.bits(norms, 1.0)
    assert np.array_equal(bits * terms.step, [0.5, 0.5, -0.5, -0.5, -0.5, 0.5])
    assert terms.bit_std / terms.step >= 64.0
    assert terms.step * terms.units == 0.5


@pytest.mark.parametrize(("quantile", "start"), [(0.5, 0.1), (0.5, 30.0), (0.8, 0.1)])
def test_the_clip_norm_converges_to_the_quantile_of_norms(quantile, start):
    """Log-normal norms, 500 users a round; the mean of 60 late rounds is within a tenth (deterministic seeds)."""
    terms = ClipTerms(start=start, cohort=500.0, bit_std=25.0, quantile=quantile)
    noise, random, state = GaussianNoise(SeededNoise(1)), np.random.default_rng(2), ClipState.initial(terms)
    late = []
    for round in range(120):
        norms = np.exp(random.normal(1.0, 0.5, 500))
        total = terms.bits(norms, state.clip).sum() + noise.sample(terms.bit_std / terms.step, 1)[0]
        state = ClipState.from_bytes(terms, state.step(float(total) * terms.step).to_bytes())
        if round >= 60:
            late.append(math.log(state.clip))
    truth = 1.0 + 0.5 * {0.5: 0.0, 0.8: 0.8416}[quantile]
    assert abs(np.mean(late) - truth) < 0.1
    assert state.round == 120


def test_noise_can_move_a_clip_norm_by_no_more_than_the_rate():
    state = ClipState.initial(published(100))
    for released in (1e12, -1e12):
        after = state.step(released)
        assert abs(math.log(after.clip / state.clip)) <= 0.1 + 1e-6
    assert state.share_within(1e12) == 1.0
    assert state.share_within(-1e12) == 0.0
    with pytest.raises(ConfigurationError, match="released"):
        state.step(math.nan)


def test_everybody_has_the_same_clip_norm():
    state = ClipState.initial(published(100))
    for released in itertools.islice(itertools.cycle((10.0, -30.0, 3.0)), 50):
        state = state.step(released)
        assert state.clip == float(np.float32(state.clip))


def test_a_damaged_state_is_refused():
    terms = published(100)
    data = ClipState.initial(terms).to_bytes()
    assert ClipState.from_bytes(terms, data) == ClipState.initial(terms)
    for wrong in (data[:-1], b"x" + data[1:], data[:4] + b"\xff" * 8 + data[12:]):
        with pytest.raises(StateError):
            ClipState.from_bytes(terms, wrong)
