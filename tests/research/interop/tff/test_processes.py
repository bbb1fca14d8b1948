"""Learning processes of TensorFlow Federated against ``odp.simulate``: same data, same order, no noise."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import tensorflow_federated as tff

import odp
from odp.algorithms.federated.terms import PARAMETERS, RELEASE, Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError
from odp.evaluation.users import user_seeds
from odp.research.interop.tff import client_datasets, parameters_of, to_tff

USERS, FEATURES, CLASSES, ROUNDS = 6, 5, 3, 5


def people(family: str) -> odp.data.UsersExamples:
    """Users with 0 to 22 examples each, the last batch of most of them not full."""
    generator = np.random.default_rng(7)
    counts = generator.integers(1, 23, USERS)
    counts[3] = 0
    users = np.repeat(np.arange(USERS), counts)
    features = generator.uniform(-1, 1, (len(users), FEATURES)).astype(np.float32)
    if family == "multinomial":
        targets = (features @ generator.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    elif family == "logistic":
        targets = (features[:, 0] + features[:, 1] > 0).astype(int)
    elif family == "poisson":
        targets = generator.poisson(np.exp(features[:, 0]))
    else:
        targets = np.clip(features @ generator.normal(size=FEATURES), -3, 3)
    return odp.data.UsersExamples.of_users(features, targets.astype(np.float32), users)


def task(family: str, training: Any) -> odp.Task:
    classes = CLASSES if family == "multinomial" else 1
    labels = {} if family in ("logistic", "multinomial") else {"label_low": 0.0 if family == "poisson" else -3.0,
                                                                "label_high": 20.0}  # fmt: skip
    return odp.Task(
        name="parity",
        model=odp.Glm(family, FEATURES, classes),
        data=odp.Examples({"x": odp.Tensor((FEATURES,), -1, 1)}, **labels),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-3),
        training=training,
        cohort=odp.Cohort(minimum=2, goal=USERS),
    )


@functools.cache
def trained_in_tff(family: str) -> np.ndarray[Any, Any]:
    """The parameters after the rounds of ``TRAININGS``: half of a test's time is that of making a process."""
    return in_tff(task(family, TRAININGS[family]), people(family))


def in_tff(given: odp.Task, data: odp.data.UsersExamples) -> np.ndarray[Any, Any]:
    process = to_tff(given, noise=False)
    state = process.initialize()
    for round in range(ROUNDS):
        state = process.next(state, client_datasets(given, data, round=round, seed=5)).state
    return parameters_of(process, state)


def here(given: odp.Task, data: odp.data.UsersExamples) -> np.ndarray[Any, Any]:
    """The rounds of ``odp.simulate`` without noise, and without the rounding to the grid."""
    terms, server = Terms.of(given.definition()), algorithm_for(given.definition()).server()
    state, seeds = server.start(), user_seeds(data, 5)
    for round in range(ROUNDS):
        start = terms.parameters(server.broadcast(state).dense[PARAMETERS])
        moved = np.stack(
            [
                terms.model.difference(start, *data.of(user), terms.local, seed=int(seed), round=round)
                for user, seed in enumerate(seeds)
            ]
        )
        total = terms.contributions(moved, terms.clip, trained=np.ones(len(moved), dtype=bool)).sum(axis=0)
        state = server.step(state, NoisyTensors(round, {RELEASE: total}, USERS))
    return terms.parameters(server.broadcast(state).dense[PARAMETERS])


TRAININGS = {
    "multinomial": odp.DPFedAvg(rounds=ROUNDS, rate=0.5, epochs=3, batch=4, clip=100.0),
    "logistic": odp.DPFedAvg(rounds=ROUNDS, rate=0.5, batch=4, clip=0.2, server="adam", server_momentum=0.9),
    "poisson": odp.DPFedAvg(rounds=ROUNDS, rate=0.1, batch=8, clip=1.0, server="yogi", server_momentum=0.5),
    "linear": odp.DPFedAvg(
        rounds=ROUNDS, rate=0.1, epochs=2, batch=5, most_examples=9, clip=0.5, proximal=0.3, server_momentum=0.5
    ),
}


@pytest.mark.parametrize("family", TRAININGS)
def test_five_rounds_agree_to_a_hundred_thousandth(family: str) -> None:
    data, given = people(family), task(family, TRAININGS[family])
    expected = trained_in_tff(family)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(here(given, data), expected, rtol=0, atol=1e-5)


def test_the_simulator_agrees_up_to_the_grid() -> None:
    data, given = people("linear"), task("linear", TRAININGS["linear"])
    run = odp.simulate(given, odp.data.ExamplesSplit(train=data, test=data), seed=5, noise=False)
    step = Terms.of(given.definition()).blocks[0].grid.step
    # Every user rounds by less than a step, and clipping after it moves less than another: in the mean, in each round.
    np.testing.assert_allclose(
        run.model.dense[PARAMETERS][:, 0], trained_in_tff("linear"), rtol=0, atol=1e-5 + ROUNDS * 4 * step
    )


def test_categories_are_trained_on_one_hot() -> None:
    generator = np.random.default_rng(9)
    codes, kinds = generator.integers(0, FEATURES, 40), generator.integers(0, CLASSES, 40)
    data = odp.data.UsersExamples.of_users(codes[:, None].astype(np.float32), kinds, np.arange(40) % USERS)
    given = dataclasses.replace(
        task("multinomial", TRAININGS["multinomial"]), data=odp.Examples({"x": odp.Category(FEATURES)})
    )
    expected = in_tff(given, data)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(here(given, data), expected, rtol=0, atol=1e-5)


def test_noise_has_the_size_of_the_task() -> None:
    wide = 400
    given = dataclasses.replace(
        task("linear", odp.DPFedAvg(rounds=ROUNDS, clip=0.5)),
        model=odp.Glm("linear", wide),
        data=odp.Examples({"x": odp.Tensor((wide,), -1, 1)}, label_low=-3.0, label_high=20.0),
    )
    terms, process = Terms.of(given.definition()), to_tff(given)
    silent = odp.data.UsersExamples.of_users(np.zeros((1, wide), dtype=np.float32), [0.0], [0])
    state, noise = process.initialize(), [np.zeros(wide + 1)]
    for round in range(3):
        state = process.next(state, client_datasets(given, silent, round=round)).state
        noise.append(parameters_of(process, state))
    deviation = terms.blocks[0].grid.noise_std * terms.clip / terms.cohort
    # Features are zeros, so noise alone moves the weights.
    steps = np.diff(noise, axis=0)[:, :wide]
    # 1,200 normals: the deviation of their deviation is 1 / sqrt(2400) = 2 %; six of it fail once in 10^9 runs.
    assert abs(np.std(steps) / deviation - 1) < 6 / np.sqrt(2 * steps.size)


def test_the_process_is_one_of_tensorflow_federated() -> None:
    process = to_tff(task("linear", TRAININGS["linear"]))
    assert isinstance(process, tff.learning.templates.LearningProcess)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (odp.DPFedAvg(rounds=2, clip_quantile=0.5), "clip_quantile"),
        (odp.DPFedAvg(rounds=2, noise_schedule=[(1, 2.0), (1, 1.0)]), "noise_schedule"),
        (odp.DPFedAvg(rounds=2, diagnostics=True), "diagnostics"),
        (odp.DPFedAvg(rounds=2, cohort_schedule=[(1, 2), (1, 3)]), "cohort_schedule"),
    ],
)
def test_what_a_process_cannot_do_is_refused_by_name(training: odp.DPFedAvg, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        to_tff(task("linear", training))
