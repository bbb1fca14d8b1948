"""PrivUnit2 and PrivUnit-infinity: their constants against published and 50-digit ones, and their laws by sampling.

Each sampling test says how often a right mechanism would fail it. Seeds are fixed.
"""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import beta, chi2

from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.privunit import LARGEST_EPSILON, PrivUnit
from odp.privacy.mechanisms.privunit_infinity import PrivUnitInfinity
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.scalar import ScalarDP
from odp.privacy.mechanisms.separated import SeparatedVector
from odp.privacy.mechanisms.spherical_cap import log_probability

# E |Z|^2 at the optimum, computed apart from this module, by dimension and for these epsilons.
EPSILONS = (1.0, 2.0, 4.0, 8.0, 32.0, 64.0)
SECOND_MOMENTS = {
    10: (60.7326, 15.8981, 4.67430, 1.84184, 1.0067),
    100: (630.348, 161.364, 43.8181, 13.7325, 2.52147, 1.48172),
    500: (3162.36, 808.033, 217.943, 66.8913, 10.4398, 4.98050),
    1000: (6327.38, 1616.37, 435.603, 133.347, 20.3765, 9.43709),
    100_000: (633001.0, 161668.0, 43532.3, 13291.7, 1988.70, 893.705),
}
INVERSE_M = {(100, 1.0): 25.2171, (100, 4.0): 6.59442, (784, 8.0): 10.2134, (7850, 8.0): 32.3027}


def source(seed: int = 1) -> RandomSource:
    return RandomSource(SeededNoise(seed))


def first_axis(count: int, dimension: int) -> np.ndarray:
    units = np.zeros((count, dimension))
    units[:, 0] = 1.0
    return units


@pytest.mark.parametrize(
    ("dimension", "epsilon", "expected"),
    [(d, e, value) for d, row in SECOND_MOMENTS.items() for e, value in zip(EPSILONS, row, strict=False)],
)
def test_the_error_is_the_published_one(dimension: int, epsilon: float, expected: float) -> None:
    mechanism = PrivUnit.calibrated(dimension, epsilon)
    assert mechanism.second_moment == pytest.approx(expected, rel=1e-4)
    assert epsilon - 1e-8 < mechanism.epsilon <= epsilon


def test_the_cap_of_the_optimum_is_the_published_one() -> None:
    mechanism = PrivUnit.calibrated(1000, 8.0)
    assert mechanism.gamma == pytest.approx(0.0865982, abs=2e-7)
    assert mechanism.p == pytest.approx(0.901397, abs=1e-6)
    assert math.exp(mechanism.log_q) == pytest.approx(0.00305730, rel=1e-5)


def test_the_cap_of_millions_of_dimensions_beats_the_published_split() -> None:
    for epsilon, published, ours in ((100.0, 32_054, 17_943), (50.0, 91_001, 38_628)):
        found = PrivUnit.calibrated(3_274_634, epsilon).second_moment
        assert found == pytest.approx(ours, rel=1e-4)
        assert found < published


@pytest.mark.parametrize("dimension", [2, 3, 10, 500, 100_000, 3_274_634, 10_000_000])
def test_the_probability_of_the_cap_is_that_of_50_digits(dimension: int) -> None:
    with mpmath.workdps(50):
        a = mpmath.mpf(dimension - 1) / 2
        for height in (0.01, 0.3, 1.0, 3.0, 10.0, 30.0, 36.5):
            gamma = height / math.sqrt(dimension)
            if gamma < 0.9999:
                x = 1 - mpmath.mpf(gamma) ** 2
                series = (
                    mpmath.log(mpmath.hyp2f1(a + 0.5, 1, a + 1, x)) - mpmath.log(a) - mpmath.log(mpmath.beta(a, 0.5))
                )
                expected = mpmath.log(0.5) + a * mpmath.log(x) + mpmath.log(1 - x) / 2 + series
                assert abs(log_probability(dimension, gamma) - expected) < 1e-9


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 10**7), st.floats(0.1, LARGEST_EPSILON))
def test_epsilon_is_at_most_the_one_asked_for_and_every_number_is_finite(dimension: int, epsilon: float) -> None:
    mechanism = PrivUnit.calibrated(dimension, epsilon)
    assert 0.0 < mechanism.epsilon <= epsilon
    assert math.isfinite(mechanism.second_moment)
    assert mechanism.scale > 1.0 - 1e-9
    coin = math.log(mechanism.p) - math.log1p(-mechanism.p)
    again = coin + math.log1p(-math.exp(mechanism.log_q)) - mechanism.log_q + mechanism.added_epsilon
    # 1 - p has fewer bits the nearer p is to 1.
    assert mechanism.epsilon == pytest.approx(again, abs=3e-9 + 2.0**-51 / (1 - mechanism.p))


@pytest.mark.parametrize("dimension", [2, 10, 500, 100_000])
def test_more_epsilon_never_means_more_error(dimension: int) -> None:
    moments = [PrivUnit.calibrated(dimension, epsilon).second_moment for epsilon in np.geomspace(0.1, 700, 40)]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(moments))


@pytest.mark.parametrize(("dimension", "epsilon"), [(2, 1.0), (2, 8.0), (10, 2.0), (10, 32.0), (500, 8.0)])
def test_answers_are_unbiased_of_one_norm_and_in_the_cap_as_often_as_stated(dimension: int, epsilon: float) -> None:
    """False alarms: 6e-5 for each coordinate (4 standard errors, 1,034 of them), 1e-4 for the cap. Fixed seed."""
    mechanism = PrivUnit.calibrated(dimension, epsilon)
    unit = np.random.default_rng(3).normal(size=dimension)
    unit /= np.sqrt(unit @ unit)
    count = 40_000 if dimension < 100 else 10_000
    answers = mechanism.randomize(np.tile(unit, (count, 1)), source=source())
    norms = np.sqrt(np.einsum("nd,nd->n", answers, answers)) / mechanism.scale
    assert np.abs(norms - 1.0).max() < 4e-5 * math.sqrt(dimension)
    errors = (answers.mean(axis=0) - unit) * math.sqrt(count) / answers.std(axis=0)
    assert np.abs(errors).max() < (4.0 if dimension < 100 else 5.0)
    # The grid moves some answers over the edge of the cap, where many of them are.
    inside = int((answers @ unit >= (mechanism.gamma - 3e-5) * mechanism.scale).sum())
    assert beta.ppf(5e-5, inside, count - inside + 1) < mechanism.p < beta.ppf(1 - 5e-5, inside + 1, count - inside)
    measured = np.square(answers - unit).sum(axis=1)
    deviation = max(float(measured.std()) / math.sqrt(count), 1e-4 * mechanism.variance)
    assert abs(float(measured.mean()) - mechanism.variance) < 4.5 * deviation


@pytest.mark.parametrize("dimension", [2, 10, 500])
def test_the_height_in_each_part_follows_the_uniform_law(dimension: int) -> None:
    """Chi-square of 20 equally probable cells of <V, u>, in the cap and outside; false alarm 1e-5 each."""
    mechanism = PrivUnit.calibrated(dimension, 3.0)
    heights = np.sort(mechanism.randomize(first_axis(30_000, dimension), source=source(5))[:, 0]) / mechanism.scale
    q = math.exp(mechanism.log_q)
    for part, share in (
        (heights[heights >= mechanism.gamma], (1 - q, 1.0)),
        (heights[heights < mechanism.gamma], (0.0, 1 - q)),
    ):
        edges = [_height_at(dimension, share[0] + (share[1] - share[0]) * k / 20) for k in range(21)]
        edges[0], edges[-1] = -1.1, 1.1
        found = np.histogram(part, bins=edges)[0]
        assert ((found - len(part) / 20) ** 2 / (len(part) / 20)).sum() < chi2.ppf(1 - 1e-5, 19)


def _height_at(dimension: int, share: float) -> float:
    return float(2 * beta.ppf(share, (dimension - 1) / 2, (dimension - 1) / 2) - 1)


@pytest.mark.parametrize(
    ("epsilon", "samples", "opposite"),
    [(1.0, 300_000, 300_000), (2.0, 50_000, 50_000), (4.0, 20_000, 100_000), (8.0, 20_000, 800_000)],
)
@pytest.mark.slow
def test_the_worst_event_has_the_stated_epsilon_and_no_more(epsilon: float, samples: int, opposite: int) -> None:
    """The cap of one input, or its signs, under it and under the opposite one, where it is rarer.

    Clopper-Pearson at 1e-4 for either side: false alarm 2e-4 at most.
    """
    for mechanism, ends in (
        (PrivUnit.calibrated(3, epsilon), np.eye(3)[0]),
        (PrivUnitInfinity.calibrated(3, epsilon), np.ones(3)),
    ):
        hits, others = _inside(mechanism, ends, ends, samples), _inside(mechanism, -ends, ends, opposite)
        bound = math.log(beta.ppf(1e-4, hits, samples - hits + 1) / beta.ppf(1 - 1e-4, others + 1, opposite - others))
        assert 0.95 * mechanism.epsilon < bound <= mechanism.epsilon


def _inside(mechanism: PrivUnit | PrivUnitInfinity, given: np.ndarray, ends: np.ndarray, samples: int) -> int:
    answers = mechanism.randomize(np.tile(given, (samples, 1)), source=source(7 if given[0] > 0 else 8))
    if isinstance(mechanism, PrivUnit):
        return int((answers @ ends >= mechanism.gamma * mechanism.scale).sum())
    # One sign vector: with the first input it is in the likelier part, with the other one it is not.
    return int((answers > 0).all(axis=1).sum())


def test_vectors_that_are_no_direction_are_answered_like_a_random_one() -> None:
    """|mean| of 20,000 answers to no direction: 5 standard errors, false alarm 6e-7 for each of 4 x 10 coordinates."""
    mechanism, count = PrivUnit.calibrated(10, 4.0), 20_000
    for wrong in (0.0, math.nan, math.inf, 1e200):
        answers = mechanism.randomize(np.full((count, 10), wrong), source=source(9))
        assert np.isfinite(answers).all()
        deviations = answers.mean(axis=0) * math.sqrt(count) / answers.std(axis=0)
        assert np.abs(deviations).max() < 5.0


def test_an_answer_travels_in_four_bytes_per_number() -> None:
    mechanism = PrivUnit.calibrated(300, 8.0)
    answer = mechanism.randomize(first_axis(1, 300), source=source())[0]
    data = mechanism.encode(answer)
    assert len(data) == 1200
    np.testing.assert_array_equal(mechanism.decode(data), answer)
    longer = (2 * np.frombuffer(data, dtype="<i4")).astype("<i4").tobytes()
    for hostile in (b"", data[:-1], data + b"\0", b"\xff" * 1200, bytes(1200), longer):
        with pytest.raises(DataError, match="answer"):
            mechanism.decode(hostile)


@pytest.mark.parametrize("epsilon", [0.05, 0.0, -1.0, 701.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", [PrivUnit, PrivUnitInfinity])
def test_an_epsilon_out_of_range_is_refused_with_the_range(kind: type[PrivUnit], epsilon: float) -> None:
    with pytest.raises(ConfigurationError, match=r"epsilon"):
        kind.calibrated(100, epsilon)


def test_dimensions_and_caps_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="dimension=1"):
        PrivUnit.calibrated(1, 1.0)
    with pytest.raises(ConfigurationError, match="dimension=10000001"):
        PrivUnit.calibrated(10_000_001, 1.0)
    with pytest.raises(ConfigurationError, match="p="):
        PrivUnit(10, 0.1, 1.0)
    with pytest.raises(ConfigurationError, match="gamma="):
        PrivUnit(10, 1.0, 0.9)
    with pytest.raises(ConfigurationError, match="dimension 10"):
        PrivUnit.calibrated(10, 1.0).randomize(np.ones((1, 9)), source=source())


# PrivUnit-infinity


@pytest.mark.parametrize(("place", "expected"), INVERSE_M.items())
def test_the_magnitude_on_the_cube_is_the_published_one(place: tuple[int, float], expected: float) -> None:
    mechanism = PrivUnitInfinity.calibrated(*place)
    assert mechanism.scale == pytest.approx(expected, rel=1e-5)
    assert place[1] - 1e-8 < mechanism.epsilon <= place[1]


@pytest.mark.parametrize("dimension", [1, 2, 5, 6])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_the_law_on_the_cube_by_enumeration(dimension: int, epsilon: float) -> None:
    """Every sign vector: probabilities, expectation and the largest ratio follow from the definition alone."""
    mechanism = PrivUnitInfinity.calibrated(dimension, epsilon)
    signs = np.array(list(itertools.product((-1, 1), repeat=dimension)))
    matches = (signs[:, None, :] == signs[None, :, :]).sum(axis=2)
    likely = matches >= mechanism.least
    sizes = likely.sum(axis=1)[0]
    p = mechanism.chance / 2**64
    law = np.where(likely, p / sizes, (1 - p) / (len(signs) - sizes))  # [input signs, answer]
    assert math.log((law[:, None, :] / law[None, :, :]).max()) == pytest.approx(mechanism.epsilon, abs=1e-8)
    np.testing.assert_allclose(law @ signs * mechanism.scale, signs, atol=1e-9)
    np.testing.assert_allclose(law.sum(axis=1), 1.0)


def test_answers_on_the_cube_are_unbiased() -> None:
    """4.5 standard errors for each of 12 coordinates: false alarm 8e-5 in all."""
    mechanism, count = PrivUnitInfinity.calibrated(12, 4.0), 40_000
    values = np.linspace(-1.0, 1.0, 12)
    answers = mechanism.randomize(np.tile(values, (count, 1)), source=source())
    deviation = np.sqrt(mechanism.variance(values) / count)
    assert (np.abs(answers.mean(axis=0) - values) < 4.5 * deviation).all()
    assert set(np.unique(answers)) == {mechanism.scale, -mechanism.scale}


def test_numbers_off_the_cube_are_cut_and_others_count_as_zero() -> None:
    mechanism, count = PrivUnitInfinity.calibrated(4, 6.0), 40_000
    answers = mechanism.randomize(np.tile([5.0, -math.inf, math.nan, 0.0], (count, 1)), source=source(2))
    # Infinity is no number, either: only 5 is cut to 1.
    deviation = 4.5 * mechanism.scale / math.sqrt(count)
    np.testing.assert_allclose(answers.mean(axis=0), [1.0, 0.0, 0.0, 0.0], atol=deviation)


def test_signs_travel_in_one_bit_each() -> None:
    mechanism = PrivUnitInfinity.calibrated(13, 2.0)
    answer = mechanism.randomize(np.zeros((1, 13)), source=source())[0]
    data = mechanism.encode(answer)
    assert len(data) == 2
    np.testing.assert_array_equal(mechanism.decode(data), answer)
    for hostile in (b"", data + b"\0", b"\xff\xff"):
        with pytest.raises(DataError, match="13 signs"):
            mechanism.decode(hostile)


@pytest.mark.parametrize("direction", [PrivUnit.calibrated(5, 4.0)])
def test_a_direction_and_a_length_make_an_unbiased_vector(direction: PrivUnit) -> None:
    """Their product, in 5 standard errors: false alarm 6e-7 for each of 5 coordinates, and for the mean square."""
    vector, count = np.array([0.3, -0.4, 0.0, 1.2, 0.0]), 40_000
    norm = math.sqrt(float(vector @ vector))
    mechanism = SeparatedVector(direction=direction, length=ScalarDP(asked=4.0, high=2.0, clip=True))
    assert mechanism.epsilon == pytest.approx(direction.epsilon + mechanism.length.epsilon)
    reports = mechanism.randomize(np.tile(vector, (count, 1)), source=source(3))
    found = reports.directions * mechanism.length.decode(reports.lengths)[:, None]
    assert (np.abs(found.mean(axis=0) - vector) < 5.0 * found.std(axis=0) / math.sqrt(count)).all()
    square = (norm**2 + float(mechanism.length.variance(np.array([norm]))[0])) * direction.second_moment
    measured = np.square(found).sum(axis=1)
    assert abs(float(measured.mean()) - square) < 5.0 * float(measured.std()) / math.sqrt(count)
