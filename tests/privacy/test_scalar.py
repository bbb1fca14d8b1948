"""Numbers that are private by themselves: enumerated laws, published values, clipping and refusals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.scalar import GridScalar, ScalarDP, ScalarRelDP, best_levels, published_levels

MECHANISMS = [
    ScalarDP(asked=1.0, high=1.0, levels=2),
    ScalarDP(asked=2.0, low=-3.0, high=5.0, levels=3),
    ScalarDP(asked=8.0, high=10.0, levels=15),
    ScalarRelDP(asked=2.0, high=4.0, ratio=1.5, levels=5),
    GridScalar(asked=0.5, grid=(-1.0, 0.25, 0.5, 7.0)),
]


def law(mechanism: ScalarDP | ScalarRelDP | GridScalar, value: float) -> list[Fraction]:
    """The exact probability of every answer."""
    points = [Fraction(point) for point in mechanism.points.tolist()]
    noise = Fraction(mechanism.response.noise, 2**64)
    found = [noise / len(points)] * len(points)
    after = min(max(int(np.searchsorted(mechanism.points, value, side="right")), 1), len(points) - 1)
    up = (Fraction(value) - points[after - 1]) / (points[after] - points[after - 1])
    found[after] += (1 - noise) * up
    found[after - 1] += (1 - noise) * (1 - up)
    return found


def inputs(mechanism: ScalarDP | ScalarRelDP | GridScalar) -> list[float]:
    low, high = mechanism.points[0], mechanism.points[-1]
    return [*mechanism.points.tolist(), *np.linspace(low, high, 23).tolist()]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_epsilon_expectation_and_variance_are_exact_by_enumeration(mechanism: ScalarDP) -> None:
    laws = [law(mechanism, value) for value in inputs(mechanism)]
    assert all(sum(one) == 1 for one in laws)
    worst = max(max(column) / min(column) for column in zip(*laws, strict=True))
    assert mechanism.asked - 1e-9 < math.log(worst) <= mechanism.epsilon <= mechanism.asked
    decoded = mechanism.decode(np.arange(len(mechanism.points)))
    table = np.array(laws, dtype=np.float64)
    means = table @ decoded
    np.testing.assert_allclose(means, inputs(mechanism), rtol=1e-10, atol=1e-10)
    variances = (table * (decoded[None, :] - np.array(inputs(mechanism))[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(mechanism.variance(np.array(inputs(mechanism))), variances, rtol=1e-10)
    low, high = mechanism.points[0], mechanism.points[-1]
    scanned = mechanism.variance(np.linspace(low, high, 100_001)).max()
    assert scanned <= mechanism.largest_variance * (1 + 1e-12)
    assert mechanism.largest_variance == pytest.approx(scanned, rel=1e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_many_answers_have_the_stated_mean_and_variance(mechanism: ScalarDP) -> None:
    """Mean within 4.9 standard errors and variance within 4.9 of its own: false alarms 1e-6 each."""
    n, value = 50_000, float(mechanism.points[0] * 0.3 + mechanism.points[-1] * 0.7)
    answers = mechanism.randomize(np.full(n, value), source=RandomSource(SeededNoise(9)))
    decoded = mechanism.decode(answers)
    variance = mechanism.variance(np.array([value]))[0]
    assert abs(decoded.mean() - value) < 4.9 * math.sqrt(variance / n)
    squares = (decoded - value) ** 2
    assert abs(squares.mean() - variance) < 4.9 * squares.std() / math.sqrt(n)


@pytest.mark.parametrize(
    ("epsilon", "levels", "published"),
    [
        (1.0, 2, 1.2355),
        (1.0, 1, 1.1707),
        (2.0, 2, 0.24998),
        (4.0, 4, 0.044173),
        (8.0, 15, 0.0028024),
        (10.0, 29, 0.00073703),
    ],
)
def test_the_largest_variance_is_the_one_of_the_table(epsilon: float, levels: int, published: float) -> None:
    found = ScalarDP(asked=epsilon, high=1.0, levels=levels)
    assert found.largest_variance == pytest.approx(published, rel=5e-5)
    assert found.largest_variance * (1 - 1e-9) < 2 / epsilon**2  # Laplace
    scaled = ScalarDP(asked=epsilon, low=-2.0, high=5.0, levels=levels)
    assert scaled.largest_variance == pytest.approx(49 * found.largest_variance, rel=1e-9)
    # Lemma 4.3, with the odds of the coin: an upper bound at every value.
    odds, values = math.exp(epsilon), np.linspace(0, 1, 101)
    rest = 1 / (4 * levels**2)
    bound = (levels + 1) / (odds - 1) * (
        values**2 + rest + (2 * levels + 1) * (odds + levels) / (6 * levels * (odds - 1))
    ) + rest  # fmt: skip
    assert (found.variance(values) <= bound * (1 + 1e-9)).all()


def test_the_number_of_levels_is_published_or_the_best_one() -> None:
    assert [published_levels(epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0, 10.0)] == [2, 2, 4, 15, 29]
    for epsilon in (0.01, 1.0, 3.0, 5.0, 8.0, 10.0):
        worst = [ScalarDP(asked=epsilon, high=1.0, levels=k).largest_variance for k in range(1, 70)]
        assert best_levels(epsilon) == 1 + int(np.argmin(worst))
        assert ScalarDP(asked=epsilon, high=7.0).steps == best_levels(epsilon)


def test_relative_grids_have_a_smaller_relative_error_for_small_values() -> None:
    relative = ScalarRelDP(asked=10.0, high=1.0, ratio=1.5, levels=20)
    assert relative.points[0] == 0.0
    np.testing.assert_allclose(relative.points[2:] / relative.points[1:-1], 1.5)
    value = np.array([1.5**-15])
    even = ScalarDP(asked=10.0, high=1.0, levels=20)
    assert relative.variance(value)[0] < 0.5 * even.variance(value)[0]


def test_values_outside_the_range_are_refused_or_clipped_as_declared() -> None:
    source = RandomSource(SeededNoise(1))
    for value in (-0.1, 1.1, math.inf, -math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="declare clip=True") as refusal:
            ScalarDP(asked=4.0, high=1.0).randomize(np.array([0.5, value]), source=source)
        assert str(value) not in str(refusal.value)
    clipping = ScalarDP(asked=32.0, high=1.0, levels=1, clip=True)  # the answer is the truth, but for 1e-14
    given = np.array([-0.1, 1.1, math.inf, -math.inf, math.nan])
    assert clipping.randomize(given, source=source).tolist() == [0, 1, 1, 0, 0]
    assert clipping.variance(given).tolist() == clipping.variance(np.array([0.0, 1.0, 1.0, 0.0, 0.0])).tolist()
    with pytest.raises(ConfigurationError, match="one axis"):
        clipping.randomize(np.zeros((2, 2)), source=source)


def test_answers_are_sent_in_bytes_that_depend_on_the_levels_alone() -> None:
    mechanism = ScalarDP(asked=10.0, high=1.0, levels=300)
    answers = mechanism.randomize(np.linspace(0, 1, 50), source=RandomSource(SeededNoise(2)))
    data = mechanism.to_bytes(answers)
    assert len(data) == 100
    np.testing.assert_array_equal(mechanism.from_bytes(data), answers)
    with pytest.raises(DataError, match="below 301"):
        mechanism.from_bytes(b"\xff\xff")
    with pytest.raises(ConfigurationError, match="from 0 to 300"):
        mechanism.decode(np.array([301]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScalarDP(asked=32.1, high=1.0), r"epsilon=32.1 to be within \[1e-06, 32.0\]"),
        (lambda: ScalarDP(asked=0.0, high=1.0), "epsilon=0.0"),
        (lambda: ScalarDP(asked=math.nan, high=1.0), "epsilon=nan"),
        (lambda: ScalarDP(asked=1.0, high=0.0), "low=0.0 to be below high=0.0"),
        (lambda: ScalarDP(asked=1.0, high=math.inf), "range_high=inf"),
        (lambda: ScalarDP(asked=1.0, high=1.0, levels=0), "levels=0"),
        (lambda: ScalarRelDP(asked=1.0, high=1.0, ratio=1.0, levels=3), "ratio=1.0 to be above 1"),
        (lambda: ScalarRelDP(asked=1.0, high=1.0, ratio=2.0, levels=600), "fewer levels"),
        (lambda: GridScalar(asked=1.0, grid=(0.0,)), "levels=0"),
        (lambda: GridScalar(asked=1.0, grid=(0.0, 2.0, 2.0)), r"grid\[1\]=2.0 to be below"),
        (lambda: GridScalar(asked=1.0, grid=(0.0, math.nan)), r"grid\[1\]=nan"),
    ],
)
def test_mechanisms_that_make_no_sense_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator]
