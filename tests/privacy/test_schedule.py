"""Schedules of cohorts and noise: golden values, the planner, and the rule that stops before a round."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.events import Event, GaussianRelease, SampledRound, Sampling
from odp.privacy.ledger_entry import Budget
from odp.privacy.schedule import Block, Schedule, StopRule, feasible_rounds, require_within, solved


def schedule(*blocks: tuple[int, float, float], population: int, delta: float) -> Schedule:
    """Of blocks (rounds, noise multiplier, probability)."""
    made = tuple(Block(rounds=rounds, noise_multiplier=noise, probability=q) for rounds, noise, q in blocks)
    return Schedule(blocks=made, population=population, delta=delta)


def test_a_mixed_schedule_has_its_golden_epsilon():
    mixed = schedule((20, 1.0, 0.03), (30, 1.2, 0.1), population=10_000, delta=1e-5)
    uncapped: Counter[Event] = Counter()
    for event, times in mixed.events().items():
        assert isinstance(event, SampledRound)
        draw = Sampling(event.sampling.probability, 10_000, 10_000)
        uncapped[SampledRound(event.releases, draw)] += times
    golden = accounting.epsilon(uncapped, delta=1e-5 + accounting.added_delta(uncapped.elements()))
    assert golden == pytest.approx(3.06250, abs=1e-4)
    # Caps that are hardly ever reached, and what is added to delta, cost the rest.
    assert golden <= mixed.epsilon() <= golden + 0.005


@pytest.mark.parametrize(
    ("population", "delta", "rounds", "cohort", "noise"),
    [(100, 1e-3, 11, 50.0, 0.9835), (1000, 1e-5, 54, 220.0, 1.2509), (10_000, 1e-6, 412, 508.5, 0.9901)],
)
def test_the_planner_finds_the_noise_of_the_published_scenarios(population, delta, rounds, cohort, noise):
    """Noise without caps; that for 1,000 clients was computed here, the others by two independent libraries."""
    asked = schedule((rounds, 1.0, cohort / population), population=population, delta=delta)
    found = solved(asked, epsilon=8.0)
    assert found.blocks[0].noise_multiplier == pytest.approx(noise, rel=2e-3)
    assert 7.98 < found.epsilon() <= 8.0
    assert found.cohort(0) == pytest.approx(cohort)
    assert found.std_of_mean(rounds - 1) == pytest.approx(found.blocks[0].noise_multiplier / cohort)


def test_the_planner_solves_for_the_last_block_alone():
    asked = schedule((10, 2.0, 0.1), (10, 1.0, 0.2), population=1000, delta=1e-5)
    found = solved(asked, epsilon=2.0)
    assert found.blocks[0] == asked.blocks[0]
    assert 1.99 < found.epsilon() <= 2.0
    with pytest.raises(BudgetExceeded, match="leave nothing"):
        solved(schedule((10, 0.5, 1.0), (10, 1.0, 1.0), population=1000, delta=1e-5), epsilon=2.0)


def test_full_participation_is_planned_in_closed_form():
    asked = schedule((16, 1.0, 1.0), population=1000, delta=1e-5)
    found = solved(asked, epsilon=1.0)
    assert found.blocks[0].noise_multiplier == pytest.approx(4 * 3.730632, rel=1e-4)
    assert all(isinstance(event, GaussianRelease) for event in found.in_order())


def test_a_schedule_above_the_budget_is_refused_with_the_rounds_that_fit():
    asked = schedule((5, 4.0, 1.0), (20, 2.0, 1.0), population=1000, delta=1e-5)
    budget = asked.epsilon(9) + 1e-9
    assert feasible_rounds(asked, epsilon=budget) == 9
    with pytest.raises(BudgetExceeded, match=r"25 rounds cost .* first 9 rounds are within it; .*noise_multiplier="):
        require_within(asked, epsilon=budget)
    assert require_within(asked, epsilon=asked.epsilon()) == asked.epsilon()
    assert feasible_rounds(asked, epsilon=asked.epsilon()) == 25
    assert feasible_rounds(asked, epsilon=0.01) == 0


def test_sampled_rounds_that_fit_are_counted_to_the_round():
    asked = schedule((40, 1.0, 0.2), population=500, delta=1e-5)
    budget = 3.0
    fits = feasible_rounds(asked, epsilon=budget)
    assert 0 < fits < 40
    assert asked.epsilon(fits) <= budget < asked.epsilon(fits + 1)


def test_the_stop_rule_stops_before_the_round_that_would_exceed_and_not_one_earlier():
    asked = schedule((100, 3.0, 1.0), population=1000, delta=1e-5)
    rule, done = StopRule("task", Budget(2.0, 1e-5)), 0
    for event in asked.in_order():
        if not rule.allows([event]):
            break
        rule.spend([event])
        done += 1
    assert done == feasible_rounds(asked, epsilon=2.0)
    assert asked.epsilon(done) == rule.epsilon <= 2.0 < asked.epsilon(done + 1)
    with pytest.raises(BudgetExceeded, match="0 more rounds"):
        rule.spend([event])
    assert rule.epsilon == asked.epsilon(done)  # a refusal spends nothing


def test_asking_spends_nothing_and_what_was_spent_before_counts():
    event = GaussianRelease("update", 1.0, 3.0, 1)
    rule = StopRule("task", Budget(5.0, 1e-5), Counter({event: 2}))
    before = rule.epsilon
    rule.require([event])
    assert rule.epsilon == before == accounting.epsilon([event, event], delta=1e-5)


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.5, 5.0), st.just(1.0)), min_size=1, max_size=5))
@settings(max_examples=50)
def test_a_schedule_costs_what_its_rounds_cost(blocks):
    made = schedule(*blocks, population=1000, delta=1e-5)
    in_order = list(made.in_order())
    assert len(in_order) == made.rounds
    for rounds in range(made.rounds + 1):
        assert made.events(rounds) == Counter(in_order[:rounds])
        assert made.epsilon(rounds) == accounting.epsilon(in_order[:rounds], delta=1e-5)
    for round, event in enumerate(in_order):
        assert made.event(made.block_of(round)) == event


def test_caps_are_reached_hardly_ever_and_the_divisor_is_no_number_of_drawn_users():
    made = schedule((60, 1.2, 0.05), (40, 1.2, 0.05), population=10_000, delta=1e-6)
    events = made.events()
    assert len(events) == 1
    event = next(iter(events))
    assert isinstance(event, SampledRound)
    assert event.sampling.cap == 645  # privacy.md P14
    assert made.cohort(99) == 500.0
    assert accounting.added_delta(events) < 1.01e-8 + 1e-11


def test_numbers_that_make_no_schedule_are_refused():
    for wrong in ({"rounds": 0}, {"noise_multiplier": 0.0}, {"probability": 0.0}, {"probability": 1.1}):
        with pytest.raises(ConfigurationError):
            Block(**{"rounds": 1, "noise_multiplier": 1.0, **wrong})
    with pytest.raises(PrivacyError, match="delta"):
        schedule((1, 1.0, 1.0), population=1000, delta=1e-3)
    with pytest.raises(ConfigurationError, match="blocks"):
        schedule(population=1000, delta=1e-5)
    with pytest.raises(ConfigurationError, match="round="):
        schedule((3, 1.0, 1.0), population=1000, delta=1e-5).block_of(3)
