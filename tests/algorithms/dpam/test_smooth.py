"""The smooth part of a person's predictions: a Gaussian process, exact up to 128 items, on the device alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.dpam import userside
from odp.algorithms.dpam.client import DpamClient
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.seam import LocalData, LocalRows
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS = 400
RIDGES = {"row_ridge": 0.6, "bias_ridge": 5.0}


def rational_quadratic(one: Float64Array, two: Float64Array, *, squared_length: float) -> Float64Array:
    squares = ((one[:, None] - two[None]) ** 2).sum(axis=2)
    return np.asarray((1 + squares / (32 * squared_length)) ** -16.0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, userside.MOST_CENTRES), rank=st.integers(1, 6))
def test_with_a_kernel_for_each_item_it_is_the_gaussian_process(seed: int, size: int, rank: int) -> None:
    """Against the dual form of the posterior mean (Rasmussen and Williams 2006, equation 2.25)."""
    generator = np.random.default_rng(seed)
    own, wanted = generator.normal(size=(size, rank)), generator.normal(size=(7, rank))
    residual, trust = generator.normal(size=size), generator.uniform(0.2, 1, size)
    found = userside.predictions(own, residual, trust, wanted, variance=0.15, **RIDGES)
    length = userside.LENGTH * own.var(axis=0, ddof=1).sum()

    def covariance(one: Float64Array, two: Float64Array) -> Float64Array:
        linear = 1 / RIDGES["bias_ridge"] + userside.ROW_SHARE / RIDGES["row_ridge"] * one @ two.T
        return np.asarray(linear + 0.15 * rational_quadratic(one, two, squared_length=length))

    noise = np.diag(1 / trust)
    exact = covariance(wanted, own) @ np.linalg.solve(covariance(own, own) + noise, residual)
    np.testing.assert_allclose(found, exact, atol=1e-3)


def test_a_small_variance_leaves_the_linear_model() -> None:
    generator = np.random.default_rng(1)
    own, wanted, residual = generator.normal(size=(30, 2)), generator.normal(size=(5, 2)), generator.normal(size=30)
    found = userside.predictions(own, residual, np.ones(30), wanted, variance=1e-9, **RIDGES)
    design, ridges = np.column_stack((np.ones(30), own)), np.diag([5.0, *[0.6 / userside.ROW_SHARE] * 2])
    weights = np.linalg.solve(design.T @ design + ridges, design.T @ residual)
    np.testing.assert_allclose(found, np.column_stack((np.ones(5), wanted)) @ weights, atol=1e-6)


def test_it_tells_a_taste_that_no_row_can_tell() -> None:
    """Liked are items at either end: linear in nothing."""
    generator = np.random.default_rng(2)
    own, wanted = generator.uniform(-1, 1, (200, 1)), generator.uniform(-1, 1, (200, 1))
    values, truth = np.abs(own[:, 0]) - 0.5 + generator.normal(size=200) * 0.3, np.abs(wanted[:, 0]) - 0.5
    errors = {}
    for variance in (1e-9, 0.15):
        found = userside.predictions(own, values, np.ones(200), wanted, variance=variance, **RIDGES)
        errors[variance] = float(np.square(found - truth).mean())
    assert errors[0.15] < 0.4 * errors[1e-9]


def test_without_data_and_without_differences_there_is_no_smooth_part() -> None:
    wanted = np.ones((3, 2))
    assert not userside.predictions(np.empty((0, 2)), np.empty(0), np.empty(0), wanted, variance=1.0, **RIDGES).any()
    same = np.full((50, 2), 1 / 3)
    found = userside.predictions(same, np.ones(50), np.ones(50), same[:3], variance=1.0, **RIDGES)
    assert (found > 0.9).all()
    assert (found < 1.0).all()


def a_model(rank: int, *, hostile: bool) -> ModelVersion:
    generator = np.random.default_rng(4)
    rows = generator.normal(size=(ITEMS, 3 + rank)).astype(np.float32)
    rows[:, 2] = generator.uniform(0, 1, ITEMS)
    if hostile:
        rows[::3] = np.float32(1e30)
        rows[1::7, 3] = np.nan
    dense = np.array([[0.7, 2.0]], dtype=np.float32)
    return ModelVersion(4, (TableValues("items", rows, True), TableValues("globals", dense, False)))


def some_ratings(seed: int) -> Ratings:
    """Users with none, few, 128, some more and all items."""
    generator = np.random.default_rng(seed)
    sizes = (0, 1, 2, 30, 127, 128, 129, 300, ITEMS, 0, 257)
    items = np.concatenate([np.sort(generator.choice(ITEMS, size, replace=False)) for size in sizes])
    users = np.repeat(np.arange(len(sizes)), sizes)
    values = generator.uniform(1, 5, len(items))
    return Ratings.from_triples("made", users, items, values, low=1, high=5, n_users=len(sizes), n_items=ITEMS)


@pytest.mark.parametrize("hostile", [False, True])
def test_device_machine_code_and_numpy_predict_the_same(define: Define, hostile: bool) -> None:
    definition = define(items=ITEMS, rank=5, places=9, kernel_variance=0.15)
    history, targets, model = some_ratings(1), some_ratings(2), a_model(5, hostile=hostile)
    plain = DpamPopulation(definition, compiled=False).predict(model, history, targets)
    assert np.isfinite(plain).all()
    tolerance = {"rtol": 1e-6 if hostile else 0, "atol": 1e-9}
    for options in ({}, {"threads": 3, "block": 50}):
        np.testing.assert_allclose(
            DpamPopulation(definition, **options).predict(model, history, targets), plain, **tolerance
        )
    client, keys = DpamClient(definition), np.arange(ITEMS)
    slices = Slices(model.version, keys, model.keyed.rows, model.dense)
    for user in range(history.n_users):
        (items, values), (wanted, _) = history.user(user), targets.user(user)
        shuffled = np.random.default_rng(user).permutation(len(items))
        data: LocalData = {ROWS: LocalRows(items[shuffled].astype(np.int64), values[shuffled].astype(np.float64))}
        mine = slice(int(targets.offsets[user]), int(targets.offsets[user + 1]))
        found = client.predict(slices, data, wanted.astype(np.int64))
        np.testing.assert_allclose(found, plain[mine], **tolerance)


def test_nothing_of_it_is_sent(define: Define) -> None:
    definition = define(items=ITEMS, rank=3, places=9, kernel_variance=0.0)
    richer = define(items=ITEMS, rank=3, places=9, kernel_variance=2.0)
    ratings, model = some_ratings(3), a_model(3, hostile=False)
    seeds = np.arange(ratings.n_users, dtype=np.uint64)
    for round in (1, 2):
        one, two = (
            DpamPopulation(each).contribute(model, ratings, round=round, seeds=seeds) for each in (definition, richer)
        )
        for name, total in one.items():
            np.testing.assert_array_equal(total, two[name])


def test_it_is_on_where_rows_are_more_than_bias_and_popularity(define: Define) -> None:
    assert Terms.of(define(rank=2)).kernel_variance == 0.0
    assert Terms.of(define(rank=3)).kernel_variance == 0.15
    assert Terms.of(define(rank=3, kernel_variance=0.0)).kernel_variance == 0.0
    assert Terms.of(define(rank=2, kernel_variance=0.5)).kernel_variance == 0.5
    with pytest.raises(ConfigurationError, match=r"kernel_variance=0\.5 to be 0 for a rank of 0"):
        define(rank=0, kernel_variance=0.5)
    foreign = define(rank=3)
    foreign.dpam.kernel_variance = float("nan")
    with pytest.raises(ConfigurationError, match="kernel_variance"):
        Terms.of(foreign)
    assert dataclasses.replace(DPAM(), kernel_variance=0.2).kernel_variance == 0.2
