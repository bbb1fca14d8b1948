"""The server on implicit feedback: plain iALS without noise, shrinkage with it, states and tables."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from odp.algorithms.implicit import estimation
from odp.algorithms.implicit.population import ImplicitPopulation, item_rows
from odp.algorithms.implicit.server import ImplicitServer
from odp.algorithms.implicit.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, StateError
from odp.evaluation.ials import pairs, solve_rows
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

ITEMS, USERS, RANK = 40, 60, 3
WEIGHT, RIDGE = 0.2, 2.0


def exact_release(
    definition: common_pb2.TaskDefinition, round: int, users: np.ndarray, seen: np.ndarray
) -> NoisyTensors:
    """What a round would release in exact arithmetic, from user rows [n, d] and pairs [n, m]."""
    if round == 0:
        return NoisyTensors(0, {"counts": seen.sum(axis=0)}, len(seen))
    first, second = np.triu_indices(users.shape[1])
    outer = users[:, first] * users[:, second]
    tensors = {"targets": seen.T @ users, "gramian": outer.sum(axis=0), "gram": seen.T @ outer}
    return NoisyTensors(round, tensors, len(seen))


def test_without_noise_and_bounds_a_run_is_plain_ials(
    define_implicit: Define, some_events: Callable[..., Ratings]
) -> None:
    definition = define_implicit(
        items=ITEMS,
        rank=RANK,
        places=ITEMS,
        epsilon=math.inf,
        steps=4,
        weighting="uniform",
        unobserved_weight=WEIGHT,
        user_ridge=RIDGE,
        item_ridge=RIDGE,
    )
    events = some_events(users=USERS, items=ITEMS, seed=5)
    seen, server = pairs(events), ImplicitServer(definition)
    state = server.step(server.start(), exact_release(definition, 0, np.zeros((USERS, RANK)), seen.toarray()))
    rows = item_rows(server.broadcast(state))
    for round in range(1, server.rounds):
        users = solve_rows(seen, rows, unobserved_weight=WEIGHT, ridge=RIDGE)
        np.testing.assert_allclose(
            ImplicitPopulation(definition).user_rows(server.broadcast(state), events), users, atol=1e-5
        )
        # The item ridge counts in users of mean squared row.
        ridge = RIDGE * float((users**2).mean())
        rows = solve_rows(seen.T.tocsr(), users, unobserved_weight=WEIGHT, ridge=ridge)
        state = server.step(state, exact_release(definition, round, users, seen.toarray()))
        np.testing.assert_allclose(item_rows(server.broadcast(state)), rows, atol=1e-6)


def test_a_quantised_run_without_noise_stays_near_plain_ials(
    define_implicit: Define, some_events: Callable[..., Ratings]
) -> None:
    definition = define_implicit(
        items=ITEMS,
        rank=RANK,
        places=ITEMS,
        epsilon=math.inf,
        steps=2,
        weighting="uniform",
        unobserved_weight=WEIGHT,
        user_ridge=RIDGE,
        item_ridge=RIDGE,
    )
    events = some_events(users=USERS, items=ITEMS, seed=6)
    algorithm, population = algorithm_for(definition), ImplicitPopulation(definition)
    seen, server = pairs(events), ImplicitServer(definition)
    state, reference = server.start(), server.start()
    for round in range(server.rounds):
        sums = population.contribute(
            server.broadcast(state), events, round=round, seeds=np.arange(USERS, dtype=np.uint64)
        )
        tensors = {release.name: sums[release.name] * release.step for release in algorithm.query(round).releases}
        state = server.step(state, NoisyTensors(round, tensors, USERS))
        users = population.user_rows(server.broadcast(reference), events)
        reference = server.step(reference, exact_release(definition, round, users, seen.toarray()))
    exact = item_rows(server.broadcast(reference))
    # Weights of 1 and rows are rounded to units of sqrt(K) / 2^10 and 8 / 2^11: some parts in a thousand.
    assert np.abs(item_rows(server.broadcast(state)) - exact).max() < 0.05 * np.abs(exact).max()


def test_rows_outside_the_head_start_at_zero_and_the_head_is_the_largest_noisy_counts(define_implicit: Define) -> None:
    server = ImplicitServer(define_implicit(items=6, rank=2, head_items=3))
    counts = np.array([5.0, -1.0, 80.0, 7.0, 90.0, 2.0])
    model = server.broadcast(server.step(server.start(), NoisyTensors(0, {"counts": counts}, 100)))
    assert np.flatnonzero(model.keyed.rows[:, 0]).tolist() == [2, 3, 4]
    assert np.flatnonzero(item_rows(model).any(axis=1)).tolist() == [2, 3, 4]
    np.testing.assert_allclose(model.dense["gramian"], item_rows(model).T @ item_rows(model), rtol=1e-5)


def test_items_outside_the_head_end_with_the_row_of_a_typical_item_scaled_by_popularity(
    define_implicit: Define,
) -> None:
    definition = define_implicit(items=6, rank=2, head_items=3, steps=1, weighting="uniform", item_ridge=0.0)
    server = ImplicitServer(definition)
    counts = np.array([5.0, 1.0, 80.0, 20.0, 90.0, 2.0])
    state = server.step(server.start(), NoisyTensors(0, {"counts": counts}, 100))
    targets = np.zeros((6, 2))
    targets[[2, 3, 4]] = np.array([[60.0, 30.0], [10.0, 8.0], [80.0, 20.0]])
    gramian = np.array([50.0, 5.0, 30.0])
    rows = item_rows(
        server.broadcast(server.step(state, NoisyTensors(1, {"targets": targets, "gramian": gramian}, 100)))
    )
    tail = rows[[0, 1, 5]]
    assert np.linalg.norm(tail[0]) > np.linalg.norm(tail[2]) > np.linalg.norm(tail[1]) > 0
    np.testing.assert_allclose(
        tail / np.linalg.norm(tail, axis=1, keepdims=True),
        np.tile(tail[0] / np.linalg.norm(tail[0]), (3, 1)),
        atol=1e-6,
    )


def test_a_head_chosen_by_rule_grows_with_the_budget(define_implicit: Define) -> None:
    counts = np.geomspace(3000.0, 0.1, 400)
    sizes = []
    for epsilon in (0.05, 0.2, 0.8):
        definition = define_implicit(items=400, rank=4, places=20, epsilon=epsilon)
        server = ImplicitServer(definition)
        model = server.broadcast(server.step(server.start(), NoisyTensors(0, {"counts": counts}, 4000)))
        sizes.append(int(np.count_nonzero(model.keyed.rows[:, 0])))
    assert 4 <= sizes[0] < sizes[1] < sizes[2] < 400


def test_visitors_that_noise_drowns_keep_their_popularity(define_implicit: Define) -> None:
    generator = np.random.default_rng(1)
    mass = np.concatenate((np.full(200, 1000.0), np.full(200, 1.0)))
    own = np.array([1.0, 0.0]) + generator.normal(size=(400, 2)) * 0.3
    noisy = mass[:, None] * own + generator.normal(size=(400, 2)) * 10.0
    found = estimation.visitors(noisy, mass, noise_std=10.0)
    strong, weak = found.sums[:200] / 1000.0, found.sums[200:]
    assert np.abs(strong - own[:200]).max() < 0.06
    assert np.abs(weak - [1.0, 0.0]).max() < 0.3
    # A mean square error below that of the noisy sums, by far.
    assert ((weak - own[200:]) ** 2).mean() < 0.01 * ((noisy[200:] - own[200:]) ** 2).mean()


def test_noisy_gram_matrices_are_made_positive_semidefinite_and_shrunk() -> None:
    generator = np.random.default_rng(2)
    mass = generator.uniform(1, 50, 300)
    noise = generator.normal(size=(300, 3, 3)) * 5.0
    noise = (noise + noise.transpose(0, 2, 1)) / 2
    noisy = mass[:, None, None] * np.diag([1.0, 0.5, 0.2]) + noise
    found = estimation.item_grams(noisy, mass, noise_std=5.0)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    truth = mass[:, None, None] * np.diag([1.0, 0.5, 0.2])
    assert ((found - truth) ** 2).mean() < 0.2 * ((noisy - truth) ** 2).mean()


def test_a_state_of_another_task_and_a_release_of_another_round_are_refused(define_implicit: Define) -> None:
    server = ImplicitServer(define_implicit(items=6, rank=2))
    with pytest.raises(StateError):
        server.broadcast(ImplicitServer(define_implicit(items=7, rank=2)).start())
    with pytest.raises(ConfigurationError, match="round=1"):
        server.step(server.start(), NoisyTensors(1, {}, 10))
    with pytest.raises(ConfigurationError, match="counts"):
        server.step(server.start(), NoisyTensors(0, {"counts": np.zeros(5)}, 10))


def test_the_model_has_the_tables_that_devices_expect(define_implicit: Define) -> None:
    definition = define_implicit(items=6, rank=2)
    model = ImplicitServer(definition).broadcast(ImplicitServer(definition).start())
    shapes = tuple((table.name, *table.rows.shape, table.keyed) for table in model.tables)
    assert shapes == algorithm_for(definition).tables


def test_a_definition_with_numbers_of_ratings_or_without_its_own_is_refused(define_implicit: Define) -> None:
    for name, value in (("centre", 1.0), ("bias_target_clip", 1.0), ("unobserved_weight", 0.0), ("gram_noise", 1.0)):
        definition = define_implicit()
        setattr(definition.dpam, name, value)
        with pytest.raises(ConfigurationError, match=name):
            Terms.of(definition)
    definition = define_implicit()
    definition.dpam.gramian_noise = 0.0
    with pytest.raises(ConfigurationError, match="gramian_noise"):
        algorithm_for(definition).check()
