"""Counts as confidence: what a person did often weighs more on the person's device, and no bound moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from own_rows import own_rows

import odp
from odp.algorithms.factorization.codec import WEIGHT_UNITS
from odp.algorithms.implicit import codec
from odp.algorithms.implicit.client import ImplicitClient
from odp.algorithms.implicit.population import ImplicitPopulation
from odp.algorithms.implicit.terms import Terms
from odp.algorithms.implicit_gradients.client import ImplicitGradientClient
from odp.algorithms.registry import algorithm_for
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError
from odp.protocol.wire.model import ModelVersion, Slices
from odp.tasks.file import parse_task, render_task
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]
ITEMS, USERS = 30, 12


def plays(seed: int = 1) -> Ratings:
    generator = np.random.default_rng(seed)
    user, item = np.nonzero(generator.random((USERS, ITEMS)) < 0.4)
    counts = np.ceil(generator.pareto(1.0, len(user)) + 1e-9)
    return Ratings.from_triples(
        "plays", user, item, counts, low=0, high=float(counts.max()), n_users=USERS, n_items=ITEMS, implicit=True
    )


def with_confidence(definition: common_pb2.TaskDefinition, confidence: float) -> common_pb2.TaskDefinition:
    counted = common_pb2.TaskDefinition.FromString(definition.SerializeToString())
    counted.implicit.confidence = confidence
    return counted


def task(**options: object) -> odp.Task:
    return odp.Task(
        name="plays",
        model=odp.MatrixFactorization(items=ITEMS, rank=2),
        data=odp.ImplicitData(table="plays", **options),  # type: ignore[arg-type]
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=6),
        training=odp.ImplicitDPAM(steps=2),
        cohort=odp.Cohort(minimum=2, goal=USERS),
    )


@pytest.mark.parametrize("places", [4, ITEMS])
def test_weights_follow_counts_within_the_same_bound_on_devices_and_in_simulations(
    define_implicit: Define, some_model: Callable[..., ModelVersion], places: int
) -> None:
    plain = define_implicit(items=ITEMS, places=places)
    definition, people = with_confidence(plain, 2.0), plays()
    assert algorithm_for(definition).query(1).releases == algorithm_for(plain).query(1).releases
    model, terms = some_model(version=1, items=ITEMS, rank=2, seed=3), Terms.of(definition)
    client, seeds = ImplicitClient(definition), np.arange(USERS, dtype=np.uint64)
    contributions = dict.fromkeys(range(USERS), b"")
    for users, sent in ImplicitPopulation(definition).contributions(model, people, round=1, seeds=seeds):
        contributions.update(zip(users.tolist(), codec.encode(terms, 1, sent), strict=True))
    for user in range(USERS):
        items, counts = people.user(user)
        data = own_rows(items.astype(np.int64), counts.astype(np.float64))
        keys = client.keys(data, round=1, seed=user)
        slices = Slices(1, keys, model.keyed.rows[keys], model.dense)
        payload, _ = client.contribute(slices, data, round=1, seed=user)
        assert payload == contributions[user]
        (sent,) = codec.decode(terms, 1, [payload]).weights
        assert (sent**2).sum() <= WEIGHT_UNITS**2
        used = codec.decode(terms, 1, [payload]).items[0][sent > 0]
        weight = dict(zip(items.tolist(), model.keyed.rows[items, 0] * (1 + 2.0 * np.log1p(counts)), strict=True))
        expected = np.array([weight[item] for item in used.tolist()])
        expected *= WEIGHT_UNITS / max(float(np.linalg.norm(expected)), 1e-12)
        np.testing.assert_allclose(sent[sent > 0], expected, atol=1.001)


def test_a_task_without_a_confidence_is_as_it_was_and_reads_no_counts(
    define_implicit: Define, some_model: Callable[..., ModelVersion]
) -> None:
    assert common_pb2.ImplicitData(table="plays") == task().definition().implicit
    assert task(confidence=1.5).definition().implicit == common_pb2.ImplicitData(table="plays", confidence=1.5)
    definition, people, model = (
        define_implicit(items=ITEMS),
        plays(),
        some_model(version=3, items=ITEMS, rank=2, seed=3),
    )
    once = people.take(np.ones(people.n_ratings, dtype=np.bool_))
    once.values[:] = 1.0
    rows = [ImplicitPopulation(definition).user_rows(model, data) for data in (people, once)]
    np.testing.assert_array_equal(rows[0], rows[1])
    counted = ImplicitPopulation(with_confidence(definition, 1.0))
    assert np.abs(counted.user_rows(model, people) - rows[0]).max() > 0.1
    # Equal counts are no news.
    np.testing.assert_allclose(counted.user_rows(model, once), rows[0], atol=1e-12)


def test_scores_of_a_device_and_of_a_simulation_weigh_counts_alike(
    define_implicit: Define, some_model: Callable[..., ModelVersion]
) -> None:
    definition, people = with_confidence(define_implicit(items=ITEMS), 3.0), plays()
    model = some_model(version=3, items=ITEMS, rank=2, seed=3)
    rows, client = ImplicitPopulation(definition).user_rows(model, people), ImplicitClient(definition)
    everything = Slices(3, np.arange(ITEMS), model.keyed.rows, model.dense)
    for user in range(USERS):
        items, counts = people.user(user)
        data = own_rows(items.astype(np.int64), counts.astype(np.float64))
        np.testing.assert_allclose(client.linear(everything, data), rows[user], atol=1e-12)
        reasons = client.reasons(everything, data, np.arange(ITEMS))
        np.testing.assert_allclose(reasons.added.sum(axis=1), client.predict(everything, data, np.arange(ITEMS)))


@pytest.mark.parametrize("count", [np.nan, np.inf, -np.inf])
def test_a_count_that_is_no_number_takes_no_part_and_a_huge_one_keeps_weights_finite(
    define_implicit: Define, some_model: Callable[..., ModelVersion], count: float
) -> None:
    client = ImplicitClient(with_confidence(define_implicit(items=ITEMS), 1e3))
    model = some_model(version=1, items=ITEMS, rank=2, seed=3)
    everything = Slices(1, np.arange(ITEMS), model.keyed.rows, model.dense)
    items = np.arange(3)
    spoiled = client.linear(everything, own_rows(items, np.array([1.0, 2.0, count])))
    np.testing.assert_array_equal(spoiled, client.linear(everything, own_rows(items[:2], np.array([1.0, 2.0]))))
    assert np.isfinite(client.linear(everything, own_rows(items, np.array([1e300, 2.0, -5.0])))).all()


def test_a_confidence_that_nothing_can_follow_is_refused_by_its_name(define_implicit: Define) -> None:
    for wrong in (0.0, -1.0, 1e4, float("nan")):
        with pytest.raises(ConfigurationError, match="confidence"):
            odp.ImplicitData(confidence=wrong)
        if wrong:
            with pytest.raises(ConfigurationError, match="confidence"):
                ImplicitClient(with_confidence(define_implicit(items=ITEMS), wrong))
    uniform = odp.ImplicitDPAM(weighting="uniform")
    dpsgd = odp.DPSGD(rounds=3, unobserved_weight=0.1)
    for training, wanted in ((uniform, "weighting='uniform'"), (dpsgd, "odp.DPSGD")):
        with pytest.raises(ConfigurationError, match=rf"confidence=1\.0.*{wanted}"):
            odp.Task(
                name="plays", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=odp.ImplicitData(confidence=1.0),
                privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=6), training=training,
                cohort=odp.Cohort(minimum=2),
            )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"confidence=1\.0"):
        ImplicitClient(with_confidence(define_implicit(items=ITEMS, weighting="uniform"), 1.0))
    gradients = odp.Task(
        name="plays", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=odp.ImplicitData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=6), training=dpsgd,
        cohort=odp.Cohort(minimum=2),
    ).definition()  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"confidence=1\.0"):
        ImplicitGradientClient(with_confidence(gradients, 1.0))


def test_a_column_without_counts_is_refused_in_a_simulation() -> None:
    people = plays()
    once = people.take(np.ones(people.n_ratings, dtype=np.bool_))
    once.values[:] = 1.0
    for task_data, ratings, words in (
        (odp.ImplicitData(confidence=1.0), once, "'plays' are 1.*as_written=True"),
        (odp.ImplicitData(confidence=1.0), negative(people), "0 or less"),
    ):
        with pytest.raises(DataError, match=words):
            task_data.check(ratings)
    run = odp.simulate(task(confidence=1.0), people)
    assert np.isfinite(run.model.keyed.rows).all()


def negative(people: Ratings) -> Ratings:
    wrong = people.take(np.ones(people.n_ratings, dtype=np.bool_))
    wrong.values[0] = -2.0
    return wrong


def test_a_task_file_has_the_confidence_and_events_are_counted_for_it() -> None:
    counted = task(confidence=1.5)
    assert "confidence = 1.5" in render_task(counted)
    assert parse_task(render_task(counted)).definition() == counted.definition()
    assert "confidence" not in render_task(task())
    for value, aggregate in ((None, "COUNT"), ("seconds", "SUM")):
        events = odp.Events(service="music", type="play", item="track", value=value)
        data = odp.ImplicitData(events=events, confidence=1.0)
        definition = odp.Task(
            name="plays", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=data,
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=6),
            training=odp.ImplicitDPAM(steps=2), cohort=odp.Cohort(minimum=2),
        ).definition()  # fmt: skip
        query = definition.implicit.events
        assert type(query).Aggregate.Name(query.aggregate) == f"AGGREGATE_{aggregate}"
        (table,) = algorithm_for(definition).local_data
        assert table.events is not None
