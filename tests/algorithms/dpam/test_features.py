"""Public item features: the solver, the estimates around a predicted prior, cold items, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.algorithms.dpam import estimation, features
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets import Ratings, Split, random_split, synthetic_movielens
from odp.errors import ConfigurationError
from odp.models.item_features import item_features_sha256
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]
Floats = npt.NDArray[np.float64]


def some_grams(generator: np.random.Generator, items: int, width: int, *, raters: float) -> Floats:
    """Gram matrices of Poisson many normal rows; some items have none."""
    counts = generator.poisson(raters, items)
    rows = generator.normal(size=(items, max(int(counts.max()), 1), width))
    rows *= (np.arange(rows.shape[1]) < counts[:, None])[:, :, None]
    return np.asarray(rows.transpose(0, 2, 1) @ rows)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), items=st.integers(1, 40), rank=st.integers(1, 5), width=st.integers(1, 6))
def test_the_linear_map_solves_the_same_system_as_a_direct_solver(seed: int, items: int, rank: int, width: int) -> None:
    generator = np.random.default_rng(seed)
    matrices = some_grams(generator, items, rank, raters=2.0)
    public = generator.normal(size=(items, width)) * generator.uniform(0.01, 10.0, width)
    targets = generator.normal(size=(items, rank))
    ridge = generator.uniform(0.1, 10.0, rank)
    direct = np.einsum("jab,jp,jq->apbq", matrices, public, public).reshape(rank * width, rank * width)
    direct += np.diag(np.repeat(ridge, width))
    expected = np.linalg.solve(direct, (targets.T @ public).ravel()).reshape(rank, width)
    found = features.linear_map(matrices, targets, public, ridge=ridge)
    # A relative residual of 1e-6 times the condition number bounds the error.
    allowed = 1e-6 * np.linalg.cond(direct) * np.linalg.norm(expected) + 1e-12
    assert np.linalg.norm(found - expected) <= allowed


def test_the_linear_map_of_targets_that_features_explain_is_the_map_that_made_them() -> None:
    generator = np.random.default_rng(1)
    matrices = some_grams(generator, 200, 3, raters=20.0)
    public, true = generator.normal(size=(200, 5)), generator.normal(size=(3, 5))
    targets = (matrices @ (public @ true.T)[:, :, None])[:, :, 0]
    found = features.linear_map(matrices, targets, public, ridge=np.full(3, 1e-9))
    np.testing.assert_allclose(found, true, atol=1e-4)


def test_without_targets_the_map_is_zero() -> None:
    found = features.linear_map(np.zeros((4, 2, 2)), np.zeros((4, 2)), np.ones((4, 3)), ridge=np.ones(2))
    assert not found.any()


def test_components_have_weighted_mean_zero_and_total_variance_one_and_drop_what_follows() -> None:
    generator = np.random.default_rng(2)
    weight = generator.uniform(0.1, 5.0, 50)
    first = generator.normal(size=(50, 4))
    public = np.concatenate((first, first @ generator.normal(size=(4, 3)), np.ones((50, 1))), axis=1)
    found = features.components(public.astype(np.float32).astype(np.float64), weight)
    assert found.shape == (50, 4)
    share = weight / weight.sum()
    np.testing.assert_allclose(share @ found, 0.0, atol=1e-9)
    variances = share @ found**2
    assert variances.sum() == pytest.approx(1.0, abs=1e-5)
    assert (np.diff(variances) <= 0).all()


def test_features_that_say_nothing_have_no_components() -> None:
    assert features.components(np.full((6, 3), 7.0), np.ones(6)).shape == (6, 0)


@pytest.fixture(scope="module")
def drowned() -> dict[str, Floats]:
    """Rows that features explain but for a tenth, Gram matrices of few raters, and noise that drowns single items."""
    generator = np.random.default_rng(3)
    items, width = 800, 3
    public = features.components(generator.normal(size=(items, 4)), np.ones(items))
    truth = public @ generator.normal(size=(4, width)) * 0.6
    truth += 0.1 * truth.std() * generator.normal(size=truth.shape)
    grams = some_grams(generator, items, width, raters=10.0)
    grams[:100] = 0.0  # nobody rated the first hundred
    targets = (grams @ truth[:, :, None])[:, :, 0] + 10.0 * generator.normal(size=truth.shape)
    return {"public": public, "truth": truth, "grams": grams, "targets": targets}


def estimated(world: dict[str, Floats], public: Floats) -> Floats:
    items, width = world["targets"].shape
    gram = estimation.Grams(estimation.packed(world["grams"]), world["grams"].mean(axis=0), np.zeros(items))
    return features.hybrid_rows(
        world["targets"],
        gram,
        np.ones(items),
        np.zeros((items, width)),
        np.full(items, 0.3),
        public,
        noise_std=10.0,
        residual_variance=0.8,
        ridge=1.0,
    ).mean


def test_rows_around_predicted_means_are_nearer_to_the_truth_where_noise_drowns_items(
    drowned: dict[str, Floats],
) -> None:
    truth = drowned["truth"]
    with_features = estimated(drowned, drowned["public"])
    without = estimated(drowned, drowned["public"][:, :0])

    def error(found: Floats, rows: slice) -> float:
        return float(np.sqrt(((found[rows] - truth[rows]) ** 2).mean()) / truth.std())

    rated, cold = slice(100, None), slice(0, 100)
    assert error(with_features, rated) < 0.6 * error(without, rated)
    assert error(without, cold) > 0.9, "without features nothing is known of an item that nobody rated"
    assert error(with_features, cold) < 0.5


def test_features_of_pure_chance_do_little_harm(drowned: dict[str, Floats]) -> None:
    chance = features.components(np.random.default_rng(4).normal(size=(800, 10)), np.ones(800))
    truth = drowned["truth"]
    with_chance, without = (((estimated(drowned, some) - truth) ** 2).mean() for some in (chance, chance[:, :0]))
    assert with_chance < 1.05 * without


def test_without_features_rows_are_those_of_the_plain_estimate(drowned: dict[str, Floats]) -> None:
    items, width = drowned["targets"].shape
    gram = estimation.Grams(estimation.packed(drowned["grams"]), drowned["grams"].mean(axis=0), np.zeros(items))
    plain = features.posterior_rows(
        drowned["targets"],
        gram,
        np.ones(items),
        np.zeros((items, width)),
        np.full(items, 0.3),
        noise_std=10.0,
        residual_variance=0.8,
        ridge=1.0,
    )
    np.testing.assert_array_equal(estimated(drowned, drowned["public"][:, :0]), plain.mean)


def task_for(ratings: Ratings, matrix: npt.ArrayLike | None, *, rank: int, steps: int, epsilon: float) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=ratings.n_items, rank=rank, item_features=matrix),
        data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=epsilon, delta=1e-6),
        training=odp.DPAM(steps=steps),
        cohort=odp.Cohort(minimum=10, goal=ratings.n_users),
    )


@pytest.fixture(scope="module")
def cold() -> tuple[Split, Floats]:
    """A split whose test part is all ratings of a tenth of the items, which then have no ratings elsewhere."""
    ratings = synthetic_movielens(n_users=1200, n_items=300, ratings_per_user=50, seed=5)
    assert ratings.features is not None
    hidden = np.random.default_rng(6).random(ratings.n_items) < 0.1
    split = random_split(ratings.take(~hidden[ratings.items]), seed=1)
    return replace(split, test=ratings.take(hidden[ratings.items])), ratings.features.astype(np.float64)


@pytest.mark.parametrize(("steps", "rank"), [(0, 2), (2, 4)])
@pytest.mark.slow
def test_items_without_ratings_are_predicted_better_with_features_than_from_the_trend(
    cold: tuple[Split, Floats], steps: int, rank: int
) -> None:
    split, matrix = cold
    without = odp.simulate(task_for(split.train, None, rank=rank, steps=steps, epsilon=8), split, seed=1)
    content = rank + matrix.shape[1] if not steps else rank
    with_features = odp.simulate(task_for(split.train, matrix, rank=content, steps=steps, epsilon=8), split, seed=1)
    assert with_features.metrics["test_rmse"] < without.metrics["test_rmse"] - 0.02
    assert with_features.metrics["validation_rmse"] < without.metrics["validation_rmse"] + 0.005
    cold_items = np.unique(split.test.items)
    assert np.abs(with_features.model.keyed.rows[cold_items, 3:]).max() > 0.01, "cold items get useful vectors"
    assert with_features.model.keyed.rows[cold_items, 1].std() > 0.02, "and biases of their own"


def with_features(definition: common_pb2.TaskDefinition, matrix: npt.NDArray[np.float32]) -> common_pb2.TaskDefinition:
    named = common_pb2.TaskDefinition()
    named.CopyFrom(definition)
    named.model.item_features_width = matrix.shape[1]
    named.model.item_features_sha256 = item_features_sha256(matrix)
    return named


@pytest.fixture
def matrix() -> npt.NDArray[np.float32]:
    return np.random.default_rng(7).normal(size=(30, 5)).astype(np.float32)


def test_features_change_no_release_and_no_charge(define: Define, matrix: npt.NDArray[np.float32]) -> None:
    plain = define()
    for ours, theirs in zip(
        algorithm_for(plain).planned_releases(),
        algorithm_for(with_features(plain, matrix)).planned_releases(),
        strict=True,
    ):
        for one, other in zip(ours, theirs, strict=True):
            assert (one.name, one.shape, one.step) == (other.name, other.shape, other.step)
            assert (one.sensitivity, one.noise_std) == (other.sensitivity, other.noise_std)


def test_a_server_steps_only_with_the_matrix_that_the_task_names(
    define: Define, matrix: npt.NDArray[np.float32]
) -> None:
    definition = with_features(define(), matrix)
    algorithm = algorithm_for(definition)
    for wrong in (matrix + 1, matrix[:, :4]):
        with pytest.raises(ConfigurationError, match="SHA-256"):
            algorithm.server(item_features=wrong)
    with pytest.raises(ConfigurationError, match="one row per item, 30"):
        algorithm.server(item_features=matrix[:29])
    with pytest.raises(ConfigurationError, match="SHA-256"):
        algorithm_for(define()).server(item_features=matrix)
    without = algorithm.server()
    state = without.step(without.start(), NoisyTensors(0, {"counts": np.ones(30)}, 10))
    with pytest.raises(ConfigurationError, match="names a matrix that was not given"):
        without.step(state, NoisyTensors(1, {"mass": np.ones(30), "sums": np.ones(30)}, 10))


def test_a_model_of_features_needs_no_factor_round(define: Define, matrix: npt.NDArray[np.float32]) -> None:
    ratings = synthetic_movielens(n_users=20, n_items=30, ratings_per_user=6, seed=1)
    task = task_for(ratings, matrix, rank=7, steps=0, epsilon=8)
    assert len(algorithm_for(task.definition()).planned_releases()) == 2
    with pytest.raises(ConfigurationError, match="a rank of 7 needs none"):
        task_for(ratings, matrix, rank=8, steps=0, epsilon=8).definition()


def test_columns_that_nothing_fills_are_zero_without_a_factor_round() -> None:
    ratings = synthetic_movielens(n_users=50, n_items=30, ratings_per_user=10, seed=1)
    doubled = np.repeat(np.random.default_rng(8).normal(size=(30, 2)), 2, axis=1)
    found = odp.simulate(task_for(ratings, doubled, rank=6, steps=0, epsilon=8), ratings, seed=1)
    assert np.abs(found.model.keyed.rows[:, 3:7]).max(axis=0).min() > 0
    assert not found.model.keyed.rows[:, 7:].any()


@pytest.mark.parametrize(("width", "sha256"), [(5, b""), (0, bytes(32)), (5, bytes(31)), (1025, bytes(32))], ids=str)
def test_a_definition_whose_features_make_no_sense_is_refused(define: Define, width: int, sha256: bytes) -> None:
    definition = define()
    definition.model.item_features_width, definition.model.item_features_sha256 = width, sha256
    with pytest.raises(ConfigurationError, match="item_features"):
        algorithm_for(definition).check()
