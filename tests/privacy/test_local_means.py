"""Noisy numbers of one person: exact laws, budgets, sizes and refusals."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import SeededNoise
from odp.privacy.accounting import mu_for
from odp.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from odp.privacy.mechanisms.local_means import LAPLACE_STEPS, GaussianMean, LaplaceMean, delta_of_gaussian
from odp.privacy.mechanisms.random_source import LAPLACE_CLOSENESS, RandomSource
from odp.privacy.mechanisms.scalar import ScalarDP


@pytest.mark.parametrize("asked", [1e-6, 0.1, 1.0, 8.0, 32.0])
def test_laplace_noise_fits_its_epsilon_and_is_the_smallest_that_does(asked: float) -> None:
    mechanism = LaplaceMean(asked=asked, high=1.0)
    exact = [
        Fraction(LAPLACE_STEPS, scale) + 2 * Fraction(LAPLACE_CLOSENESS)
        for scale in (mechanism.scale, mechanism.scale - 1)
    ]
    assert exact[0] <= mechanism.epsilon <= asked < exact[1]
    assert mechanism.largest_variance == pytest.approx(2 / asked**2, rel=2e-3)


@pytest.mark.parametrize("epsilon", [2.0, 4.0, 8.0, 10.0])
def test_randomized_response_on_a_grid_beats_laplace_noise(epsilon: float) -> None:
    published = {2.0: 2.0, 4.0: 2.8, 8.0: 11.0, 10.0: 27.0}
    laplace = LaplaceMean(asked=epsilon, low=-1.0, high=3.0)
    grid = ScalarDP(asked=epsilon, low=-1.0, high=3.0)
    assert laplace.largest_variance / grid.largest_variance > published[epsilon] * 0.99


@pytest.mark.parametrize(
    "mechanism", [LaplaceMean(asked=1.5, low=2.0, high=7.0), GaussianMean(asked=1.5, delta=1e-5, low=2.0, high=7.0)]
)
@pytest.mark.parametrize("value", [2.0, 3.3333, 7.0])
def test_answers_have_the_stated_mean_and_variance(mechanism: LaplaceMean | GaussianMean, value: float) -> None:
    """Mean within 4.9 standard errors and variance within 4.9 of its own: false alarms 1e-6 each."""
    n = 50_000
    answers = mechanism.randomize(np.full(n, value), source=RandomSource(SeededNoise(6)))
    found = mechanism.decode(answers)
    variance = mechanism.variance(np.array([value]))[0]
    assert abs(found.mean() - value) < 4.9 * math.sqrt(variance / n)
    squares = (found - value) ** 2
    assert abs(squares.mean() - variance) < 4.9 * squares.std() / math.sqrt(n)
    assert mechanism.largest_variance >= variance
    np.testing.assert_array_equal(mechanism.from_bytes(mechanism.to_bytes(answers)), answers)


def test_rounding_to_steps_keeps_the_expectation_and_is_in_the_variance() -> None:
    mechanism = GaussianMean(asked=0.01, delta=1e-15, high=1.0)
    assert mechanism.steps == 1  # so a value is rounded to one of the ends
    assert mechanism.variance(np.array([0.5]))[0] - mechanism.variance(np.array([0.0]))[0] == pytest.approx(0.25)
    assert mechanism._between(np.array([0.25]))[1].tolist() == [0.25]


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.01, 1e-15), (0.01, 0.1), (1.0, 1e-5), (4.0, 1e-6), (32.0, 1e-15), (32.0, 0.1)]
)
def test_gaussian_noise_is_that_of_the_continuous_mechanism_and_within_its_delta(epsilon: float, delta: float) -> None:
    mechanism = GaussianMean(asked=epsilon, delta=delta, high=1.0)
    delta_reached = delta_of_gaussian(epsilon, steps=mechanism.steps, std=mechanism.std)
    assert delta_reached <= delta
    assert delta_reached == pytest.approx(delta, rel=1e-6)
    # The library's accountant of the continuous Gaussian: an independent computation.
    assert mechanism.std / mechanism.steps == pytest.approx(1 / mu_for(epsilon=epsilon, delta=delta), rel=3e-6)


def test_delta_is_the_sum_over_the_table_that_is_drawn_from() -> None:
    """In 200 bits, from the law as it is sampled, with the exponential of integers."""
    steps, std, epsilon = 7, 6.5, 0.8
    assert DiscreteGaussian(std).std == std
    with mpmath.workprec(200):
        weight = {n: mpmath.exp(-(mpmath.mpf(n) ** 2) / (2 * mpmath.mpf(std) ** 2)) for n in range(-400, 401)}
        total = mpmath.fsum(weight.values())
        odds = mpmath.exp(epsilon)
        exact = mpmath.fsum(max(weight[n] - odds * weight.get(n - steps, 0), 0) for n in weight) / total
    assert exact <= delta_of_gaussian(epsilon, steps=steps, std=std) <= exact * (1 + 2e-9)


def test_values_outside_the_range_are_refused_or_clipped_as_declared() -> None:
    source = RandomSource(SeededNoise(2))
    for value in (0.99, 3.01, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="declare clip=True"):
            LaplaceMean(asked=1.0, low=1.0, high=3.0).randomize(np.array([value]), source=source)
    clipping = LaplaceMean(asked=1.0, low=1.0, high=3.0, clip=True)
    below, part = clipping._between(np.array([0.99, 3.01, math.nan, math.inf]))
    assert (below + part).tolist() == [0, LAPLACE_STEPS, 0, LAPLACE_STEPS]


def test_what_is_sent_is_bounded() -> None:
    mechanism = LaplaceMean(asked=1.0, high=1.0)
    assert len(mechanism.to_bytes(np.zeros(10, dtype=np.int64))) == 40
    assert len(LaplaceMean(asked=1e-6, high=1.0).to_bytes(np.zeros(1, dtype=np.int64))) == 6
    gaussian = GaussianMean(asked=1.0, delta=1e-5, high=1.0)
    assert len(gaussian.to_bytes(np.zeros(10, dtype=np.int64))) == 20

    class Far(RandomSource):
        def discrete_laplace(self, scale: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array([-1000 * scale, 1000 * scale])

    ends = mechanism.randomize(np.array([0.5, 0.5]), source=Far(SeededNoise(1)))
    assert ends.tolist() == [-64 * mechanism.scale, LAPLACE_STEPS + 64 * mechanism.scale]
    np.testing.assert_array_equal(mechanism.from_bytes(mechanism.to_bytes(ends)), ends)
    with pytest.raises(DataError, match="below"):
        mechanism.from_bytes(b"\xff\xff\xff\xff")


def test_mechanisms_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"epsilon=40.0 to be within \[1e-06, 32.0\]"):
        LaplaceMean(asked=40.0, high=1.0)
    with pytest.raises(ConfigurationError, match=r"epsilon=0.001 to be within \[0.01, 32.0\]"):
        GaussianMean(asked=0.001, delta=1e-5, high=1.0)
    with pytest.raises(ConfigurationError, match=r"delta=0\.0"):
        GaussianMean(asked=1.0, delta=0.0, high=1.0)
    with pytest.raises(ConfigurationError, match=r"low=2\.0 to be below high=1\.0"):
        LaplaceMean(asked=1.0, low=2.0, high=1.0)
