"""Certificates against reconstruction: golden values, every guess by enumeration, and what gets no certificate."""

from __future__ import annotations

import itertools
import json
import math

import mpmath
import numpy as np
import pytest

from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.events import DistributedRelease, GaussianRelease, LocalReport, ShuffledReports
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget
from odp.privacy.local_charge import LocalCharge
from odp.privacy.mechanisms import spherical_cap
from odp.privacy.reconstruction import dictionary_breach, lifetime_epsilon, projection_breach
from odp.privacy.rendering import render_html, render_text
from odp.privacy.report import privacy_report


@pytest.mark.parametrize(
    ("dimension", "correlation", "epsilon", "alpha"),
    [(100, 0.5, 4, 2.778e-6), (100, 0.7, 16, 1.683e-9), (1000, 0.3, 16, 1.287e-15)],
)
def test_golden_values_of_projections(dimension, correlation, epsilon, alpha):
    found = projection_breach(epsilon, dimension, correlation=correlation)
    assert found.probability == pytest.approx(alpha, rel=5e-4)
    simplified = math.exp(epsilon + 0.5 * (dimension - 1) * math.log1p(-(correlation**2)))
    assert 10 < simplified / found.probability < 50


@pytest.mark.parametrize(
    ("dimension", "height"),
    [
        *itertools.product(
            [2, 3, 4, 10, 50, 101, 102, 103, 1000, 7850], [1e-12, 1e-4, 0.00527, 0.03, 0.0866, 0.3, 0.5, 0.9, 0.99999]
        ),
        *itertools.product([10**6], [1e-12, 1e-4, 0.00527, 0.03]),  # the reference does not converge beyond
    ],
)
def test_caps_agree_with_fifty_digits(dimension, height):
    with mpmath.workdps(50):
        a, x = mpmath.mpf(dimension - 1) / 2, 1 - mpmath.mpf(height) ** 2
        whole = mpmath.sqrt(1 - x) * x**a / (a * mpmath.beta(a, 0.5)) * mpmath.hyp2f1(1, a + 0.5, a + 1, x)
        exact = float(mpmath.log(whole / 2))
    assert spherical_cap.log_probability(dimension, height) == pytest.approx(exact, rel=1e-12, abs=1e-10)


def test_caps_at_both_ends_and_bad_ones():
    assert spherical_cap.log_probability(7, 0.0) == math.log(0.5)
    assert spherical_cap.log_probability(7, 1.0) == -math.inf
    assert -1e9 < spherical_cap.log_probability(10**9, 0.5) < -1e8
    for dimension, height in ((1, 0.5), (2.5, 0.5), (3, -0.1), (3, 1.1), (3, math.nan)):
        with pytest.raises(ConfigurationError, match=r"Expected (dimension|height)="):
            spherical_cap.log_probability(dimension, height)


def test_a_cap_has_the_frequency_of_random_directions():
    """4.9 standard errors: fails once in a million seeds."""
    drawn = np.random.default_rng(5).standard_normal((200_000, 6))
    share = float(np.mean(drawn[:, 0] >= 0.4 * np.linalg.norm(drawn, axis=1)))
    expected = math.exp(spherical_cap.log_probability(6, 0.4))
    assert abs(share - expected) < 4.9 * math.sqrt(expected * (1 - expected) / 200_000)


def test_tolerance_and_correlation_are_the_same_statement():
    by_cosine = projection_breach(4.0, 100, correlation=0.5)
    assert projection_breach(4.0, 100, tolerance=1.0) == by_cosine
    assert projection_breach(4.0, 100, tolerance=math.sqrt(2.0)).prior_probability == pytest.approx(0.5)
    assert "distance of at most 1)" in by_cosine.tolerance


def test_an_informed_prior_costs_its_excess():
    informed = projection_breach(4.0, 100, correlation=0.5, excess=2.0)
    assert informed.probability == pytest.approx(projection_breach(6.0, 100, correlation=0.5).probability)
    assert informed.prior_probability == pytest.approx(math.exp(2) * 5.0872594e-08)
    assert "e^2 times uniform" in informed.prior


def test_a_certificate_that_says_nothing_says_so():
    found = projection_breach(100.0, 100, correlation=0.5)
    assert found.probability == 1.0
    assert found.log_probability == 0.0
    assert "not bounded" in found.in_words


def test_probabilities_below_every_float_keep_their_logarithm():
    found = projection_breach(10.0, 10**5, correlation=0.5)
    assert found.probability == 0.0
    assert found.log_probability < -10_000
    assert json.loads(json.dumps(found.to_json()))["log_probability"] == found.log_probability
    assert projection_breach(1.0, 5, correlation=1.0).to_json()["log_probability"] is None


def by_enumeration(probabilities: list[float], precision: float, recall: float) -> float:
    """Over every guess and every set: the largest probability of a breach."""
    size = len(probabilities)
    sets = list(itertools.product((False, True), repeat=size))
    masses = [math.prod(p if has else 1 - p for p, has in zip(probabilities, items, strict=True)) for items in sets]
    best = 0.0
    for guess in sets[1:]:
        total = 0.0
        for items, mass in zip(sets, masses, strict=True):
            hits = sum(one and other for one, other in zip(guess, items, strict=True))
            if hits and hits >= precision * sum(guess) - 1e-9 and hits >= recall * sum(items) - 1e-9:
                total += mass
        best = max(best, total)
    return best


@pytest.mark.parametrize(("precision", "recall"), [(1.0, 1.0), (0.5, 0.5), (0.6, 0.3), (0.1, 1.0), (1.0, 0.2)])
def test_the_best_guess_is_that_of_all_guesses(precision, recall):
    for probabilities in ([0.3], [0.9, 0.05, 0.5], [0.1, 0.2, 0.7, 0.2, 0.01, 0.4], [0.0, 1.0, 0.5, 0.5]):
        exact = by_enumeration(probabilities, precision, recall)
        found = dictionary_breach(0.0, probabilities, precision=precision, recall=recall)
        assert found.prior_probability == pytest.approx(exact, rel=1e-6)
        assert found.prior_probability >= min(1.0, exact * (1 - 1e-12))


def test_epsilon_multiplies_the_probability_of_the_best_guess():
    probabilities = [min(0.9, 3 / rank) for rank in range(1, 301)]
    before = dictionary_breach(0.0, probabilities, precision=0.8, recall=0.8)
    after = dictionary_breach(1.5, probabilities, precision=0.8, recall=0.8)
    assert after.log_probability == pytest.approx(before.log_probability + 1.5)
    assert 0.0 < before.probability < 0.05
    assert "dictionary of 300" in after.target


def test_an_impossible_breach_is_never_claimed_below_what_floats_can_hold():
    found = dictionary_breach(700.0, [0.0, 0.0], precision=0.5, recall=0.5)
    assert found.probability == 1.0


def test_two_participations_double_epsilon_and_shuffling_does_not_lower_it():
    once = LocalReport("direction", 2.5)
    assert lifetime_epsilon([once]) == 2.5
    assert lifetime_epsilon([once, once]) == 5.0
    assert lifetime_epsilon([once, ShuffledReports("words", 1.5, 10**6)]) == 4.0
    assert lifetime_epsilon([]) == 0.0


@pytest.mark.parametrize(
    "event",
    [
        GaussianRelease("counts", 1.0, 10.0, 5),
        DistributedRelease("sum", 1.0, 10.0, 5, 4, 0.1, 0.0),
    ],
)
def test_gaussian_noise_gets_no_certificate(event):
    with pytest.raises(PrivacyError, match="not a report with pure epsilon: Gaussian noise"):
        lifetime_epsilon([LocalReport("direction", 2.5), event])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: projection_breach(-1.0, 10, correlation=0.5), "epsilon=-1.0"),
        (lambda: projection_breach(1.0, 1, correlation=0.5), "dimension=1"),
        (lambda: projection_breach(1.0, 10, correlation=1.5), "correlation=1.5"),
        (lambda: projection_breach(1.0, 10, tolerance=1.5), "tolerance=1.5"),
        (lambda: projection_breach(1.0, 10), "exactly one of correlation and tolerance"),
        (lambda: projection_breach(1.0, 10, correlation=0.5, tolerance=1.0), "exactly one"),
        (lambda: projection_breach(1.0, 10, correlation=0.5, excess=-1.0), "excess=-1.0"),
        (lambda: dictionary_breach(1.0, [], precision=0.5, recall=0.5), "got shape"),
        (lambda: dictionary_breach(1.0, [0.1] * 4097, precision=0.5, recall=0.5), "merge rare items"),
        (lambda: dictionary_breach(1.0, [0.1, math.nan], precision=0.5, recall=0.5), "every probability"),
        (lambda: dictionary_breach(1.0, [1.1], precision=0.5, recall=0.5), "every probability"),
        (lambda: dictionary_breach(1.0, [0.1], precision=0.0, recall=0.5), "precision=0.0"),
        (lambda: dictionary_breach(1.0, [0.1], precision=0.5, recall=2.0), "recall=2.0"),
    ],
)
def test_bad_input_is_refused_by_name(wrong, match):
    with pytest.raises(ConfigurationError, match=match):
        wrong()


def test_the_report_prints_prior_target_tolerance_epsilon_and_bound():
    event = LocalReport("direction", 2.0)
    local = LocalCharge((("direction", 1.5), ("magnitude", 0.5)), 2, 100)
    found = privacy_report(
        Ledger("phones"), "aa" * 32, planned_rounds=[[event], [event]], n_users=1_000, task_budget=Budget(4.0, 1e-6),
        population_budget=Budget(4.0, 1e-6), minimum_cohort=10, local=local,
    )  # fmt: skip
    assert found["reconstruction"]["probability"] == pytest.approx(2.778e-6, rel=5e-4)
    assert found["reconstruction"]["epsilon"] == pytest.approx(4.0)
    assert json.loads(json.dumps(found)) == found
    for text in (render_text(found), render_html(found)):
        for part in (
            "uniform on the sphere",
            "100 dimensions",
            "cosine of at least 0.5",
            "epsilon 4 of all",
            "2.778e-06",
        ):
            assert part in text


def test_reports_about_no_direction_have_no_certificate():
    assert LocalCharge((("answer", 1.0),), 3).certificate is None
    assert LocalCharge((("direction", 1.0),), 3, 50).certificate.epsilon == pytest.approx(3.0)
    with pytest.raises(ConfigurationError, match="dimension=-1"):
        LocalCharge((("direction", 1.0),), 3, -1)
