"""A tree of aggregators over the whole platform: the same answers as one aggregator, with leaves that die."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from e2e.test_statistics import asked, seeds_of
from e2e.world import World, small_task

import odp
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import RELEASE
from odp.datasets import Ratings
from odp.errors import ServiceError
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2

TREE = EnclavePolicy(role="aggregator", minimum_cohort=20, leaves=2)


@pytest.mark.parametrize("bins", [pytest.param(40, marks=pytest.mark.representative), 300_000])
def test_a_tree_gives_the_sum_of_a_simulation(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, bins: int
) -> None:
    """With 300,000 bins, contributions and sums travel as streams."""
    world = World(tmp_path, noise=NoNoise(), policy=TREE).start(stack)
    handle = world.connection.submit(asked(ratings, bins=bins))
    status = world.finish(handle, world.devices(ratings))
    assert status.rounds[0].contributions == ratings.n_users
    release = common_pb2.Release.FromString(status.rounds[0].release.release)
    (tensor,) = release.tensors
    algorithm = algorithm_for(open_task(status.task))
    seeds = seeds_of(world, ratings.n_users)
    simulated = algorithm.population().contribute(algorithm.server().broadcast(b""), ratings, round=0, seeds=seeds)[
        RELEASE
    ]
    np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated)
    events = [json.loads(line) if line.startswith("{") else line for line in world.logs.getvalue().splitlines()]
    taken = [str(event) for event in events if "part_closed" in str(event)]
    assert len(taken) == 2, "each leaf had a part"
    assert not any("contributions=24" in line for line in taken)
    audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))


# Counts go through a tree above, and rounds of DPAM in test_soak.py, which kills root and leaves.
@pytest.mark.proof
def test_rounds_of_dpam_go_through_a_tree(tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings) -> None:
    world = World(tmp_path, policy=dataclasses.replace(TREE, leaves=3)).start(stack)
    handle = world.connection.submit(small_task(ratings, rank=2, training=odp.DPAM(steps=1)))
    status = world.finish(handle, world.devices(ratings))
    assert [entry.contributions for entry in status.rounds] == [ratings.n_users] * len(status.rounds)


def test_a_masked_task_is_refused_when_it_is_made(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings
) -> None:
    world = World(tmp_path, policy=TREE).start(stack)
    masked = dataclasses.replace(asked(ratings, bins=8), cohort=odp.Cohort(minimum=20, goal=20, aggregation="masked"))
    with pytest.raises(ServiceError, match="tree of aggregators"):
        world.connection.submit(masked)
