"""Ranges of predictions: leave-one-out in closed form, what they cover, and the same on devices as in simulations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.algorithms.capabilities import IntervalClient
from odp.algorithms.dpam import userside
from odp.algorithms.dpam.client import DpamClient
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.implicit.client import ImplicitClient
from odp.algorithms.seam import LocalRows
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.evaluation.reliability import reliability
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS = 200
RIDGES = np.array([0.6, 2.0])


def a_model(rank: int, *, seed: int = 4, hostile: bool = False) -> ModelVersion:
    generator = np.random.default_rng(seed)
    rows = (0.5 * generator.normal(size=(ITEMS, 3 + rank))).astype(np.float32)
    rows[:, 2] = generator.uniform(0.3, 1, ITEMS)
    if hostile:
        rows[::3] = np.float32(1e30)
        rows[1::7, 3] = np.nan
        rows[::5, 2] = 0.0
    return ModelVersion(
        4, (TableValues("items", rows, True), TableValues("globals", RIDGES[None].astype(np.float32), False))
    )


def own_batch(model: ModelVersion, items: Int64Array, values: Float64Array) -> userside.Batch:
    mask = np.ones((1, len(items)), dtype=np.bool_)
    return userside.Batch(items[None], values[None], mask, model.keyed.rows[items].astype(np.float64)[None])


def some_ratings(seed: int, sizes: tuple[int, ...] = (0, 1, 2, 30, 127, 129, ITEMS)) -> Ratings:
    generator = np.random.default_rng(seed)
    items = np.concatenate([np.sort(generator.choice(ITEMS, size, replace=False)) for size in sizes])
    users = np.repeat(np.arange(len(sizes)), sizes)
    values = generator.uniform(1, 5, len(items))
    return Ratings.from_triples("made", users, items, values, low=1, high=5, n_users=len(sizes), n_items=ITEMS)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 40))
def test_own_scores_are_those_of_fits_without_each_rating(seed: int, size: int) -> None:
    """Of a linear model, against one refit per rating."""
    generator = np.random.default_rng(seed)
    rows, trust = generator.normal(size=(size, 3)), generator.uniform(0.3, 1.0, size)
    residual = generator.normal(size=size)
    design = np.column_stack((np.ones(size), rows))
    ridge = np.diag([2.0, 0.6, 0.6, 0.6])
    expected = []
    for left_out in range(size):
        kept = np.arange(size) != left_out
        normal = (design[kept].T * trust[kept]) @ design[kept] + ridge
        weights = np.linalg.solve(normal, (design[kept].T * trust[kept]) @ residual[kept])
        spread = 1 / trust[left_out] + design[left_out] @ np.linalg.solve(normal, design[left_out])
        expected.append(abs(residual[left_out] - design[left_out] @ weights) / math.sqrt(spread))
    found = userside.leave_one_out(
        np.column_stack((trust, rows)), residual, np.empty((0, 4)), RIDGES, variance=0.0
    ).scores
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize(("rank", "variance"), [(5, 0.15), (2, 0.0)])
def test_devices_and_populations_have_the_same_ranges(
    define: Define, rank: int, variance: float, hostile: bool
) -> None:
    definition = define(items=ITEMS, rank=rank, places=9, kernel_variance=variance)
    history, targets, model = some_ratings(1), some_ratings(2), a_model(rank, hostile=hostile)
    client, keys = DpamClient(definition), np.arange(ITEMS)
    assert isinstance(client, IntervalClient)
    slices = Slices(model.version, keys, model.keyed.rows, model.dense)
    levels = np.array([0.5, 0.9])
    for options in ({"threads": 1}, {"threads": 3, "block": 50}):
        population = DpamPopulation(definition, **options)
        half, mean = (
            population.half_widths(model, history, targets, levels=levels),
            population.predict(model, history, targets),
        )
        assert np.isfinite(half).all()
        assert (half > 0).all()
        for user in range(history.n_users):
            items, values = history.user(user)
            data = {ROWS: LocalRows(items.astype(np.int64), values.astype(np.float64))}
            wanted = targets.user(user)[0].astype(np.int64)
            here = slice(int(targets.offsets[user]), int(targets.offsets[user + 1]))
            for level, ours in zip(levels, half[:, here], strict=True):
                found = client.intervals(slices, data, wanted, level=float(level))
                np.testing.assert_array_equal(found.predicted, client.predict(slices, data, wanted))
                tolerance = {"rtol": 1e-6 if hostile else 1e-9, "atol": 1e-9}
                np.testing.assert_allclose(found.upper - found.predicted, ours, **tolerance)
                np.testing.assert_allclose(found.upper, mean[here] + ours, **tolerance)
                assert ((found.low >= 1.0) & (found.low <= found.high) & (found.high <= 5.0)).all()


def test_ranges_cover_what_they_say_when_the_public_guess_of_the_scale_is_wrong(define: Define) -> None:
    """Users of the model's own kind, with residuals a third of what the range of ratings suggests, or the heavy tails
    of Student's t. 200 users with 100 ratings and 30 tests each: coverage has a standard error below .006.
    """
    definition = define(items=ITEMS, rank=2, places=9, kernel_variance=0.0)
    terms, model = Terms.of(definition), a_model(2)
    table = model.keyed.rows.astype(np.float64)
    generator = np.random.default_rng(7)
    users, tests, own = 200, 30, 100
    population = DpamPopulation(definition)
    for noise in (
        0.3 * generator.normal(size=(users, own + tests)),
        0.5 * generator.standard_t(3, (users, own + tests)),
    ):
        parts = []
        chosen = np.stack([generator.permutation(ITEMS)[: own + tests] for _ in range(users)])
        bias, row = generator.normal(size=(users, 1)) * 0.3, generator.normal(size=(users, 2))
        values = terms.centre + table[chosen, 1] + bias + (table[chosen][:, :, 3:] @ row[:, :, None])[:, :, 0]
        values += noise
        for cut in (slice(0, own), slice(own, None)):
            items, rated = chosen[:, cut].ravel(), np.clip(values[:, cut].ravel(), 1.0, 5.0)
            numbers = np.repeat(np.arange(users), chosen[:, cut].shape[1])
            parts.append(
                Ratings.from_triples("made", numbers, items, rated, low=1, high=5, n_users=users, n_items=ITEMS)
            )
        found = reliability(
            *parts,
            predict=lambda known, wanted: population.predict(model, known, wanted),
            half_widths=lambda known, wanted, levels: population.half_widths(model, known, wanted, levels=levels),
            least=1.0,
            most=5.0,
        )
        assert (found.users, found.ratings) == (users, users * tests)
        for one in found.curve:
            assert abs(one.covered - one.level) < 0.03, one
        assert found.shown.level == 0.9


def test_without_own_ratings_the_public_scale_counts_and_with_many_the_own_one_does() -> None:
    levels = np.array([0.5, 0.9, 0.99])
    public = userside.quantiles(np.empty(0), 2.0, levels)
    np.testing.assert_allclose(public, 2.0 * np.array([0.674, 1.645, 2.576]), rtol=0.03)
    own = np.full(5000, 0.25)
    np.testing.assert_allclose(userside.quantiles(own, 2.0, levels), 0.25, rtol=0.01)


def test_an_item_of_which_less_is_known_has_a_wider_range(define: Define) -> None:
    definition = define(items=ITEMS, rank=2, places=9, kernel_variance=0.0)
    model = a_model(2)
    rows = model.keyed.rows[:3].copy().astype(np.float64)
    rows[:] = rows[0]
    rows[:, 2] = 0.9, 0.3, 0.9
    rows[2, 3:] *= 20.0  # far from all that the person has rated
    own = own_batch(model, np.arange(20), np.linspace(1, 5, 20))
    (half,) = userside.half_widths(Terms.of(definition), own, RIDGES, rows, np.array([0.9]), rank=2)
    assert half[0] < half[1]
    assert half[0] < half[2]


@pytest.mark.parametrize("level", [0.49, 0.991, math.nan, 1.0])
def test_a_level_out_of_range_is_refused(define: Define, level: float) -> None:
    client, model = DpamClient(define(items=ITEMS, rank=2, places=9)), a_model(2)
    slices = Slices(4, np.arange(ITEMS), model.keyed.rows, model.dense)
    with pytest.raises(ConfigurationError, match=r"level=.* to be"):
        client.intervals(slices, {ROWS: LocalRows(np.arange(3), np.ones(3))}, np.arange(2), level=level)


def test_a_model_of_implicit_feedback_has_no_ranges() -> None:
    assert not hasattr(ImplicitClient, "intervals")
