"""Networks and recommenders evaluated over the whole platform: devices behind walls give the sums of the simulation."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

from e2e.world import World, device_seeds
from models.litert import compile_mlp, compile_towers
from models.litert.stored_models import CHOICES, DIGITS, choosers, network, readers, towers, vector

import odp
from device_runtime import Store, store_path
from odp.algorithms.model_evaluation.results import EvaluationResults
from odp.algorithms.model_evaluation.terms import RELEASE
from odp.algorithms.registry import algorithm_for
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import common_pb2

DEVICES = 20
MLP, TOWERS = compile_mlp.stored(), compile_towers.stored()


def _evaluation(kind: str) -> odp.Evaluation:
    chosen: dict[str, object] = {
        "personal network": {
            "model": network(), "data": DIGITS, "of": vector(MLP),
            "personal": odp.PersonalTraining(rate=0.3, epochs=2, batch=4),
        },
        "two recommenders": {
            "model": towers(), "data": CHOICES, "of": vector(TOWERS), "against": vector(TOWERS, seed=9),
            "metrics": ["recall@3"], "most_examples": 20,
        },
    }[kind]  # fmt: skip
    return odp.Evaluation(
        name="quality", population="films", privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600), **chosen,
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.processes
# A personal network is evaluated without services in algorithms/model_evaluation/test_networks.py.
@pytest.mark.parametrize("kind", [pytest.param("personal network", marks=pytest.mark.proof), "two recommenders"])
def test_devices_give_the_sums_of_the_simulation(tmp_path: Path, stack: contextlib.ExitStack, kind: str) -> None:
    """LiteRT behind walls and in the simulator give the same bits on one machine, and so the same integers."""
    asked = _evaluation(kind)
    users = choosers(DEVICES) if asked.data is CHOICES else readers(DEVICES)
    world = World(tmp_path, noise=NoNoise()).start(stack)
    handle = world.connection.submit(asked)
    status = world.finish(handle, world.devices(examples=odp.data.ExampleColumns.of(users, asked.data)))
    (entry,) = status.rounds
    assert entry.contributions == DEVICES
    (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors

    algorithm = algorithm_for(open_task(status.task))
    server = algorithm.server(item_features=asked.public_matrix)
    broadcast, seeds = server.broadcast(server.start()), device_seeds(world, DEVICES)
    simulated = algorithm.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE]
    assert np.count_nonzero(simulated) > 2
    np.testing.assert_array_equal(np.frombuffer(tensor.integers, "<i8"), simulated)
    found = handle.results(ReferenceValues.load(world.reference_values))
    assert isinstance(found, EvaluationResults)
    assert found.compared == (("global", "personal") if kind == "personal network" else ("a", "b"))
    for device in range(DEVICES):
        with Store.open(store_path(world.root / "devices", device)) as store:
            assert store.empty_contributions() == 0
