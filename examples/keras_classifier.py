"""Trains a small Keras classifier with user-level differential privacy, on simulated people.

Needs TensorFlow, to compile the network: ``pip install 'odp-platform[keras]'``. Devices train it by LiteRT
alone. Takes about a minute::

    python examples/keras_classifier.py
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import odp
from odp.research.simulation.engine import RoundResult

SIDE, KINDS, PEOPLE, TESTS = 12, 4, 1500, 2000


def pictures(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures of a bar: horizontal, vertical, or one of two diagonals."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    kinds = generator.integers(0, KINDS, count)
    places = generator.uniform(-3, 3, (count, 1, 1))
    centre = (SIDE - 1) / 2
    along = np.stack([rows - centre, columns - centre, (rows - columns) / 1.4, (rows + columns) / 1.4 - centre * 1.4])
    bars = np.exp(-((along[kinds] - places) ** 2))
    return np.clip(bars + generator.normal(0, 0.3, bars.shape), 0, 1).astype(np.float32), kinds


def main() -> None:
    """Trains, and prints what it costs and how good it is."""
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(1)
    owners = generator.integers(0, PEOPLE, 20 * PEOPLE)
    train, kinds = pictures(len(owners), generator)
    test, test_kinds = pictures(TESTS, generator)
    people = odp.data.ExamplesSplit(
        train=odp.data.UsersExamples.of_users(train.reshape(len(train), -1), kinds, owners),
        test=odp.data.UsersExamples.of_users(test.reshape(TESTS, -1), test_kinds, np.zeros(TESTS, dtype=np.int64)),
        name="bars",
    )

    layers = keras.layers
    network = keras.Sequential([
        keras.Input((SIDE, SIDE, 1)),
        layers.Conv2D(8, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(16, activation="relu"),
        layers.Dense(KINDS),
    ])  # fmt: skip
    model = odp.KerasModel(network, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    task = odp.Task(
        name="bars",
        model=model,
        data=odp.Examples({"picture": odp.Tensor((SIDE, SIDE, 1), low=0, high=1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-5),
        training=odp.DPFedAvg(rounds=15, rate=0.1, epochs=2, clip=0.5, server_momentum=0.5),
        cohort=odp.Cohort(minimum=500, goal=PEOPLE),
    )
    print(f"{model.size} weights, a task of {task.definition().ByteSize()} bytes")

    def show(result: RoundResult) -> None:
        accuracy = result.metrics["test_accuracy"]
        print(f"round {result.round + 1:2}: accuracy {accuracy:.3f}, ε spent {result.epsilon:.2f}")

    run = odp.simulate(task, people, seed=1, on_round=show)
    model.load(run.model)
    predicted = network.predict(test[..., None], verbose=0).argmax(axis=1)
    print(f"accuracy of the Keras model {np.mean(predicted == test_kinds):.3f} at ε = {run.epsilon:.2f}")


if __name__ == "__main__":
    main()
