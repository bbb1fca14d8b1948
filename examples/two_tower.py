"""Trains two Keras towers, of a person and of an item, with user-level differential privacy, on simulated people.

Needs TensorFlow, to compile the towers: ``pip install 'odp-platform[keras]'``. Devices train them by LiteRT
alone. Takes about a minute::

    python examples/two_tower.py
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import odp
from odp.research.simulation.engine import RoundResult

PEOPLE, CHOSEN, ITEMS, TASTES, ABOUT, WIDTH, TOP = 1200, 8, 60, 4, 6, 6, 10


def people(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What is known of people, [count, ABOUT], and the items that each chose, [count, CHOSEN], by hidden tastes."""
    public = np.random.default_rng(7)
    of_items, seen_in = public.normal(size=(ITEMS, TASTES)), public.normal(size=(TASTES, ABOUT))
    tastes = generator.normal(size=(count, TASTES))
    about = np.tanh(tastes @ seen_in + generator.normal(0, 0.3, (count, ABOUT)))
    wishes = 1.5 * tastes @ of_items.T + generator.gumbel(size=(count, ITEMS))
    return about.astype(np.float32), np.argsort(-wishes, axis=1)[:, :CHOSEN]


def examples_of(about: np.ndarray, chosen: np.ndarray) -> odp.data.UsersExamples:
    """One example per person and chosen item, of class 1; devices draw the items of class 0 themselves."""
    owners = np.repeat(np.arange(len(about)), CHOSEN)
    features = np.column_stack((about[owners], chosen.reshape(-1))).astype(np.float32)
    return odp.data.UsersExamples.of_users(features, np.ones(len(owners)), owners)


def recall(scores: np.ndarray, chosen: np.ndarray) -> float:
    """Share of the chosen items that are among the best ``TOP``."""
    best = np.argsort(-scores, axis=1)[:, :TOP]
    return float(np.mean([len(np.intersect1d(*pair)) for pair in zip(best, chosen, strict=True)]) / CHOSEN)


def main() -> None:
    """Trains, and prints what it costs and how good the towers are for people that they never saw."""
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(1)
    about, chosen = people(PEOPLE, generator)
    new_about, new_chosen = people(1000, generator)

    layers = keras.layers
    towers = odp.TwoTower(
        user=keras.Sequential([
            keras.Input((ABOUT,)),
            layers.Dense(16, activation="tanh"),
            layers.Dense(WIDTH),
        ]),
        item=keras.Sequential([
            keras.Input((1,), dtype="int32"),
            layers.Embedding(ITEMS, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.3)),
            layers.Flatten(),
        ]),
        items=ITEMS,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        negatives=2,
        batch=12,
    )  # fmt: skip
    task = odp.Task(
        name="items",
        model=towers,
        data=odp.Examples(
            {"about": odp.Tensor((ABOUT,), -1, 1), "item": odp.Tensor((1,), 0, ITEMS - 1)}, label="chosen"
        ),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        training=odp.DPFedAvg(rounds=25, rate=0.5, batch=12, clip=0.5, server_momentum=0.8),
        cohort=odp.Cohort(minimum=500, goal=PEOPLE),
    )
    print(f"{towers.size} weights, a task of {task.definition().ByteSize()} bytes")

    def show(result: RoundResult) -> None:
        print(f"round {result.round + 1:2}: ε spent {result.epsilon:.2f}")

    split = odp.data.ExamplesSplit(
        train=examples_of(about, chosen), test=examples_of(new_about, new_chosen), name="items"
    )
    run = odp.simulate(task, split, seed=1, on_round=show)

    # Item vectors are the same for all, and published. A device computes the vector of its person, and ranks by itself.
    towers.load(run.model)
    scores = towers.scores(towers.user_vectors(new_about), towers.item_vectors())
    counts = np.bincount(chosen.reshape(-1), minlength=ITEMS)
    popular = np.broadcast_to(counts, scores.shape)
    print(f"recall@{TOP} {recall(scores, new_chosen):.3f}; of the most chosen items {recall(popular, new_chosen):.3f}")


if __name__ == "__main__":
    main()
