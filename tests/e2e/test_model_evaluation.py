"""Evaluations over the whole platform: the answers of the simulation, from devices over TLS, in every mode."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from algorithms.model_evaluation.worlds import DATA, LOGISTIC, evaluation, people, vector
from e2e.world import World, device_seeds

import odp
from device_runtime.round import secagg
from odp.algorithms.model_evaluation.results import EvaluationResults
from odp.algorithms.model_evaluation.terms import RELEASE
from odp.algorithms.registry import algorithm_for
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2

DEVICES = 24
KINDS: dict[str, dict[str, object]] = {
    "enclave": {"personal": odp.PersonalTraining(batch=3, epochs=2)},
    "masked": {"against": vector(LOGISTIC, seed=9)},
    # Mean noise of few devices: the share of each has to be one that can be drawn.
    "secagg+": {"metrics": ["loss", "accuracy"]},
}


@pytest.mark.parametrize("mode", KINDS)
def test_devices_give_the_answers_of_the_simulation_in_every_mode(
    tmp_path: Path, stack: contextlib.ExitStack, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise off, means differ by no more than float32 rounding can make of one example and of many: 1e-5."""
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))
    users = people(DEVICES)
    world = World(tmp_path, **({} if mode == "secagg+" else {"noise": NoNoise()})).start(stack)
    asked = evaluation(DEVICES, mode=mode, population="films", **KINDS[mode])
    handle = world.connection.submit(asked)
    status = world.finish(handle, world.devices(examples=odp.data.ExampleColumns.of(users, DATA)))
    (entry,) = status.rounds
    assert entry.contributions == DEVICES
    (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
    networked = np.frombuffer(tensor.integers, "<i8")

    algorithm = algorithm_for(open_task(status.task))
    server = algorithm.server(item_features=asked.public_matrix)
    broadcast = server.broadcast(server.start())
    seeds = device_seeds(world, DEVICES)
    simulated = algorithm.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE]
    assert np.count_nonzero(simulated) > 2
    assert np.abs((networked - simulated) * tensor.step / DEVICES).max() <= 1e-5
    found = handle.results(ReferenceValues.load(world.reference_values))
    assert isinstance(found, EvaluationResults)
    assert found.contributions == DEVICES
    for table, row in zip(handle.model().tables, asked.public_matrix, strict=True):
        np.testing.assert_array_equal(table.rows[:, 0], row)
    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert [one.contributions for one in report.tasks] == [(DEVICES,)]


def test_parameters_other_than_the_named_ones_are_refused(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    world = World(tmp_path).start(stack)
    asked = evaluation(DEVICES, population="films")
    object.__setattr__(asked, "of", asked.of + np.float32(1.0))
    with pytest.raises(odp.OdpError, match="SHA-256"):
        world.connection.submit(asked)


def test_devices_test_two_versions_of_items_on_their_own_ratings(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    ratings = odp.data.synthetic_movielens(n_users=DEVICES, n_items=30, ratings_per_user=8)
    model = odp.RatedItems(items=30, rank=2)
    generator = np.random.default_rng(1)
    first, second = (generator.uniform(0.1, 1.0, model.size).astype(np.float32) for _ in range(2))
    asked = odp.Evaluation(
        name="versions", population="films", model=model, data=odp.RatingsData(), of=first, against=second,
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-6), cohort=odp.Cohort(minimum=20, goal=DEVICES),
    )  # fmt: skip
    world = World(tmp_path, noise=NoNoise()).start(stack)
    handle = world.connection.submit(asked)
    status = world.finish(handle, world.devices(ratings))
    (entry,) = status.rounds
    assert entry.contributions == DEVICES
    (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
    networked = np.frombuffer(tensor.integers, "<i8")
    algorithm = algorithm_for(open_task(status.task))
    server = algorithm.server(item_features=asked.public_matrix)
    seeds = device_seeds(world, DEVICES)
    simulated = algorithm.population().contribute(server.broadcast(server.start()), ratings, round=0, seeds=seeds)
    assert np.abs((networked - simulated[RELEASE]) * tensor.step / DEVICES).max() <= 1e-5
    assert all(
        one.users.value > 0 for one in handle.results(ReferenceValues.load(world.reference_values)).models().values()
    )
