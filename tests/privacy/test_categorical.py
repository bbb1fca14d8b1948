"""Unary encoding: its law by enumeration, estimates, sizes and refusals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from scipy.stats import chisquare

from odp.errors import ConfigurationError, DataError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.categorical import NO_DATA, UnaryEncoding
from odp.privacy.mechanisms.random_source import WHOLE, RandomSource
from odp.privacy.mechanisms.randomized_response import RandomizedResponse

Kind = Literal["optimized", "symmetric"]
KINDS: tuple[Kind, ...] = ("optimized", "symmetric")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "epsilon"), [(2, 0.5), (3, 1.0), (4, 4.0), (3, 20.0), (3, 1e-6), (3, 32.0)])
def test_epsilon_expectation_and_variance_are_exact_by_enumeration(kind: Kind, k: int, epsilon: float) -> None:
    mechanism = UnaryEncoding(choices=k, asked=epsilon, kind=kind)
    p, q = Fraction(mechanism.one, WHOLE), Fraction(mechanism.zero, WHOLE)
    reports = list(itertools.product((0, 1), repeat=k))
    law = [
        [
            math.prod((chance if bit else 1 - chance) for bit, chance in zip(report, chances, strict=True))
            for report in reports
        ]
        for truth in range(-1, k)
        for chances in [[p if place == truth else q for place in range(k)]]
    ]
    worst = max(max(column) / min(column) for column in zip(*law, strict=True))
    assert worst == mechanism.ratio
    exact = math.log1p(float(worst - 1))
    assert exact <= mechanism.epsilon <= epsilon
    assert exact == pytest.approx(epsilon, rel=1e-5 if epsilon > 16 else 1e-8)
    table = np.array(law, dtype=np.float64)
    single = np.stack([mechanism.estimate(np.array(report), 1) for report in reports])
    scale = float(np.abs(single).max())
    np.testing.assert_allclose(table @ single, np.vstack((np.zeros(k), np.eye(k))), atol=1e-13 * scale)
    truths = np.array([2, 5, 3, *[1] * (k - 2)])  # two without data
    n = int(truths.sum())
    means = table @ single
    expected = truths @ (table @ (single - 0) ** 2 - means**2) / n**2
    np.testing.assert_allclose(mechanism.variance(truths[1:] / n, n), expected, rtol=1e-6)


def test_the_variance_without_holders_is_the_published_one() -> None:
    """Wang et al. 2017, table 2: 4 e / (n (e - 1)^2) optimized, e^(1/2) / (n (e^(1/2) - 1)^2) symmetric."""
    odds = math.exp(1.5)
    none = np.zeros(100)
    optimized = UnaryEncoding(choices=100, asked=1.5).variance(none, 10)
    np.testing.assert_allclose(optimized, 4 * odds / (odds - 1) ** 2 / 10, rtol=1e-9)
    symmetric = UnaryEncoding(choices=100, asked=1.5, kind="symmetric").variance(none, 10)
    root = math.sqrt(odds)
    np.testing.assert_allclose(symmetric, root / (root - 1) ** 2 / 10, rtol=1e-9)
    k_rr = RandomizedResponse(choices=100, asked=1.5).variance(none, 10)
    assert (optimized < symmetric).all()
    assert (symmetric < k_rr).all()
    few = np.zeros(int(3 * odds + 2))
    assert (
        UnaryEncoding(choices=len(few), asked=1.5).variance(few, 1)[0]
        > 0.99 * (RandomizedResponse(choices=len(few), asked=1.5).variance(few, 1)[0])
    )


@pytest.mark.parametrize("kind", KINDS)
def test_reports_follow_the_law_and_estimates_their_variance(kind: Kind) -> None:
    """Chi-squared of all 8 reports per truth at 1e-6; 4.9 standard errors of each estimate, 1e-6 each."""
    mechanism, n = UnaryEncoding(choices=3, asked=1.0, kind=kind), 100_000
    truths = np.repeat(np.array([0, 1, 2, NO_DATA]), [50_000, 30_000, 0, 20_000])
    reports = mechanism.randomize(truths, source=RandomSource(SeededNoise(4)))
    assert reports.shape == (n, 1)
    p, q = mechanism.one / WHOLE, mechanism.zero / WHOLE
    for truth in (0, 1, NO_DATA):
        counts = np.bincount(reports[truths == truth, 0], minlength=8)
        chances = [p if place == truth else q for place in range(3)]
        law = [
            math.prod(chance if code >> place & 1 else 1 - chance for place, chance in enumerate(chances))
            for code in range(8)
        ]
        assert chisquare(counts, np.array(law) * counts.sum()).pvalue > 1e-6
    frequencies = np.array([0.5, 0.3, 0.0])
    found = mechanism.estimate(mechanism.counts(reports), n)
    assert (np.abs(found - frequencies) < 4.9 * np.sqrt(mechanism.variance(frequencies, n))).all()


def test_many_categories_are_counted_block_by_block_and_sent_in_one_bit_each() -> None:
    mechanism = UnaryEncoding(choices=5001, asked=32.0, kind="symmetric")
    truths = np.arange(500) * 10
    reports = mechanism.randomize(truths, source=RandomSource(SeededNoise(5)))
    assert reports.shape == (500, 626)
    bits = np.unpackbits(reports, axis=1, count=5001, bitorder="little")
    np.testing.assert_array_equal(mechanism.counts(reports), bits.sum(axis=0))
    # q is 1e-7 here: 2.5 million bits have 0.3 errors on average, more than 8 with probability 1e-10.
    expected = np.zeros((500, 5001), dtype=np.uint8)
    expected[np.arange(500), truths] = 1
    assert (bits != expected).sum() <= 8
    data = mechanism.to_bytes(reports[:2])
    assert len(data) == 2 * mechanism.report_bytes
    np.testing.assert_array_equal(mechanism.from_bytes(data), reports[:2])
    with pytest.raises(DataError, match="626 bytes each"):
        mechanism.from_bytes(data[1:])
    with pytest.raises(DataError, match="no bit beyond"):
        mechanism.from_bytes(b"\xff" * 626)
    with pytest.raises(ConfigurationError, match=r"uint8 \[n, 626\]"):
        mechanism.counts(reports[:, :5])


def test_bad_questions_and_categories_are_refused() -> None:
    source = RandomSource(SeededNoise(1))
    for truth in (-2, 3):
        with pytest.raises(ConfigurationError, match=r"from -1 to 2$"):
            UnaryEncoding(choices=3, asked=1.0).randomize(np.array([0, truth]), source=source)
    with pytest.raises(ConfigurationError, match="choices=1 "):
        UnaryEncoding(choices=1, asked=1.0)
    with pytest.raises(ConfigurationError, match=r"epsilon=33.0 to be within \[1e-06, 32.0\]"):
        UnaryEncoding(choices=3, asked=33.0)
    with pytest.raises(ConfigurationError, match="did you mean 'symmetric'"):
        UnaryEncoding(choices=3, asked=1.0, kind="symetric")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="n=0"):
        UnaryEncoding(choices=3, asked=1.0).estimate(np.zeros(3, dtype=np.int64), 0)
