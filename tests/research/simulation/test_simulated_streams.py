"""A simulated stream: charged once, users in turns, resumed where it stood."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import odp
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.errors import DataError
from odp.evaluation.users import due_users
from odp.privacy.matrix.sensitivity import Participation, ParticipationRecord
from odp.research.simulation.engine import RoundResult

USERS, ROUNDS, APART = 120, 9, 3


def people(users: int = USERS) -> ExamplesSplit:
    generator = np.random.default_rng(5)
    features = generator.uniform(-1, 1, (users * 5, 4)).astype(np.float32)
    targets = (features @ np.array([1.0, -1.0, 0.5, 0.0])).clip(-1, 1).astype(np.float32)
    train = UsersExamples.of_users(features, targets, np.arange(len(features)) % users)
    return ExamplesSplit(train, UsersExamples.of_users(features[:50], targets[:50], np.zeros(50, dtype=np.int64)))


def task(**training: object) -> odp.Task:
    return odp.Task(
        name="stream",
        model=odp.Glm("linear", 4),
        data=odp.Examples({"x": odp.Tensor((4,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
        training=odp.DPFTRL(rounds=ROUNDS, min_separation=APART, **training),  # type: ignore[arg-type]
        cohort=odp.Cohort(minimum=10, goal=USERS // APART),
    )


def test_users_come_in_turns_as_often_as_they_may_and_independently_of_each_other() -> None:
    train = people().train
    allowed = Participation(rounds=ROUNDS, most=2, separation=APART)
    record = ParticipationRecord(allowed)
    for round in range(ROUNDS):
        due = due_users(train, allowed, round=round, seed=1)
        record.record(round, [int(user).to_bytes(32, "big") for user in due])
        assert (len(due) > 0) is (round < 2 * APART)
        fewer = due_users(train.select_users(np.arange(USERS - 1)), allowed, round=round, seed=1)
        assert set(fewer.tolist()) == set(due.tolist()) - {USERS - 1}
    assert len(record) == USERS


@pytest.mark.parametrize("mechanism", ["banded", "tree", "blt"])
def test_a_stream_that_stops_goes_on_from_its_checkpoint_and_is_charged_once(tmp_path: Path, mechanism: str) -> None:
    whole = odp.simulate(task(mechanism=mechanism), people(), seed=2)
    assert sum(map(len, whole.charges)) == 1
    assert 7.99 < whole.epsilon <= 8.0

    class Stopped(Exception):
        pass

    def stop(done: RoundResult) -> None:
        if done.round == 4:
            raise Stopped

    with pytest.raises(Stopped):
        odp.simulate(task(mechanism=mechanism), people(), seed=2, checkpoint=tmp_path, on_round=stop)
    resumed = odp.simulate(task(mechanism=mechanism), people(), seed=2, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.model.dense["parameters"], whole.model.dense["parameters"])
    assert [done.contributions for done in resumed.rounds] == [done.contributions for done in whole.rounds]


def test_more_users_than_the_rounds_take_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"contributions of each of 3 rounds"):
        odp.simulate(task(), people(USERS * 3))
