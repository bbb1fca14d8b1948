"""Simulated rounds of a convolutional network of 1.6 million parameters, beside a bare loop of TensorFlow.

Both sides train the same clients, of 50 images each, on the same batches from the same weights, in one epoch of batches
of 10. The bare loop does nothing else; a round of ``odp.simulate`` also clips, rounds to the grid, sums and adds noise.
Figures are processor time, so that the threads of both count.

Needs TensorFlow; without, there are no figures.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import Figure, Limit, progress
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.registry import algorithm_for
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.litert.keras_model import KerasModel
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.research.simulation.engine import noisy_release
from odp.research.simulation.engines.seam import population_of
from odp.tasks.task import Task

_SIDE, _CHANNELS, _KINDS = 32, 3, 10
_EACH, _BATCH, _RATE = 50, 10, 0.05
_TRAINING = DPFedAvg(rounds=1, rate=_RATE, batch=_BATCH, clip=0.5)
_TABLE = 500  # images that clients draw theirs from


@dataclass(frozen=True)
class _World:
    """What both sides train on."""

    network: Any
    task: Task
    users: UsersExamples
    seeds: Any

    @property
    def start(self) -> Any:
        """The weights of all clients, float32 [size, 1]."""
        return self.task.public_matrix

    def client(self, user: int) -> tuple[Any, Any, Any]:
        """Images, classes, and the rows of each batch of one client."""
        features, targets = self.users.of(user)
        batches = _TRAINING.local().batches(len(targets), seed=int(self.seeds[user]), round=0)
        return features.reshape(-1, _SIDE, _SIDE, _CHANNELS), targets.astype(np.int32), batches


def figures(quick: bool) -> list[Figure]:
    """Processor time of a client in a round, beside that of the bare loop; nothing without TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        progress("benchmarks: federated: no TensorFlow, so no figures of a Keras network")
        return []
    clients, times = (10, 2) if quick else (50, 5)
    world = _world(clients)
    bare, ours = _bare(world), _round(world)
    works: dict[str, Callable[[], object]] = {"bare": lambda: [bare(user) for user in range(clients)], **ours}
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(times):
        for name, work in works.items():
            begin = time.process_time()
            work()
            seconds[name] = min(seconds[name], time.process_time() - begin)
    each = {name: 1000.0 * best / clients for name, best in seconds.items()}
    limit, goal = Limit("bare TensorFlow", each["bare"]), None if quick else "<= 1.1"
    whole = each["sums"] + each["noise"]
    return [
        Figure("network, a client without noise", each["sums"], "ms", limit=limit),
        Figure("network, a client of a round", whole, "ms", limit=limit),
        Figure("network rounds, multiple of bare TensorFlow", whole / each["bare"], "", goal),
    ]


def _world(clients: int) -> _World:
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    network = keras.Sequential([
        keras.Input((_SIDE, _SIDE, _CHANNELS)),
        layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(_KINDS),
    ])  # fmt: skip
    model = KerasModel(network, keras.losses.SparseCategoricalCrossentropy(from_logits=True), batch=_BATCH)
    generator = np.random.Generator(np.random.PCG64(1))
    task = Task(
        name="benchmark",
        model=model,
        data=Examples({"image": Tensor((_SIDE, _SIDE, _CHANNELS), 0.0, 1.0)}, label="kind"),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-5),
        training=_TRAINING,
        cohort=Cohort(minimum=clients, goal=clients),
    )
    users = UsersExamples(
        generator.random((_TABLE, _SIDE * _SIDE * _CHANNELS), dtype=np.float32),
        generator.integers(0, _KINDS, _TABLE).astype(np.float32),
        generator.integers(0, _TABLE, clients * _EACH),
        np.arange(clients + 1) * _EACH,
    )
    return _World(network, task, users, np.arange(clients, dtype=np.uint64))


def _round(world: _World) -> dict[str, Callable[[], object]]:
    """The sums of a round, and the noise that is added to them; both were called once."""
    task = world.task
    query, population = algorithm_for(task.definition()).query(0), population_of(task)
    broadcast = ModelVersion(0, (TableValues("parameters", world.start, keyed=False),))

    def sums() -> dict[str, Any]:
        return dict(population.contribute(broadcast, world.users, round=0, seeds=world.seeds))

    total = sums()
    if not any(values.any() for values in total.values()):
        raise ConfigurationError("Expected the clients of the benchmark to move the weights")

    def noise() -> dict[str, Any]:
        return noisy_release(query, total, seed=1, round=0)

    noise()
    return {"sums": sums, "noise": noise}


def _bare(world: _World) -> Callable[[int], None]:
    """Trains one client; called once, and found to train as the simulator does."""
    import keras
    import tensorflow as tf

    network, loss = world.network, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = network.trainable_variables
    start = [variable.numpy() for variable in variables]

    def step(images: Any, kinds: Any) -> None:
        with tf.GradientTape() as tape:
            found = loss(kinds, network(images))
        for variable, slope in zip(variables, tape.gradient(found, variables), strict=True):
            variable.assign_sub(_RATE * slope)

    compiled = tf.function(step)

    def train(user: int) -> None:
        for variable, values in zip(variables, start, strict=True):
            variable.assign(values)
        images, kinds, batches = world.client(user)
        for rows in batches:
            compiled(images[rows], kinds[rows])

    train(0)
    moved = np.concatenate([(one.numpy() - values).ravel() for one, values in zip(variables, start, strict=True)])
    model = world.task.model
    engine = model.own_engine() if isinstance(model, KerasModel) else None
    if engine is None:
        raise ConfigurationError("Expected TensorFlow to train the network of the benchmark")
    images, kinds, batches = world.client(0)
    if not np.allclose(engine.difference(world.start[:, 0], [images], kinds, batches, rate=_RATE), moved, atol=1e-5):
        raise ConfigurationError("Expected the bare loop of TensorFlow to move the weights as the simulator does")
    return train
