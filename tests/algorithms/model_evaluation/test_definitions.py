"""Evaluations that make no sense are refused where they are made, and definitions by whoever checks them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from algorithms.model_evaluation.worlds import LOGISTIC, MULTINOMIAL, evaluation, people, vector

import odp
from odp.algorithms.model_evaluation.results import EvaluationResults
from odp.algorithms.model_evaluation.terms import PARAMETERS
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, StateError
from odp.models.glm import Glm
from odp.protocol.wire.model import ModelVersion
from odp.signed.task import check_definition
from odp.v1 import common_pb2

NUMBERS = odp.Examples({"x": odp.Tensor((6,), -1.0, 1.0)}, label_low=0.0, label_high=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"of": vector(MULTINOMIAL)}, "of to be the 7 finite parameters"),
        ({"of": "model.npy"}, "of to be a vector of parameters"),
        ({"of": np.full(7, np.nan)}, "finite"),
        ({"of": ModelVersion(0, ())}, "has no parameters"),
        ({"against": np.zeros(3)}, "against to be the 7"),
        ({"against": vector(LOGISTIC), "personal": odp.PersonalTraining()}, "not both"),
        ({"personal": 3}, "odp.PersonalTraining"), ({"data": None}, "odp.Examples"),
        ({"model": odp.MatrixFactorization(items=3), "of": np.zeros(7)}, "model to be an odp.Glm"),
        ({"metrics": ["los"]}, "did you mean 'loss'"), ({"metrics": "loss"}, "list of names"),
        ({"metrics": []}, "metric"), ({"metrics": [3]}, "metrics=3"),
        ({"metrics": ["recall@2"]}, "recall"), ({"metrics": ["recall@x"]}, "whole number"),
        ({"model": MULTINOMIAL, "of": vector(MULTINOMIAL), "metrics": ["auc"]}, "two classes"),
        ({"model": Glm("linear", 6), "data": NUMBERS}, "loss_high"),
        ({"model": Glm("linear", 6), "data": NUMBERS, "metrics": ["auc"]}, "metrics='auc'"),
        ({"loss_low": 3.0}, "loss_low"), ({"bins": 1}, "bins=1"), ({"most_examples": 0}, "most_examples=0"),
        ({"privacy": odp.UserLevelDP(epsilon=1, delta=1e-6, max_items_per_user=3)}, "max_items_per_user"),
    ],
)  # fmt: skip
def test_an_evaluation_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        evaluation(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"rate": 0.0}, {"epochs": 0}, {"batch": 0}, {"held_out": 1.0}])
def test_a_personal_training_that_makes_no_sense_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        odp.PersonalTraining(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.model_evaluation.__setattr__("models", 3), "models=3"),
        (lambda d: d.model_evaluation.__setattr__("models", 2), "personal"),
        (lambda d: d.model_evaluation.__setattr__("parameters_sha256", b"x"), "parameters_sha256"),
        (lambda d: d.model_evaluation.loss.__setattr__("high", -1.0), "loss_low"),
        (lambda d: d.model_evaluation.top.append(1), "ascending"),
        (lambda d: d.model_evaluation.top.append(2), "top=2"),
        (lambda d: d.model_evaluation.__setattr__("bins", 5000), "bins"),
        (lambda d: d.model_evaluation.__setattr__("most_examples", 0), "most_examples"),
        (lambda d: d.model_evaluation.personal.__setattr__("held_out", 0.0), "held_out"),
        (lambda d: d.model_evaluation.personal.training.__setattr__("batch", 0), "batch"),
        (lambda d: d.model_evaluation.dense.__setattr__("clip", 2.0), "clip"),
        (lambda d: d.model_evaluation.dense.__setattr__("noise_std", 0.0), "noise_std"),
        (lambda d: d.ClearField("examples"), "examples"),
        (lambda d: d.ClearField("glm"), "model"),
        (lambda d: d.examples.__setattr__("label_high", 3.0), "label"),
        (lambda d: d.model.__setattr__("items", 3), "model"),
        (lambda d: d.privacy.__setattr__("max_items_per_user", 3), "max_items_per_user"),
    ],
)
def test_a_definition_out_of_its_bounds_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = evaluation(personal=odp.PersonalTraining()).definition()
    definition.developer_key = SigningKey.generate().public
    check_definition(definition)
    spoil(definition)
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)


def test_the_model_of_a_finished_training_can_be_evaluated() -> None:
    users = people(100)
    training = odp.Task(
        name="kinds", model=LOGISTIC, data=odp.Examples({"x": odp.Tensor((2, 3), -2.0, 2.0, scale=0.5)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-6), training=odp.DPFedAvg(rounds=1),
        cohort=odp.Cohort(minimum=20, goal=100),
    )  # fmt: skip
    run = odp.simulate(training, odp.data.ExamplesSplit(users, users))
    task = evaluation(100, of=run.model)
    np.testing.assert_array_equal(task.public_matrix[0], run.model.dense[PARAMETERS[0]][:, 0])
    found = odp.simulate(task, users)
    assert isinstance(found.results, EvaluationResults)
    assert found.to_json()["model_evaluation"] == found.results.to_json()
    assert 4.0 - 1e-4 < found.epsilon <= 4.0


def test_the_server_publishes_the_parameters_before_and_after_the_round() -> None:
    task = evaluation(against=vector(LOGISTIC, seed=9))
    algorithm = algorithm_for(task.definition())
    assert algorithm.public_matrix_from(task.public_matrix.tobytes()).tolist() == task.public_matrix.tolist()  # type: ignore[union-attr]
    server = algorithm.server(item_features=task.public_matrix)
    state = server.start()
    after = server.step(state, NoisyTensors(0, {}, 60))
    for version, one in enumerate((state, after)):
        broadcast = server.broadcast(one)
        assert broadcast.version == version
        for name, row in zip(PARAMETERS, task.public_matrix, strict=True):
            np.testing.assert_array_equal(broadcast.dense[name][:, 0], row)
    with pytest.raises(ConfigurationError, match="once"):
        server.step(after, NoisyTensors(0, {}, 60))
    for wrong in (b"", state[:-1], b"x" + state[1:]):
        with pytest.raises(StateError):
            server.broadcast(wrong)
    with pytest.raises(ConfigurationError, match="parameters"):
        algorithm.server().start()
    for data, message in ((b"", "bytes"), (bytes(56), "SHA-256")):
        with pytest.raises(ConfigurationError, match=message):
            algorithm.public_matrix_from(data)


def test_a_model_whose_tables_are_missing_or_not_finite_is_refused_by_devices() -> None:
    client = algorithm_for(evaluation().definition()).client()
    client.check_model({PARAMETERS[0]: np.zeros((LOGISTIC.size, 1), dtype=np.float32)})
    for dense in (
        {},
        {PARAMETERS[0]: np.zeros((3, 1), dtype=np.float32)},
        {PARAMETERS[0]: np.full((LOGISTIC.size, 1), np.inf, dtype=np.float32)},
    ):
        with pytest.raises(ConfigurationError, match="parameters"):
            client.check_model(dense)


@pytest.mark.parametrize("changes", [{}, {"against": vector(LOGISTIC, seed=9)}, {"metrics": ["loss"]}])
def test_answers_print_and_draw(changes: dict[str, object], tmp_path: object) -> None:
    run = odp.simulate(evaluation(80, **changes), people(80))  # type: ignore[arg-type]
    assert isinstance(run.results, EvaluationResults)
    assert isinstance(run.exact, EvaluationResults)
    assert len(list(run.results.lines(0.95, run.exact))) >= 1
    run.draw(f"{tmp_path}/picture.png")
    with pytest.raises(odp.errors.DataError, match="picture"):
        run.draw(f"{tmp_path}/picture.nothing")
    for confidence in (0.0, 1.0):
        with pytest.raises(ConfigurationError, match="confidence"):
            run.results.to_json(confidence)


def test_an_evaluation_asks_users_with_examples_and_a_training_has_public_tests() -> None:
    users = people(40)
    with pytest.raises(ConfigurationError, match=r"odp\.UsersExamples with odp\.Evaluation"):
        odp.simulate(evaluation(), odp.data.ExamplesSplit(users, users))  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"odp\.UsersExamples with odp\.Evaluation"):
        odp.simulate(evaluation(), odp.data.synthetic_movielens(n_users=20, n_items=10, ratings_per_user=5))
