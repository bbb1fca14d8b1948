"""Without noise, the metrics are what a loop over users and pairs of examples gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from algorithms.model_evaluation import worlds
from algorithms.model_evaluation.worlds import FEATURES, LOGISTIC, MULTINOMIAL, evaluation, people, vector

import odp
from odp.algorithms.model_evaluation.results import EvaluationResults
from odp.evaluation.users import user_seeds
from odp.models.glm import Glm
from odp.numerics.arrays import Float32Array, Float64Array

USERS = 400
# The grid rounds each number of each user by less than a step, without bias.
CLOSE = 2e-3


def exact(task: odp.Evaluation, users: odp.data.UsersExamples) -> EvaluationResults:
    found = odp.simulate(task, users, noise=False).results
    assert isinstance(found, EvaluationResults)
    return found


def of_user(model: Glm, users: odp.data.UsersExamples, user: int) -> tuple[Float32Array, Float32Array]:
    """The examples that the model reads, as the declaration says: clamped to 2, halved, the unusable left out."""
    features, targets = users.of(user)
    read = np.clip(features, -2.0, 2.0) * np.float32(0.5)
    usable = model.usable(read, targets)
    return read[usable], targets[usable]


def probability(parameters: Float32Array, x: Float32Array) -> Float64Array:
    """Of class 1."""
    return 1.0 / (1.0 + np.exp(-(x.astype(np.float64) @ parameters[:FEATURES] + parameters[FEATURES])))


def test_means_weigh_every_user_alike() -> None:
    users, parameters = people(USERS), vector(LOGISTIC)
    losses, right = [], []
    for user in range(USERS):
        x, y = of_user(LOGISTIC, users, user)
        if not len(y):
            continue
        p = probability(parameters, x)
        loss = -np.log(np.where(y == 1, p, 1 - p))
        losses.append(np.minimum(loss, 2.0 * math.log(2.0)).mean())
        right.append(((p > 0.5) == (y == 1)).mean())
    found = exact(evaluation(USERS), users)
    assert found["loss"].value == pytest.approx(np.mean(losses), abs=CLOSE)
    assert found["accuracy"].value == pytest.approx(np.mean(right), abs=CLOSE)
    assert found.models()["model"].users.value == pytest.approx(len(losses), abs=1.0)
    assert found["loss"].low == pytest.approx(found["loss"].high, abs=1e-9)


def test_the_auc_is_that_of_all_pairs_of_binned_scores() -> None:
    users, parameters, bins = people(60), vector(LOGISTIC), 10
    examples = []
    for user in range(60):
        x, y = of_user(LOGISTIC, users, user)
        scores = np.floor(probability(parameters, x) * bins)
        examples += [(score, label, 1.0 / len(y)) for score, label in zip(scores, y, strict=True)]
    above = total = 0.0
    for score, label, weight in examples:
        for other, other_label, other_weight in examples:
            if label == 1 and other_label == 0:
                total += weight * other_weight
                above += weight * other_weight * (score > other) + 0.5 * weight * other_weight * (score == other)
    found = exact(evaluation(60, bins=bins), users)
    assert found["auc"].value == pytest.approx(above / total, abs=2 * CLOSE)
    fine = exact(evaluation(60, bins=400), users)
    assert fine["auc"].value == pytest.approx(found["auc"].value, abs=0.02)


def test_calibration_counts_labels_by_predicted_probability() -> None:
    users, parameters = people(USERS), vector(LOGISTIC)
    labelled, total, gaps = np.zeros(10), np.zeros(10), np.zeros(10)
    known = 0
    for user in range(USERS):
        x, y = of_user(LOGISTIC, users, user)
        known += bool(len(y))
        bins = np.floor(probability(parameters, x) * 20).astype(int)
        for bin, label in zip(bins, y, strict=True):
            labelled[bin // 2] += label / len(y)
            total[bin // 2] += 1.0 / len(y)
            gaps[bin // 2] += (label - (bin + 0.5) / 20) / len(y)
    model = exact(evaluation(USERS, bins=20), users).models()["model"]
    assert model.calibration is not None
    for group, part, whole in zip(model.calibration.groups, labelled, total, strict=True):
        assert group.observed.value == pytest.approx(part / whole, abs=10 * CLOSE)
        assert group.share == pytest.approx(whole / known, abs=CLOSE)
        assert group.low <= group.predicted <= group.high
    assert model.metrics["calibration_error"].value == pytest.approx(np.abs(gaps).sum() / known, abs=10 * CLOSE)


def test_recall_counts_labels_among_the_likeliest_classes() -> None:
    users, parameters = people(USERS, classes=4), vector(MULTINOMIAL)
    weights, biases = parameters[: 4 * FEATURES].reshape(4, FEATURES), parameters[4 * FEATURES :]
    hits: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for user in range(USERS):
        x, y = of_user(MULTINOMIAL, users, user)
        if len(y):
            order = np.argsort(-(x @ weights.T + biases), axis=1, kind="stable")
            for top, found in hits.items():
                found.append(float((order[:, :top] == y[:, None]).any(axis=1).mean()))
    task = evaluation(USERS, model=MULTINOMIAL, metrics=["accuracy", "recall@3", "recall@2"])
    found_all = exact(task, users)
    assert list(found_all) == ["accuracy", "recall@2", "recall@3"]
    for name, top in (("accuracy", 1), ("recall@2", 2), ("recall@3", 3)):
        assert found_all[name].value == pytest.approx(np.mean(hits[top]), abs=CLOSE)


def test_halves_have_the_means_of_their_users() -> None:
    users, first, second = people(USERS), vector(LOGISTIC), vector(LOGISTIC, seed=9)
    task = evaluation(USERS, against=second, metrics=["accuracy"])
    half = worlds.terms_of(task).halves(user_seeds(users, 1))
    right: tuple[list[float], list[float]] = ([], [])
    for user in range(USERS):
        x, y = of_user(LOGISTIC, users, user)
        if len(y):
            p = probability(first if half[user] == 0 else second, x)
            right[half[user]].append(float(((p > 0.5) == (y == 1)).mean()))
    found = exact(task, users)
    values = [model.metrics["accuracy"].value for model in found.models().values()]
    assert list(found.models()) == ["a", "b"]
    assert values == pytest.approx([np.mean(one) for one in right], abs=2 * CLOSE)
    difference = found.differences()["accuracy"]
    assert difference.value == pytest.approx(values[1] - values[0], abs=1e-9)
    # Without noise, the interval is that of two means of independent users.
    error = math.sqrt(sum(float(np.var(one)) / len(one) for one in right))
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_personal_models_are_tested_on_what_they_were_not_trained_on() -> None:
    """Every user has its own rule; without it, no model is better than chance."""
    generator = np.random.default_rng(3)
    signs = np.repeat(generator.choice([-1.0, 1.0], 200), 40)
    features = generator.uniform(-2, 2, (8000, FEATURES)).astype(np.float32)
    targets = (features[:, 0] * signs > 0).astype(np.float32)
    users = odp.data.UsersExamples(features, targets, np.arange(8000), np.arange(0, 8001, 40))
    training = odp.PersonalTraining(rate=1.0, epochs=20, batch=10)
    found = exact(evaluation(200, of=np.zeros(LOGISTIC.size), personal=training), users)
    models = found.models()
    assert models["global"].metrics["accuracy"].value == pytest.approx(0.5, abs=0.05)
    assert models["personal"].metrics["accuracy"].value > 0.85
    assert found.differences()["accuracy"].low > 0.3
    noise = (generator.uniform(size=8000) > 0.5).astype(np.float32)
    guessing = odp.data.UsersExamples(features, noise, np.arange(8000), np.arange(0, 8001, 40))
    found = exact(evaluation(200, of=np.zeros(LOGISTIC.size), personal=training), guessing)
    # A model that is tested on its own training examples knows most of them; one that is not knows half.
    assert found.models()["personal"].metrics["accuracy"].value < 0.55
