"""The privacy report states what the ledger says, and says what it does not cover."""

from __future__ import annotations

import json

import pytest

from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.events import GaussianRelease, SampledRound, Sampling
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, ReleaseState
from odp.privacy.rendering import render_html, render_text
from odp.privacy.report import privacy_report, report_of_ledger

TASK = "aa" * 32
COUNTS = GaussianRelease("counts", 10.0, 200.0, 1682)
STEP = (GaussianRelease("gram", 10.0, 80.0, 60_552), GaussianRelease("right", 10.0, 80.0, 13_456))
PLAN = [(COUNTS, *STEP), STEP]
FLAT = [event for events in PLAN for event in events]
BUDGET = Budget(1.0, 1e-5)


def report(ledger: Ledger, **changes):
    arguments = {
        "planned_rounds": PLAN,
        "n_users": 9_000,
        "task_budget": BUDGET,
        "population_budget": Budget(5.0, 1e-5),
        "minimum_cohort": 100,
    }
    return privacy_report(ledger, TASK, **{**arguments, **changes})


def charged(rounds: int) -> Ledger:
    ledger = Ledger("films")
    for number in range(rounds):
        ledger = ledger.charge(
            task_id=TASK, round=number, events=PLAN[number], contributions=500, population_size=9_000,
            id_set_sha256=bytes(32), task_budget=BUDGET, population_budget=Budget(5.0, 1e-5),
        )  # fmt: skip
    return ledger


def test_before_the_first_round_epsilon_is_that_of_the_plan():
    found = report(Ledger("films"))
    assert found["status"] == "planned"
    assert found["epsilon"]["at_delta"] == found["epsilon"]["of_plan"] == accounting.epsilon(FLAT, delta=1e-5)
    assert found["epsilon"]["at_delta"] == pytest.approx(0.946485, abs=1e-5)
    assert found["rounds"] == {"planned": 2, "charged": 0, "released": 0, "void": 0, "unreleased": 0}
    assert found["budget"]["task"]["left"] == 1.0


def test_after_a_round_epsilon_is_what_the_ledger_was_charged():
    ledger = charged(1).advance(task_id=TASK, round=0, state=ReleaseState.VOID)
    found = report(ledger)
    assert found["status"] == "spent"
    assert found["epsilon"]["at_delta"] == ledger.state.epsilon_of_task(TASK, delta=1e-5) < found["epsilon"]["of_plan"]
    assert found["rounds"] == {"planned": 2, "charged": 1, "released": 0, "void": 1, "unreleased": 0}
    assert [(row["name"], row["planned"], row["done"]) for row in found["events"]] == [
        ("counts", 1, 1), ("gram", 2, 1), ("right", 2, 1),
    ]  # fmt: skip
    assert found["hashes"]["ledger_head"] == ledger.head.hex()


def test_shares_of_mu_squared_add_up_to_one():
    for ledger in (Ledger("films"), charged(1), charged(2)):
        assert sum(row["share_of_mu_squared"] for row in report(ledger)["events"]) == pytest.approx(1.0)


def test_epsilon_is_stated_at_three_deltas_and_decreases_with_delta():
    found = report(Ledger("films"))["epsilon"]
    assert found["at_tenth"] == accounting.epsilon(FLAT, delta=1e-6)
    assert found["at_tenth"] > found["at_delta"] > found["at_tenfold"]
    assert report(Ledger("films"), task_budget=Budget(1.0, 0.5), n_users=1)["epsilon"]["at_tenfold"] is None


def test_a_large_delta_is_warned_about_and_a_hopeless_one_refused():
    assert report(Ledger("films"))["warnings"] == []
    warnings = report(Ledger("films"), n_users=70_000)["warnings"]
    assert len(warnings) == 2
    assert "times users is 0.7" in warnings[0]
    assert "use 1e-06" in warnings[0]
    with pytest.raises(PrivacyError, match="delta"):
        report(Ledger("films"), n_users=100_000)


def test_another_budget_than_the_enforced_one_cannot_be_reported():
    with pytest.raises(PrivacyError, match="which the ledger holds"):
        report(charged(1), task_budget=Budget(2.0, 1e-5))


def test_a_meaningless_epsilon_is_called_so():
    plan = [(GaussianRelease("x", 10.0, 1.0, 1),)]
    assert "such a guarantee protects nobody" in report(Ledger("films"), planned_rounds=plan)["warnings"][0]


def test_the_report_is_json_and_the_text_shows_the_same_numbers():
    for ledger in (Ledger("films"), charged(2)):
        found = report(ledger, cross_check=True)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        text = render_text(found)
        for part in (
            f"{found['epsilon']['at_delta']:.4f} at delta 1e-05", found["status"], "zero_out_user", "60552", "counts",
            f"PLD {found['cross_check']['pld']:.4f}", f"RDP {found['cross_check']['rdp']:.4f}", "NOT covered: who",
            found["accountant"]["library"], "tuning     not charged", "enclaves emulated",
        ):  # fmt: skip
            assert part in text


def test_the_cross_check_brackets_the_closed_form():
    found = report(Ledger("films"), cross_check=True)
    check, closed = found["cross_check"], found["epsilon"]["at_delta"]
    assert closed - 1e-6 <= check["pld"] <= closed + 2e-3
    assert check["pld"] <= check["rdp"]
    assert check["replace_one_pld"] > 1.9 * closed
    assert report(Ledger("films"))["cross_check"] is None
    assert "cross-check not run" in render_text(report(Ledger("films")))


@pytest.mark.parametrize("plan", [[], [()], [STEP, ()]])
def test_a_plan_without_releases_is_refused(plan):
    with pytest.raises(ConfigurationError, match="planned round"):
        report(Ledger("films"), planned_rounds=plan)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_the_page_has_the_same_numbers_and_nothing_to_fetch(rounds):
    found = report(charged(rounds), cross_check=True, hashes={"code": "sha384:<ff>"})
    page = render_html(found)
    for part in (f"{found['epsilon']['at_delta']:.4f}", found["hashes"]["ledger_head"], "60552", "sha384:&lt;ff&gt;"):
        assert part in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page


def test_every_section_that_a_claim_needs_is_there():
    found = report(charged(1))
    assert {
        "unit", "adjacency", "sampling", "epsilon", "delta_times_users", "added_delta", "events", "rounds", "cohorts",
        "budget", "accountant", "cross_check", "users", "minimum_cohort", "tuning_charged", "enclaves", "assumptions",
        "not_covered", "not_charged", "audit", "hashes", "recompute",
    } <= set(found)  # fmt: skip
    text = render_text(found)
    for part in ("not charged: ", "assumed", "recompute", "500 to 500 uploads", "charged and not released"):
        assert part in text


def test_the_ledger_alone_gives_the_same_epsilon_and_says_what_it_does_not_know():
    ledger = charged(2)
    alone, whole = report_of_ledger(ledger, TASK[:6]), report(ledger)
    assert alone["epsilon"] == whole["epsilon"] | {"of_plan": None}
    for key in ("budget", "cohorts", "added_delta", "hashes"):
        assert alone[key] == whole[key]
    assert (alone["minimum_cohort"], alone["enclaves"], alone["rounds"]["planned"]) == (None, "not checked", None)
    assert "plan not known" in render_text(alone)
    with pytest.raises(ConfigurationError, match="its tasks: aaaaaaaaaaaa"):
        report_of_ledger(ledger, "bb")


def test_a_sampled_round_says_who_was_drawn_how_and_what_that_assumes():
    event = SampledRound(STEP, Sampling(0.1, 10_000, 1_300))
    ledger = Ledger("films").charge(
        task_id=TASK, round=0, events=(event,), contributions=8_000, population_size=9_000,
        id_set_sha256=bytes(32), task_budget=Budget(5.0, 1e-5), population_budget=Budget(5.0, 1e-5),
    )  # fmt: skip
    found = report(ledger, planned_rounds=[(event,)] * 3, task_budget=Budget(5.0, 1e-5))
    assert found["epsilon"]["mu"] is None
    assert found["sampling"]["mode"] == "enclave_poisson"
    assert found["sampling"]["draws"] == [{"probability": 0.1, "population_bound": 10_000, "cap": 1_300}]
    assert found["cohorts"][0]["uploads"] == 8_000
    assert found["cohorts"][0]["expected_drawn"] == 800.0
    assert [(row["name"], row["planned"], row["done"]) for row in found["events"]] == [("gram", 3, 1), ("right", 3, 1)]
    assert any("draw of contributions is secret" in item for item in found["assumptions"])
    assert found["accountant"]["discretisation"] == 1e-4
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert "probability 0.1" in render_text(found)
    assert not any("secret" in item and "draw" in item for item in report(charged(1))["assumptions"])
