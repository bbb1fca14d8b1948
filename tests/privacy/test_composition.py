"""Sampled rounds: golden values, the library's own accountants, and what a claim may never fall below."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings, strategies as st
from scipy.stats import binom

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError, StateError
from odp.privacy import accounting, composition
from odp.privacy.accounting import added_delta, epsilon, epsilon_pld, epsilon_rdp, epsilon_replace_one
from odp.privacy.budget_check import rounds_possible
from odp.privacy.calibration import total_mu_for
from odp.privacy.composition import truncation_cap
from odp.privacy.events import GaussianRelease, SampledRound, Sampling, scaled
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget

ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


def sampled(q: float, sigma: float, *, bound: int = 10_000, cap: int | None = None) -> SampledRound:
    """One release of sensitivity 1; without a cap that can be reached unless one is given."""
    return SampledRound((GaussianRelease("x", 1.0, sigma, 1),), Sampling(q, bound, bound if cap is None else cap))


def at(events, delta: float, **how: float) -> float:
    """Epsilon at the mechanisms' own delta, as printed in the literature: what is added to delta is given on top."""
    return epsilon(events, delta=delta + added_delta(Counter(events).elements()), **how)


@pytest.mark.parametrize(
    ("q", "sigma", "rounds", "delta", "pld", "rdp"),
    [
        (0.01, 4.0, 10_000, 1e-5, 0.94700, 1.03549),
        (256 / 60_000, 1.1, 14_062, 1e-5, 2.38160, 2.59656),  # above 10,000 rounds the finer grid is taken
        (0.01, 1.0, 1_000, 1e-5, 1.82824, 2.10137),
        (0.1, 2.0, 100, 1e-6, 2.67504, 2.91417),
        (0.1, 1.0, 10, 1e-6, 3.46598, 4.06823),
    ],
)
@pytest.mark.slow
def test_golden_values_of_poisson_sampling(q, sigma, rounds, delta, pld, rdp):
    events = {sampled(q, sigma): rounds}
    assert at(events, delta) == pytest.approx(pld, abs=1e-4)
    if rounds <= 1000:
        assert epsilon_rdp(Counter(events).elements(), delta=delta) == pytest.approx(rdp, abs=1e-3)


def test_golden_value_of_a_mixed_list():
    found = at({sampled(0.03, 1.0): 20, sampled(0.1, 1.2): 30}, 1e-5)
    assert found == pytest.approx(3.06250, abs=1e-4)


def test_golden_values_of_the_cap_a_loose_one_is_free_and_a_tight_one_is_dear():
    for cap, expected in ((645, 2.857479), (590, 2.946613), (10_000, 2.857479)):
        event = sampled(0.05, 1.2, cap=cap)
        # The tight cap cannot be charged: its overflow alone is above delta.
        found = composition.epsilon({event: 100}, delta_left=1e-6, interval=1e-3)
        assert found == pytest.approx(expected, abs=5e-4)
    with pytest.raises(PrivacyError, match="raise the cap"):
        epsilon({sampled(0.05, 1.2, cap=590): 100}, delta=1e-6)
    tight = composition.epsilon({sampled(0.5, 0.9835, bound=100, cap=74): 11}, delta_left=1e-3, interval=1e-3)
    assert tight == pytest.approx(7.99949, abs=1e-4)


@pytest.mark.parametrize(
    ("population", "q", "sigma", "rounds", "delta", "expected"),
    [
        (100, 0.5, 0.9835, 11, 1e-3, 7.9994),
        (10_000, 0.05085, 0.9901, 412, 1e-6, 7.9996),
        (100, 0.5, 1.1931, 11, 1e-3, 5.94),  # at the moments accountant's noise
        (10_000, 0.05085, 1.0922, 412, 1e-6, 6.64),
        (100, 0.5, 1.0, 11, 1e-3, 7.793),
        (1_000, 0.22, 1.0, 54, 1e-5, 11.580),
        (10_000, 0.05085, 1.0, 412, 1e-6, 7.846),
        # Three layers clipped apart are one query of sensitivity sqrt(3); a fixed size costs at least half the noise.
        (100, 0.5, 3**-0.5, 11, 1e-3, 19.34),
        (1_000, 0.22, 3**-0.5, 54, 1e-5, 32.48),
        (10_000, 0.05085, 3**-0.5, 412, 1e-6, 27.70),
        (100, 0.5, 0.5, 11, 1e-3, 24.91),
        (1_000, 0.22, 0.5, 54, 1e-5, 43.60),
        (10_000, 0.05085, 0.5, 412, 1e-6, 40.40),
    ],
)
def test_golden_values_of_three_published_scenarios(population, q, sigma, rounds, delta, expected):
    found = at({sampled(q, sigma, bound=population): rounds}, delta, interval=1e-3)
    assert found == pytest.approx(expected, abs=1e-3 if round(expected, 2) != expected else 6e-3)


@pytest.mark.parametrize(
    ("population", "q", "delta", "rounds"),
    [(100, 0.3, 1e-3, 28), (100, 0.5, 1e-3, 11), (1_000, 0.1, 1e-5, 129), (10_000, 0.03, 1e-6, 1323)],
)
def test_golden_numbers_of_rounds_within_epsilon_eight(population, q, delta, rounds, monkeypatch):
    monkeypatch.setattr(composition, "INTERVAL", composition.COARSE_INTERVAL)
    event = sampled(q, 1.0, bound=population)
    own = delta + rounds * 2.0**-48 + composition.rounding_delta({event: rounds})
    assert rounds_possible({}, (event,), budget=8.0, delta=own) == rounds


@pytest.mark.parametrize(("q", "sigma", "rounds", "delta"), [(0.1, 2.0, 100, 1e-6), (0.01, 1.0, 1000, 1e-5)])
def test_fixed_size_cohorts_would_cost_several_times_what_the_poisson_formula_says(q, sigma, rounds, delta):
    """Why nothing here can be charged as fixed-size: the honest claim is the Poisson formula at half of the noise."""
    fixed = {8.059: 100, 13.36: 1000}
    least = next(value for value, count in fixed.items() if count == rounds)
    # .0009: the golden lower bounds are to three or four digits
    assert at({sampled(q, sigma / 2): rounds}, delta, interval=1e-3) == pytest.approx(least, rel=9e-4)
    assert at({sampled(q, sigma): rounds}, delta, interval=1e-3) < least / 3


def test_replacing_a_user_is_the_informative_line_by_pld():
    assert epsilon_replace_one([sampled(0.1, 2.0)] * 100, delta=1e-6) == pytest.approx(4.886, abs=2e-3)


def test_the_ledgers_number_is_that_of_the_librarys_own_accountant_and_event():
    events = (
        [sampled(0.05, 1.2, cap=700)] * 40 + [sampled(0.1, 3.0, cap=1300)] * 3 + [GaussianRelease("g", 1.0, 4.0, 1)]
    )
    left = 1e-6 - added_delta(events)
    accountant = PLDAccountant(ADD_REMOVE, 1e-3)
    for q, cap, sigma, times in ((0.05, 700, 1.2, 40), (0.1, 1300, 3.0, 3)):
        accountant.compose(
            dp_accounting.TruncatedSubsampledGaussianDpEvent(
                dataset_size=10_000, sampling_probability=q, truncated_batch_size=cap, noise_multiplier=sigma
            ),
            times,
        )
    accountant.compose(dp_accounting.GaussianDpEvent(4.0))
    found = epsilon(events, delta=1e-6, interval=1e-3)
    assert found == pytest.approx(accountant.get_epsilon(left), abs=1e-9)
    assert epsilon_pld(events, delta=1e-6, interval=1e-3) == pytest.approx(found, abs=1e-9)


@settings(max_examples=10, deadline=None)
@given(
    q=st.floats(0.01, 0.9), sigma=st.floats(0.7, 6.0), rounds=st.integers(1, 60), delta=st.sampled_from([1e-4, 1e-6]),
    full=st.sampled_from([None, 5.0]),
)  # fmt: skip
@pytest.mark.slow
def test_pld_is_never_above_rdp_and_sampling_never_above_full_participation(q, sigma, rounds, delta, full):
    cap = truncation_cap(probability=q, population_bound=2000, rounds=rounds, delta=delta)
    others = [] if full is None else [GaussianRelease("y", 1.0, full, 1)]
    event = sampled(q, sigma, bound=2000, cap=cap)
    found = epsilon([*[event] * rounds, *others], delta=delta, interval=1e-3)
    # The coarse grid adds up to 1e-3 / 2 per round, the overflow a hundredth of delta.
    assert found <= epsilon_rdp([*[event] * rounds, *others], delta=delta) + 5e-3
    assert found <= epsilon([*event.releases * rounds, *others], delta=delta) + 5e-3


@settings(max_examples=8, deadline=None)
@given(st.floats(0.02, 0.5), st.floats(0.8, 3.0), st.integers(2, 40))
def test_more_rounds_less_noise_and_a_larger_probability_cost_more(q, sigma, rounds):
    def cost(q: float, sigma: float, rounds: int) -> float:
        return epsilon({sampled(q, sigma): rounds}, delta=1e-5, interval=1e-3)

    base = cost(q, sigma, rounds)
    assert base <= cost(q, sigma, rounds + 1)
    assert base <= cost(q, 0.95 * sigma, rounds)
    assert base <= cost(1.05 * q, sigma, rounds)


def test_a_coarser_grid_is_never_below_a_finer_one():
    events = {sampled(0.1, 1.3): 50}
    found = [epsilon(events, delta=1e-6, interval=interval) for interval in (1e-4, 1e-3, 1e-2)]
    assert found == sorted(found)


@pytest.mark.slow
def test_two_queries_over_one_draw_are_one_event_and_cost_more_than_two_draws_would():
    """Rule P8: the joint event is what is charged; charging each query as its own subsampled event is too cheap."""
    sampling = Sampling(0.1, 10_000, 10_000)
    one, two = GaussianRelease("one", 1.0, 1.0, 1), GaussianRelease("two", 3.0, 2.0, 1)
    joint = SampledRound((one, two), sampling)
    assert joint.noise_multiplier == pytest.approx((1.0 + 1.5**2) ** -0.5)
    apart = [SampledRound((one,), sampling), SampledRound((two,), sampling)]
    spent = functools.partial(epsilon, delta=1e-6, interval=1e-3)
    # The grid adds half of it at most for each event: far less than the difference.
    assert spent([joint]) > spent(apart) + 0.05
    both = GaussianRelease("both", 1.0, joint.noise_multiplier, 1)
    assert spent([joint]) == pytest.approx(spent([SampledRound((both,), sampling)]), abs=1e-6)


@pytest.mark.parametrize(
    ("q", "bound", "rounds", "delta", "cap"),
    [(0.05, 10_000, 100, 1e-6, 645), (0.5, 100, 11, 1e-3, 74), (0.9, 10, 1, 1e-6, 10)],
)
def test_the_cap_is_the_smallest_that_the_rule_allows(q, bound, rounds, delta, cap):
    assert truncation_cap(probability=q, population_bound=bound, rounds=rounds, delta=delta) == cap
    assert binom.sf(cap - 1, bound - 1, q) * rounds <= delta / 100 or cap == bound
    assert binom.sf(cap - 2, bound - 1, q) * rounds > delta / 100


@pytest.mark.parametrize("bound", [2_000, 5_000, 9_999])
def test_a_round_of_fewer_contributions_than_the_bound_never_costs_more_than_what_is_charged(bound):
    """The event of N contributions, at what the overflow leaves of delta, covers every N' <= N under the same cap."""
    cap = truncation_cap(probability=0.05, population_bound=10_000, rounds=100, delta=1e-6)
    charged = epsilon({sampled(0.05, 1.2, cap=cap): 100}, delta=1e-6, interval=1e-3)
    smaller = composition.epsilon({sampled(0.05, 1.2, bound=bound, cap=cap): 100}, delta_left=1e-6, interval=1e-3)
    assert smaller <= charged


@pytest.mark.parametrize("contributions", [3, 8, 12])
@pytest.mark.parametrize("others", [-1.0, 0.0, 1.0])
@pytest.mark.slow
def test_zeroing_a_user_out_of_a_sampled_round_costs_at_most_the_librarys_event_and_the_overflow(contributions, others):
    """The exact law of a round that releases noise alone beyond its cap, by numerical integration, in both directions.

    The cap is one that bites, so that what happens beyond it matters.
    """
    bound, q, cap, sigma = 12, 0.4, 6, 0.8
    x = np.linspace(-20.0, 20.0, 400_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * math.sqrt(2.0 * math.pi))

    def law(user: float) -> np.ndarray:
        total = np.zeros_like(x)
        for drawn in range(contributions):
            for own, chance in ((0, 1.0 - q), (1, q)):
                within = drawn + own <= cap
                mean = others * drawn + user * own if within else 0.0
                total += chance * binom.pmf(drawn, contributions - 1, q) * density(mean)
        return total

    event = sampled(q, sigma, bound=bound, cap=cap)
    left, overflow = 0.05, composition.overflow_delta({event: 1})
    assert 0.05 < overflow < 0.5
    charged = composition.epsilon({event: 1}, delta_left=left, interval=1e-3)
    mine, zeroed = law(1.0), law(0.0)
    for one, other in ((mine, zeroed), (zeroed, mine)):
        needed = np.maximum(one - math.exp(charged) * other, 0.0).sum() * (x[1] - x[0])
        assert needed <= left + overflow + 1e-9
        if not others and contributions <= cap:  # the cap cannot be reached: not even its overflow is needed
            assert needed <= left + 1e-9


def test_far_more_contributions_than_the_bound_are_not_covered():
    """Why the enclave enforces the bound: with twice as many, the cap bites in every round and epsilon triples."""
    found = [
        composition.epsilon({sampled(0.05, 1.2, bound=bound, cap=645): 100}, delta_left=1e-6, interval=1e-3)
        for bound in (10_000, 20_000)
    ]
    assert found[1] > 3 * found[0]


def test_floating_point_rounding_of_the_library_is_within_what_is_taken_off_delta():
    """1,000 compositions of a Gaussian by the library against its closed form, where delta is small."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = pld.from_gaussian_mechanism(40.0, value_discretization_interval=1e-4).self_compose(1000)
    for value in (3.0, 5.0, 6.0, 8.0):
        exact = math.exp(accounting._log_delta(value, 1000**0.5 / 40.0))
        assert composed.get_delta_for_epsilon(value) >= exact - composition.ROUNDING_DELTA / 10


def test_a_sampled_round_has_no_mu():
    with pytest.raises(PrivacyError, match="has no mu"):
        accounting.mu([sampled(0.1, 1.0)])


@pytest.mark.parametrize("foreign", ["gaussian", None, dp_accounting.GaussianDpEvent(1.0), 3])
def test_only_the_two_event_classes_can_be_accounted_for(foreign):
    for call in (epsilon, epsilon_pld, epsilon_rdp):
        with pytest.raises(ConfigurationError, match="privacy events"):
            call([foreign], delta=1e-5)


class TestLedger:
    EVENT = sampled(0.01, 1.0, bound=100_000, cap=1300)
    WIDE = Budget(10.0, 1e-5)

    def charge(self, ledger: Ledger, round: int, *, budget: Budget = WIDE, **changes) -> Ledger:
        arguments = {
            "task_id": "aa" * 32, "events": (self.EVENT,), "contributions": 90_000, "population_size": 95_000,
            "id_set_sha256": bytes(32), "task_budget": budget, "population_budget": self.WIDE,
        }  # fmt: skip
        return ledger.charge(round=round, **{**arguments, **changes})

    @pytest.mark.slow
    def test_one_more_of_a_thousand_equal_rounds_takes_one_composition_and_builds_no_distribution(self, monkeypatch):
        """Which takes about a second; the first charge builds the event's distribution."""
        from dp_accounting.pld import privacy_loss_distribution as pld

        with monkeypatch.context() as quick:  # a long ledger, made without computing its epsilons
            quick.setattr(accounting, "epsilon", lambda *_, **__: 1.0)
            entries = [self.charge(Ledger("films"), 0).entries[0]]
        for number in range(1, 1000):
            entries.append(dataclasses.replace(entries[0], round=number, previous=entries[-1].sha256))
        ledger = Ledger("films", tuple(entries))
        self.charge(ledger, 1000)
        work: Counter[str] = Counter()

        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **options: (work.update([name]), function(*args, **options))[1]

        kind = pld.PrivacyLossDistribution
        monkeypatch.setattr(kind, "self_compose", counted("self_compose", kind.self_compose))
        monkeypatch.setattr(kind, "compose", counted("compose", kind.compose))
        built = "from_truncated_subsampled_gaussian_mechanism"
        monkeypatch.setattr(pld, built, counted(built, getattr(pld, built)))
        for number in (1001, 1002, 1003):
            work.clear()
            charged = self.charge(ledger, number)
            # At the coarse grid, at the fine one, and nothing for each of the thousand rounds before.
            assert work["self_compose"] <= 2
            assert work["compose"] == work[built] == 0
        assert charged.entries[-1].task_epsilon == pytest.approx(1.8293, abs=1e-3)

    @pytest.mark.usefixtures(
        "coarse_composition"
    )  # what is claimed and what is recomputed have one grid, coarse or fine
    @pytest.mark.slow
    def test_epsilons_of_mixed_tasks_verify_and_an_understated_last_one_does_not(self):
        ledger = self.charge(Ledger("films"), 0)
        ledger = self.charge(ledger, 0, task_id="bb" * 32, events=(GaussianRelease("g", 1.0, 3.0, 5),))
        ledger = self.charge(ledger, 1)
        ledger.verify()
        assert Ledger.decode(ledger.encode()) == ledger
        lowered = dataclasses.replace(ledger.entries[-1], population_epsilon=ledger.entries[-1].population_epsilon / 2)
        with pytest.raises(StateError, match="its events do not have"):
            Ledger("films", (*ledger.entries[:-1], lowered)).verify()

    def test_over_the_budget_is_refused_with_a_factor_of_noise_that_fits(self, monkeypatch):
        monkeypatch.setattr(composition, "INTERVAL", composition.COARSE_INTERVAL)
        tight = Budget(0.7, 1e-5)
        dear = (sampled(0.2, 1.0, bound=100_000, cap=21_000),)
        with pytest.raises(BudgetExceeded, match="times the noise it would fit") as caught:
            self.charge(Ledger("films"), 0, budget=tight, events=dear)
        assert "0 more rounds" in str(caught.value)
        factor = float(str(caught.value).split("with ")[1].split(" times")[0])
        self.charge(Ledger("films"), 0, budget=tight, events=(scaled(dear[0], factor),))


class TestCalibration:
    @pytest.mark.parametrize("shares", [(1.0,), (0.05, 0.3, 0.325, 0.325)])
    @pytest.mark.slow
    def test_the_noise_found_uses_the_budget_and_no_more(self, shares):
        cap = truncation_cap(probability=0.2, population_bound=3000, rounds=10_000, delta=1e-6)
        sampling = Sampling(0.2, 3000, cap)
        total = total_mu_for(shares, epsilon=3.0, delta=1e-6, coordinates=1000, sampling=sampling)
        events = [SampledRound((GaussianRelease("x", share**0.5 * total, 1.0, 250),), sampling) for share in shares]
        assert 2.98 < epsilon(events, delta=1e-6, interval=1e-3) <= 3.0
        assert total > total_mu_for(shares, epsilon=3.0, delta=1e-6, coordinates=1000)

    def test_a_cap_that_bites_is_refused_with_what_to_do(self):
        with pytest.raises(PrivacyError, match="raise the cap"):
            total_mu_for((1.0,), epsilon=3.0, delta=1e-6, coordinates=1, sampling=Sampling(0.2, 3000, 600))
