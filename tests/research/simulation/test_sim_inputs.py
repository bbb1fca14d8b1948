"""Odd and wrong input of the simulator: handled and told, or refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.dpam.experiment import weak_signal
from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.errors import ConfigurationError, DataError
from odp.research.simulation.engine import simulate
from odp.research.simulation.inputs import notes
from odp.research.simulation.presets import preset_task


def task_for(ratings: Ratings, *, rank: int = 0) -> odp.Task:
    return odp.Task(
        name="inputs",
        model=odp.MatrixFactorization(items=ratings.n_items, rank=rank),
        data=odp.RatingsData(low=ratings.low, high=ratings.high),
        privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-4),
        training=odp.DPAM(),
        cohort=odp.Cohort(minimum=1, goal=ratings.n_users),
    )


def with_odd_users() -> Ratings:
    """Forty usual users, then one without ratings and two with a single one; one pair is named twice."""
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(40), 12)
    items = np.concatenate([rng.choice(20, 12, replace=False) for _ in range(40)])
    users, items = np.append(users, [41, 42, 42]), np.append(items, [3, 5, 5])
    values = rng.integers(1, 6, len(users)).astype(float)
    values[-2:] = 1.0, 4.0
    return Ratings.from_triples("odd", users, items, values, low=1.0, high=5.0, n_users=43, n_items=20)


def test_users_with_no_or_one_rating_run_and_are_counted() -> None:
    ratings = with_odd_users()
    said = notes(ratings)
    assert said[1].startswith("1 of 43 users without ratings")
    assert said[2].startswith("2 of 43 users with a single rating")
    result = simulate(task_for(ratings, rank=2), ratings, seed=1)
    assert math.isfinite(result.metrics["test_rmse"])
    assert result.rounds[0].contributions == 43


def test_of_duplicate_pairs_the_last_one_wins_and_the_count_is_told() -> None:
    ratings = with_odd_users()
    assert ratings.user(42)[1].tolist() == [4.0]
    assert notes(ratings)[0].startswith("1 rows name a user and an item again: the newest row of each pair counts")


def test_ordinary_data_need_no_note() -> None:
    assert notes(synthetic_movielens(n_users=50, n_items=30, ratings_per_user=10)) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_target_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(DataError, match=r"1 of 2 values of data set 'bad' .*NaN or infinite; first in row 1"):
        Ratings.from_triples("bad", [0, 1], [0, 1], [3.0, value], low=1.0, high=5.0)


@pytest.mark.parametrize("item", [-1, 7])
def test_an_item_id_out_of_range_is_refused(item: int) -> None:
    with pytest.raises(DataError, match=r"items of data set 'bad' are out of range.*from 0 to 6"):
        Ratings.from_triples("bad", [0, 1], [0, item], [3.0, 3.0], low=1.0, high=5.0, n_items=7)


def test_a_rank_above_the_number_of_items_is_refused() -> None:
    ratings = synthetic_movielens(n_users=40, n_items=6, ratings_per_user=5)
    with pytest.raises(ConfigurationError, match="rank=8 to be at most items=6"):
        simulate(task_for(ratings, rank=8), ratings)


def test_data_without_any_rating_are_refused() -> None:
    empty = Ratings("empty", np.zeros(6, int), np.zeros(0, int), np.zeros(0), n_items=6, low=1.0, high=5.0)
    with pytest.raises(DataError, match="no ratings to train on"):
        simulate(task_for(empty), empty)


def test_noise_above_the_signal_names_the_population_that_would_do() -> None:
    ratings = synthetic_movielens(n_users=300, n_items=60, ratings_per_user=12)
    train = random_split(ratings, seed=1).train
    weak = weak_signal(preset_task("auto", ratings, epsilon=0.1, delta=1e-4), train)
    assert weak is not None
    assert "the noise exceeds the signal" in str(weak)
    assert f"{weak.users_needed:,} users" in str(weak)
    # All else alike, that many users are enough (and one in a hundred, since the last ones are none like the mean), and
    # a tenth fewer are not.
    for scale, quiet in ((1.01, True), (0.9, False)):
        copies = math.ceil(scale * weak.users_needed / train.n_users)
        users = np.tile(np.arange(train.n_users), copies)[: math.ceil(scale * weak.users_needed)]
        grown = train.select_users(users)
        assert (weak_signal(preset_task("auto", ratings, epsilon=0.1, delta=1e-4), grown) is None) == quiet


def test_enough_signal_and_no_noise_need_no_warning() -> None:
    ratings = synthetic_movielens(n_users=300, n_items=60, ratings_per_user=12)
    for epsilon in (20.0, math.inf):
        assert weak_signal(preset_task("auto", ratings, epsilon=epsilon, delta=1e-4), ratings) is None


@pytest.mark.parametrize(
    ("task", "population", "told"),
    [
        (None, "ml-1m", r"Expected population to be .*, got a str; odp.load\('ml-1m'\) loads a data set"),
        (None, Path("ml-1m"), r"odp.load\('ml-1m'\)"),
        (None, 7, "Expected population to be odp.data.Ratings or a Split, got a int"),
        ("task.toml", None, r"got a str; odp.load_task\('task.toml'\) reads a task file"),
        (7, None, "Expected task to be an odp.Task or odp.* or odp.HeavyHitters or odp.Statistics, got a int"),
    ],
)
@pytest.mark.parametrize("statistics", [False, True])
def test_what_is_no_task_and_what_are_no_data_are_told_with_the_way_out(
    task: Any, population: Any, told: str, statistics: bool
) -> None:
    ratings = odp.data.synthetic_movielens(n_users=20, n_items=10, ratings_per_user=5)
    privacy = odp.UserLevelDP(epsilon=4, delta=1e-6)
    made = (
        odp.Statistics(name="x", queries={"items": odp.Histogram(bins=10)}, privacy=privacy)
        if statistics
        else odp.Task(name="x", model=odp.MatrixFactorization(items=10), data=odp.RatingsData(), privacy=privacy)
    )
    with pytest.raises(ConfigurationError, match=told):
        odp.simulate(made if task is None else task, ratings if population is None else population)


def kinds_task(**cohort: int) -> odp.Task:
    return odp.Task(
        name="kinds",
        model=odp.Glm("multinomial", features=3, classes=2),
        data=odp.Examples({"x": odp.Tensor((3,), -1, 1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
        training=odp.DPFedAvg(rounds=2, rate=0.5, clip=1.0),
        cohort=odp.Cohort(**{"minimum": 5, "goal": 10, **cohort}),
    )


def users_of(features: np.ndarray, kinds: np.ndarray, users: int) -> odp.data.UsersExamples:
    """``users`` users with as many examples each."""
    return odp.data.UsersExamples.of_users(features, kinds, np.arange(len(features)) % max(users, 1))


def test_a_population_that_no_round_could_be_released_of_is_refused() -> None:
    test = users_of(np.ones((4, 3), np.float32), np.ones(4, np.float32), 2)
    empty = odp.data.ExamplesSplit(train=users_of(np.zeros((0, 3), np.float32), np.zeros(0, np.float32), 0), test=test)
    with pytest.raises(ConfigurationError, match="at least one user"):
        simulate(kinds_task(), empty)
    few = odp.data.ExamplesSplit(train=test, test=test)
    with pytest.raises(ConfigurationError, match="minimum=5 is at most the 2 users"):
        simulate(kinds_task(), few)


@pytest.mark.parametrize("spoilt", ["features", "labels", "none"])
def test_a_training_without_a_usable_example_is_refused_before_it_spends(spoilt: str) -> None:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(60, 3)).astype(np.float32)
    kinds = generator.integers(0, 2, 60).astype(np.float32)
    test = users_of(features, kinds, 1)
    if spoilt == "none":
        nobody = np.zeros(0, dtype=np.int64)
        train = odp.data.UsersExamples(features[:0], kinds[:0], nobody, np.zeros(21, dtype=np.int64))
    else:
        bad = np.full_like(features, np.nan) if spoilt == "features" else features
        train = users_of(bad, kinds + 7 if spoilt == "labels" else kinds, 20)
    message = {
        "features": "none of the 60 training examples can be used; left out: 60 whose 'x' is not a number",
        "labels": r"60 of 60 examples have a label 'kind' .* labels are 7 \(34\), 8 \(26\), the model takes 0 and 1",
        "none": "none of the 0 training examples",
    }  # fmt: skip
    with pytest.raises(DataError, match=message[spoilt]):
        simulate(kinds_task(), odp.data.ExamplesSplit(train=train, test=test))


def test_a_test_split_without_examples_leaves_its_numbers_unknown() -> None:
    features, kinds = np.ones((40, 3), np.float32), np.ones(40, np.float32)
    nothing = users_of(features[:0], kinds[:0], 0)
    run = simulate(kinds_task(), odp.data.ExamplesSplit(train=users_of(features, kinds, 20), test=nothing))
    assert math.isnan(run.metrics["test_accuracy"])
    assert np.isfinite(run.model.dense["parameters"]).all()
