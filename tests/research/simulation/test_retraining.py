"""Schedules in simulation: what they charge, what they begin with, what is refused."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import odp
from odp.datasets.drifting import drifting_ratings
from odp.errors import BudgetExceeded, ConfigurationError, DataError, PrivacyError

SMALL = {"n_users": 400, "n_items": 80, "ratings_per_week": 4.0, "kept_weeks": 6, "new_items": 2}


def _schedule(**changes: object) -> odp.living.Schedule:
    return odp.living.Schedule(**({"every": "7d", "horizon": "4w", "lifetime_epsilon": 12.0, "delta": 1e-5} | changes))


@pytest.fixture(scope="module")
def found() -> odp.living.Retraining:
    return odp.living.retrain(_schedule(), drifting_ratings(weeks=4, **SMALL))


def test_every_training_is_charged_and_the_lifetime_is_nearly_spent(found):
    so_far = [training.epsilon_so_far for training in found.trainings]
    assert so_far == sorted(so_far)
    assert 0.97 * 12.0 <= found.epsilon <= 12.0
    assert [training.epsilon for training in found.trainings] == pytest.approx([so_far[0]] * 4, rel=1e-2)


def test_each_training_begins_with_the_items_of_the_one_before(found):
    assert [training.known for training in found.trainings] == [0, 78, 78, 78]
    assert len(found.start.keys) == 80


# tests/models/test_warm_start.py compares a training with and without a start in CI.
@pytest.mark.proof
def test_a_start_helps_at_the_same_budget():
    # Means of six trainings of the same ratings: the gap is many times what another seed of the noise changes.
    schedule = _schedule(horizon="6w", lifetime_epsilon=6.0)
    users = SMALL | {"n_users": 1500}
    warm = odp.living.retrain(schedule, drifting_ratings(weeks=6, **users))
    cold = odp.living.retrain(schedule, drifting_ratings(weeks=6, **users), warm=False)
    assert warm.mean_rmse(3, 6) < cold.mean_rmse(3, 6)
    assert [training.known for training in cold.trainings] == [0] * 6


def test_whole_data_sets_are_split_and_stop_where_they_end(tmp_path):
    data = [odp.data.synthetic_movielens(n_users=300, n_items=60)] * 2
    told: list[int] = []
    found = odp.living.retrain(_schedule(), data, on_training=lambda training: told.append(training.number))
    assert told == [0, 1]
    assert len(found.rows) == 2
    assert found.to_csv(tmp_path / "rows.csv").read_text().startswith("number,epsilon,epsilon_so_far")
    assert "2 trainings" in repr(found)


def test_without_noise_nothing_is_charged_and_infinity_is_said():
    found = odp.living.retrain(_schedule(), list(drifting_ratings(weeks=1, **SMALL)), noise=False)
    assert math.isinf(found.epsilon)
    assert found.to_json()["epsilon"] == "inf"


def test_a_training_beyond_the_lifetime_budget_never_begins(monkeypatch):
    """As of a schedule that gives out more than there is: the sum of what is charged decides."""
    done: list[int] = []
    monkeypatch.setattr(odp.living.Schedule, "_shares", lambda self: (0.6,) * self.trainings)
    with pytest.raises(BudgetExceeded, match="training 1 would bring"):
        odp.living.retrain(
            _schedule(),
            drifting_ratings(weeks=4, **SMALL),
            on_training=lambda training: done.append(training.number),
        )
    assert done == [0]


def test_a_catalogue_that_shares_nothing_with_the_start_is_refused():
    start = odp.items.WarmStart(keys=["no such film"], popularity=[1.0], biases=[0.0], factors=np.zeros((1, 1)))
    with pytest.raises(ConfigurationError, match="share a key"):
        odp.living.retrain(_schedule(), drifting_ratings(weeks=1, **SMALL), start=start)


def test_implicit_feedback_is_refused_with_what_does_it():
    seen = odp.data.synthetic_movielens(n_users=100, n_items=30, ratings_per_user=10)
    seen = dataclasses.replace(seen, implicit=True, values=np.ones_like(seen.values), low=0.0, high=1.0)
    with pytest.raises(DataError, match=r"holds implicit feedback.*odp\.simulate"):
        odp.living.retrain(_schedule(), [seen])


def test_data_without_anything_to_test_by_are_refused_before_any_training():
    few = odp.datasets.Ratings.from_triples(
        "few", np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([1.0, 5.0, 2.0, 3.0]),
        low=1, high=5, n_users=2, n_items=2, item_ids=np.arange(2),
    )  # fmt: skip
    with pytest.raises(DataError, match="test part of data set 'few' has no ratings"):
        odp.living.retrain(_schedule(delta=1e-3), [few])


def test_no_data_and_too_large_a_delta_are_refused():
    with pytest.raises(ConfigurationError, match="at least one training"):
        odp.living.retrain(_schedule(), [])
    with pytest.raises(PrivacyError, match="delta"):
        odp.living.retrain(_schedule(delta=9e-3), drifting_ratings(weeks=1, **SMALL))
