"""Masked statistics over the whole platform: the sums of unmasked ones, from devices over TLS, small and streamed."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from e2e.test_statistics import asked, seeds_of
from e2e.world import World

import odp
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import RELEASE
from odp.datasets import Ratings
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import common_pb2
from trusted_aggregator.host.servicer import AggregatorService


def masked(task: odp.Statistics) -> odp.Statistics:
    return dataclasses.replace(task, cohort=dataclasses.replace(task.cohort, aggregation="masked"))


# Few bins in CI: test_secagg.py and test_tree.py have contributions that travel as streams.
@pytest.mark.parametrize("bins", [40, pytest.param(300_000, marks=pytest.mark.proof)])
def test_masked_and_simulated_statistics_agree_exactly_with_noise_off(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, bins: int
) -> None:
    """The simulation sums in the clear, as the enclave does: the integers are equal."""
    world = World(tmp_path, noise=NoNoise()).start(stack)
    handle = world.connection.submit(masked(asked(ratings, bins=bins)))
    status = world.finish(handle, world.devices(ratings))
    assert status.rounds[0].contributions == ratings.n_users
    (tensor,) = common_pb2.Release.FromString(status.rounds[0].release.release).tensors
    algorithm = algorithm_for(open_task(status.task))
    broadcast = algorithm.server().broadcast(b"")
    seeds = seeds_of(world, ratings.n_users)
    simulated = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)[RELEASE]
    np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated)
    assert simulated.any()
    assert handle.results(ReferenceValues.load(world.reference_values)).histogram("stars").counts.sum() > 0


def test_a_device_that_lost_its_answer_sends_the_same_halves_again(
    tmp_path: Path, stack: contextlib.ExitStack, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer to each device is lost behind the host: each device is counted once, with its first mask."""
    ratings = ratings.select_users(range(20))
    world = World(tmp_path, noise=NoNoise()).start(stack)
    handle = world.connection.submit(masked(asked(ratings, bins=40)))
    first = AggregatorService.submit
    seen: dict[bytes, bytes] = {}

    def lose_once(self: AggregatorService, request):  # type: ignore[no-untyped-def]
        known = request.masked_vector in seen
        answer = first(self, request)
        if not known:
            seen[request.masked_vector] = request.sealed_contribution
            raise ConnectionError("lost")
        assert seen[request.masked_vector] == request.sealed_contribution
        return answer

    monkeypatch.setattr(AggregatorService, "submit", lose_once)
    status = world.finish(handle, world.devices(ratings))
    assert len(seen) == status.rounds[0].contributions == 20
