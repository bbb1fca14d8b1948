"""The server's half: state, start, and what it learns with and without noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from odp.algorithms.dpam.server import DpamServer
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets import Ratings, random_split
from odp.datasets.synthetic import synthetic_movielens
from odp.errors import ConfigurationError, StateError
from odp.models.item_features import item_features_sha256
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]
RunRounds = Callable[..., bytes]
Floats = npt.NDArray[np.float64]

INFINITE = float("inf")


def rmse(definition: common_pb2.TaskDefinition, state: bytes, history: Ratings, targets: Ratings) -> float:
    algorithm = algorithm_for(definition)
    predicted = algorithm.population().predict(algorithm.server().broadcast(state), history, targets)
    return float(np.sqrt(((predicted - targets.values) ** 2).mean()))


def plain_als(train: Ratings, targets: Ratings, *, rank: int, ridge: float, steps: int) -> float:
    """Test error of textbook ALS with biases as constant coordinates: no clip, no weights, no rounding."""
    users, items, values = train.users(), train.items, train.values.astype(np.float64) - 3.5
    right = np.random.default_rng(0).normal(size=(train.n_items, rank)) * 0.1
    left = np.zeros((train.n_users, rank))
    of_user, of_item = np.zeros(train.n_users), np.zeros(train.n_items)

    def half(index: npt.NDArray[np.int64], n: int, features: Floats, target: Floats) -> Floats:
        design = np.concatenate((np.ones((len(features), 1)), features), axis=1)
        solved = np.zeros((n, rank + 1))
        for one in range(n):
            mine = index == one
            normal = design[mine].T @ design[mine] + ridge * np.eye(rank + 1)
            solved[one] = np.linalg.solve(normal, design[mine].T @ target[mine])
        return solved

    for _ in range(steps):
        solved = half(users, train.n_users, right[items], values - of_item[items])
        of_user, left = solved[:, 0], solved[:, 1:]
        solved = half(items.astype(np.int64), train.n_items, left[users], values - of_user[users])
        of_item, right = solved[:, 0], solved[:, 1:]
    user, item = targets.users(), targets.items
    predicted = 3.5 + of_user[user] + of_item[item] + (left[user] * right[item]).sum(axis=1)
    return float(np.sqrt(((predicted - targets.values) ** 2).mean()))


@pytest.fixture(scope="module")
def parts() -> tuple[Ratings, Ratings]:
    split = random_split(synthetic_movielens(n_users=600, n_items=150, ratings_per_user=40, rank=3, seed=2))
    return split.train, split.test


@pytest.mark.slow
def test_without_noise_and_with_wide_clips_it_matches_plain_als(
    define: Define, run_rounds: RunRounds, parts: tuple[Ratings, Ratings]
) -> None:
    train, test = parts
    wide = {"row_clip": 12.0, "bias_target_clip": 4.0, "factor_target_clip": 4.0}
    definition = define(items=150, rank=3, places=150, epsilon=INFINITE, steps=8, **wide)
    reached = rmse(definition, run_rounds(definition, train), train, test)
    reference = min(plain_als(train, test, rank=3, ridge=ridge, steps=8) for ridge in (2.0, 5.0, 10.0))
    biases = define(items=150, rank=0, places=150, epsilon=INFINITE, bias_target_clip=4.0)
    without_factors = rmse(biases, run_rounds(biases, train), train, test)
    assert reached < reference + 0.01
    assert reached < without_factors - 0.01


def test_accuracy_improves_with_the_budget_and_never_falls_far_behind_user_means(
    define: Define, run_rounds: RunRounds, parts: tuple[Ratings, Ratings]
) -> None:
    train, test = parts
    errors = []
    for epsilon in (0.2, 4.0, 39.0):
        definition = define(items=150, rank=2, places=60, epsilon=epsilon, steps=1)
        errors.append(rmse(definition, run_rounds(definition, train), train, test))
    start = define(items=150, rank=0, places=60)
    user_means = rmse(start, DpamServer(start).start(), train, test)
    assert errors[0] < user_means * 1.02
    assert errors[2] < errors[1] < errors[0]


def test_the_state_before_the_first_round_and_the_start_follow_from_the_definition(define: Define) -> None:
    assert DpamServer(define()).start() == DpamServer(define()).start()
    normals = public_normals(5, (200, 50))
    np.testing.assert_array_equal(normals, public_normals(5, (200, 50)))
    assert not np.array_equal(normals, public_normals(6, (200, 50)))
    # 10,000 numbers: the mean has std .01, the variance .0142; 6 std, and the seed is fixed.
    assert abs(normals.mean()) < 0.06
    assert abs(normals.var() - 1) < 0.085


def test_broadcast_versions_and_shapes(define: Define, run_rounds: RunRounds) -> None:
    definition = define(items=150, rank=4, places=20)
    train = synthetic_movielens(n_users=50, n_items=150)
    server = DpamServer(definition)
    assert server.rounds == 4
    first, last = server.broadcast(server.start()), server.broadcast(run_rounds(definition, train))
    assert (first.version, last.version) == (0, 4)
    assert last.keyed.rows.shape == (150, 7)
    assert last.keyed.rows.dtype == np.float32
    assert np.isfinite(last.keyed.rows).all()
    assert last.dense["globals"].shape == (1, 2)


def test_a_step_repeated_from_the_same_state_gives_the_same_state(define: Define) -> None:
    server = DpamServer(define(items=20, rank=2))
    release = NoisyTensors(0, {"counts": np.arange(20.0) - 4}, 10)
    assert server.step(server.start(), release) == server.step(server.start(), release)


def test_a_state_of_the_version_before_goes_on(define: Define, run_rounds: RunRounds) -> None:
    """It had no popularity: that followed from the counts alone."""
    definition = define(items=150, rank=2, places=20, steps=0)
    train = synthetic_movielens(n_users=50, n_items=150)
    server = DpamServer(definition)
    generator = np.random.default_rng(1)
    counts = generator.uniform(0, 50, 150)
    for state in (server.start(), server.step(server.start(), NoisyTensors(0, {"counts": counts}, 50))):
        before = b"odpdpam1" + state[8 : 12 + 8 * 150] + state[12 + 16 * 150 :]
        assert len(before) == len(state) - 8 * 150
        for one, two in zip(server.broadcast(before).tables, server.broadcast(state).tables, strict=True):
            np.testing.assert_array_equal(one.rows, two.rows)
    releases = {release.name: np.ones(release.shape) for release in algorithm_for(definition).query(1).releases}
    assert server.step(before, NoisyTensors(1, releases, 50)) == server.step(state, NoisyTensors(1, releases, 50))
    assert len(run_rounds(definition, train)) == len(state)


def test_a_state_in_which_all_features_counted_alike_goes_on(define: Define) -> None:
    """It had no relevance of groups: each counts as 1."""
    definition = define(items=30, rank=2, places=20, steps=0)
    matrix = np.random.default_rng(2).normal(size=(30, 5)).astype(np.float32)
    definition.model.item_features_width = 5
    definition.model.item_features_sha256 = item_features_sha256(matrix)
    definition.model.item_feature_groups.extend([3, 2])
    server = DpamServer(definition, matrix)
    state = server.step(server.start(), NoisyTensors(0, {"counts": np.arange(30.0)}, 50))
    alike = b"odpdpam2" + state[8 : -8 * 2]
    for one, two in zip(server.broadcast(alike).tables, server.broadcast(state).tables, strict=True):
        np.testing.assert_array_equal(one.rows, two.rows)
    releases = {release.name: np.ones(release.shape) for release in algorithm_for(definition).query(1).releases}
    assert server.step(alike, NoisyTensors(1, releases, 50)) == server.step(state, NoisyTensors(1, releases, 50))


def test_foreign_states_and_releases_are_refused(define: Define) -> None:
    server = DpamServer(define(items=20, rank=2))
    with pytest.raises(StateError, match="this very DPAM task"):
        server.broadcast(DpamServer(define(items=21, rank=2)).start())
    with pytest.raises(ConfigurationError, match="round=1"):
        server.step(server.start(), NoisyTensors(1, {}, 10))
    with pytest.raises(ConfigurationError, match="'counts' of shape"):
        server.step(server.start(), NoisyTensors(0, {"counts": np.zeros(19)}, 10))


def test_a_release_of_pure_noise_gives_a_usable_model(define: Define) -> None:
    definition = define(items=40, rank=4, epsilon=1.0)
    algorithm, generator = algorithm_for(definition), np.random.default_rng(1)
    server = algorithm.server()
    state = server.start()
    for round in range(server.rounds):
        releases = algorithm.query(round).releases
        noise = {release.name: generator.normal(size=release.shape) * release.column_std for release in releases}
        state = server.step(state, NoisyTensors(round, noise, 0))
    rows = server.broadcast(state).keyed.rows
    assert np.isfinite(rows).all()
    assert np.abs(rows[:, 1]).max() < 5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sums_at_the_end_of_their_grid_give_a_finite_model_or_one_clear_error(define: Define) -> None:
    """What no devices could have sent, and what still fits into the integers of a release."""
    algorithm = algorithm_for(define(items=40, rank=4))
    server, generator = algorithm.server(), np.random.default_rng(1)
    refused = []
    for sign in (-1.0, 1.0):
        for everywhere in (False, True):
            state = server.start()
            for round in range(server.rounds):
                releases = algorithm.query(round).releases
                drawn = {
                    release.name: generator.normal(size=release.shape) * release.column_std for release in releases
                }
                extreme = {name: values.copy() for name, values in drawn.items()}
                for release in releases:
                    extreme[release.name].flat[slice(None) if everywhere else 3] = sign * 2.0**62 * release.step
                try:
                    rows = server.broadcast(server.step(state, NoisyTensors(round, extreme, 0))).keyed.rows
                    assert np.isfinite(rows).all()
                except ConfigurationError as error:
                    refused.append((everywhere, f"round {round} to be sums that devices can have sent" in str(error)))
                state = server.step(state, NoisyTensors(round, drawn, 0))
    assert set(refused) == {(True, True)}, "only where all sums are extreme, and in words"
