"""Models of TensorFlow Federated on this platform: the same gradients, and the same rounds as its own processes."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import odp
from odp.algorithms.federated.terms import PARAMETERS, RELEASE, Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError
from odp.evaluation.users import user_seeds
from odp.models.litert.runner import Runner
from odp.models.litert.trainer import LocalSteps
from odp.research.interop.tff import client_datasets, from_tff, parameters_of, to_tff

USERS, FEATURES, CLASSES, ROUNDS, BATCH = 6, 5, 3, 5, 4
_BATCHES = [np.arange(4), np.array([4, 5]), np.array([3, 8, 1])]


def functional(activation: str = "relu", *, named: bool = False, weights_named: bool = False) -> Any:
    """A network of one hidden layer; ``named`` for batches by name."""
    generator = np.random.default_rng(1)
    shapes = ((FEATURES, 7), (7,), (7, CLASSES), (CLASSES,))
    weights: Any = tuple((generator.normal(size=shape) * 0.5).astype(np.float32) for shape in shapes)
    if weights_named:
        weights = collections.OrderedDict(zip("wbvc", weights, strict=True))

    @tf.function
    def hidden(x: Any, w: Any, b: Any) -> Any:
        return getattr(tf.nn, activation)(tf.matmul(x, w) + b)

    @tf.function
    def predict(model_weights: Any, x: Any, training: bool) -> Any:
        w, b, v, c = (model_weights[0][name] for name in "wbvc") if weights_named else model_weights[0]
        return tf.matmul(hidden(x, w, b), v) + c

    def loss(output: Any, label: Any, sample_weight: Any = None) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, output))

    spec: Any = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int64 if named else tf.int32))
    if named:
        spec = collections.OrderedDict(zip("xy", spec, strict=True))
    return tff.learning.models.FunctionalModel(
        initial_weights=(weights, ()), predict_on_batch_fn=predict, loss_fn=loss, input_spec=spec
    )


def reconstruction() -> Any:
    """A network of one hidden layer that is shared, and a head that is local."""
    start = tf.keras.initializers.GlorotUniform
    hidden = tf.keras.layers.Dense(7, activation="relu", kernel_initializer=start(seed=1))
    head = tf.keras.layers.Dense(CLASSES, kernel_initializer=start(seed=2))
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
        tf.keras.Sequential([tf.keras.Input((FEATURES,)), hidden, head]),
        global_layers=[hidden],
        local_layers=[head],
        input_spec=(tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int32)),
    )


def cross_entropy() -> Any:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def people() -> odp.data.UsersExamples:
    """Users with 0 to 22 examples each, one of them with a single one."""
    generator = np.random.default_rng(7)
    counts = generator.integers(2, 23, USERS)
    counts[2:4] = 1, 0
    features = generator.uniform(-1, 1, (counts.sum(), FEATURES)).astype(np.float32)
    kinds = (features @ generator.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    return odp.data.UsersExamples.of_users(features, kinds.astype(np.float32), np.repeat(np.arange(USERS), counts))


def task(model: Any, training: Any) -> odp.Task:
    return odp.Task(
        name="parity", model=model, data=odp.Examples({"x": odp.Tensor((FEATURES,), -1, 1)}), training=training,
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-3), cohort=odp.Cohort(minimum=2, goal=USERS),
    )  # fmt: skip


def in_tff(given: odp.Task, data: odp.data.UsersExamples) -> np.ndarray[Any, Any]:
    process = to_tff(given, noise=False)
    state = process.initialize()
    for round in range(ROUNDS):
        state = process.next(state, client_datasets(given, data, round=round, seed=5)).state
    return parameters_of(process, state)


def here(given: odp.Task, data: odp.data.UsersExamples) -> np.ndarray[Any, Any]:
    """The rounds of ``odp.simulate`` without noise, and without the rounding to the grid."""
    definition = given.definition()
    terms, server = Terms.of(definition), algorithm_for(definition).server(item_features=given.public_matrix)
    state, seeds = server.start(), user_seeds(data, 5)
    for round in range(ROUNDS):
        start = terms.parameters(server.broadcast(state).dense[PARAMETERS])
        moved = np.empty((data.n_users, terms.model.size), dtype=np.float32)
        terms.model.differences(
            start, data, terms.local, seeds=seeds, round=round, users=slice(0, data.n_users), out=moved
        )
        total = terms.contributions(moved, terms.clip, trained=np.ones(len(moved), dtype=bool)).sum(axis=0)
        state = server.step(state, NoisyTensors(round, {RELEASE: total}, USERS))
    return terms.parameters(server.broadcast(state).dense[PARAMETERS])


def _data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(9, FEATURES)).astype(np.float32)
    return x, generator.integers(0, CLASSES, 9).astype(np.int32)


@pytest.mark.parametrize(
    "activation", ["relu", *(pytest.param(name, marks=pytest.mark.proof) for name in ("elu", "tanh"))]
)
def test_a_functional_model_trains_as_by_a_gradient_tape(activation: str) -> None:
    source, (x, y) = functional(activation), _data()
    made = from_tff(source, batch=BATCH)
    weights = [tf.Variable(one) for one in source.initial_weights[0]]
    for rows in _BATCHES:
        with tf.GradientTape() as tape:
            loss = source.loss(source.predict_on_batch((tuple(weights), ()), x[rows], True), y[rows])
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * slope)
    expected = np.concatenate([weight.numpy().ravel() for weight in weights]) - made.start
    moved = Runner(made.program).difference(made.start, [x], y, _BATCHES, rate=0.1)
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-6)


def test_a_reconstruction_model_trains_as_by_a_gradient_tape() -> None:
    made, (x, y), source = from_tff(reconstruction, cross_entropy, batch=BATCH), _data(), reconstruction()
    shared, local = list(source.global_trainable_variables), list(source.local_trainable_variables)
    before = np.concatenate([one.numpy().ravel() for one in shared])
    np.testing.assert_array_equal(made.public_matrix[:, 0], before)
    for weights, rate in ((local, 0.3), (shared, 0.1)):
        for rows in _BATCHES:
            with tf.GradientTape() as tape:
                output = source.forward_pass((x[rows], y[rows]), training=True)
                loss = cross_entropy()(output.labels, output.predictions)
            for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(rate * slope)
    expected = np.concatenate([one.numpy().ravel() for one in shared]) - before
    moved = Runner(made.program).difference(made.start, [x], y, _BATCHES, rate=0.1, local=LocalSteps(_BATCHES, 0.3))
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("named", [pytest.param(False, marks=pytest.mark.proof), True], ids=["tuples", "names"])
def test_five_rounds_of_federated_averaging_agree(named: bool) -> None:
    training = odp.DPFedAvg(rounds=ROUNDS, rate=0.3, epochs=2, batch=BATCH, clip=0.8, server_momentum=0.5)
    data, given = people(), task(from_tff(functional(named=named), batch=BATCH), training)
    expected = in_tff(given, data)
    assert np.abs(expected - given.model.public_matrix[:, 0]).max() > 0.05
    np.testing.assert_allclose(here(given, data), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("split", [True, pytest.param(False, marks=pytest.mark.proof)])
def test_five_rounds_of_federated_reconstruction_agree(split: bool) -> None:
    """With ``tff.learning.algorithms.build_fed_recon``."""
    own = odp.Reconstruction(rate=0.4, epochs=2, split=split)
    training = odp.DPFedAvg(rounds=ROUNDS, rate=0.3, epochs=2, batch=BATCH, clip=0.8, reconstruction=own)
    data, given = people(), task(from_tff(reconstruction, cross_entropy, batch=BATCH), training)
    expected = in_tff(given, data)
    assert np.abs(expected - given.model.public_matrix[:, 0]).max() > 0.05
    np.testing.assert_allclose(here(given, data), expected, rtol=0, atol=1e-5)


def _summed(source: Any) -> Any:
    return tff.learning.models.FunctionalModel(
        initial_weights=source.initial_weights,
        predict_on_batch_fn=source.predict_on_batch,
        loss_fn=lambda output, label, sample_weight=None: tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
        ),
        input_spec=source.input_spec,
    )


def test_what_is_no_model_for_devices_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="FunctionalModel"):
        from_tff(object())
    with pytest.raises(ConfigurationError, match="loss_fn with a ReconstructionModel"):
        from_tff(reconstruction)
    with pytest.raises(ConfigurationError, match="loss_fn=None"):
        from_tff(functional(), cross_entropy)
    source = functional()
    with pytest.raises(ConfigurationError, match="mean over the examples"):
        from_tff(_summed(source))
    with pytest.raises(ConfigurationError, match="batch=0"):
        from_tff(functional(), batch=0)


def test_weights_by_name_are_compiled_and_have_no_process() -> None:
    made = from_tff(functional(weights_named=True), batch=BATCH)
    x, _ = _data()
    plain = functional()
    expected = plain.predict_on_batch(plain.initial_weights, x, False)
    np.testing.assert_allclose(Runner(made.program).predictions(made.start, [x]), expected, atol=1e-6)
    with pytest.raises(ConfigurationError, match="weights in a sequence"):
        to_tff(task(made, odp.DPFedAvg(rounds=1, batch=BATCH)))


def test_a_task_of_a_compiled_model_without_its_source_is_refused() -> None:
    made = from_tff(functional(), batch=BATCH)
    with pytest.raises(ConfigurationError, match="from_tff"):
        to_tff(task(odp.CompiledModel(made.program, made.start), odp.DPFedAvg(rounds=1, batch=BATCH)))
