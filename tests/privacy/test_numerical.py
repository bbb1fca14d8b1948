"""What sampling noise costs: little delta for few numbers, little epsilon for many, and never less than is proved."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from mpmath.ctx_mp import MPContext

from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.events import DistributedRelease, GaussianRelease
from odp.privacy.mechanisms import ADDED_DELTA, rounded_gaussian
from odp.privacy.mechanisms.rounded_gaussian import CLOSENESS, TABLE_DELTA
from odp.privacy.numerical import left_of_gaussians, left_of_shares

LARGE = 25_000_000 * 100


@pytest.mark.parametrize("ratio", [256.0, 300.7, 511.9, 600.0, 1500.0])
def test_every_probability_within_a_cell_is_as_close_as_charged(ratio):
    """Against 200 bits, with what the 53-bit coin makes of an acceptance probability; cells out to 13 deviations."""
    context = MPContext()
    context.prec = 200
    size, scale = rounded_gaussian._cell_size(ratio), context.mpf(ratio) * context.sqrt(2)
    worst = context.mpf(0)
    for cell in range(0, int(13.2 * ratio / size), 53):
        steps = np.arange(size, dtype=np.int64)
        chances = rounded_gaussian._relative_probability(ratio, np.full(size, cell * size, dtype=np.int64), steps)
        accepted = [context.mpf(math.ceil(chance * 2.0**53)) for chance in chances]
        edges = [context.erfc(context.mpf(2 * (cell * size + step) - 1) / 2 / scale) for step in range(size + 1)]
        exact = [below - above for below, above in itertools.pairwise(edges)]
        of_accepted, of_exact = sum(accepted), sum(exact)
        for mine, theirs in zip(accepted, exact, strict=True):
            worst = max(worst, abs(context.log(mine / of_accepted * of_exact / theirs)))
    assert 0 < worst < CLOSENESS


def test_two_perturbed_laws_keep_the_bound_that_the_many_pay():
    """Neighbouring rounded Gaussians, each perturbed by the worst factors: their profile is within the moved one."""
    context = MPContext()
    context.prec = 200
    std, far = 8, context.mpf("1e-3")
    cut = [context.erfc(context.mpf(2 * number - 1) / 2 / std / context.sqrt(2)) / 2 for number in range(-120, 130)]
    law = [below - above for below, above in itertools.pairwise(cut)]
    first, second = law[4:], law[:-4]
    for epsilon in (0, 0.5, 1, 2):
        exact = sum(max(a - context.exp(epsilon) * b, 0) for a, b in zip(first, second, strict=True))
        moved = context.exp(epsilon + 2 * far)
        near = sum(
            max(context.exp(far) * a - moved * context.exp(-far) * b, 0) for a, b in zip(first, second, strict=True)
        )
        assert near <= context.exp(far) * exact * (1 + context.mpf(2) ** -150)


def test_few_numbers_cost_delta_alone():
    for numbers in (0, 1, 10**8):
        assert left_of_gaussians(1e-6, numbers) == (1e-6 - numbers * ADDED_DELTA, 0.0)


def test_many_numbers_cost_little_epsilon_and_at_most_half_of_delta():
    left = left_of_gaussians(1e-6, LARGE)
    assert left.delta == 0.5e-6
    assert 2 * LARGE * CLOSENESS <= left.epsilon < 1e-5
    assert left.delta * math.exp(LARGE * CLOSENESS) + LARGE * TABLE_DELTA < 1e-6
    event = GaussianRelease("update", 1.0, 2.0, LARGE)
    assert accounting.epsilon([event], delta=1e-6) == accounting.epsilon_of_mu(0.5, delta=0.5e-6) + left.epsilon


def test_epsilon_never_falls_when_numbers_are_added():
    edge = int(0.5e-6 / ADDED_DELTA)
    numbers = [0, 1, edge - 1, edge, edge + 1, edge + 2, 2 * edge, 10 * edge, 100 * edge, 400 * edge]
    found = [accounting.epsilon_of_mu(1.0, delta=1e-6, coordinates=number) for number in numbers]
    assert found == sorted(found)


def test_a_budget_for_many_numbers_is_kept_and_used():
    for numbers in (10**6, 2 * 10**8, LARGE, 10**11):
        most = accounting.mu_for(epsilon=2.0, delta=1e-6, coordinates=numbers)
        assert 1.9999 < accounting.epsilon_of_mu(most, delta=1e-6, coordinates=numbers) <= 2.0


def test_what_cannot_be_paid_is_refused():
    with pytest.raises(PrivacyError, match="release fewer numbers"):
        left_of_gaussians(1e-6, 2**40)
    with pytest.raises(PrivacyError, match="release fewer numbers"):
        accounting.mu_for(epsilon=1e-6, delta=1e-6, coordinates=LARGE)
    with pytest.raises(ConfigurationError, match="delta="):
        left_of_gaussians(0.0, 1)


def test_noise_in_shares_never_gets_the_bound_of_rounded_gaussians():
    with pytest.raises(PrivacyError, match="release fewer numbers"):
        left_of_shares(1e-6, LARGE)
    shares = DistributedRelease("sum", 1.0, 8.0, 1, sharers=4, step=0.25, graph_delta=0.0)
    with pytest.raises(PrivacyError, match="release fewer numbers"):
        accounting.epsilon([shares, GaussianRelease("update", 1.0, 2.0, LARGE)], delta=1e-6)
