"""A Keras network over the whole platform: devices behind walls train the model of the simulation, in every mode."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.world import World, device_seeds

import odp
from device_runtime import Store, store_path
from device_runtime.round import secagg
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.evaluation.noise import NoNoise
from odp.signed.task import open_task
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.sources import LogFolder
from odp.v1 import common_pb2

_REASON = "TensorFlow is not installed: pip install 'odp-platform[keras]'"
keras = pytest.importorskip("keras", reason=_REASON)

DEVICES = 22
DATA = odp.Examples({"image": odp.Tensor((4, 4, 1), 0, 200, scale=1 / 200)}, label="kind")


def people(*, unknown: float = 5.0) -> odp.data.UsersExamples:
    """Users with none, one and many examples; among them numbers out of range, not a number, and an unknown class.

    A simulation refuses that class, which a device leaves out: for it, the label is missing.
    """
    generator = np.random.default_rng(4)
    features = generator.integers(0, 256, (200, 16)).astype(np.float32)
    kinds = (features @ generator.normal(size=(16, 3))).argmax(axis=1).astype(np.float32)
    features[0, 3], features[1, 15], kinds[3], kinds[4] = np.nan, np.inf, unknown, np.nan
    counts = generator.integers(2, 12, DEVICES)
    counts[:3] = 0, 1, 5
    rows = generator.integers(5, 200, counts.sum())
    rows[1:6] = np.arange(5)
    return odp.data.UsersExamples(features, kinds, rows, np.concatenate(([0], np.cumsum(counts))))


@functools.cache
def model_with(*local: str) -> odp.KerasModel:
    """A small network, whose ``local`` layers stay on devices."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    network = keras.Sequential([
        keras.Input((4, 4, 1)), layers.Conv2D(2, 2, activation="relu"), layers.Flatten(),
        layers.Dense(3, name="head"),
    ])  # fmt: skip
    return odp.KerasModel(network, keras.losses.SparseCategoricalCrossentropy(from_logits=True), batch=4, local=local)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mode", "local"),
    [
        # A network in one mode, and one with layers of its own: modes do not know networks, and
        # test_federated.py trains in each of them.
        pytest.param("enclave", (), marks=pytest.mark.proof),
        pytest.param("masked", (), marks=pytest.mark.proof),
        ("secagg+", ()),
        ("enclave", ("head",)),
    ],
    ids=["enclave", "masked", "secagg+", "local"],
)
def test_devices_train_the_network_of_the_simulation_in_every_mode(
    tmp_path: Path, stack: contextlib.ExitStack, mode: str, local: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteRT behind walls and in the simulator give the same bits on one machine, and so the same integers."""
    monkeypatch.setattr(secagg, "draw_share", lambda definition, query, source: np.zeros(query.grid.size, np.int64))
    model, users = model_with(*local), people(unknown=np.nan)
    own = odp.Reconstruction(rate=0.5, epochs=2) if local else None
    training = odp.DPFedAvg(rounds=2, epochs=2, batch=4, rate=0.3, clip=0.5, reconstruction=own)
    noiseless: dict[str, Any] = {} if mode == "secagg+" else {"noise": NoNoise()}
    world = World(tmp_path, **noiseless).start(stack)
    task = odp.Task(
        name="kinds", population="films", model=model, data=DATA, training=training,
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600, aggregation=mode),
    )  # fmt: skip
    handle = world.connection.submit(task)
    status = world.finish(handle, world.devices(examples=odp.data.ExampleColumns.of(people(), DATA)))
    assert [entry.contributions for entry in status.rounds] == [DEVICES] * training.rounds

    algorithm = algorithm_for(open_task(status.task))
    server, population = algorithm.server(item_features=model.public_matrix), algorithm.population()
    seeds, state = device_seeds(world, DEVICES), server.start()
    np.testing.assert_array_equal(server.broadcast(state).dense[PARAMETERS], model.public_matrix)
    for entry in status.rounds:
        (tensor,) = common_pb2.Release.FromString(entry.release.release).tensors
        networked = np.frombuffer(tensor.integers, "<i8")
        simulated = population.contribute(server.broadcast(state), users, round=entry.round, seeds=seeds)[RELEASE]
        assert np.count_nonzero(simulated) > model.size // 2
        np.testing.assert_array_equal(networked, simulated)
        state = server.step(state, NoisyTensors(entry.round, {RELEASE: networked * tensor.step}, DEVICES))
    np.testing.assert_array_equal(handle.model().dense[PARAMETERS], server.broadcast(state).dense[PARAMETERS])

    report = audit(LogFolder(world.root / "server" / "log"), ReferenceValues.load(world.reference_values))
    assert [found.contributions for found in report.tasks] == [(DEVICES,) * len(status.rounds)]
    for device in range(DEVICES):
        with Store.open(store_path(world.root / "devices", device)) as store:
            assert store.empty_contributions() == 0
