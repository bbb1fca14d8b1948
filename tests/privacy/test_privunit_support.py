"""Every input of PrivUnit2 and PrivUnit-infinity has every answer: no epsilon is too large for the coins (R354).

Tails of a probability that no sample meets are reached by a source whose first words are all 0: as many as the tail
needs, as a fair source would give them with the probability of that tail.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2

from odp.evaluation.noise import SeededNoise
from odp.numerics.arrays import BoolArray, UInt64Array
from odp.privacy.mechanisms import privunit, privunit_infinity, spherical_heights
from odp.privacy.mechanisms.categorical import UnaryEncoding
from odp.privacy.mechanisms.privunit import LARGEST_EPSILON, PrivUnit, round_smoothly
from odp.privacy.mechanisms.privunit_infinity import CLOSENESS, PrivUnitInfinity
from odp.privacy.mechanisms.random_source import WHOLE, RandomSource
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON as CATEGORIES_EPSILON, RandomizedResponse

#: Epsilons at which one uniform of 52 bits cut 7e-5, 20 %, 99.5 % and all of the reports, and larger ones.
CUT = [(100, 32.0), (100, 40.0), (100, 46.0), (100, 100.0), (1000, 300.0), (100_000, LARGEST_EPSILON)]


class Forced(RandomSource):
    """A source whose coins fall as stated and whose next words are 0, then those of a seed."""

    def __init__(self, *, coins: tuple[bool, ...], zeros: int, seed: int = 1) -> None:
        super().__init__(SeededNoise(seed))
        self._coins, self._zeros = iter(coins), zeros

    def coins(self, chance: int | UInt64Array, count: int) -> BoolArray:
        forced = next(self._coins, None)
        return super().coins(chance, count) if forced is None else np.full(count, forced)

    def words(self, count: int) -> UInt64Array:
        if getattr(self, "_zeros", 0) and count == 1:
            self._zeros -= 1
            return np.zeros(1, dtype=np.uint64)
        return super().words(count)


def cosine(mechanism: PrivUnit, *, inside: bool, above: bool, zeros: int, seed: int = 1) -> float:
    """<V, u> of one answer before it is rounded."""
    return float(_heights(mechanism, Forced(coins=(inside, above), zeros=zeros, seed=seed), 1)[0])


def _heights(mechanism: PrivUnit, source: RandomSource, count: int) -> np.ndarray:
    return mechanism._parts_of_height(count, source)[0]


@pytest.mark.parametrize(("dimension", "epsilon"), CUT)
def test_r354_the_opposite_vector_can_make_every_answer(dimension: int, epsilon: float) -> None:
    """The cap of an input is where the opposite input's answers are at most -gamma: these have the tail that is due."""
    mechanism = PrivUnit.calibrated(dimension, epsilon)
    unit = np.zeros((1, dimension))
    unit[0, 0] = 1.0
    # As many words as the logarithm of the cap's probability needs, and one more for its inside.
    zeros = math.ceil(-mechanism.log_q / (64 * math.log(2))) + 1
    answer = mechanism.randomize(unit, source=Forced(coins=(False, False), zeros=zeros))[0]
    assert answer[0] / mechanism.scale < -mechanism.gamma
    np.testing.assert_array_equal(mechanism.decode(mechanism.encode(answer)), answer)


@pytest.mark.parametrize(("dimension", "epsilon"), CUT)
def test_r354_the_parts_of_the_sphere_are_reached_to_their_ends(dimension: int, epsilon: float) -> None:
    mechanism = PrivUnit.calibrated(dimension, epsilon)
    zeros = dimension // 4 + 20
    # From the inside to the very direction, and from the outside to the opposite one.
    assert cosine(mechanism, inside=True, above=True, zeros=zeros) > 1.0 - 2.0**-16
    assert cosine(mechanism, inside=False, above=False, zeros=zeros) < -1.0 + 2.0**-16
    # From the outside to the edge of the cap, although the layer below the edge is as improbable as the cap.
    edge = cosine(mechanism, inside=False, above=True, zeros=40)
    assert abs(edge - mechanism.gamma) < 1e-8
    assert edge <= mechanism.gamma + 1e-8


@pytest.mark.parametrize("gamma", [0.0, 1e-300, 0.3])
def test_the_heights_outside_of_a_cap_follow_their_law(gamma: float) -> None:
    """Chi-square of 20 cells of equal probability, both halves of the outside together: false alarm 1e-5."""
    mechanism = PrivUnit(3, gamma, 0.6)
    found = _heights(mechanism, Outside(SeededNoise(3)), 40_000)
    # In three dimensions a height is uniform.
    counts = np.histogram(found, bins=np.linspace(-1.0, gamma, 21))[0]
    assert counts.sum() == 40_000
    assert ((counts - 2000) ** 2 / 2000).sum() < chi2.ppf(1 - 1e-5, 19)


class Outside(RandomSource):
    """A source whose coin of the cap always falls outside."""

    def coins(self, chance: int | UInt64Array, count: int) -> BoolArray:
        return super().coins(0 if chance != WHOLE // 2 else chance, count)


@pytest.mark.parametrize("dimension", [2, 3, 10, 100, 1000, 100_000, 10_000_000])
def test_heights_are_those_of_50_digits(dimension: int) -> None:
    logs = np.array(
        [-0.6931472, -0.6935, -0.7, -1.0, -3.0, -10.0, -36.0, -100.0, -200.0, -300.0, -600.0, -689.0, -700.0, -5000.0]
    )
    height, rest = spherical_heights.heights(dimension, logs)
    with mpmath.workdps(50):
        half = mpmath.mpf(dimension - 1) / 2
        for log_tail, one, other in zip(logs, height, rest, strict=True):
            if other == 0.0:  # below every float: about half log(1 - h^2) = log_tail
                assert log_tail / half < -700
                continue
            # The smaller one has all its bits. The error of the height is that of the tail by its density.
            square = mpmath.mpf(one) ** 2 if one < other else 1 - mpmath.mpf(other) ** 2
            x = 1 - square if one < other else mpmath.mpf(other) ** 2
            exact = _log_of_50_digits(half, square, x, log_tail)
            density = mpmath.exp((half - 1) * mpmath.log(x) - exact) / mpmath.beta(half, 0.5)
            off = abs(exact - mpmath.mpf(float(log_tail))) / density
            assert off < spherical_heights.CLOSENESS
            assert off * one / other < spherical_heights.CLOSENESS
            assert abs(one**2 + other**2 - 1.0) < 1e-15


def _log_of_50_digits(half: mpmath.mpf, square: mpmath.mpf, x: mpmath.mpf, about: float) -> mpmath.mpf:
    """log P[U_1 >= h] with ``square`` = h^2 and ``x`` = 1 - h^2."""
    if about > -5.0:  # one half without what is below the height
        below = mpmath.sqrt(square) * mpmath.hyp2f1(0.5, 1 - half, 1.5, square) / mpmath.beta(half, 0.5)
        return mpmath.log(0.5 - below)
    if half < 1000:
        series = mpmath.hyp2f1(half + 0.5, 1, half + 1, x) / half / mpmath.beta(half, 0.5) / 2
        return half * mpmath.log(x) + mpmath.log(square) / 2 + mpmath.log(series)
    height = mpmath.sqrt(square)
    scale = x / (2 * half * height)  # in which the density falls to 1/e, and faster further on
    places = [height + scale * step for step in (0, 1, 3, 7, 15, 30, 60, 120)]
    tail = mpmath.quad(lambda t: ((1 - t * t) / x) ** (half - 1), [min(place, mpmath.mpf(1)) for place in places])
    return (half - 1) * mpmath.log(x) + mpmath.log(tail / mpmath.beta(half, 0.5))


def test_what_rounding_adds_to_epsilon_is_small_and_stated() -> None:
    for dimension, most in ((2, 2e-7), (1000, 3e-6), (10**7, 3e-4)):
        mechanism = PrivUnit.calibrated(dimension, 4.0)
        assert 0.0 < mechanism.added_epsilon < most
        assert mechanism.epsilon <= 4.0


def test_no_answer_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = privunit._add_noise

    def loud(numbers: np.ndarray, words: UInt64Array, source: RandomSource) -> None:
        noise = np.zeros(len(numbers))
        quiet(noise, words, source)
        numbers += 200.0 * noise

    monkeypatch.setattr(privunit, "_add_noise", loud)
    mechanism = PrivUnit.calibrated(50, 8.0)
    answers = mechanism.randomize(np.eye(50), source=RandomSource(SeededNoise(5)))
    norms = np.sqrt(np.square(answers).sum(axis=1)) / mechanism.scale
    assert norms.max() <= 1.0 + 2.0**-11
    assert np.isclose(norms.max(), 1.0 + 144.0 / 2**19, rtol=2e-5)
    for answer in answers:
        mechanism.encode(answer)


# Rounding


def test_rounding_is_unbiased_and_its_noise_falls_by_half_for_each_step() -> None:
    """4.5 standard errors, false alarm 7e-6; chi-square of 13 numbers, false alarm 1e-5."""
    count = 400_000
    numbers = np.full((1, count), 3.25)
    round_smoothly(numbers, source=RandomSource(SeededNoise(2)))
    assert abs(numbers.mean() - 3.25) < 4.5 * math.sqrt(4.25 / count)
    law = {n: 0.75 * 2.0 ** -abs(n - 3) / 3 + 0.25 * 2.0 ** -abs(n - 4) / 3 for n in range(-3, 10)}
    observed = np.array([(numbers == n).sum() for n in law])
    expected = count * np.array(list(law.values()))
    assert ((observed - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-5, 13)


def test_r354_an_error_of_the_number_is_a_factor_of_every_probability() -> None:
    """By the law itself, in exact fractions: any two numbers, any result, also far from both."""

    def law(number: Fraction, result: int) -> Fraction:
        below = math.floor(number)
        part = number - below
        return (1 - part) * Fraction(1, 3 * 2 ** abs(result - below)) + part * Fraction(
            1, 3 * 2 ** abs(result - below - 1)
        )

    places = [Fraction(n, 8) for n in range(-8, 9)] + [Fraction(1, 2) - Fraction(1, 10**12)]
    for one, other in itertools.product(places, repeat=2):
        for result in range(-40, 41):
            ratio = law(one, result) / law(other, result)
            assert math.log(ratio) <= abs(one - other) + 1e-15


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_noise_of_rounding_has_no_largest_number(zeros: int) -> None:
    words = np.array([0x0100, 0x0001], dtype=np.uint64)  # a byte of zeros for one of both coins, and heads at once
    noise = np.zeros(2)
    privunit._add_noise(noise, words, Forced(coins=(), zeros=0))
    upper, lower = noise
    assert upper >= 8
    assert lower <= -8
    assert 64 * zeros <= Forced(coins=(), zeros=zeros).tails(1)[0] < 64 * (zeros + 1)


# PrivUnit-infinity


@pytest.mark.parametrize(("dimension", "epsilon"), [(5, 8.0), (100, 64.0), (1000, LARGEST_EPSILON), (2**20, 8.0)])
@pytest.mark.slow
def test_r354_every_end_of_the_numbers_of_matches_is_an_answer_of_every_input(dimension: int, epsilon: float) -> None:
    mechanism = PrivUnitInfinity.calibrated(dimension, epsilon)
    zeros = dimension // 64 + 2
    high = mechanism.least - 1 > dimension // 2
    assert mechanism._matches(Forced(coins=(True, False), zeros=zeros), 1)[0] == dimension
    assert mechanism._matches(Forced(coins=(False, False), zeros=zeros), 1)[0] == 0
    # Just below the likelier part: as improbable as that one, or where most numbers are.
    if high:
        assert mechanism._matches(Forced(coins=(False, True), zeros=zeros), 1)[0] == mechanism.least - 1


def test_r354_the_opposite_signs_can_make_every_answer() -> None:
    """All but one sign match: of the opposite input, one does, and of the input the number just below the cap's."""
    mechanism = PrivUnitInfinity.calibrated(100, 64.0)
    unit = np.ones((1, 100))
    for coins, matches in (((False, False), 0), ((False, True), mechanism.least - 1)):
        answer = mechanism.randomize(unit, source=Forced(coins=coins, zeros=4))
        assert int((answer > 0).sum()) == matches


@pytest.mark.parametrize("dimension", [1, 2, 9, 64, 201])
@pytest.mark.parametrize("epsilon", [0.5, 8.0, 64.0])
def test_r354_each_number_of_matches_has_its_exact_probability(dimension: int, epsilon: float) -> None:
    """The steps of the table against fractions, to the factor that is in epsilon; and the largest ratio of answers."""
    mechanism = PrivUnitInfinity.calibrated(dimension, epsilon)
    p, least = Fraction(mechanism.chance, WHOLE), mechanism.least
    log_law = np.empty(dimension + 1)
    for part, numbers in ((True, range(least, dimension + 1)), (False, range(least))):
        whole = sum(math.comb(dimension, number) for number in numbers)
        for number in numbers:
            share = Fraction(math.comb(dimension, number), whole)
            assert abs(_log_share(mechanism, part, number) - _log(share)) < CLOSENESS
            coin = p if part else 1 - p
            # Of one answer with so many matches.
            log_law[number] = (
                _log_share(mechanism, part, number) + _log(coin) - _log(Fraction(math.comb(dimension, number)))
            )
    assert log_law.max() - log_law.min() <= mechanism.epsilon <= epsilon


@pytest.mark.parametrize("least", [524_289, 530_000, 600_000, 1_000_000])
def test_r354_in_a_million_dimensions_the_steps_are_exact_to_their_factor(least: int) -> None:
    dimension = 2**20
    mechanism = PrivUnitInfinity(dimension, least, 1.0 - 2.0**-40)
    with mpmath.workdps(40):
        whole = _log_sum(dimension, least)
        below = mpmath.log(mpmath.mpf(1) - mpmath.exp(whole))
        for number in sorted({least, least + 1, least + 700, (least + dimension) // 2, dimension - 1, dimension}):
            if number <= dimension:
                exact = _log_mass(dimension, number) - whole
                assert abs(_log_share(mechanism, True, number) - exact) < CLOSENESS
        for number in (0, 1, 1000, dimension // 4, dimension // 2 - 5000, dimension // 2):
            exact = _log_mass(dimension, number) - below
            assert abs(_log_share(mechanism, False, number) - exact) < CLOSENESS
        tails = privunit_infinity._log_tails(dimension)
        assert abs(tails.above[least] - whole) < CLOSENESS


# Categories


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, CATEGORIES_EPSILON])
def test_r354_coins_of_categories_are_pure_at_the_largest_epsilon(epsilon: float) -> None:
    """Their probabilities are whole multiples of 2^-64, none is 0, and the exact ratio is within e^epsilon."""
    with mpmath.workdps(60):
        most = mpmath.exp(mpmath.mpf(epsilon))
        for choices in (2, 3, 1000, 2**16):
            response = RandomizedResponse(choices=choices, asked=epsilon)
            assert 0 < response.noise <= WHOLE
            assert mpmath.mpf(response.ratio.numerator) / response.ratio.denominator <= most
            for kind in ("optimized", "symmetric"):
                unary = UnaryEncoding(choices=choices, asked=epsilon, kind=kind)
                assert 0 < unary.zero <= unary.one < WHOLE
                assert mpmath.mpf(unary.ratio.numerator) / unary.ratio.denominator <= most
    # Both ends of the coin's word are reached: the true answer and a uniform one.
    response = RandomizedResponse(choices=3, asked=epsilon)
    assert response.answer(2, random_bits=lambda bits: 0) == 0
    kept = response.answer(2, random_bits=lambda bits: 0 if bits < 64 else 2**64 - 1)
    assert kept == (2 if response.noise < WHOLE else 0)


def _log_share(mechanism: PrivUnitInfinity, likely: bool, number: int) -> float:
    """log of the probability of a number of matches in its part, from the edges between which it is drawn."""
    runs = privunit_infinity._runs(mechanism.dimension, mechanism.least)
    high = number > mechanism.dimension // 2
    run = runs.likely if likely else runs.high if high else runs.low
    place = run.direction * (number - run.first)
    log_tail = run.log_tails[place]
    share = log_tail + (np.log1p(-np.exp(run.log_tails[place - 1] - log_tail)) if place else 0.0)
    if likely:
        return float(share)
    return float(share + _log(Fraction(runs.high_chance if high else WHOLE - runs.high_chance, WHOLE)))


def _log(value: Fraction) -> float:
    with mpmath.workdps(60):
        return float(mpmath.log(mpmath.mpf(value.numerator)) - mpmath.log(mpmath.mpf(value.denominator)))


def _log_mass(dimension: int, number: int) -> mpmath.mpf:
    return mpmath.log(mpmath.binomial(dimension, number)) - dimension * mpmath.log(2)


def _log_sum(dimension: int, least: int) -> mpmath.mpf:
    """log P(L >= least), a sum from its largest term on."""
    term, total, number = mpmath.mpf(1), mpmath.mpf(0), least
    while number <= dimension and term > mpmath.mpf(10) ** -35:
        total += term
        term *= mpmath.mpf(dimension - number) / (number + 1)
        number += 1
    return _log_mass(dimension, least) + mpmath.log(total)
