"""A small DPAM task, and a plain way to run its rounds with chosen noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from odp.algorithms.dpam.config import DPAM
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets.ratings import Ratings
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]
RunRounds = Callable[..., bytes]


@pytest.fixture(scope="session")
def define() -> Define:
    """Builds a task definition; keywords that are none of its own go to the DPAM configuration."""

    def build(
        *,
        items: int = 30,
        rank: int = 2,
        places: int = 4,
        epsilon: float = 8.0,
        delta: float = 1e-6,
        **config: object,
    ) -> common_pb2.TaskDefinition:
        definition = common_pb2.TaskDefinition(name="ratings", population="people")
        definition.model.items, definition.model.rank = items, rank
        definition.data.table, definition.data.low, definition.data.high = "ratings", 1.0, 5.0
        definition.privacy.epsilon, definition.privacy.delta = epsilon, delta
        definition.privacy.max_items_per_user = places
        options = {"steps": 2 if rank else 0} | config
        dpam = DPAM(**options)  # type: ignore[arg-type]
        definition.dpam.CopyFrom(dpam.resolve(definition.model, definition.data, definition.privacy))
        return definition

    return build


@pytest.fixture(scope="session")
def run_rounds() -> RunRounds:
    """Runs all rounds of a task over a population, with Gaussian noise of numpy; returns the last state."""

    def run(definition: common_pb2.TaskDefinition, train: Ratings, *, seed: int = 1) -> bytes:
        algorithm = algorithm_for(definition)
        server, population = algorithm.server(), algorithm.population()
        generator = np.random.default_rng(seed)
        seeds = generator.integers(0, 2**64, train.n_users, dtype=np.uint64)
        state = server.start()
        for round in range(server.rounds):
            sums = population.contribute(server.broadcast(state), train, round=round, seeds=seeds)
            noisy = {}
            for release in algorithm.query(round).releases:
                noise = generator.normal(size=release.shape) * release.column_std
                noisy[release.name] = sums[release.name] * release.step + noise
            state = server.step(state, NoisyTensors(round, noisy, train.n_users))
        return state

    return run
