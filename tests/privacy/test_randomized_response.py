from __future__ import annotations

import math
import random
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from odp.errors import ConfigurationError
from odp.privacy.mechanisms.randomized_response import RandomizedResponse

EPSILONS = st.floats(min_value=1e-6, max_value=16.0)
CHOICES = st.integers(min_value=2, max_value=2**20)


@given(CHOICES, EPSILONS)
def test_the_true_epsilon_is_that_of_the_integer_coin_and_never_above_the_asked_one(k: int, asked: float) -> None:
    response = RandomizedResponse(choices=k, asked=asked)
    with mpmath.workprec(400):
        exact = mpmath.log(mpmath.mpf(response.ratio.numerator) / response.ratio.denominator)
        assert exact <= response.epsilon <= asked
        # Nothing is given away either: the coin is that of the asked epsilon to 2^-32.
        assert asked - exact < 2**-32


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
    ("choices", "asked"), [(1, 1.0), (2**20 + 1, 1.0), (4, 0.0), (4, 1e-9), (4, 17.0), (4, math.inf)]
)
def test_questions_that_make_no_sense_are_refused(choices: int, asked: float) -> None:
    with pytest.raises(ConfigurationError):
        RandomizedResponse(choices=choices, asked=asked)
