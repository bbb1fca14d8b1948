"""Noise in shares: the closeness of sums to the discrete Gaussian, and an epsilon that exact sums never exceed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError
from odp.privacy import accounting, concentrated, events
from odp.privacy.events import DistributedRelease, GaussianRelease, SampledRound, Sampling
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget
from odp.privacy.mechanisms import ADDED_DELTA
from odp.privacy.mechanisms.discrete_gaussian import LARGEST_STD
from odp.privacy.rendering import render_text
from odp.privacy.report import report_of_ledger

GRAPHS = 2.0**-38
SHARED = DistributedRelease(
    "hours", sensitivity=1.0, noise_std=5.0, coordinates=24, sharers=90, step=2.0**-9, graph_delta=GRAPHS
)
TASK = "ab" * 32


def law(std: float, top: int) -> np.ndarray:
    """The discrete Gaussian on -top..top."""
    numbers = np.arange(-top, top + 1, dtype=np.float64)
    weights = np.exp(-(numbers**2) / (2.0 * std * std))
    return weights / math.fsum(weights)


def law_of_sum(share_std: float, sharers: int) -> np.ndarray:
    """Of the sum of shares, by convolution: sums of positive numbers, so each is right to a part in 1e12."""
    share = law(share_std, math.ceil(14 * share_std))
    total = share
    for _ in range(sharers - 1):
        total = np.convolve(total, share)
    return total


def exact_delta(probabilities: np.ndarray, shift: int, epsilon: float) -> float:
    """Delta at ``epsilon`` of a release of one number that one user moves by ``shift``, from the definition."""
    there = np.concatenate([probabilities, np.zeros(shift)])
    away = np.concatenate([np.zeros(shift), probabilities])
    return max(
        math.fsum(np.maximum(one - math.exp(epsilon) * other, 0.0)) for one, other in ((there, away), (away, there))
    )


@pytest.mark.parametrize("share_std", [0.5, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("sharers", [2, 3, 5, 9])
def test_sums_of_shares_are_as_close_to_discrete_gaussians_as_stated(share_std: float, sharers: int) -> None:
    """Shares far below what is allowed, where the difference can be seen at all."""
    total = law_of_sum(share_std, sharers)
    top = len(total) // 2
    expected = law(math.sqrt(sharers) * share_std, top)
    near = np.abs(np.arange(-top, top + 1)) <= 8.0 * math.sqrt(sharers) * share_std
    found = np.abs(np.log(total[near] / expected[near])).max()
    stated = concentrated.closeness(share_std, sharers=sharers)
    assert found <= stated + 1e-11
    if share_std <= 1.0:
        assert (
            found > 1e-4 * stated
        )  # not vacuous: it is of this order, and a convolution that did nothing shows nothing


def test_a_sum_of_shares_is_no_discrete_gaussian_where_shares_are_narrow() -> None:
    """What ``SMALLEST_STD`` is for: here, probabilities differ by more than a fiftieth."""
    total, sharers = law_of_sum(0.5, 2), 2
    top = len(total) // 2
    assert abs(total[top] / law(0.5 * math.sqrt(sharers), top)[top] - 1.0) > 0.02


@given(
    st.integers(1, 6), st.floats(4.0, 12.0), st.floats(0.2, 3.0), st.sampled_from([1e-3, 1e-5, 1e-8])
)  # fmt: skip
@example(1, 4.0, 3.0, 1e-8)
@settings(deadline=None, max_examples=60)
def test_epsilon_is_never_below_that_of_the_exact_sum_and_not_far_above(
    sharers: int, share_std: float, noise_multiplier: float, delta: float
) -> None:
    probabilities = law_of_sum(share_std, sharers)
    std = math.sqrt(sharers) * share_std
    shift = max(1, math.floor(std / noise_multiplier))
    epsilon = concentrated.epsilon_of_shares(
        0.5 * (shift / std) ** 2, delta=delta, closeness=concentrated.closeness(share_std, sharers=sharers)
    )
    assert exact_delta(probabilities, shift, epsilon) <= delta
    # A claim of three quarters would not hold for this very sum.
    assert exact_delta(probabilities, shift, 0.75 * epsilon) > delta


@pytest.mark.parametrize("fewer", [2, 3])
def test_a_claim_for_more_sharers_than_there_are_is_caught_by_the_exact_sum(fewer: int) -> None:
    claimed, shift, delta = 8, 12, 1e-6
    rho = 0.5 * (shift / (4.0 * math.sqrt(claimed))) ** 2
    epsilon = concentrated.epsilon_of_rho(rho, delta=delta)
    assert exact_delta(law_of_sum(4.0, claimed), shift, epsilon) <= delta
    assert exact_delta(law_of_sum(4.0, claimed - fewer), shift, epsilon) > delta


@pytest.mark.parametrize("axes", [(3, 4), (5, 12), (1, 0), (2, 1)])
def test_a_user_that_moves_two_numbers_costs_no_more_than_its_length_says(axes: tuple[int, int]) -> None:
    """The discrete Gaussian is not round; the bound is by L2 length in any direction. Exact, in two dimensions."""
    one, delta = law_of_sum(4.0, 2), 1e-5
    std = 4.0 * math.sqrt(2)
    epsilon = concentrated.epsilon_of_rho(0.5 * (math.hypot(*axes) / std) ** 2, delta=delta)
    pad = (
        [np.concatenate([one, np.zeros(axis)]) for axis in axes],
        [np.concatenate([np.zeros(axis), one]) for axis in axes],
    )
    there, away = (np.outer(*pair) for pair in pad)
    assert np.maximum(there - math.exp(epsilon) * away, 0.0).sum() <= delta
    assert np.maximum(there - math.exp(0.7 * epsilon) * away, 0.0).sum() > delta


@pytest.mark.parametrize(("rho", "delta"), [(1e-4, 1e-6), (0.02, 1e-6), (0.5, 1e-5), (2.0, 1e-9), (30.0, 1e-6)])
def test_golden_values_by_the_librarys_renyi_accountant(rho: float, delta: float) -> None:
    """The same conversion of the same divergences, at a dense list of orders."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = 1.0 + np.exp(np.linspace(-4, 9, 20_000))
    accountant = RdpAccountant(orders.tolist(), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(1.0 / math.sqrt(2.0 * rho)))
    library = accountant.get_epsilon(delta)
    assert concentrated.epsilon_of_rho(rho, delta=delta) == pytest.approx(library, rel=1e-5, abs=1e-9)


def test_golden_values_of_task_budgets() -> None:
    """Of (1, 1e-6): the conversion of proposition 12 once more, written out and minimised over a grid of orders."""
    rho = concentrated.rho_for(epsilon=1.0, delta=1e-6)
    alpha = np.arange(1.001, 200.0, 0.001)
    by_grid = (rho * alpha + np.log1p(-1.0 / alpha) - (math.log(1e-6) + np.log(alpha)) / (alpha - 1.0)).min()
    assert by_grid == pytest.approx(1.0, rel=1e-6)
    assert concentrated.epsilon_of_rho(rho, delta=1e-6) <= 1.0


@given(st.floats(1e-3, 30.0), st.sampled_from([1e-4, 1e-6, 1e-9]))
@settings(deadline=None, max_examples=60)
def test_rho_for_a_budget_is_within_it_and_the_largest(epsilon: float, delta: float) -> None:
    rho = concentrated.rho_for(epsilon=epsilon, delta=delta)
    assert concentrated.epsilon_of_rho(rho, delta=delta) <= epsilon
    assert concentrated.epsilon_of_rho(rho * (1 + 1e-5), delta=delta) > epsilon


def test_noise_in_shares_costs_more_than_gaussian_noise_of_its_size_and_no_more_than_a_fifth() -> None:
    gaussian = GaussianRelease("hours", 1.0, 5.0, 24)
    one, other = (accounting.epsilon([event], delta=1e-6) for event in (gaussian, SHARED))
    assert one < other < 1.2 * one


def test_shares_and_gaussians_compose_by_their_rho() -> None:
    both = [SHARED, GaussianRelease("counts", 3.0, 5.0, 10), SHARED]
    rho = 2 * SHARED.rho + 0.5 * 0.36
    left = 1e-6 - accounting.added_delta(both)
    assert accounting.epsilon(both, delta=1e-6) == concentrated.epsilon_of_shares(
        rho, delta=left, closeness=accounting.closeness(both)
    )
    assert accounting.epsilon({SHARED: 2, both[1]: 1}, delta=1e-6) == accounting.epsilon(both, delta=1e-6)


def test_shares_and_sampled_rounds_compose_by_renyi_divergence() -> None:
    """Above each alone, below what basic composition would say, and equal to the library's own for the same events."""
    draw = SampledRound((GaussianRelease("gram", 1.0, 2.0, 100),), Sampling(0.1, 10_000, 1_300))
    mixed = [SHARED, *[draw] * 10]
    epsilon = accounting.epsilon(mixed, delta=1e-6)
    alone = accounting.epsilon([SHARED], delta=5e-7), accounting.epsilon_rdp([draw] * 10, delta=5e-7)
    assert (
        max(accounting.epsilon([SHARED], delta=1e-6), accounting.epsilon([draw] * 10, delta=1e-6))
        < epsilon
        < sum(alone)
    )
    # The library knows no caps; ours pays for them on both sides, which is little where they are hardly ever reached.
    library = accounting.epsilon_rdp(mixed, delta=1e-6)
    assert library <= epsilon <= 1.001 * library
    tight = dataclasses.replace(draw, sampling=Sampling(0.1, 10_000, 1_150))
    assert accounting.epsilon([SHARED, tight], delta=1e-5) > accounting.epsilon([SHARED, draw], delta=1e-5)


def test_no_profile_is_claimed_for_noise_in_shares() -> None:
    with pytest.raises(PrivacyError, match="hours has noise in shares"):
        accounting.epsilon_pld([SHARED], delta=1e-6)
    with pytest.raises(PrivacyError, match="hours has noise in shares"):
        accounting.epsilon_replace_one([SHARED], delta=1e-6)
    with pytest.raises(PrivacyError, match="has no mu"):
        accounting.mu([SHARED])
    assert accounting.epsilon_rdp([SHARED], delta=1e-6) == pytest.approx(
        accounting.epsilon([SHARED], delta=1e-6), rel=1e-3
    )


def test_the_event_is_written_and_read_bit_for_bit() -> None:
    assert SHARED.to_json()["mechanism"] == "distributed_discrete_gaussian"
    assert SHARED.to_json()["adjacency"] == "zero_out_user"
    assert events.from_json(SHARED.to_json()) == SHARED
    for change, error in (
        ({"sharers": 0}, ConfigurationError), ({"step": 0.0}, ConfigurationError), ({"norm": "l1"}, PrivacyError),
        ({"sharers": 4 * 10**6}, ConfigurationError), ({"adjacency": "replace_one"}, PrivacyError),
        ({"mechanism": "discrete_gaussian"}, PrivacyError), ({"graph_delta": -1e-9}, ConfigurationError),
        ({"graph_delta": 1.5}, ConfigurationError),
    ):  # fmt: skip
        with pytest.raises(error):
            events.from_json({**SHARED.to_json(), **change})


def test_shares_below_four_steps_cannot_be_charged() -> None:
    least = dataclasses.replace(SHARED, sharers=1, step=SHARED.noise_std / 4.0)
    assert least.share_std == 4.0
    with pytest.raises(ConfigurationError, match="at least 4"):
        dataclasses.replace(least, step=least.step * 1.001)


def test_a_ledger_charges_shares_beside_gaussians_and_refuses_what_is_over_the_budget() -> None:
    budget = Budget(3.0, 1e-6)

    def charge(ledger: Ledger, round: int, event: events.Event) -> Ledger:
        return ledger.charge(
            task_id=TASK, round=round, events=[event], contributions=100, population_size=100, id_set_sha256=bytes(32),
            task_budget=budget, population_budget=budget,
        )  # fmt: skip

    ledger = charge(charge(Ledger("people"), 0, SHARED), 1, GaussianRelease("counts", 1.0, 5.0, 10))
    assert Ledger.decode(ledger.encode()) == ledger
    ledger.verify()
    assert ledger.entries[1].task_epsilon == accounting.epsilon(ledger.population_events, delta=1e-6)
    # "sum of one user" twice as far: the budget says by how much more noise it would fit.
    with pytest.raises(BudgetExceeded, match=r"with \d\.\d+ times the noise it would fit"):
        charge(ledger, 2, dataclasses.replace(SHARED, sensitivity=3.0))
    report = report_of_ledger(ledger, TASK, cross_check=True)
    assert report["epsilon"]["mu"] is None
    assert report["accountant"]["name"].startswith("concentrated")
    assert report["cross_check"]["pld"] is None
    text = render_text(report)
    assert report["graph_delta"] == GRAPHS
    assert f"{GRAPHS:.2e} of it for graphs of sessions that may fail" in text
    alone = report["epsilon"]["if_alone"]
    assert alone == accounting.epsilon_if_alone(ledger.population_events, delta=1e-6) > 10
    assert f"{alone:.4f} if all other devices of a session or round worked for the server" in text
    assert "of a task without a roster it is an assumption about whoever the host lets into a session" in text
    assert "in shares of the devices, 90 honest ones at least" in text
    assert "other noise by the enclave" in text


def test_altered_epsilons_of_shares_are_found_by_recomputation() -> None:
    budget = Budget(3.0, 1e-6)
    ledger = Ledger("people").charge(
        task_id=TASK, round=0, events=[SHARED], contributions=100, population_size=100, id_set_sha256=bytes(32),
        task_budget=budget, population_budget=budget,
    )  # fmt: skip
    (entry,) = ledger.entries
    cheaper = Ledger("people", (dataclasses.replace(entry, task_epsilon=0.9 * entry.task_epsilon),))
    with pytest.raises(Exception, match="epsilon"):
        cheaper.verify()


def test_the_delta_of_sampling_covers_a_million_shares_of_the_largest_size() -> None:
    """Each share is off by 2^-128 for each entry of its table, and 1e-42 beyond; both sides of the inequality pay."""
    distance = 10**6 * (28 * LARGEST_STD * 2.0**-128 + 1e-42)
    assert (1.0 + math.exp(concentrated.PROVED_UP_TO)) * distance < ADDED_DELTA


@pytest.mark.parametrize("rounds", [1, 10, 300])
def test_noise_for_so_many_rounds_fits_the_budget_and_a_thousandth_less_does_not(rounds: int) -> None:
    numbers, step = 50, 2.0**-9
    mu = accounting.mu_for_shares(epsilon=2.0, delta=1e-6, graph_delta=rounds * GRAPHS, coordinates=rounds * numbers)
    std = math.sqrt(rounds) / mu
    event = DistributedRelease("hours", 1.0, std, numbers, sharers=20, step=step, graph_delta=GRAPHS)
    assert 1.999 < accounting.epsilon({event: rounds}, delta=1e-6) <= 2.0
    assert accounting.epsilon({dataclasses.replace(event, noise_std=0.999 * std): rounds}, delta=1e-6) > 2.0


@pytest.mark.parametrize("rounds", [1, 7])
def test_that_the_graph_of_a_session_fails_is_charged_to_delta_in_every_round(rounds: int) -> None:
    """By hand: what is left of delta for the noise is without the rounds' graphs, four attempts of 2^-40 each."""
    rho, numbers = rounds * SHARED.rho, rounds * 24
    delta = 2.0 * rounds * GRAPHS
    left = delta - rounds * 4 * 2.0**-40 - numbers * ADDED_DELTA
    by_hand = concentrated.epsilon_of_shares(rho, delta=left, closeness=accounting.closeness([SHARED] * rounds))
    assert accounting.epsilon([SHARED] * rounds, delta=delta) == pytest.approx(by_hand, rel=1e-12)
    free = dataclasses.replace(SHARED, graph_delta=0.0)
    assert accounting.epsilon([free] * rounds, delta=delta) < 0.99 * by_hand
    assert accounting.graph_delta([SHARED] * rounds + [GaussianRelease("counts", 3.0, 5.0, 10)]) == rounds * GRAPHS
    with pytest.raises(PrivacyError, match="graphs of secure aggregation fail"):
        accounting.epsilon([SHARED] * rounds, delta=1.0001 * rounds * GRAPHS)


def test_the_graphs_of_a_round_are_charged_where_shares_meet_sampled_rounds_too() -> None:
    draw = SampledRound((GaussianRelease("gram", 1.0, 2.0, 100),), Sampling(0.1, 10_000, 1_300))
    free = dataclasses.replace(SHARED, graph_delta=0.0)
    delta = 1e-8
    with_graphs, without = (accounting.epsilon([one, draw], delta=delta) for one in (SHARED, free))
    assert with_graphs > without


@pytest.mark.parametrize("sharers", [1, 4, 90])
def test_epsilon_of_a_device_whose_companions_all_lie_is_that_of_its_own_share(sharers: int) -> None:
    """Exact, for one number: the share alone is a discrete Gaussian; the charged epsilon would be far too small."""
    share_std, delta = 6.0, 1e-5
    event = DistributedRelease(
        "hours", sensitivity=12.0, noise_std=share_std * math.sqrt(sharers), coordinates=1, sharers=sharers, step=1.0,
        graph_delta=GRAPHS,
    )  # fmt: skip
    alone = accounting.epsilon_if_alone([event], delta=delta)
    share = law(share_std, math.ceil(14 * share_std))
    assert exact_delta(share, 12, alone) <= delta
    assert exact_delta(share, 12, 0.75 * alone) > delta
    assert (alone == accounting.epsilon([event], delta=delta)) == (sharers == 1)
