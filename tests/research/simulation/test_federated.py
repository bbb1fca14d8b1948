"""A simulated federated training: noisy, charged, repeatable, resumable."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import odp
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.errors import ConfigurationError, DataError, PrivacyError
from odp.privacy.accounting import epsilon
from odp.privacy.events import SampledRound
from odp.tasks.file import parse_task, render_task

USERS, ROUNDS = 300, 6


def people(users: int = USERS) -> ExamplesSplit:
    generator = np.random.default_rng(5)
    truth = generator.normal(size=(3, 8))
    features = generator.uniform(-1, 1, (users * 10 + 500, 8)).astype(np.float32)
    targets = (features @ truth.T).argmax(axis=1).astype(np.float32)
    own = users * 10
    train = UsersExamples.of_users(features[:own], targets[:own], np.arange(own) % users)
    test = UsersExamples.of_users(features[own:], targets[own:], np.zeros(500, dtype=np.int64))
    return ExamplesSplit(train, test)


def task(**changes: object) -> odp.Task:
    given: dict[str, object] = {
        "name": "kinds",
        "model": odp.Glm("multinomial", 8, 3),
        "data": odp.Examples({"x": odp.Tensor((8,), -1.0, 1.0)}, label="kind"),
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-4),
        "training": odp.DPFedAvg(rounds=ROUNDS, rate=0.5, clip=1.0, epochs=2),
        "cohort": odp.Cohort(minimum=10, goal=USERS),
    }
    return odp.Task(**{**given, **changes})  # type: ignore[arg-type]


def test_a_training_learns_and_costs_its_budget() -> None:
    run = odp.simulate(task(), people(), seed=2)
    assert len(run.rounds) == ROUNDS
    assert run.metrics["test_accuracy"] > 0.75
    assert run.metrics["test_loss"] < math.log(3)
    assert 7.99 < run.epsilon <= 8.0
    assert run.epsilon == epsilon([event for events in run.charges for event in events], delta=1e-4)
    spent = [done.epsilon for done in run.rounds]
    assert spent == sorted(spent)
    assert len(run.item_counts) == 0
    again = odp.simulate(task(), people(), seed=2)
    np.testing.assert_array_equal(run.model.dense["parameters"], again.model.dense["parameters"])


def test_a_training_without_noise_protects_nothing_and_says_so() -> None:
    run = odp.simulate(task(), people(), noise=False)
    assert run.epsilon == math.inf
    assert run.metrics["test_accuracy"] > 0.8


@pytest.mark.usefixtures("coarse_composition")
def test_a_sampled_training_is_charged_as_such() -> None:
    cohort = odp.Cohort(
        minimum=10, goal=USERS, sampling="enclave_poisson", sampling_probability=0.5, most_contributions=400
    )
    run = odp.simulate(task(cohort=cohort), people())
    assert 7.9 < run.epsilon <= 8.0


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole = odp.simulate(task(), people())

    class Stopped(Exception):
        pass

    def stop(done: object) -> None:
        if getattr(done, "round", 0) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        odp.simulate(task(), people(), checkpoint=tmp_path, on_round=stop)
    resumed = odp.simulate(task(), people(), checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.model.dense["parameters"], resumed.model.dense["parameters"])


def test_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="contributions of a round"):
        odp.simulate(task(cohort=odp.Cohort(minimum=10, goal=100)), people())
    with pytest.raises(DataError, match=f"fewer than goal={USERS + 1} of the cohort"):
        odp.simulate(task(cohort=odp.Cohort(minimum=10, goal=USERS + 1)), people())
    narrow = UsersExamples.of_users(np.zeros((USERS, 3), np.float32), [0] * USERS, np.arange(USERS))
    with pytest.raises(DataError, match="8 numbers"):
        odp.simulate(task(), ExamplesSplit(narrow, people().test))
    ratings = odp.data.synthetic_movielens(n_users=20, n_items=10, ratings_per_user=5, seed=1)
    with pytest.raises(ConfigurationError, match="ratings"):
        odp.simulate(task(), ratings)
    films = odp.Task(
        name="films", model=odp.MatrixFactorization(items=10), data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="labelled examples"):
        odp.simulate(films, people())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": odp.MatrixFactorization(items=3)}, "odp.Glm or .*odp.TwoTower with DPFedAvg"),
        ({"data": odp.RatingsData()}, "training to go with data"),
        ({"privacy": odp.UserLevelDP(epsilon=8, delta=1e-4, max_items_per_user=3)}, "max_items_per_user"),
        ({"privacy": odp.UserLevelDP(epsilon=math.inf, delta=1e-4)}, "noise=False"),
        ({"model": odp.Glm("multinomial", 9, 3)}, "features=9"),
        ({"model": odp.Glm("linear", 8)}, "label_low"),
        ({"data": odp.Examples({"x": odp.Tensor((8,), -1, 1)}, label_low=0.0, label_high=2.0)}, "label_low"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        task(**change)


def test_a_delta_that_is_no_guarantee_is_refused() -> None:
    with pytest.raises(PrivacyError):
        task(privacy=odp.UserLevelDP(epsilon=8, delta=9e-3))


def test_a_task_file_says_the_same() -> None:
    written = task(training=odp.DPFedAvg(rounds=5, noise_schedule=[(2, 2.0), (3, 1.0)], server="adam"))
    assert parse_task(render_task(written)) == written
    assert parse_task(render_task(task())).definition() == task().definition()


def test_a_schedule_of_cohorts_has_its_number_of_users_in_each_round() -> None:
    training = odp.DPFedAvg(rounds=4, rate=0.5, clip=1.0, cohort_schedule=[(3, 50), (1, USERS)])
    run = odp.simulate(task(training=training), people(), seed=2)
    assert [one.contributions for one in run.rounds] == [50, 50, 50, USERS]
    assert 7.99 < run.epsilon <= 8.0  # that users are left out is not amplification: nobody drew them in secret
    again = odp.simulate(task(training=training), people(), seed=2)
    np.testing.assert_array_equal(run.model.dense["parameters"], again.model.dense["parameters"])


def test_small_cohorts_are_divided_by_their_own_number() -> None:
    """Without noise, one step of the mean update is as long for 50 users as for all."""
    steps = []
    for goal in (50, USERS):
        training = odp.DPFedAvg(rounds=1, rate=0.5, clip=1.0, cohort_schedule=[(1, goal)])
        run = odp.simulate(task(training=training), people(), seed=2, noise=False)
        steps.append(float(np.linalg.norm(run.model.dense["parameters"])))
    assert steps[0] == pytest.approx(steps[1], rel=0.15)


@pytest.mark.usefixtures("coarse_composition")
def test_sampled_cohorts_of_a_schedule_count_their_number_and_cost_the_budget() -> None:
    cohort = odp.Cohort(minimum=10, goal=USERS, sampling="enclave_poisson", most_contributions=400)
    training = odp.DPFedAvg(rounds=4, rate=0.5, clip=1.0, cohort_schedule=[(3, 20), (1, 100)])
    run = odp.simulate(task(cohort=cohort, training=training), people(), seed=2)
    assert 7.9 < run.epsilon <= 8.0
    (first,), (last,) = run.charges[0], run.charges[3]
    assert isinstance(first, SampledRound)
    assert isinstance(last, SampledRound)
    assert (first.sampling.probability, last.sampling.probability) == (20 / USERS, 100 / USERS)
