from __future__ import annotations

import math
import random
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import chisquare

from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.randomized_response import RandomizedResponse

EPSILONS = st.floats(min_value=1e-6, max_value=32.0)
CHOICES = st.integers(min_value=2, max_value=2**20)


@given(CHOICES, EPSILONS)
def test_the_true_epsilon_is_that_of_the_integer_coin_and_never_above_the_asked_one(k: int, asked: float) -> None:
    response = RandomizedResponse(choices=k, asked=asked)
    with mpmath.workprec(400):
        exact = mpmath.log(mpmath.mpf(response.ratio.numerator) / response.ratio.denominator)
        assert exact <= response.epsilon <= asked
        # Little is given away: the coin is that of the asked epsilon to 2^-32, above 16 to 2^-17.
        assert asked - exact < (2**-32 if asked <= 16 else 2**-17)


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (5, 0.5), (100, 3.0)])
def test_the_coin_is_the_one_of_the_paper(k: int, epsilon: float) -> None:
    """Keep with probability e^epsilon / (e^epsilon + k - 1): Kairouz, Bonawitz, Ramage 2016, equation 9."""
    noise = Fraction(RandomizedResponse(choices=k, asked=epsilon).noise, 2**64)
    keep = 1 - noise + noise / k
    assert float(keep) == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + k - 1), rel=1e-12)


class _Scripted:
    def __init__(self, *values: int) -> None:
        self._values = list(values)

    def __call__(self, bits: int) -> int:
        value = self._values.pop(0)
        assert 0 <= value < 2**bits
        return value


def test_the_coin_turns_at_its_integer_and_the_draw_rejects_what_is_beyond_the_range() -> None:
    response = RandomizedResponse(choices=5, asked=1.0)
    assert response.answer(3, random_bits=_Scripted(7, 6, 4, response.noise - 1)) == 4
    assert response.answer(3, random_bits=_Scripted(4, response.noise)) == 3


def test_the_answers_follow_the_law_for_every_truth() -> None:
    """Chi-squared over the full range, both ends included; 3 tests at 1e-4: false alarms in 0.03 % of seeds."""
    response, draws = RandomizedResponse(choices=4, asked=0.7), 40_000
    noise = response.noise / 2**64
    source = random.Random(20261120)
    for truth in (0, 1, 3):
        counts = [0] * 4
        for _ in range(draws):
            counts[response.answer(truth, random_bits=source.getrandbits)] += 1
        expected = [draws * (noise / 4 + (1 - noise) * (value == truth)) for value in range(4)]
        assert chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize("truth", [-1, 4, True, 1.0])
def test_a_truth_out_of_range_is_refused_without_showing_it(truth: object) -> None:
    with pytest.raises(ConfigurationError, match=r"integer from 0 to 3$"):
        RandomizedResponse(choices=4, asked=1.0).answer(truth)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "asked"), [(1, 1.0), (2**20 + 1, 1.0), (4, 0.0), (4, 1e-9), (4, 32.1), (4, math.inf)]
)
def test_questions_that_make_no_sense_are_refused(choices: int, asked: float) -> None:
    with pytest.raises(ConfigurationError):
        RandomizedResponse(choices=choices, asked=asked)


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (3, 0.3), (4, 2.5), (10, 8.0)])
def test_estimates_are_unbiased_with_the_stated_variance_by_enumeration(k: int, epsilon: float) -> None:
    """Over all answers of one person, each with its exact probability; persons are independent."""
    response = RandomizedResponse(choices=k, asked=epsilon)
    noise = Fraction(response.noise, 2**64)
    law = np.full((k, k), float(noise / k)) + np.eye(k) * float(1 - noise)  # [truth, answer]
    single = np.stack([response.estimate(np.eye(k, dtype=np.int64)[answer], 1) for answer in range(k)])
    np.testing.assert_allclose(law @ single, np.eye(k), atol=1e-12)
    variances = law @ single**2 - np.eye(k)
    truths = np.array([5, 3, *[1] * (k - 2)])
    expected = truths @ variances / truths.sum() ** 2
    frequencies = truths / truths.sum()
    np.testing.assert_allclose(response.variance(frequencies, int(truths.sum())), expected, rtol=1e-12)
    odds = math.exp(epsilon)
    stated = (k - 2 + odds) / (odds - 1) ** 2 + frequencies * (k - 2) / (odds - 1)
    np.testing.assert_allclose(response.variance(frequencies, 1), stated, rtol=1e-9)


def test_the_second_term_of_the_variance_is_as_derived() -> None:
    """K = 10, epsilon = 2, h = .3: .753 / n, where the first term alone is .377 / n."""
    frequencies = np.array([0.3, *[0.7 / 9] * 9])
    found = RandomizedResponse(choices=10, asked=2.0).variance(frequencies, 1)
    assert found[0] == pytest.approx(0.753, abs=5e-4)
    assert found[0] - 0.3 * 8 / (math.exp(2) - 1) == pytest.approx(0.377, abs=5e-4)


def test_many_answers_follow_the_law_and_their_estimate_its_variance() -> None:
    """Chi-squared per truth at 1e-6 each; 4.9 standard errors for each of 5 estimates, 1e-6 each."""
    response, n = RandomizedResponse(choices=5, asked=1.2), 100_000
    truths = np.repeat(np.arange(5), [50_000, 30_000, 15_000, 5_000, 0])
    answers = response.randomize(truths, source=RandomSource(SeededNoise(3)))
    for truth in range(4):
        counts = response.counts(answers[truths == truth])
        law = response.replaced / 5 + (1 - response.replaced) * (np.arange(5) == truth)
        assert chisquare(counts, law * counts.sum()).pvalue > 1e-6
    frequencies = np.bincount(truths, minlength=5) / n
    found = response.estimate(response.counts(answers), n)
    assert found.sum() == pytest.approx(1.0)
    assert (np.abs(found - frequencies) < 4.9 * np.sqrt(response.variance(frequencies, n))).all()


@pytest.mark.parametrize(("k", "size"), [(2, 1), (256, 1), (257, 2), (2**20, 3)])
def test_answers_are_sent_in_bytes_that_depend_on_the_choices_alone(k: int, size: int) -> None:
    response, answers = RandomizedResponse(choices=k, asked=1.0), np.array([0, k - 1, 1])
    data = response.to_bytes(answers)
    assert len(data) == 3 * size
    np.testing.assert_array_equal(response.from_bytes(data), answers)
    if k != 256:
        with pytest.raises(DataError, match=f"below {k}"):
            response.from_bytes(b"\xff" * size)
    if size > 1:
        with pytest.raises(DataError, match=f"{size} bytes each"):
            response.from_bytes(data[1:])


@pytest.mark.parametrize("bad", [[-1], [4], [1.0], [[1]]])
def test_categories_out_of_range_are_refused_without_showing_them(bad: list[object]) -> None:
    response = RandomizedResponse(choices=4, asked=1.0)
    with pytest.raises(ConfigurationError, match="categor"):
        response.randomize(np.array(bad), source=RandomSource())
    with pytest.raises(ConfigurationError, match="categor"):
        response.counts(np.array(bad))


def test_counts_and_numbers_that_do_not_fit_are_refused() -> None:
    response = RandomizedResponse(choices=4, asked=1.0)
    with pytest.raises(ConfigurationError, match=r"counts of 4 choices \(got 3\)"):
        response.estimate(np.zeros(3, dtype=np.int64), 1)
    with pytest.raises(ConfigurationError, match="n=0"):
        response.estimate(np.zeros(4, dtype=np.int64), 0)
    with pytest.raises(ConfigurationError, match=r"frequencies of 4 choices \(got 5\)"):
        response.variance(np.zeros(5), 1)
