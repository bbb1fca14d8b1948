"""Plans: each unknown is found from the others, and what cannot be done is said with what would have to change."""

from __future__ import annotations

import json

import pytest

import odp
from odp.algorithms.noise_plan import CLEAR, plan_of_task, render_task_plan
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import composition
from odp.privacy.accounting import noise_multiplier_for
from odp.privacy.calibration import Question, answer, render_plan


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coarse grid of the accountant: within 1e-3 for these plans."""
    monkeypatch.setattr(composition, "INTERVAL", composition.COARSE_INTERVAL)


def solve(**known):
    found = answer(Question(**known))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


SMALL = {"epsilon": 8.0, "delta": 1e-3, "population": 100, "cohort": 50}


def test_the_published_scenario_of_a_hundred_users():
    found = solve(**SMALL, rounds=11)
    assert found["solved_for"] == "sigma"
    assert found["sigma"] == pytest.approx(0.9835, abs=1e-3)
    assert found["std_of_mean"] == pytest.approx(0.0197, abs=1e-4)
    assert found["epsilon"] <= 8.0 < found["epsilon_without_amplification"]


def test_the_number_of_rounds_of_a_given_noise():
    found = solve(**SMALL, sigma=1.0)
    assert (found["solved_for"], found["rounds"]) == ("rounds", 11)


@pytest.mark.slow
def test_the_cohort_of_a_given_noise_and_number_of_rounds():
    found = solve(epsilon=8.0, delta=1e-3, population=100, sigma=0.9835, rounds=11)
    assert found["solved_for"] == "probability"
    assert found["cohort"] == pytest.approx(50, abs=0.1)
    assert found["epsilon"] <= 8.0
    assert solve(epsilon=8.0, delta=1e-3, population=100, sigma=20.0, rounds=11)["probability"] == 1.0


def test_epsilon_of_a_given_run_with_full_participation_is_the_closed_form():
    found = solve(sigma=10.0, rounds=100, delta=1e-5)
    assert found["epsilon"] == pytest.approx(4.377178, abs=1e-6)
    assert found["cohort"] is None
    assert "unknown" in found["verdict"]
    sigma = solve(epsilon=4.0, rounds=10, delta=1e-6)["sigma"]
    assert sigma == pytest.approx(noise_multiplier_for(epsilon=4.0, delta=1e-6, releases=10), rel=1e-5)


def test_the_population_for_a_wanted_error():
    found = solve(epsilon=2.0, rounds=10, error=0.1, dimension=100)
    assert found["solved_for"] == "population"
    assert found["error"] <= 0.1
    assert found["population"] == pytest.approx(found["sigma"] * 10 / 0.1, rel=0.02)
    # Its own delta: a tenth of one over the population at most.
    assert found["delta_times_population"] <= 0.1


def test_a_hopeless_plan_says_so_and_every_way_out_it_names_is_one():
    known = {"epsilon": 1.0, "delta": 1e-6, "population": 1000, "rounds": 50, "dimension": 10_000}
    found = solve(**known)
    assert not found["possible"]
    assert found["verdict"].startswith("cannot be done")
    ways = {way.split(" ")[0]: way for way in found["ways_out"]}
    text = "\n".join(found["ways_out"])
    enough = int(text.split("population of ")[1].split(" ")[0].replace(",", ""))
    assert solve(**known | {"population": enough})["possible"]
    assert not solve(**known | {"population": int(0.99 * enough)})["possible"]
    dimension = int(text.split("dimension of ")[1].split("\n")[0].replace(",", ""))
    assert solve(**known | {"dimension": dimension})["possible"]
    epsilon = float(ways["epsilon"].split(" ")[2].rstrip(","))
    assert solve(**known | {"epsilon": 1.02 * epsilon})["possible"]


def test_no_noise_of_this_size_fits_a_tiny_budget_and_the_answer_says_what_does():
    found = solve(epsilon=0.01, sigma=1.0, rounds=5, population=1000)
    assert not found["possible"]
    assert any(way.startswith("sigma = ") for way in found["ways_out"])
    assert "cannot be done" in render_plan(found)
    assert not solve(epsilon=0.1, sigma=1.0, delta=1e-6)["possible"]


def test_full_participation_is_named_where_it_is_better_than_sampling():
    found = solve(epsilon=1.0, delta=1e-6, population=2000, probability=0.1, rounds=1, error=0.001)
    assert found["error_with_full_participation"] < found["error"]
    assert any("full participation" in way for way in found["ways_out"])


@pytest.mark.parametrize(
    ("known", "match"),
    [
        ({}, "delta or population"),
        ({"epsilon": 1.0, "delta": 1e-6}, "missing: sigma, rounds"),
        ({"epsilon": 1.0, "rounds": 3, "cohort": 10}, "Expected a population"),
        ({"cohort": 10, "probability": 0.1, "population": 100}, "not both"),
        ({"epsilon": -1.0}, "epsilon=-1"),
        ({"epsilon": 1.0, "rounds": 0}, "rounds=0"),
        ({"cohort": 200, "population": 100}, "cohort=200"),
        ({"epsilon": 1.0, "rounds": 1, "error": 0.1, "cohort": 5}, "probability instead"),
    ],
)
def test_what_is_missing_or_contradictory_is_named(known, match):
    with pytest.raises(ConfigurationError, match=match):
        answer(Question(**known))


def test_a_delta_that_is_no_guarantee_at_the_population_is_refused():
    with pytest.raises(PrivacyError, match="delta"):
        solve(epsilon=1.0, rounds=1, delta=1e-3, population=2000)


def _task(**cohort) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=500, rank=2),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-7, max_items_per_user=20),
        training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=100, goal=5000, **cohort),
    )


def test_a_task_is_planned_release_by_release_and_told_from_which_population_it_works():
    found = plan_of_task(_task())
    assert [(row["round"], row["name"]) for row in found["releases"]] == [
        (0, "counts"), (1, "mass"), (1, "sums"), (2, "gram"), (2, "targets"),
    ]  # fmt: skip
    assert 1.999 < found["epsilon"] <= 2.0
    counts = found["releases"][0]
    assert counts["contributions_per_mean"] == 5000 * 20 / 500
    assert counts["error"] == pytest.approx(counts["noise_std"] / 200)
    again = plan_of_task(_task(), population=found["clear_from_population"])
    assert max(row["error"] for row in again["releases"]) <= CLEAR
    few = plan_of_task(_task(), population=200)
    assert not few["possible"]
    assert "drowns in noise" in render_task_plan(few)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_plan_of_statistics_is_refused_and_says_where_their_noise_is_shown():
    asked = odp.Statistics(
        name="asked", queries={"hours": odp.Histogram(bins=24)}, privacy=odp.UserLevelDP(epsilon=1, delta=1e-6)
    )
    with pytest.raises(ConfigurationError, match="odp task show"):
        plan_of_task(asked)


def test_a_sampled_task_counts_the_drawn_raters_only():
    found = plan_of_task(_task(sampling="enclave_poisson", sampling_probability=0.5, most_contributions=6000))
    assert found["releases"][0]["contributions_per_mean"] == 100
    assert 1.99 < found["epsilon"] <= 2.0
    assert "probability 0.5" in render_task_plan(found)
    # Sampling costs accuracy at equal epsilon: it is offered for the charge, not for the signal.
    full = plan_of_task(_task())
    assert all(s["error"] >= f["error"] for s, f in zip(found["releases"], full["releases"], strict=True))
