"""Schedules: how a lifetime budget is divided, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.events import GaussianRelease
from odp.trainings.schedule import RULES, days


def _schedule(**changes: object) -> odp.living.Schedule:
    return odp.living.Schedule(**({"every": "7d", "horizon": "2y", "lifetime_epsilon": 20.0, "delta": 1e-6} | changes))


@pytest.mark.parametrize(
    ("text", "expected"), [("1d", 1), ("7d", 7), ("2w", 14), ("1y", 365), ("100y", 36500), ("36500d", 36500)]
)
def test_times_are_whole_days(text, expected):
    assert days(every=text) == expected


@pytest.mark.parametrize("text", ["", "7", "d7", "0d", "-1d", "1.5d", "7 d", "1m", "101y", "9999999d", 7, None])
def test_other_times_are_refused_by_name(text):
    with pytest.raises(ConfigurationError, match=r"every=.*such as"):
        days(every=text)


@pytest.mark.parametrize(
    ("every", "horizon", "expected"), [("7d", "2y", 105), ("1w", "8w", 8), ("30d", "31d", 2), ("1y", "1y", 1)]
)
def test_trainings_begin_within_the_horizon(every, horizon, expected):
    assert _schedule(every=every, horizon=horizon).trainings == expected


@given(
    count=st.integers(1, 400),
    epsilon=st.floats(0.5, 50.0),
    delta=st.sampled_from([1e-7, 1e-6, 1e-4]),
    rule=st.sampled_from(RULES),
    coordinates=st.integers(1, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_all_trainings_together_stay_within_the_lifetime_budget(count, epsilon, delta, rule, coordinates):
    schedule = _schedule(
        every="1d", horizon=f"{count}d", lifetime_epsilon=epsilon, delta=delta, rule=rule, least_epsilon=1e-4
    )
    budgets = schedule.budgets(coordinates=coordinates)
    assert len(budgets) == count
    # Each training as one release at the largest mu that its own budget allows.
    spent = [
        GaussianRelease(
            "model", accounting.mu_for(epsilon=one.epsilon, delta=delta, coordinates=coordinates), 1.0, coordinates
        )
        for one in budgets
    ]
    total = accounting.epsilon(spent, delta=delta)
    assert total <= epsilon
    assert total >= 0.98 * epsilon


def test_the_first_training_of_a_front_loaded_schedule_gets_a_tenth():
    budgets = _schedule(rule="front-loaded").budgets()
    first, second = (accounting.mu_for(epsilon=one.epsilon, delta=1e-6) for one in budgets[:2])
    assert first**2 / (first**2 + 104 * second**2) == pytest.approx(0.1, rel=1e-4)
    assert len({one.epsilon for one in budgets[1:]}) == 1


def test_a_front_loaded_schedule_of_few_trainings_is_uniform():
    # A tenth would be less than an equal share.
    assert len({one.epsilon for one in _schedule(horizon="9w", rule="front-loaded").budgets()}) == 1


def test_a_schedule_that_the_budget_cannot_pay_is_refused_with_what_it_can():
    with pytest.raises(
        PrivacyError, match=r"105 trainings leaves .* it pays for (\d+): take every=\"(\d+)d\""
    ) as found:
        _schedule(lifetime_epsilon=1.0)
    every = str(found.value).split('every="')[1].split('"')[0]
    assert min(one.epsilon for one in _schedule(lifetime_epsilon=1.0, every=every).budgets()) >= 0.25


def test_a_budget_below_the_least_pays_for_nothing():
    with pytest.raises(PrivacyError, match="raise lifetime_epsilon"):
        _schedule(lifetime_epsilon=0.1, horizon="7d")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": "3w", "horizon": "7d"}, "at most horizon"),
        ({"lifetime_epsilon": 0.0}, "lifetime_epsilon"),
        ({"lifetime_epsilon": math.inf}, "lifetime_epsilon"),
        ({"lifetime_epsilon": 101.0}, "lifetime_epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"rule": "uniformly"}, "uniform"),
        ({"every": "1d", "horizon": "100y", "least_epsilon": 1e-9}, "trainings"),
        ({"lifetime": 20.0}, "lifetime_epsilon"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(changes, message):
    with pytest.raises((ConfigurationError, PrivacyError), match=message):
        _schedule(**changes)
