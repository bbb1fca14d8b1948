"""The vectorised population computes what single devices compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_rows import own_rows

from odp.algorithms.dpam import codec
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalData
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS = 40, 25


def some_ratings(seed: int, *, low: float = 1, high: float = 5) -> Ratings:
    """Users with 0 to all items."""
    generator = np.random.default_rng(seed)
    mask = generator.random((USERS, ITEMS)) < generator.choice([0.0, 0.05, 0.3, 1.0], USERS)[:, None]
    users, items = np.nonzero(mask)
    values = generator.uniform(low, high, len(users))
    return Ratings.from_triples("made", users, items, values, low=low, high=high, n_users=USERS, n_items=ITEMS)


def some_broadcast(version: int, rank: int, seed: int) -> ModelVersion:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(ITEMS, 3 + rank))
    rows[:, 0] = generator.uniform(-3, 90, ITEMS)
    rows[:, 2] = generator.uniform(0.2, 1, ITEMS)
    globals_ = np.array([[0.7, 2.0]], dtype=np.float32)
    return ModelVersion(
        version, (TableValues("items", rows.astype(np.float32), True), TableValues("globals", globals_, False))
    )


def hostile(broadcast: ModelVersion) -> ModelVersion:
    """The same with a fifth of the rows as no honest server makes them."""
    rows = broadcast.keyed.rows.copy()
    rows[::5] *= np.float32(1e30)
    rows[1::10, 3] = np.nan
    return broadcast.with_rows(rows)


def slices_for(broadcast: ModelVersion, keys: np.ndarray) -> Slices:
    return Slices(broadcast.version, keys, broadcast.keyed.rows[keys], broadcast.dense)


def local(ratings: Ratings, user: int) -> LocalData:
    items, values = ratings.user(user)
    return own_rows(items.astype(np.int64), values.astype(np.float64))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    round=st.integers(0, 3),
    rank=st.sampled_from([1, 2, 5]),
    weighting=st.sampled_from(["adaptive", "uniform"]),
    wide=st.booleans(),
    spoiled=st.booleans(),
)
@pytest.mark.slow
def test_clients_and_population_make_the_same_contributions_and_sums(
    define: Define, seed: int, round: int, rank: int, weighting: str, wide: bool, spoiled: bool
) -> None:
    """Also of values beyond the task's range, and of rows that no honest server makes.

    Integers may differ by one unit where float rounding flips; more than one flip in 200 entries would fail.
    """
    definition = define(items=ITEMS, rank=rank, places=6, slices_per_device=12, weighting=weighting)
    terms, broadcast = Terms.of(definition), some_broadcast(round, rank, seed + 1)
    ratings = some_ratings(seed, low=-20, high=30) if wide else some_ratings(seed)
    broadcast = hostile(broadcast) if spoiled else broadcast
    seeds = np.random.default_rng(seed + 2).integers(0, 2**64, USERS, dtype=np.uint64)
    algorithm = algorithm_for(definition)
    client, population, total = algorithm.client(), DpamPopulation(definition), algorithm.query(round).new_sum()

    made: dict[int, codec.Contributions] = {}
    for users, batch in population.contributions(broadcast, ratings, round=round, seeds=seeds):
        for place, user in enumerate(users.tolist()):
            one = slice(place, place + 1)
            made[user] = codec.Contributions(batch.rows[one], batch.items[one], batch.weights[one], batch.targets[one])
    flips = entries = 0
    payloads = []
    for user in range(USERS):
        keys = client.keys(local(ratings, user), round=round, seed=int(seeds[user]))
        payload, _ = client.contribute(
            slices_for(broadcast, keys), local(ratings, user), round=round, seed=int(seeds[user])
        )
        algorithm.query(round).check(payload)
        payloads.append(payload)
        single, vectorised = codec.decode(terms, round, [payload]), made[user]
        used = single.weights > 0
        np.testing.assert_array_equal(used, vectorised.weights > 0)
        np.testing.assert_array_equal(single.items[used], vectorised.items[used])
        for name in ("rows", "weights", "targets"):
            difference = np.abs(getattr(single, name) - getattr(vectorised, name))
            difference = difference if name == "rows" else difference[used]
            assert difference.max(initial=0) <= 1
            flips += int(difference.sum())
            entries += difference.size
    assert flips <= entries / 200

    total.add(payloads)
    sums, vectorised_sums = total.totals(), population.contribute(broadcast, ratings, round=round, seeds=seeds)
    assert set(sums) == set(vectorised_sums)
    if not flips:
        for name, summed in sums.items():
            np.testing.assert_array_equal(summed, vectorised_sums[name])


def test_client_and_population_predict_the_same(define: Define) -> None:
    definition = define(items=ITEMS, rank=3, places=6)
    history, targets, broadcast = some_ratings(1), some_ratings(2), some_broadcast(3, 3, 3)
    predicted = DpamPopulation(definition).predict(broadcast, history, targets)
    client = algorithm_for(definition).client()
    everything = slices_for(broadcast, np.arange(ITEMS))
    for user in range(USERS):
        mine = slice(int(targets.offsets[user]), int(targets.offsets[user + 1]))
        single = client.predict(everything, local(history, user), targets.items[mine].astype(np.int64))
        np.testing.assert_allclose(single, predicted[mine], atol=1e-9)


def test_sums_do_not_depend_on_the_order_of_users(define: Define) -> None:
    definition = define(items=ITEMS, rank=2, places=6)
    ratings, broadcast = some_ratings(4), some_broadcast(2, 2, 5)
    seeds = np.arange(USERS, dtype=np.uint64)
    order = np.random.default_rng(0).permutation(USERS)
    population = DpamPopulation(definition)
    sums = population.contribute(broadcast, ratings, round=2, seeds=seeds)
    shuffled = population.contribute(broadcast, ratings.select_users(order), round=2, seeds=seeds[order])
    for name, total in sums.items():
        # Other batches pad otherwise, so that a rounding may flip: one unit of a row or target is 1e-3 of the largest.
        largest = max(int(np.abs(total).max()), 1)
        np.testing.assert_allclose(shuffled[name] / largest, total / largest, atol=1e-3)


def test_a_data_set_of_another_size_is_refused(define: Define) -> None:
    definition = define(items=ITEMS + 1)
    broadcast = some_broadcast(1, 2, 1)
    with pytest.raises(DataError, match="41 items"):
        DpamPopulation(definition).contribute(broadcast, some_ratings(1), round=1, seeds=np.zeros(USERS, np.uint64))
    population = DpamPopulation(define(items=ITEMS))
    with pytest.raises(DataError, match="one seed per user"):
        population.contribute(broadcast, some_ratings(1), round=1, seeds=np.zeros(3, np.uint64))
