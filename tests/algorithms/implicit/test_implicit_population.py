"""The vectorised population computes what single devices compute, on implicit feedback."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_rows import own_rows

from odp.algorithms.factorization.codec import Contributions
from odp.algorithms.implicit import codec
from odp.algorithms.implicit.population import ImplicitPopulation
from odp.algorithms.implicit.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalData
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.protocol.wire.model import ModelVersion, Slices
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS = 40, 25


def hostile(model: ModelVersion) -> ModelVersion:
    """The same with a fifth of the rows as no honest server makes them."""
    rows = model.keyed.rows.copy()
    rows[::5] *= np.float32(1e30)
    rows[1::10, 1] = np.nan
    return model.with_rows(rows)


def slices_for(model: ModelVersion, keys: np.ndarray) -> Slices:
    return Slices(model.version, keys, model.keyed.rows[keys], model.dense)


def local(events: Ratings, user: int) -> LocalData:
    items, values = events.user(user)
    return own_rows(items.astype(np.int64), values.astype(np.float64))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    round=st.integers(0, 2),
    rank=st.sampled_from([1, 2, 5]),
    weighting=st.sampled_from(["adaptive", "uniform"]),
    spoiled=st.booleans(),
)
def test_clients_and_population_make_the_same_contributions_and_sums(
    define_implicit: Define,
    some_events: Callable[..., Ratings],
    some_model: Callable[..., ModelVersion],
    seed: int,
    round: int,
    rank: int,
    weighting: str,
    spoiled: bool,
) -> None:
    """Also of rows that no honest server makes.

    Integers may differ by one unit where float rounding flips; more than one flip in 200 entries would fail.
    """
    definition = define_implicit(items=ITEMS, rank=rank, places=6, slices_per_device=12, weighting=weighting)
    terms, events = Terms.of(definition), some_events(users=USERS, items=ITEMS, seed=seed)
    model = some_model(version=round, items=ITEMS, rank=rank, seed=seed + 1)
    model = hostile(model) if spoiled else model
    seeds = np.random.default_rng(seed + 2).integers(0, 2**64, USERS, dtype=np.uint64)
    algorithm = algorithm_for(definition)
    client, population, total = algorithm.client(), ImplicitPopulation(definition), algorithm.query(round).new_sum()

    made: dict[int, Contributions] = {}
    for users, batch in population.contributions(model, events, round=round, seeds=seeds):
        for place, user in enumerate(users.tolist()):
            one = slice(place, place + 1)
            made[user] = Contributions(batch.rows[one], batch.items[one], batch.weights[one])
    flips = entries = 0
    payloads = []
    for user in range(USERS):
        keys = client.keys(local(events, user), round=round, seed=int(seeds[user]))
        payload, _ = client.contribute(slices_for(model, keys), local(events, user), round=round, seed=int(seeds[user]))
        algorithm.query(round).check(payload)
        payloads.append(payload)
        single, vectorised = codec.decode(terms, round, [payload]), made[user]
        used = single.weights > 0
        np.testing.assert_array_equal(used, vectorised.weights > 0)
        np.testing.assert_array_equal(single.items[used], vectorised.items[used])
        for difference in (np.abs(single.rows - vectorised.rows), np.abs(single.weights - vectorised.weights)):
            assert difference.max(initial=0) <= 1
            flips += int(difference.sum())
            entries += difference.size
    assert flips <= entries / 200

    total.add(payloads)
    sums, vectorised_sums = total.totals(), population.contribute(model, events, round=round, seeds=seeds)
    assert set(sums) == set(vectorised_sums)
    if not flips:
        for name, summed in sums.items():
            np.testing.assert_array_equal(summed, vectorised_sums[name])


def test_items_outside_the_head_are_not_sent(
    define_implicit: Define, some_events: Callable[..., Ratings], some_model: Callable[..., ModelVersion]
) -> None:
    definition, events = define_implicit(items=ITEMS), some_events(users=USERS, items=ITEMS, seed=3)
    model = some_model(version=1, items=ITEMS, rank=2, seed=3)
    seeds = np.arange(USERS, dtype=np.uint64)
    outside = model.keyed.rows[:, 0] == 0
    targets = ImplicitPopulation(definition).contribute(model, events, round=1, seeds=seeds)["targets"]
    assert outside.any()
    assert not targets[outside].any()
    assert targets[~outside].any()


def test_client_and_population_predict_the_same(
    define_implicit: Define, some_events: Callable[..., Ratings], some_model: Callable[..., ModelVersion]
) -> None:
    definition = define_implicit(items=ITEMS, rank=3)
    history, targets = (some_events(users=USERS, items=ITEMS, seed=seed) for seed in (1, 2))
    model = some_model(version=2, items=ITEMS, rank=3, seed=3)
    predicted = ImplicitPopulation(definition).predict(model, history, targets)
    client = algorithm_for(definition).client()
    everything = slices_for(model, np.arange(ITEMS))
    for user in range(USERS):
        mine = slice(int(targets.offsets[user]), int(targets.offsets[user + 1]))
        single = client.predict(everything, local(history, user), targets.items[mine].astype(np.int64))
        np.testing.assert_allclose(single, predicted[mine], atol=1e-9)


def test_a_data_set_of_another_size_is_refused(
    define_implicit: Define, some_events: Callable[..., Ratings], some_model: Callable[..., ModelVersion]
) -> None:
    events, model = some_events(users=USERS, items=ITEMS, seed=1), some_model(version=1, items=ITEMS, rank=2, seed=1)
    with pytest.raises(DataError, match="41 items"):
        ImplicitPopulation(define_implicit(items=ITEMS + 1)).contribute(
            model, events, round=1, seeds=np.zeros(USERS, np.uint64)
        )
    with pytest.raises(DataError, match="one seed per user"):
        ImplicitPopulation(define_implicit(items=ITEMS)).contribute(
            model, events, round=1, seeds=np.zeros(3, np.uint64)
        )
