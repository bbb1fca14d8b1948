"""The server on implicit feedback: a truncated SVD without noise, popularity where noise is all, states and tables."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
from scipy.sparse.linalg import svds

from odp.algorithms.implicit.population import ImplicitPopulation, item_rows
from odp.algorithms.implicit.server import ImplicitServer
from odp.algorithms.implicit.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, StateError
from odp.evaluation.als import pairs
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS, RANK = 40, 200, 3


@pytest.fixture(scope="module")
def visits() -> Ratings:
    """Three groups of items, of many, some and few users each: the first singular values are well apart."""
    generator = np.random.default_rng(3)
    group = np.repeat([0, 1, 2], [110, 60, 30])
    near = np.arange(ITEMS) % RANK == group[:, None]
    user, item = np.nonzero(generator.random((USERS, ITEMS)) < np.where(near, 0.5, 0.03))
    return Ratings.from_triples(
        "visits", user, item, np.ones(len(user)), low=0, high=1, n_users=USERS, n_items=ITEMS, implicit=True
    )


def filtered(seen: np.ndarray, *, exponent: float) -> np.ndarray:
    """Scores [n, m] of the ideal low-pass filter of rank 3 between count^-p and count^p, from an independent SVD."""
    counts = seen.sum(axis=0)
    weighted = seen * np.maximum(counts, 1.0) ** -exponent
    _, _, axes = svds(weighted / np.linalg.norm(weighted, axis=1, keepdims=True), k=RANK)
    return np.asarray(weighted @ axes.T @ axes * counts**exponent)


def agreement(scores: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of two users' scores, each user's of length 1: a scale per user is free."""
    lengths = [np.linalg.norm(side, axis=1, keepdims=True) for side in (scores, expected)]
    return float(np.abs(scores / lengths[0] - expected / lengths[1]).max())


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_without_noise_and_bounds_the_final_scores_are_those_of_a_truncated_svd(
    define_implicit: Define, visits: Ratings, exponent: float
) -> None:
    definition = define_implicit(
        items=ITEMS, rank=RANK, places=ITEMS, epsilon=math.inf, steps=20, weight_exponent=exponent
    )
    server, population, seen = ImplicitServer(definition), ImplicitPopulation(definition), pairs(visits).toarray()
    state = server.step(server.start(), NoisyTensors(0, {"counts": seen.sum(axis=0)}, USERS))
    for round in range(1, server.rounds):
        model = server.broadcast(state)
        weights = seen * model.keyed.rows[:, 0]
        weights *= math.sqrt(ITEMS) / np.linalg.norm(weights, axis=1, keepdims=True)
        rows = population.user_rows(model, visits)
        assert np.linalg.norm(rows, axis=1).max() <= definition.dpam.row_clip * (1 + 1e-6), "no row is clipped"
        state = server.step(state, NoisyTensors(round, {"targets": weights.T @ rows}, USERS))
    model = server.broadcast(state)
    scores = population.user_rows(model, visits) @ item_rows(model).T
    assert agreement(scores, filtered(seen, exponent=exponent)) < 1e-4


def test_contributions_in_integer_units_stay_near_the_exact_filter(define_implicit: Define, visits: Ratings) -> None:
    definition = define_implicit(items=ITEMS, rank=RANK, places=ITEMS, epsilon=math.inf, steps=6)
    algorithm, population, server = (
        algorithm_for(definition), ImplicitPopulation(definition), ImplicitServer(definition),
    )  # fmt: skip
    state = server.start()
    for round in range(server.rounds):
        model = server.broadcast(state)
        sums = population.contribute(model, visits, round=round, seeds=np.arange(USERS, dtype=np.uint64))
        tensors = {release.name: sums[release.name] * release.step for release in algorithm.query(round).releases}
        state = server.step(state, NoisyTensors(round, tensors, USERS))
    model = server.broadcast(state)
    scores = population.user_rows(model, visits) @ item_rows(model).T
    assert agreement(scores, filtered(pairs(visits).toarray(), exponent=0.5)) < 0.02


def test_training_rounds_send_orthonormal_rows_of_the_largest_noisy_counts(define_implicit: Define) -> None:
    definition = define_implicit(items=6, rank=2, head_items=3, steps=2)
    server = ImplicitServer(definition)
    counts = np.array([5.0, -1.0, 80.0, 7.0, 90.0, 2.0])
    state = server.step(server.start(), NoisyTensors(0, {"counts": counts}, 100))
    targets = np.random.default_rng(1).normal(size=(6, 2))
    for following in (state, server.step(state, NoisyTensors(1, {"targets": targets}, 100))):
        model = server.broadcast(following)
        assert np.flatnonzero(model.keyed.rows[:, 0]).tolist() == [2, 3, 4]
        assert np.flatnonzero(item_rows(model).any(axis=1)).tolist() == [2, 3, 4]
        squares = item_rows(model).T @ item_rows(model)
        np.testing.assert_allclose(squares, squares[0, 0] * np.eye(2), atol=1e-4 * squares[0, 0])


def test_with_noise_most_rows_of_users_reach_their_clip_from_the_first_round_on(
    define_implicit: Define, visits: Ratings
) -> None:
    definition = define_implicit(items=ITEMS, rank=RANK, places=ITEMS, head_items=ITEMS, row_clip=0.2)
    server = ImplicitServer(definition)
    counts = {"counts": np.bincount(visits.items, minlength=ITEMS).astype(float)}
    model = server.broadcast(server.step(server.start(), NoisyTensors(0, counts, USERS)))
    lengths = np.linalg.norm(ImplicitPopulation(definition).user_rows(model, visits), axis=1)
    assert (lengths > 0.2).mean() > 0.9


def test_items_outside_the_head_end_with_the_row_of_a_typical_item_scaled_by_popularity(
    define_implicit: Define,
) -> None:
    definition = define_implicit(items=6, rank=2, head_items=3, steps=1, weighting="uniform")
    server = ImplicitServer(definition)
    counts = np.array([50.0, 10.0, 80.0, 60.0, 90.0, 20.0])
    state = server.step(server.start(), NoisyTensors(0, {"counts": counts}, 100))
    targets = np.zeros((6, 2))
    targets[[2, 3, 4]] = 10 * np.array([[60.0, 30.0], [10.0, 8.0], [80.0, 20.0]])
    model = server.broadcast(server.step(state, NoisyTensors(1, {"targets": targets}, 100)))
    tail = item_rows(model)[[0, 1, 5]]
    lengths = np.linalg.norm(tail, axis=1)
    assert lengths[0] > lengths[2] > lengths[1] > 0
    np.testing.assert_allclose(tail / lengths[:, None], np.tile(tail[0] / lengths[0], (3, 1)), atol=1e-6)
    np.testing.assert_allclose(model.keyed.rows[:, 0], [1e-3, 1e-3, 1, 1, 1, 1e-3], rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_where_noise_is_all_that_rounds_release_the_ranking_is_the_order_of_noisy_counts(
    define_implicit: Define, steps: int
) -> None:
    """An axis of pure noise is taken for a taste in less than one run of 100: 0 of 300 in trials, 10 seeds here."""
    for seed in range(10):
        definition = define_implicit(items=300, rank=4, places=20, head_items=200, steps=steps)
        generator, server = np.random.default_rng(seed), ImplicitServer(definition)
        counts = generator.permutation(np.geomspace(20000.0, 2000.0, 300))
        state = server.step(server.start(), NoisyTensors(0, {"counts": counts}, 50000))
        for round in range(1, server.rounds):
            noise = generator.normal(size=(300, 4)) * definition.dpam.target_noise * definition.dpam.row_clip
            state = server.step(state, NoisyTensors(round, {"targets": noise}, 50000))
        model, popular = server.broadcast(state), np.argsort(-server.counts(state))
        for history in (popular[:3], popular[-3:]):
            mine = model.keyed.rows[history]
            scores = item_rows(model) @ (mine[:, :1] * mine[:, 1:]).sum(axis=0)
            np.testing.assert_array_equal(np.argsort(-scores), popular)


def test_a_head_chosen_by_rule_grows_with_the_budget(define_implicit: Define) -> None:
    counts = np.geomspace(3000.0, 0.1, 400)
    sizes = []
    for epsilon in (0.05, 0.2, 0.8):
        definition = define_implicit(items=400, rank=4, places=20, epsilon=epsilon)
        server = ImplicitServer(definition)
        model = server.broadcast(server.step(server.start(), NoisyTensors(0, {"counts": counts}, 4000)))
        sizes.append(int(np.count_nonzero(model.keyed.rows[:, 0])))
    assert 4 <= sizes[0] < sizes[1] < sizes[2] < 400


def test_the_finished_model_is_finite_whatever_a_round_released(define_implicit: Define) -> None:
    for targets in (np.zeros((6, 2)), np.full((6, 2), -1e6), np.full((6, 2), 1e-30)):
        server = ImplicitServer(define_implicit(items=6, rank=2, head_items=4, steps=2))
        state = server.step(server.start(), NoisyTensors(0, {"counts": np.full(6, -3.0)}, 100))
        for round in (1, 2):
            state = server.step(state, NoisyTensors(round, {"targets": targets}, 0))
        assert np.isfinite(server.broadcast(state).keyed.rows).all()


def test_a_state_that_is_not_of_this_task_is_refused_in_every_round(define_implicit: Define) -> None:
    definition = define_implicit(items=6, rank=2, head_items=3, steps=2)
    server = ImplicitServer(definition)
    tensors = {"counts": np.arange(6.0), "targets": np.ones((6, 2))}
    state, lengths = server.start(), []
    for round in range(server.rounds + 1):
        assert server.broadcast(state).version == round
        old = b"odpimpl1" + state[8:]
        later = struct.pack("<8sII", b"odpimpl2", server.rounds + 1, 0) + state[16:]
        longer_head = state[:12] + struct.pack("<I", 4) + state[16:]
        wrong = [old, later, state[:-1], state + b"\0", b"", *([longer_head] if round == 2 else [])]
        for other in wrong:
            with pytest.raises(StateError):
                server.broadcast(other)
        with pytest.raises(StateError):
            ImplicitServer(define_implicit(items=7, rank=2, head_items=3, steps=2)).broadcast(state)
        lengths.append(len(state))
        if round < server.rounds:
            state = ImplicitServer(definition).step(state, NoisyTensors(round, tensors, 10))
    # Measurements of the head are kept until the model is finished.
    assert lengths[2] > lengths[0] == lengths[1] == lengths[3]


def test_a_release_of_another_round_or_shape_is_refused(define_implicit: Define) -> None:
    server = ImplicitServer(define_implicit(items=6, rank=2))
    with pytest.raises(ConfigurationError, match="round=1"):
        server.step(server.start(), NoisyTensors(1, {}, 10))
    with pytest.raises(ConfigurationError, match="counts"):
        server.step(server.start(), NoisyTensors(0, {"counts": np.zeros(5)}, 10))


def test_the_model_has_the_tables_that_devices_expect(define_implicit: Define) -> None:
    definition = define_implicit(items=6, rank=2)
    model = ImplicitServer(definition).broadcast(ImplicitServer(definition).start())
    shapes = tuple((table.name, *table.rows.shape, table.keyed) for table in model.tables)
    assert shapes == algorithm_for(definition).tables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("centre", 1.0), ("bias_target_clip", 1.0), ("user_bias_ridge", 1.0), ("gram_noise", 1.0), ("user_ridge", 1.0),
        ("item_ridge", 1.0), ("unobserved_weight", 0.1), ("gramian_noise", 1.0), ("item_grams", True),
        ("target_noise", 0.0), ("head_items", 1),
    ],
)  # fmt: skip
def test_a_definition_with_numbers_that_are_not_of_implicit_feedback_is_refused(
    define_implicit: Define, name: str, value: float
) -> None:
    definition = define_implicit()
    setattr(definition.dpam, name, value)
    with pytest.raises(ConfigurationError, match=name):
        Terms.of(definition)
