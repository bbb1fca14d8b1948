"""The vectorised population computes what single devices compute, to the integer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_rows import own_rows

from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalData
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError
from odp.protocol.wire.model import ModelVersion, Slices
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS = 40, 25


def slices_for(model: ModelVersion, keys: np.ndarray) -> Slices:
    return Slices(model.version, keys, model.keyed.rows[keys], model.dense)


def local(ratings: Ratings, user: int) -> LocalData:
    items, values = ratings.user(user)
    return own_rows(items.astype(np.int64), values.astype(np.float64))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    round=st.integers(0, 2),
    rank=st.sampled_from([0, 1, 5]),
    spoiled=st.booleans(),
    implicit=st.booleans(),
)
def test_devices_and_population_make_the_same_sums_to_the_integer(
    define_gradients: Define,
    some_ratings: Callable[..., Ratings],
    some_model: Callable[..., ModelVersion],
    seed: int,
    round: int,
    rank: int,
    spoiled: bool,
    implicit: bool,
) -> None:
    """Also of rows that no honest server makes. Devices have rows of 12 items, and places for 6."""
    rank = max(rank, int(implicit))
    algorithm = algorithm_for(define_gradients(items=ITEMS, rank=rank, places=6, slices=12, implicit=implicit))
    ratings = some_ratings(users=USERS, items=ITEMS, seed=seed, implicit=implicit)
    model = some_model(version=round, items=ITEMS, rank=rank, seed=seed + 1, spoiled=spoiled, implicit=implicit)
    seeds = np.random.default_rng(seed + 2).integers(0, 2**64, USERS, dtype=np.uint64)
    client, query = algorithm.client(), algorithm.query(round)
    payloads = []
    for user in range(USERS):
        data, own_seed = local(ratings, user), int(seeds[user])
        keys = client.keys(data, round=round, seed=own_seed)
        payload, parameters = client.contribute(slices_for(model, keys), data, round=round, seed=own_seed)
        assert len(parameters) == 8 * (1 + rank if round or implicit else 1)
        query.check(payload)
        payloads.append(payload)
    total = query.new_sum()
    total.add(payloads)
    expected = algorithm.population().contribute(model, ratings, round=round, seeds=seeds)
    assert total.totals().keys() == expected.keys()
    for name, sums in total.totals().items():
        np.testing.assert_array_equal(sums, expected[name])


def test_blocks_of_users_change_nothing_and_all_users_are_told_of(
    define_gradients: Define,
    some_ratings: Callable[..., Ratings],
    some_model: Callable[..., ModelVersion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, ratings = algorithm_for(define_gradients(items=ITEMS)), some_ratings(users=USERS, items=ITEMS, seed=4)
    model, seeds = some_model(version=1, items=ITEMS, rank=2, seed=5), np.arange(USERS, dtype=np.uint64)
    whole = algorithm.population().contribute(model, ratings, round=1, seeds=seeds)["gradients"]
    monkeypatch.setattr("odp.algorithms.item_gradients.population._NUMBERS", 300)
    done: list[int] = []
    parts = algorithm.population().contribute(model, ratings, round=1, seeds=seeds, progress=done.append)["gradients"]
    np.testing.assert_array_equal(whole, parts)
    assert len(done) > 5
    assert done[-1] == USERS


@pytest.mark.parametrize("implicit", [False, True])
def test_client_and_population_predict_the_same(
    define_gradients: Define,
    some_ratings: Callable[..., Ratings],
    some_model: Callable[..., ModelVersion],
    implicit: bool,
) -> None:
    """And what own items add to a prediction adds up to it, but for what the item itself has, or all."""
    algorithm = algorithm_for(define_gradients(items=ITEMS, rank=3, implicit=implicit))
    history, targets = (some_ratings(users=USERS, items=ITEMS, seed=seed, implicit=implicit) for seed in (1, 2))
    model = some_model(version=2, items=ITEMS, rank=3, seed=3, implicit=implicit)
    predicted = algorithm.population().predict(model, history, targets)
    client, everything = algorithm.client(), slices_for(model, np.arange(ITEMS))
    for user in range(USERS):
        mine = slice(int(targets.offsets[user]), int(targets.offsets[user + 1]))
        single = client.predict(everything, local(history, user), targets.items[mine].astype(np.int64))
        np.testing.assert_allclose(single, predicted[mine], atol=1e-9)
        reasons = client.reasons(everything, local(history, user), targets.items[mine].astype(np.int64))
        base = 0.0 if implicit else 3.5 + model.keyed.rows[targets.items[mine], 1].astype(np.float64)
        if len(reasons.items):
            np.testing.assert_allclose(base + reasons.added.sum(axis=1), single, atol=1e-9)
        elif implicit:
            np.testing.assert_allclose(single, model.keyed.rows[targets.items[mine], 1], atol=1e-6)


def test_data_that_do_not_fit_and_ridges_that_hold_up_no_solve_are_refused(
    define_gradients: Define, some_ratings: Callable[..., Ratings], some_model: Callable[..., ModelVersion]
) -> None:
    ratings, model = (
        some_ratings(users=USERS, items=ITEMS, seed=1), some_model(version=1, items=ITEMS, rank=2, seed=1)
    )  # fmt: skip
    seeds = np.zeros(USERS, np.uint64)
    with pytest.raises(DataError, match="41 items"):
        algorithm_for(define_gradients(items=ITEMS + 1)).population().contribute(model, ratings, round=1, seeds=seeds)
    algorithm = algorithm_for(define_gradients(items=ITEMS))
    with pytest.raises(DataError, match="one seed per user"):
        algorithm.population().contribute(model, ratings, round=1, seeds=seeds[:3])
    dense = {"globals": np.array([[0.8, 0.0]], dtype=np.float32)}
    with pytest.raises(ConfigurationError, match="bias_ridge"):
        algorithm.client().check_model(dense)
    root = {"root": np.full((3, 3), np.nan, dtype=np.float32)}
    with pytest.raises(ConfigurationError, match="root"):
        algorithm_for(define_gradients(items=ITEMS, implicit=True)).client().check_model(root)
