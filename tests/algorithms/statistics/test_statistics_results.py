"""Intervals cover what was there as often as they say; the statistical tests state their false-alarm rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

import odp
from odp.algorithms.statistics.results import HistogramResult, MeanResult, results_of
from odp.algorithms.statistics.terms import Terms
from odp.errors import ConfigurationError

EDGES = np.array([0.0, 1.0, 2.0, 4.0, 8.0])


def task() -> odp.Statistics:
    return odp.Statistics(
        name="asked",
        queries={"seen": odp.Histogram(bins=3), "length": odp.Mean(low=0, high=10, max_records=4)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=20, goal=100),
    )


def _six_deviations(share: float, trials: int) -> float:
    """A binomial share lies this close to its probability but once in 5e8 times (normal bound)."""
    return 6.0 * math.sqrt(share * (1.0 - share) / trials)


def test_released_numbers_come_back_in_the_units_of_their_queries() -> None:
    definition = task().definition()
    terms = Terms.of(definition)
    released = np.zeros(terms.grid.size)
    released[terms.parts[0].place] = np.array([5.0, -1.0, 7.0]) * terms.parts[0].scale
    released[terms.parts[1].place] = np.array([-20.0, 40.0]) * terms.parts[1].scale
    found = results_of(definition, released, contributions=50, epsilon=1.0)
    np.testing.assert_allclose(found.histogram("seen").counts, [5.0, -1.0, 7.0])
    assert math.isclose(found.histogram("seen").std, terms.grid.noise_std * math.sqrt(3) * math.sqrt(2))
    assert math.isclose(found.mean("length").value, 5.0 - 0.5 * 5.0)
    assert (list(found), len(found), found.contributions) == (["seen", "length"], 2, 50)
    assert found.to_json()["queries"]["length"]["kind"] == "mean"  # type: ignore[index]  # a dictionary of plain values
    silent = results_of(definition, released, contributions=50, epsilon=math.inf, noisy=False)
    assert silent.mean("length").interval() == pytest.approx((2.5, 2.5))


def test_a_wrong_name_or_kind_or_size_is_one_line() -> None:
    found = results_of(task().definition(), np.zeros(5), contributions=1, epsilon=1.0)
    with pytest.raises(ConfigurationError, match="did you mean 'seen'"):
        found["sen"]
    with pytest.raises(ConfigurationError, match="it is a mean"):
        found.histogram("length")
    with pytest.raises(ConfigurationError, match="it is a histogram"):
        found.mean("seen")
    with pytest.raises(ConfigurationError, match="Expected 5 released numbers"):
        results_of(task().definition(), np.zeros(4), contributions=1, epsilon=1.0)
    for confidence in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="confidence"):
            found.histogram("seen").interval(confidence)


def test_histogram_intervals_cover_at_the_confidence_asked_for() -> None:
    """False alarm about 2e-9 (six standard deviations of 20,000 trials)."""
    noise = np.random.default_rng(1).standard_normal(20_000) * 3.0
    for confidence in (0.5, 0.95):
        low, high = HistogramResult(100.0 + noise, 3.0, None, "users").interval(confidence)
        covered = float(((low <= 100.0) & (high >= 100.0)).mean())
        assert abs(covered - confidence) < _six_deviations(confidence, len(noise))


@pytest.mark.parametrize("weight", [1000.0, 40.0, 8.0])
def test_mean_intervals_cover_at_least_at_the_confidence_asked_for(weight: float) -> None:
    """Also where the noise on the weight is as large as the weight; false alarm about 1e-9 (one-sided)."""
    generator, trials = np.random.default_rng(2), 4000
    total, covered = 0.4 * weight, 0
    for _ in range(trials):
        noise = generator.standard_normal(2) * 5.0
        low, high = MeanResult(total + noise[0], weight + noise[1], 5.0, 0.0, 10.0).interval(0.9)
        assert 0.0 <= low <= high <= 10.0
        covered += low <= 7.0 <= high
    assert covered / trials > 0.9 - _six_deviations(0.9, trials)
    if weight == 1000.0:
        assert covered / trials < 0.9 + _six_deviations(0.9, trials)


def test_a_mean_that_the_noise_hides_is_the_whole_range() -> None:
    for weight in (-3.0, 0.0, 1.0):
        found = MeanResult(0.5, weight, 5.0, 0.0, 10.0)
        assert found.interval() == (0.0, 10.0)
        assert 0.0 <= found.value <= 10.0


def test_a_quantile_without_noise_is_interpolated_within_its_bin() -> None:
    found = HistogramResult(np.array([10.0, 10.0, 20.0, 0.0]), 0.0, EDGES, "records")
    for q, value in ((0.25, 1.0), (0.5, 2.0), (0.125, 0.5), (0.75, 3.0)):
        assert found.quantile(q).value == pytest.approx(value)
    between = found.quantile(0.6)
    assert (between.low, between.high) == (2.0, 4.0)


def test_quantile_intervals_hold_the_quantile_at_least_as_often_as_they_say() -> None:
    """False alarm about 1e-9 (one-sided); the median of these counts is 3."""
    generator, trials = np.random.default_rng(3), 2000
    counts, covered, widths = np.array([100.0, 100.0, 400.0, 200.0]), 0, []
    for _ in range(trials):
        found = HistogramResult(counts + generator.standard_normal(4) * 40.0, 40.0, EDGES, "records").quantile(0.5, 0.9)
        assert found.low <= found.value <= found.high
        covered += found.low <= 3.0 <= found.high
        widths.append(found.high - found.low)
    assert covered / trials > 0.9 - _six_deviations(0.9, trials)
    assert np.median(widths) < EDGES[-1], "an interval that says something"


def test_a_quantile_of_nothing_spans_all_edges_and_of_items_there_is_none() -> None:
    empty = HistogramResult(np.zeros(4), 1.0, EDGES, "records").quantile(0.5)
    assert (empty.low, empty.value, empty.high) == (0.0, 4.0, 8.0)
    with pytest.raises(ConfigurationError, match="items have no order"):
        HistogramResult(np.zeros(4), 1.0, None, "users").quantile(0.5)
    for q in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="strictly between"):
            HistogramResult(np.zeros(4), 1.0, EDGES, "users").quantile(q)
