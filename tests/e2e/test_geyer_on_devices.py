"""The task of `odp reproduce geyer` over the whole platform: devices with pictures train it by LiteRT, in every mode.

The network, clip norm, its quantile, steps and optimizer are those of the task; noise is off, so that integers can be
compared. Pictures are invented strokes, so that no data set is needed. ``ODP_GEYER_DEVICES=200`` takes more devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.world import POPULATION, World, device_seeds

import odp
from device_runtime.round import secagg
from odp.algorithms.federated.terms import RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.evaluation.noise import NoNoise
from odp.research.reproductions.geyer import CLASSES, task_of
from odp.research.reproductions.gradient_features import GradientFeatures
from odp.research.reproductions.strokes import strokes
from odp.signed.task import open_task
from odp.v1 import common_pb2

pytest.importorskip("keras", reason="TensorFlow is not installed: pip install 'odp-platform[keras]'")
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

DEVICES = int(os.environ.get("ODP_GEYER_DEVICES", "24"))
PICTURES, ROUNDS = 20, 2
DATA = odp.Examples({"picture": odp.Tensor((28, 28, 1), 0, 255, scale=1 / 255)}, label="digit")


def people(layer: GradientFeatures) -> odp.data.UsersExamples:
    """Users of two kinds of pictures each, as most of the published clients have two digits."""
    pictures = strokes(DEVICES * PICTURES, seed=5)
    kinds = layer.of(pictures)[:, :CLASSES].argmax(axis=1)
    order = np.argsort(kinds, kind="stable").reshape(2 * DEVICES, PICTURES // 2)
    rows = order[np.random.default_rng(5).permutation(2 * DEVICES)].reshape(-1)
    return odp.data.UsersExamples(
        pictures.reshape(len(pictures), -1).astype(np.float32), kinds.astype(np.float32), rows,
        np.arange(DEVICES + 1) * PICTURES,
    )  # fmt: skip


@pytest.fixture(scope="module")
def layer() -> GradientFeatures:
    return GradientFeatures.whitened(100)


@pytest.fixture(scope="module")
def model(layer: GradientFeatures) -> odp.KerasModel:
    from odp.research.reproductions.gradient_network import gradient_network

    return odp.KerasModel(gradient_network(layer, classes=CLASSES), "sparse_categorical_crossentropy")


# CI trains a network in test_federated_network.py, and this one in the simulator (test_gradient_features.py).
@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["enclave", "masked", "secagg+"])
def test_devices_train_the_task_as_the_simulator_does(
    tmp_path: Path,
    stack: contextlib.ExitStack,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    layer: GradientFeatures,
    model: odp.KerasModel,
) -> None:
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))
    noiseless: dict[str, Any] = {} if mode == "secagg+" else {"noise": NoNoise()}
    published, users = task_of(1000), people(layer)
    task = dataclasses.replace(
        published, population=POPULATION, model=model, data=DATA,
        training=dataclasses.replace(published.training, rounds=ROUNDS),
        cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=3600, aggregation=mode),
    )  # fmt: skip
    world = World(tmp_path, **noiseless).start(stack)
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(examples=odp.data.ExampleColumns.of(users, DATA)))
    assert [entry.contributions for entry in status.rounds] == [DEVICES] * ROUNDS

    algorithm = algorithm_for(open_task(status.task))
    server, population = algorithm.server(item_features=model.public_matrix), algorithm.population()
    seeds, state = device_seeds(world, DEVICES), server.start()
    for entry in status.rounds:
        (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
        networked = np.frombuffer(tensor.integers, "<i8")
        simulated = population.contribute(server.broadcast(state), users, round=entry.round, seeds=seeds)[RELEASE]
        assert np.count_nonzero(simulated) > model.size // 2
        np.testing.assert_array_equal(networked, simulated)
        state = server.step(state, NoisyTensors(entry.round, {RELEASE: networked * tensor.step}, DEVICES))
