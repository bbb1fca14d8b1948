"""The networked platform and the simulator are the same computation."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from e2e.world import World, device_seeds, released_charges, small_task

import odp
from odp.algorithms.registry import algorithm_for
from odp.datasets import Ratings, Split
from odp.evaluation.noise import NoNoise
from odp.privacy.accounting import epsilon as epsilon_of
from odp.research.simulation import engine
from odp.signed.task import open_task
from odp.v1 import common_pb2


def test_networked_run_and_simulation_agree_to_1e_6_with_noise_off(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: object
) -> None:
    world = World(tmp_path, noise=NoNoise()).start(stack)
    task = small_task(ratings, rank=2, training=odp.DPAM(steps=2))
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(ratings))
    networked = handle.model()
    assert [entry.contributions for entry in status.rounds] == [ratings.n_users] * 4

    seeds = device_seeds(world, ratings.n_users)
    monkeypatch.setattr(engine, "user_seeds", lambda ratings, seed: seeds)  # type: ignore[attr-defined]
    nothing = ratings.take(np.zeros(ratings.n_ratings, dtype=bool))
    simulated = odp.simulate(task, Split(train=ratings, validation=nothing, test=ratings), noise=NoNoise())
    for ours, theirs in zip(networked.tables, simulated.model.tables, strict=True):
        np.testing.assert_allclose(ours.rows, theirs.rows, rtol=0, atol=1e-6)
    assert np.abs(networked.keyed.rows[:, 3:]).max() > 1e-3, "the factors were trained, not left at zero"


@pytest.mark.slow
def test_networked_and_simulated_releases_have_the_declared_noise_distribution(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    """Noise of every released number over its declared std is standard normal, networked and simulated.

    Kolmogorov-Smirnov against the exact law, per run, false alarm 1e-6 each (asymptotic bound 2 exp(-2 n D^2)).
    """
    ratings = odp.data.synthetic_movielens(n_users=40, n_items=400, ratings_per_user=12, seed=3)
    world = World(tmp_path).start(stack)
    task = small_task(ratings, rank=2, training=odp.DPAM(steps=1))
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(ratings))
    definition = open_task(status.task)
    algorithm = algorithm_for(definition)
    seeds = device_seeds(world, ratings.n_users)

    server, population = algorithm.server(), algorithm.population()
    state, networked = server.start(), []
    for entry in status.rounds:
        release = common_pb2.Release.FromString(entry.release.release)
        exact = population.contribute(server.broadcast(state), ratings, round=entry.round, seeds=seeds)
        tensors = {}
        for tensor, declared in zip(release.tensors, algorithm.query(entry.round).releases, strict=True):
            integers = np.frombuffer(tensor.integers, dtype="<i8").reshape(tensor.shape)
            noise = (integers - exact[tensor.name].reshape(integers.shape)) * tensor.step
            networked.append((noise / declared.column_std).ravel())
            tensors[tensor.name] = integers * tensor.step
        state = server.step(state, engine.NoisyTensors(entry.round, tensors, release.contributions))
    simulated = [
        (
            engine.draw_noise(declared, engine.GaussianNoise(engine.SeededNoise(9)))
            * declared.step
            / declared.column_std
        ).ravel()
        for releases in algorithm.planned_releases()
        for declared in releases
    ]
    for sample in (np.concatenate(networked), np.concatenate(simulated)):
        assert len(sample) == sum(
            declared.coordinates for releases in algorithm.planned_releases() for declared in releases
        )
        assert _kolmogorov_smirnov(sample) < math.sqrt(math.log(2 / 1e-6) / (2 * len(sample)))


def test_the_signed_charges_recompute_to_the_stated_epsilon(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    world = World(tmp_path).start(stack)
    task = small_task(ratings)
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(ratings))
    events: list[engine.GaussianRelease] = []
    for entry in status.rounds:
        release = common_pb2.Release.FromString(entry.release.release)
        events += released_charges(release)
        assert math.isclose(release.epsilon_spent, epsilon_of(events, delta=task.privacy.delta), rel_tol=1e-9)
    assert [event.name for event in events] == ["counts", "mass", "sums"]
    assert release.epsilon_spent <= task.privacy.epsilon
    assert math.isclose(release.epsilon_remaining, task.privacy.epsilon - release.epsilon_spent, abs_tol=1e-6)


def _kolmogorov_smirnov(sample: np.ndarray) -> float:
    ordered = np.sort(sample)
    law = 0.5 * (1 + np.vectorize(math.erf)(ordered / math.sqrt(2)))
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(law - steps[:-1]).max(), np.abs(law - steps[1:]).max()))
