"""The simulator: repeatable, charged as accounted, and strict about data that does not fit the task."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.dpam.experiment import TaskEvaluation
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.experiment import NamedData, experiment_of
from odp.datasets import Ratings, Split, random_split
from odp.datasets.ratings import merge
from odp.errors import ConfigurationError, DataError, PrivacyError
from odp.evaluation.baselines import rmse
from odp.evaluation.noise import NoNoise
from odp.evaluation.users import spread_users
from odp.privacy.accounting import epsilon
from odp.protocol.wire.model import ModelVersion
from odp.research.simulation.engine import RoundResult, RunResult, check_population, simulate

RATINGS = odp.data.synthetic_movielens(n_users=150, n_items=40, ratings_per_user=15, seed=4)


def _task(*, eps: float = 8.0, delta: float = 1e-6, items: int = 40, rank: int = 2, low: float = 1.0) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=items, rank=rank),
        data=odp.RatingsData(low=low, high=5.0),
        privacy=odp.UserLevelDP(epsilon=eps, delta=delta, max_items_per_user=20),
        training=odp.DPAM(steps=2),
        cohort=odp.Cohort(minimum=100),
    )


@pytest.fixture(scope="module")
def run() -> RunResult:
    return simulate(_task(), RATINGS, seed=3)


def _same(ours: RunResult, theirs: RunResult) -> bool:
    tables = zip(ours.model.tables, theirs.model.tables, strict=True)
    return (
        all(a.rows.tobytes() == b.rows.tobytes() for a, b in tables)
        and ours.metrics["test_rmse"] == theirs.metrics["test_rmse"]
    )


def test_a_seed_repeats_the_run_bit_for_bit_and_another_does_not(run: RunResult) -> None:
    assert _same(run, simulate(_task(), RATINGS, seed=3))
    assert not _same(run, simulate(_task(), RATINGS, seed=4))


def test_noise_false_is_no_noise_and_states_no_epsilon(run: RunResult) -> None:
    off = simulate(_task(), RATINGS, seed=3, noise=False)
    assert _same(off, simulate(_task(), RATINGS, seed=3, noise=NoNoise()))
    assert not _same(off, run)
    assert off.epsilon == math.inf
    assert off.to_json()["epsilon"] is None


def test_the_stated_epsilon_is_that_of_the_charges_and_within_the_budget(run: RunResult) -> None:
    charged = [event for events in run.charges for event in events]
    assert run.epsilon == epsilon(charged, delta=1e-6)
    assert 0.999 * 8 < run.epsilon <= 8
    assert len(run.charges) == len(run.rounds)
    for number, result in enumerate(run.rounds):
        spent = [event for events in run.charges[: number + 1] for event in events]
        assert result.epsilon == epsilon(spent, delta=1e-6)


def test_the_noise_that_is_charged_is_the_noise_of_the_task(run: RunResult) -> None:
    dpam = _task().definition().dpam
    counts, mass = run.charges[0][0], run.charges[1][0]
    assert (counts.name, counts.noise_std) == ("counts", dpam.count_noise_std)
    assert (mass.name, mass.noise_std) == ("mass", dpam.bias_mass_noise)


def test_an_infinite_epsilon_asks_for_no_noise_and_charges_nothing() -> None:
    result = simulate(_task(eps=math.inf), RATINGS, seed=3)
    assert result.epsilon == math.inf
    assert all(events == () for events in result.charges)
    assert _same(result, simulate(_task(eps=math.inf), RATINGS, seed=3, noise=False))
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["charges"] == []


def test_progress_is_told_round_by_round(run: RunResult) -> None:
    told: list[RoundResult] = []
    again = simulate(_task(), RATINGS, seed=3, on_round=told.append)
    assert told == list(again.rounds)
    assert [result.round for result in told] == list(range(len(run.rounds)))
    assert {result.contributions for result in told} == {150}
    assert again.metrics["test_rmse"] == told[-1].metrics["test_rmse"]


def test_a_split_is_taken_as_it_is(run: RunResult) -> None:
    assert _same(run, simulate(_task(), random_split(RATINGS, seed=3), seed=3))


def test_rounds_are_scored_on_some_users_and_the_result_on_all(monkeypatch: pytest.MonkeyPatch, run: RunResult) -> None:
    monkeypatch.setattr("odp.algorithms.dpam.experiment._USERS_PER_ROUND", 20)
    split = random_split(RATINGS, seed=3)
    models: list[ModelVersion] = []
    after_round = TaskEvaluation.after_round

    def watched(self: TaskEvaluation, model: ModelVersion, *parts: Any) -> dict[str, float]:
        models.append(model)
        return after_round(self, model, *parts)

    monkeypatch.setattr(TaskEvaluation, "after_round", watched)
    quick = simulate(_task(), split, seed=3)
    assert quick.metrics["test_rmse"] == run.metrics["test_rmse"]
    assert quick.metrics["validation_rmse"] == run.metrics["validation_rmse"]
    users = spread_users(split.train, 20)
    assert len(users) == 20
    history, tests = merge(split.train, split.validation).select_users(users), split.test.select_users(users)
    population = DpamPopulation(_task().definition())
    for model, result in zip(models, quick.rounds, strict=True):
        error = rmse(population.predict(model, history, tests), tests)
        assert result.metrics["test_rmse"] == pytest.approx(error, rel=1e-12)
    experiment = experiment_of(_task(), NamedData("synthetic:n_users=30,n_items=40"), seed=1, held_out=None)
    assert any("of 20 of 30 users" in line for line in experiment.notes(noise=False))


def test_a_population_without_test_ratings_has_no_rmse_and_its_json_says_null() -> None:
    nothing = RATINGS.take(np.zeros(RATINGS.n_ratings, dtype=bool))
    result = simulate(_task(rank=0), Split(train=RATINGS, validation=nothing, test=nothing))
    assert math.isnan(result.metrics["test_rmse"])
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["test_rmse"] is None


def test_a_wrong_number_of_items_says_what_to_set() -> None:
    with pytest.raises(DataError, match=r"has 40 items, the task's model items=41; set items=40 in the model"):
        simulate(_task(items=41), RATINGS)


def test_values_outside_of_the_tasks_bounds_are_refused() -> None:
    with pytest.raises(DataError, match=r"values outside the task's bounds low=1.5, high=5.0"):
        simulate(_task(low=1.5), RATINGS)


def test_bounds_that_float32_cannot_hold_are_met_by_values_at_the_bound() -> None:
    ratings = Ratings.from_triples("tenths", [0, 1], [0, 1], [0.1, 4.9], low=0.1, high=4.9, n_items=2)
    task = odp.Task(
        name="t",
        model=odp.MatrixFactorization(items=2),
        data=odp.RatingsData(low=0.1, high=4.9),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
        cohort=odp.Cohort(minimum=1),
    )
    check_population(task, ratings)
    narrower = dataclasses.replace(task, data=odp.RatingsData(low=0.1, high=4.8))
    with pytest.raises(DataError, match="values outside the task's bounds"):
        check_population(narrower, ratings)


def test_a_delta_that_is_no_guarantee_for_so_many_users_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"delta=0.008 to be below 1/users=0.00667 \(users=150\)"):
        simulate(_task(delta=0.008), RATINGS)


def test_recommendations_are_unseen_items_best_first(run: RunResult) -> None:
    seen = set(run.history.user(7)[0].tolist())
    found = run.recommend(7, count=5)
    assert len(found) == 5
    assert not seen & {item for item, _ in found}
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    everything = run.recommend(7, count=1000)
    assert {item for item, _ in everything} == set(range(40)) - seen
    assert everything[:5] == found


def test_ranges_of_predictions_cover_and_are_those_of_devices(run: RunResult) -> None:
    found = run.metrics["test_intervals"]
    assert json.loads(json.dumps(run.to_json(), allow_nan=False))["test_intervals"] == found.to_json()
    # Of some 480 test ratings: a standard error of .02.
    assert 0.82 < found.shown.covered < 0.97
    widths = [one.width for one in found.curve]
    assert widths == sorted(widths)
    mine = run.intervals(7, [0, 5], level=0.8)
    assert mine.level == 0.8
    assert ((mine.low >= 1.0) & (mine.low < mine.high) & (mine.high <= 5.0)).all()
    with pytest.raises(ConfigurationError, match="level="):
        run.intervals(7, [0], level=1.0)


def test_recommendations_for_nobody_are_refused(run: RunResult) -> None:
    for user in (-1, 150):
        with pytest.raises(DataError, match=f"user={user}"):
            run.recommend(user)


def test_a_result_shows_no_ratings(run: RunResult) -> None:
    assert "history" not in repr(run)
    assert dataclasses.fields(run)
