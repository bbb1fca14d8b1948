"""SecAgg+ over the whole platform: the sums of the other modes, from devices over TLS that drop out at each step."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from e2e.test_statistics import asked, seeds_of
from e2e.world import World

import odp
from device_runtime import secagg
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import RELEASE
from odp.datasets import Ratings
from odp.enclave.reference_values import ReferenceValues
from odp.signed_task import open_task
from odp.v1 import common_pb2


def together(task: odp.Statistics, **changes: object) -> odp.Statistics:
    cohort = dataclasses.replace(task.cohort, aggregation="secagg+", **changes)
    return dataclasses.replace(task, cohort=cohort)


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices of this process add no noise: no flag, file or message can do the same."""
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))


@pytest.mark.parametrize("bins", [40, 300_000])
def test_the_sum_of_a_session_is_that_of_the_simulation_with_noise_off(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, bins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    ratings = ratings.select_users(range(24))
    world = World(tmp_path).start(stack)
    handle = world.connection.submit(together(asked(ratings, bins=bins)))
    status = world.finish(handle, world.devices(ratings))
    assert status.rounds[0].contributions == ratings.n_users
    (tensor,) = common_pb2.Release.FromString(status.rounds[0].release.release).tensors
    algorithm = algorithm_for(open_task(status.task))
    broadcast = algorithm.server().broadcast(b"")
    seeds = seeds_of(world, ratings.n_users)
    simulated = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)[RELEASE]
    np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated)
    assert simulated.any()
    assert handle.statistics(ReferenceValues.load(world.reference_values)).histogram("stars").counts.sum() > 0
