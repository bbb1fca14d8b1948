"""Accounting against golden values, high-precision arithmetic and the dp-accounting library."""

from __future__ import annotations

import math
import subprocess
import sys

import dp_accounting
import pytest
from hypothesis import given, settings, strategies as st
from mpmath.ctx_mp import MPContext

from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.accounting import (
    _log_delta,
    check_delta,
    default_delta,
    epsilon,
    epsilon_of_mu,
    epsilon_pld,
    epsilon_rdp,
    epsilon_replace_one,
    most_users,
    mu,
    mu_for,
    noise_multiplier_for,
)
from odp.privacy.events import GaussianRelease


def gaussians(*stds: float, sensitivity: float = 1.0, coordinates: int = 1) -> list[GaussianRelease]:
    return [GaussianRelease("x", sensitivity, std, coordinates) for std in stds]


def dpam_events(
    *, beta: float, kept: float, count_std: float, steps: int, s: float, implicit: bool
) -> list[GaussianRelease]:
    step = [GaussianRelease("gram", math.sqrt(beta), s, 1), GaussianRelease("right", math.sqrt(beta), s, 1)]
    shared = [GaussianRelease("shared", 1.0, s, 1)] if implicit else []
    return [GaussianRelease("counts", math.sqrt(kept), count_std, 1), *(step + shared) * steps]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (gaussians(*[10.0] * 100), 4.377178),
        (gaussians(1.0), 4.377178),
        (gaussians(*[10.0] * 10), 1.199370),
        (gaussians(*[10.0] * 20), 1.760057),
        (gaussians(*[5.0] * 5, *[10.0] * 5), 1.993091),
        (gaussians(*[30.0] * 4), 0.219028),
        (dpam_events(beta=100, kept=100, count_std=200, steps=2, s=80, implicit=False), 0.946485),
        (dpam_events(beta=100, kept=100, count_std=40, steps=4, s=30, implicit=True), 4.264288),
    ],
)
def test_epsilon_of_compositions_at_delta_1e_5(events, expected):
    assert epsilon(events, delta=1e-5) == pytest.approx(expected, abs=6e-7)


def test_mu_of_the_two_dpam_plans():
    assert mu(dpam_events(beta=100, kept=100, count_std=200, steps=2, s=80, implicit=False)) == pytest.approx(
        0.254951, abs=5e-7
    )
    assert mu(dpam_events(beta=100, kept=100, count_std=40, steps=4, s=30, implicit=True)) == pytest.approx(
        0.977667, abs=5e-7
    )


@pytest.mark.parametrize(
    ("budget", "delta", "expected"),
    [
        (0.1, 1e-5, 30.749566), (0.5, 1e-5, 7.031827), (1, 1e-5, 3.730632), (1, 1e-6, 4.224679),
        (2, 1e-6, 2.230476), (4, 1e-6, 1.193519), (8, 1e-5, 0.600229), (8, 1e-8, 0.748394),
    ],
)  # fmt: skip
def test_noise_for_one_release_of_sensitivity_one(budget, delta, expected):
    assert noise_multiplier_for(epsilon=budget, delta=delta) == pytest.approx(expected, abs=6e-7)
    assert epsilon(gaussians(expected), delta=delta) == pytest.approx(budget, rel=1e-6)


@pytest.mark.parametrize(
    ("delta", "row"),
    [
        (1e-5, (0.14221, 0.26805, 0.50155, 0.92493, 1.12124, 1.66603, 2.00045, 3.44778)),
        (1e-6, (0.12411, 0.23670, 0.44833, 0.83786, 1.02036, 1.53155, 1.84813, 3.23536)),
        (1e-4, (0.16967, 0.31390, 0.57658, 1.04306, 1.25638, 1.84137, 2.19652, 3.71131)),
    ],
)
def test_mu_for_a_budget(delta, row):
    for budget, expected in zip((0.5, 1, 2, 4, 5, 8, 10, 20), row, strict=True):
        assert mu_for(epsilon=budget, delta=delta) == pytest.approx(expected, abs=5.1e-6)


@pytest.mark.parametrize(
    ("beta", "steps", "row"),
    [(100, 2, (76.55, 40.91, 18.30, 10.26, 5.95)), (50, 3, (66.30, 35.43, 15.85, 8.88, 5.15))],
)
def test_calibration_of_dpam_with_five_per_cent_for_counts(beta, steps, row):
    for budget, expected in zip((1, 2, 5, 10, 20), row, strict=True):
        s = math.sqrt(2 * steps * beta / 0.95) / mu_for(epsilon=budget, delta=1e-5)
        assert s == pytest.approx(expected, abs=0.0051)


HIGH = MPContext()
HIGH.prec = 400


def exact_delta(total: float, eps: float):
    m, e = HIGH.mpf(total), HIGH.mpf(eps)
    cdf = lambda x: HIGH.erfc(-x / HIGH.sqrt(2)) / 2  # noqa: E731
    return cdf(m / 2 - e / m) - HIGH.exp(e) * cdf(-m / 2 - e / m)


@pytest.mark.parametrize("total", [1e-9, 1e-4, 0.003, 0.1, 1.0, 4.0, 11.0, 50.0, 1e3])
@pytest.mark.parametrize("delta", [0.4, 1e-3, 1e-5, 1e-12, 1e-60])
def test_epsilon_is_never_too_small_and_tight_in_400_bit_arithmetic(total, delta):
    found = epsilon_of_mu(total, delta=delta)
    assert exact_delta(total, found) <= delta
    if found > 0:
        assert exact_delta(total, max(0.0, found * (1 - 1e-8) - 1e-12)) > delta
        assert math.exp(_log_delta(found, total)) == pytest.approx(float(exact_delta(total, found)), rel=1e-4)


@given(budget=st.floats(0.01, 100.0), log_delta=st.floats(-30.0, -2.0), coordinates=st.integers(0, 10**9))
def test_noise_for_a_budget_fits_it_and_leaves_nothing_unused(budget, log_delta, coordinates):
    delta = math.exp(log_delta) + coordinates * 2.0**-47
    total = mu_for(epsilon=budget, delta=delta, coordinates=coordinates)
    spent = epsilon_of_mu(total, delta=delta, coordinates=coordinates)
    assert spent <= budget
    assert spent == pytest.approx(budget, rel=1e-6)


@given(st.lists(st.floats(0.5, 1e3), min_size=1, max_size=6), st.floats(1e-9, 1e-2))
def test_more_events_cost_more_and_their_order_nothing(stds, delta):
    events = gaussians(*stds)
    assert epsilon(events, delta=delta) == epsilon(events[::-1], delta=delta)
    assert epsilon(events, delta=delta) <= epsilon([*events, *gaussians(1.0)], delta=delta)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from([2.0, 3.7, 5.0, 10.0, 41.0]), min_size=1, max_size=8), st.sampled_from([1e-4, 1e-5, 1e-6])
)
def test_the_library_agrees_pld_never_below_and_rdp_never_below_pld(stds, delta):
    events = gaussians(*stds)
    closed, pld = epsilon(events, delta=delta), epsilon_pld(events, delta=delta)
    assert closed - 1e-6 <= pld <= closed + 2e-3
    assert pld <= epsilon_rdp(events, delta=delta) + 1e-6
    assert dp_accounting.get_epsilon_gaussian(1 / mu(events), delta) == pytest.approx(closed, abs=1e-8)


def test_rdp_column_of_the_golden_table():
    assert epsilon_rdp(gaussians(*[10.0] * 100), delta=1e-5) == pytest.approx(4.72851, abs=1e-5)
    assert epsilon_rdp(gaussians(*[10.0] * 10), delta=1e-5) == pytest.approx(1.30850, abs=1e-5)


def test_replacing_a_user_costs_what_twice_the_mu_costs():
    assert epsilon_replace_one(gaussians(1.0), delta=1e-6) == pytest.approx(11.00, abs=5e-3)
    assert epsilon_replace_one(gaussians(4.0), delta=1e-5) == pytest.approx(
        epsilon(gaussians(2.0), delta=1e-5), abs=1e-4
    )


def test_no_events_cost_nothing():
    assert mu([]) == 0.0
    assert epsilon([], delta=1e-5) == epsilon_pld([], delta=1e-5) == epsilon_rdp([], delta=1e-5) == 0.0


def test_sensitivity_and_noise_matter_by_their_ratio_only():
    assert mu(gaussians(3.0, sensitivity=6.0)) == mu(gaussians(1.0, sensitivity=2.0)) == 2.0


def test_the_delta_of_sampling_is_taken_off_delta_before_epsilon_is_solved():
    numbers = 2**30
    events = gaussians(2.0, coordinates=numbers)
    assert accounting.added_delta(events) == 2.0**-18
    assert epsilon(events, delta=1e-5) == epsilon_of_mu(0.5, delta=1e-5 - 2.0**-18) > epsilon_of_mu(0.5, delta=1e-5)


def test_more_noised_numbers_than_delta_can_pay_for_are_refused():
    events = gaussians(2.0, coordinates=2**44)
    for call in (epsilon, epsilon_pld, epsilon_rdp):
        with pytest.raises(PrivacyError, match="release fewer numbers"):
            call(events, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, float("nan"), float("inf"), True])
def test_delta_is_strictly_between_zero_and_one(delta):
    for call in (
        lambda: epsilon(gaussians(1.0), delta=delta),
        lambda: epsilon_pld(gaussians(1.0), delta=delta),
        lambda: mu_for(epsilon=1.0, delta=delta),
        lambda: check_delta(delta, 10),
    ):
        with pytest.raises(ConfigurationError, match="delta="):
            call()


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_is_positive_and_finite(budget):
    with pytest.raises(ConfigurationError, match="epsilon="):
        mu_for(epsilon=budget, delta=1e-5)


@pytest.mark.parametrize(
    ("n_users", "expected"),
    [(1, 1e-5), (10_000, 1e-5), (10_001, 1e-6), (69_878, 1e-6), (100_000, 1e-6), (100_001, 1e-7), (10**9, 1e-10)],
)
def test_default_delta_is_the_largest_power_of_ten_below_a_tenth_over_the_users(n_users, expected):
    assert default_delta(n_users) == expected
    check_delta(expected, n_users)


@pytest.mark.parametrize("delta", [0.5, 1 / 3, 1e-5, 1e-6, 3e-7, 1 / 99_999, 1 / 49, 2.0**-20, 1e-15])
def test_the_most_users_of_a_delta_are_the_last_that_it_is_accepted_for(delta):
    most = most_users(delta)
    check_delta(delta, most)
    if most < 10**15:
        with pytest.raises(PrivacyError, match="too large"):
            check_delta(delta, most + 1)
    assert most_users(1e-5) == 99_999


def test_a_delta_that_allows_publishing_a_user_is_refused():
    check_delta(1e-5, 99_999)
    with pytest.raises(PrivacyError, match="default for this population: 1e-06"):
        check_delta(1e-5, 100_000)
    with pytest.raises(ConfigurationError, match="n_users=0"):
        check_delta(1e-5, 0)


def test_importing_the_package_loads_no_numerical_library_beyond_numpy():
    heavy = "{'scipy', 'dp_accounting', 'mpmath', 'matplotlib'}"
    code = f"import sys, odp.privacy; found = {heavy} & set(sys.modules); sys.exit(str(found) if found else 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
