"""Reports of local randomisers as events: what they cost, alone and beside others, in ledgers, audits and reports."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError, StateError
from odp.evaluation.comparison import spending
from odp.privacy import accounting
from odp.privacy.adjacency import Adjacency
from odp.privacy.budget_check import rounds_possible
from odp.privacy.events import GaussianRelease, LocalReport, ShuffledReports, adjacency_of, from_json
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget
from odp.privacy.rendering import render_html, render_text
from odp.privacy.report import privacy_report, report_of_ledger
from odp.privacy.shuffling import amplified_epsilon, amplified_epsilon_k_rr

TASK = "aa" * 32
SHUFFLED = ShuffledReports("words", 2.0, 10_000)
ANSWERS = ShuffledReports("answers", 2.0, 10_000, 10)
REPORT = LocalReport("direction", 3.0)
GAUSSIAN = GaussianRelease("counts", 1.0, 10.0, 5)
WIDE = Budget(10.0, 1e-5)


@pytest.mark.parametrize("event", [SHUFFLED, ANSWERS, REPORT])
def test_an_event_survives_json_bit_for_bit(event):
    assert from_json(json.loads(json.dumps(event.to_json()))) == event
    assert list(event.to_json()) == sorted(event.to_json())


@pytest.mark.parametrize(
    ("event", "change", "error", "match"),
    [
        (SHUFFLED, {"epsilon0": 0.0}, ConfigurationError, "epsilon0=0.0"),
        (SHUFFLED, {"epsilon0": 33.0}, ConfigurationError, "epsilon0=33.0"),
        (SHUFFLED, {"reports": 0}, ConfigurationError, "reports=0"),
        (SHUFFLED, {"choices": 1}, ConfigurationError, "choices=1"),
        (SHUFFLED, {"name": "No"}, ConfigurationError, "name='No'"),
        (SHUFFLED, {"adjacency": "add_remove_user"}, PrivacyError, "which holds for zero_out_user"),
        (SHUFFLED, {"delta": 0.1}, ConfigurationError, "Unknown key 'delta'"),
        (REPORT, {"epsilon": -1.0}, ConfigurationError, "epsilon=-1.0"),
        (REPORT, {"epsilon": float("nan")}, ConfigurationError, "epsilon=nan"),
        (REPORT, {"adjacency": "zero_out_user"}, PrivacyError, "which holds for any_two_inputs"),
    ],
)
def test_what_has_no_bound_is_refused(event, change, error, match):
    with pytest.raises(error, match=match):
        from_json({**event.to_json(), **change})


def test_one_shuffled_round_costs_its_amplified_epsilon():
    assert accounting.epsilon([SHUFFLED], delta=1e-6) == amplified_epsilon(2.0, 10_000, 1e-6)
    assert accounting.epsilon([ANSWERS], delta=1e-6) == amplified_epsilon_k_rr(2.0, 10_000, 1e-6, 10)


def test_several_rounds_share_delta_and_never_cost_less_than_before():
    events = [SHUFFLED, ANSWERS, SHUFFLED]
    expected = 2 * amplified_epsilon(2.0, 10_000, 1e-6 / 3) + amplified_epsilon_k_rr(2.0, 10_000, 1e-6 / 3, 10)
    assert accounting.epsilon(events, delta=1e-6) == pytest.approx(expected, rel=1e-12)
    mixed = [GAUSSIAN, SHUFFLED, REPORT, GAUSSIAN, ANSWERS, SHUFFLED]
    steps = [accounting.epsilon(mixed[:count], delta=1e-6) for count in range(len(mixed) + 1)]
    assert steps == sorted(steps)
    assert steps[0] == 0.0


def test_local_reports_add_up_and_need_no_delta():
    assert accounting.epsilon([REPORT] * 4, delta=1e-12) == 12.0
    together = accounting.epsilon([REPORT, GAUSSIAN], delta=1e-6)
    assert together == pytest.approx(3.0 + accounting.epsilon([GAUSSIAN], delta=1e-6), rel=1e-12)


def test_beside_a_gaussian_each_kind_has_half_of_delta():
    expected = accounting.epsilon([GAUSSIAN], delta=5e-7) + amplified_epsilon(2.0, 10_000, 5e-7)
    assert accounting.epsilon([GAUSSIAN, SHUFFLED], delta=1e-6) == pytest.approx(expected, rel=1e-12)


def test_a_device_among_devices_of_the_server_has_its_randomiser_alone():
    assert accounting.epsilon_if_alone([SHUFFLED, ANSWERS], delta=1e-6) == 4.0


def test_reports_have_no_mu_and_no_accountant_of_the_library():
    with pytest.raises(PrivacyError, match="no Gaussian"):
        accounting.mu([SHUFFLED])
    for computed in (accounting.epsilon_pld, accounting.epsilon_rdp):
        with pytest.raises(PrivacyError, match="local randomisers"):
            computed([GAUSSIAN, REPORT], delta=1e-6)


def test_the_joint_claim_is_the_weakest():
    assert adjacency_of([REPORT]) is Adjacency.ANY_TWO_INPUTS
    assert adjacency_of([REPORT, SHUFFLED]) is Adjacency.ZERO_OUT_USER


def charged(rounds: int, event=SHUFFLED, budget: Budget = WIDE) -> Ledger:
    ledger = Ledger("phones")
    for number in range(rounds):
        ledger = ledger.charge(
            task_id=TASK, round=number, events=[event], contributions=12_000, population_size=12_000,
            id_set_sha256=bytes(32), task_budget=budget, population_budget=budget,
        )  # fmt: skip
    return ledger


def test_a_ledger_is_verified_from_its_events_and_a_wrong_epsilon_is_found():
    ledger = Ledger.decode(charged(3).encode())
    ledger.verify()
    recorded = ledger.entries[-1]
    assert recorded.task_epsilon == accounting.epsilon([SHUFFLED] * 3, delta=1e-5)
    forged = dataclasses.replace(recorded, events=(ShuffledReports("words", 2.0, 20_000),))
    with pytest.raises(StateError):
        Ledger("phones", (*ledger.entries[:-1], forged)).verify()


def test_a_budget_counts_rounds_and_says_what_would_fit():
    each = accounting.epsilon([SHUFFLED], delta=1e-5)
    budget = Budget(2.5 * each, 1e-5)
    fitting = rounds_possible(Counter(), [SHUFFLED], budget=budget.epsilon, delta=budget.delta)
    assert fitting == 2
    with pytest.raises(BudgetExceeded, match="smaller epsilon of each report"):
        charged(fitting + 1, budget=budget)


def test_the_report_names_randomiser_shuffler_and_what_companions_would_learn():
    found = report_of_ledger(charged(2, ANSWERS), TASK, cross_check=True)
    assert found["epsilon"]["at_delta"] == accounting.epsilon([ANSWERS] * 2, delta=1e-5)
    assert found["epsilon"]["if_alone"] == 4.0
    assert found["epsilon"]["mu"] is None
    assert found["cross_check"] is None
    assert json.loads(json.dumps(found)) == found
    text = render_text(found)
    assert "answers: randomised on the device (10-ary randomised response, epsilon 2 each), then shuffled" in text
    assert "at least 10000 honest reports" in text
    assert "clones bound" in text
    assert "10-ary randomised response" in render_html(found)


def test_the_report_of_mixed_events_has_rows_for_all():
    found = privacy_report(
        Ledger("phones"), TASK, planned_rounds=[[GAUSSIAN, REPORT]], n_users=1_000, task_budget=WIDE,
        population_budget=WIDE, minimum_cohort=10,
    )  # fmt: skip
    assert [row["mu_each"] for row in found["events"]] == [0.1, None]
    assert "direction: randomised on the device, epsilon 3 each, for any two inputs" in render_text(found)


def test_spending_lists_reports_without_mu():
    spent = spending([[SHUFFLED], [REPORT]], delta=1e-6)
    assert [(one.mu, one.share) for one in spent] == [(0.0, 0.0), (0.0, 0.0)]
    assert spent[1].epsilon_so_far == pytest.approx(3.0 + amplified_epsilon(2.0, 10_000, 1e-6), rel=1e-12)
