"""Amplification by shuffling: golden values, brute force over every outcome, and what a bound may never do."""

from __future__ import annotations

import itertools
import math

import pytest

from odp.errors import ConfigurationError
from odp.privacy import shuffling
from odp.privacy.shuffling import (
    amplified_epsilon,
    amplified_epsilon_binary,
    amplified_epsilon_k_rr,
)


def delta_of_clones(epsilon: float, *, epsilon0: float, n: int) -> float:
    """The delta of the general bound at ``epsilon``, to 1e-18 of the mass of the number of clones."""
    return shuffling._Clones.of(epsilon0, n, 1e-18, math.exp(-epsilon0)).delta(epsilon)


@pytest.mark.parametrize(
    ("n", "epsilon0", "delta", "general", "binary"),
    [
        (1_000, 1, 1e-6, 0.182412, 0.148671),
        (10_000, 1, 1e-6, 0.053005, 0.043206),
        (10_000, 2, 1e-6, 0.155045, 0.114400),
        (100_000, 4, 1e-6, 0.169770, 0.118153),
        (1_000_000, 6, 1e-7, 0.170357, 0.118153),
        (1_000_000, 8, 1e-8, 0.556639, 0.381118),
    ],
)
def test_golden_values_of_the_general_and_the_binary_bound(n, epsilon0, delta, general, binary):
    assert amplified_epsilon(epsilon0, n, delta) == pytest.approx(general, abs=1e-6)
    assert amplified_epsilon_binary(epsilon0, n, delta) == pytest.approx(binary, abs=1e-6)


def test_the_general_bound_is_within_the_interval_published_for_one_setting():
    assert 0.16754 < amplified_epsilon(4, 100_000, 1e-6) < 0.17279


@pytest.mark.parametrize(
    ("n", "epsilon0", "choices", "epsilon", "without"),
    [
        (10_000, 2, 10, 0.079842, 0.079792),
        (10_000, 4, 10, 0.380726, 0.380455),
        (10_000, 4, 100, 0.233772, 0.233696),
    ],
)
def test_golden_values_of_the_privacy_blanket(n, epsilon0, choices, epsilon, without):
    """``without``: of the pair that leaves out how many reports are uniform, which is no bound, and hardly smaller."""
    found = amplified_epsilon_k_rr(epsilon0, n, 1e-6, choices)
    assert found == pytest.approx(epsilon, abs=1e-6)
    assert without < found < 1.001 * without


def binomial(n: int, k: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k) if 0 <= k <= n else 0.0


def pair_of_clones(n: int, epsilon0: float, clone: float) -> tuple[dict, dict]:
    """Both laws of the pair, by summing over every value of C, A and D."""
    truth = math.exp(epsilon0) / (1 + math.exp(epsilon0))
    first: dict[tuple[int, int], float] = {}
    second: dict[tuple[int, int], float] = {}
    for c in range(n):
        for a, d in itertools.product(range(c + 1), (0, 1)):
            mass = binomial(n - 1, c, clone) * binomial(c, a, 0.5) * (truth if d else 1 - truth)
            one, other = (a + d, c - a + 1 - d), (a + 1 - d, c - a + d)
            first[one] = first.get(one, 0.0) + mass
            second[other] = second.get(other, 0.0) + mass
    return first, second


def histograms_of_k_rr(n: int, epsilon0: float, choices: int, own: int, others: tuple[int, ...]) -> dict:
    """The exact law of the shuffled reports: of their histogram, for inputs ``own`` and ``others``."""
    whole = math.exp(epsilon0) + choices - 1
    law = {tuple([0] * choices): 1.0}
    for truth in (own, *others):
        following: dict[tuple[int, ...], float] = {}
        for counts, mass in law.items():
            for report in range(choices):
                more = tuple(count + (place == report) for place, count in enumerate(counts))
                share = math.exp(epsilon0) / whole if report == truth else 1 / whole
                following[more] = following.get(more, 0.0) + mass * share
        law = following
    assert math.fsum(law.values()) == pytest.approx(1.0, abs=1e-12)
    return law


def hockey_stick(first: dict, second: dict, epsilon: float) -> float:
    return math.fsum(max(mass - math.exp(epsilon) * second.get(at, 0.0), 0.0) for at, mass in first.items())


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 3.0])
def test_the_sum_is_that_over_every_outcome(n, epsilon0):
    first, second = pair_of_clones(n, epsilon0, math.exp(-epsilon0))
    assert math.fsum(first.values()) == pytest.approx(1.0, abs=1e-12)
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        epsilon = share * epsilon0
        exact = hockey_stick(first, second, epsilon)
        assert hockey_stick(second, first, epsilon) == pytest.approx(exact, abs=1e-14)
        delta_reached = delta_of_clones(epsilon, epsilon0=epsilon0, n=n)
        assert exact * (1 - 1e-13) <= delta_reached <= exact * (1 + 1e-9) + 1e-10
    assert delta_of_clones(epsilon0, epsilon0=epsilon0, n=n) == 0.0


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-3])
@pytest.mark.parametrize(("choices", "epsilon0"), [(2, 0.7), (2, 2.0), (3, 0.7), (3, 2.0), (4, 1.0)])
def test_no_bound_is_below_the_exact_epsilon_of_shuffled_answers(n, delta, choices, epsilon0):
    """Against the exact law of the histogram, for the inputs of the others that are worst of all."""
    bounds = [amplified_epsilon_k_rr(epsilon0, n, delta, choices), amplified_epsilon(epsilon0, n, delta)]
    if choices == 2:
        bounds.append(amplified_epsilon_binary(epsilon0, n, delta))
    for others in itertools.combinations_with_replacement(range(choices), n - 1):
        first = histograms_of_k_rr(n, epsilon0, choices, 0, others)
        second = histograms_of_k_rr(n, epsilon0, choices, 1, others)
        for bound in bounds:
            assert hockey_stick(first, second, bound) <= delta * (1 + 1e-9)


def test_the_blanket_of_two_choices_is_the_binary_bound():
    assert amplified_epsilon_k_rr(1.5, 500, 1e-5, 2) == amplified_epsilon_binary(1.5, 500, 1e-5)


def test_a_bound_holds_at_its_epsilon_and_is_tight_there():
    epsilon = amplified_epsilon(2.0, 5_000, 1e-6)
    assert delta_of_clones(epsilon, epsilon0=2.0, n=5_000) <= 1e-6
    assert delta_of_clones(epsilon * (1 - 1e-5), epsilon0=2.0, n=5_000) > 1e-6


def test_more_reports_and_more_delta_never_cost_more_and_epsilon0_never_less():
    sizes = [1, 2, 5, 12, 40, 200, 1_000, 20_000]
    deltas = [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.9]
    locals_ = [1e-3, 0.1, 0.5, 1.0, 2.0, 5.0, 9.0, 32.0]
    for bound in (amplified_epsilon, amplified_epsilon_binary, lambda e, n, d: amplified_epsilon_k_rr(e, n, d, 7)):
        by_size = [bound(1.0, n, 1e-6) for n in sizes]
        by_delta = [bound(1.0, 300, delta) for delta in deltas]
        by_local = [bound(local, 300, 1e-6) for local in locals_]
        assert by_size == sorted(by_size, reverse=True)
        assert by_delta == sorted(by_delta, reverse=True)
        assert by_local == sorted(by_local)
        assert all(0.0 <= found <= local for found, local in zip(by_local, locals_, strict=True))
        assert max(by_size) <= 1.0


def test_one_report_alone_is_not_amplified():
    assert amplified_epsilon(1.0, 1, 1e-9) == pytest.approx(1.0, abs=1e-8)


def test_a_large_delta_needs_no_epsilon():
    assert amplified_epsilon(0.1, 1_000, 0.5) == 0.0


def test_the_largest_numbers_are_finite():
    assert 0.0 < amplified_epsilon(32.0, 10**6, 1e-12) <= 32.0
    assert 0.0 < amplified_epsilon_k_rr(32.0, 10**6, 1e-12, 2**40) <= 32.0
    assert 0.0 < amplified_epsilon(8.0, 10**9, 1e-15) < 0.05


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: amplified_epsilon(0.0, 10, 1e-6),
        lambda: amplified_epsilon(33.0, 10, 1e-6),
        lambda: amplified_epsilon(float("nan"), 10, 1e-6),
        lambda: amplified_epsilon(1.0, 0, 1e-6),
        lambda: amplified_epsilon(1.0, 2.5, 1e-6),
        lambda: amplified_epsilon(1.0, 10, 0.0),
        lambda: amplified_epsilon_binary(1.0, 10, 1.0),
        lambda: amplified_epsilon_k_rr(1.0, 10, 1e-6, 1),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=r"Expected (epsilon0|n|delta|choices)="):
        wrong()
