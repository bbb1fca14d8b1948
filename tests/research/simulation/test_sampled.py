"""Simulations of sampled tasks: who counts, what it costs, and that the estimates bear it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import odp
from odp.datasets import random_split
from odp.errors import DataError
from odp.privacy.accounting import epsilon
from odp.privacy.events import SampledRound
from odp.research.simulation.engine import RunResult, simulate
from odp.research.simulation.inputs import sampling_note

RATINGS = odp.data.synthetic_movielens(n_users=400, n_items=30, ratings_per_user=15, seed=4)
SPLIT = random_split(RATINGS, seed=3)


pytestmark = pytest.mark.usefixtures("coarse_composition_of_module")


def _task(probability: float | None, *, most: int = 500, eps: float = 20.0) -> odp.Task:
    drawn = {"sampling": "enclave_poisson", "sampling_probability": probability, "most_contributions": most}
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=30, rank=2),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=eps, delta=1e-5, max_items_per_user=15),
        training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=100, **(drawn if probability else {})),
    )


@pytest.fixture(scope="module")
def run(coarse_composition_of_module: None) -> RunResult:
    return simulate(_task(0.5), SPLIT, seed=3)


def test_a_sampled_run_is_charged_as_one_joint_event_per_round_within_the_budget(run):
    assert [len(events) for events in run.charges] == [1, 1, 1]
    events = [event for events in run.charges for event in events]
    assert all(isinstance(event, SampledRound) for event in events)
    assert run.epsilon == epsilon(events, delta=1e-5)
    assert 19.8 < run.epsilon <= 20.0
    assert [entry.contributions for entry in run.rounds] == [400] * 3


def test_estimates_bear_the_draw_the_model_is_close_to_that_of_all_users(run):
    """Half of the users at the noise that this allows: worse than all of them, better than a constant."""
    full = simulate(_task(None), SPLIT, seed=3)
    constant = float(SPLIT.test.values.std())
    assert full.metrics["test_rmse"] < run.metrics["test_rmse"] + 0.02
    assert run.metrics["test_rmse"] < 0.97 * constant
    counts = [result.model.keyed.rows[:, 0].sum() for result in (run, full)]
    assert counts[0] == pytest.approx(counts[1] / 2, rel=0.15)


def test_a_seed_repeats_the_run_and_a_checkpoint_goes_on_with_the_same_draws(run, tmp_path: Path):
    class Stop(Exception):
        pass

    def stop(result):
        if result.round == 1:
            raise Stop

    with pytest.raises(Stop):
        simulate(_task(0.5), SPLIT, seed=3, checkpoint=tmp_path / "c", on_round=stop)
    resumed = simulate(_task(0.5), SPLIT, seed=3, checkpoint=tmp_path / "c")
    assert resumed.metrics["test_rmse"] == run.metrics["test_rmse"]
    assert resumed.epsilon == run.epsilon


def test_nobody_drawn_is_a_round_of_noise():
    assert simulate(_task(1e-6, eps=math.inf), SPLIT, seed=1).metrics["test_rmse"] > 0


def test_more_users_than_the_task_accepts_are_refused():
    with pytest.raises(DataError, match="most_contributions=300"):
        simulate(_task(0.5, most=300, eps=math.inf), SPLIT)


def test_the_assumption_is_said():
    assert "sampling assumed secret" in sampling_note(_task(0.5, eps=math.inf))[0]
    assert sampling_note(_task(None)) == []
