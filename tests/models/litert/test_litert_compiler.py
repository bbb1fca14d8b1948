"""Keras models as programs: what LiteRT trains is what TensorFlow would, and what cannot be compiled is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

_REASON = "TensorFlow is not installed: pip install 'odp-platform[keras]'"
tf = pytest.importorskip("tensorflow", reason=_REASON)
keras = pytest.importorskip("keras", reason=_REASON)

from odp.errors import ConfigurationError  # noqa: E402
from odp.models.litert.compiler import compile_model, initial_vector  # noqa: E402
from odp.models.litert.conversion import require_equal  # noqa: E402
from odp.models.litert.functions import Functions  # noqa: E402
from odp.models.litert.program import Program  # noqa: E402
from odp.models.litert.runner import Runner  # noqa: E402
from odp.models.litert.trainer import LocalSteps  # noqa: E402

from . import compile_mlp  # noqa: E402

_LAYERS = keras.layers
_SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_BATCHES = [np.array([0, 1, 2, 3]), np.array([4, 5]), np.array([5, 1, 0, 2])]
_GENERATOR = np.random.default_rng(1)
_NUMBERS = _GENERATOR.normal(size=(6, 6)).astype(np.float32)
_IMAGES = _GENERATOR.normal(size=(6, 9, 9, 3)).astype(np.float32)
_WORDS = _GENERATOR.integers(0, 20, (6, 3)).astype(np.int32)
_CLASSES = _GENERATOR.integers(0, 5, 6).astype(np.int32)


def _dense(activation: str) -> Any:
    layers = [keras.Input((6,)), _LAYERS.Dense(7, activation=activation), _LAYERS.LayerNormalization()]
    return keras.Sequential([*layers, _LAYERS.Dense(5)])


def _images() -> Any:
    return keras.Sequential([
        keras.Input((9, 9, 3)),
        _LAYERS.Conv2D(4, 3, activation="relu"),
        _LAYERS.Conv2D(6, 3, padding="same", strides=2, activation="leaky_relu"),
        _LAYERS.MaxPooling2D(2),
        _LAYERS.Flatten(),
        _LAYERS.Dense(5),
    ])  # fmt: skip


def _more_images() -> Any:
    return keras.Sequential([
        keras.Input((9, 9, 3)),
        _LAYERS.Conv2D(4, 2, strides=2, activation="softsign"),
        _LAYERS.AveragePooling2D(2),
        _LAYERS.Conv2D(3, 2, padding="same", activation="relu6"),
        _LAYERS.MaxPooling2D(2),
        _LAYERS.Flatten(),
        _LAYERS.Dense(5),
    ])  # fmt: skip


def _words() -> Any:
    layers = [keras.Input((3,), dtype="int32"), _LAYERS.Embedding(20, 4), _LAYERS.GRU(4, unroll=True)]
    return keras.Sequential([*layers, _LAYERS.Dense(5)])


@pytest.fixture(scope="module")
def compiled() -> tuple[Program, Functions]:
    return compile_model(_dense("elu"), loss=_SPARSE, batch=4)


def _trained_by_tensorflow(model: Any, x: np.ndarray, y: np.ndarray, rate: float) -> dict[str, np.ndarray]:
    weights = list(model.trainable_variables)
    before = [weight.numpy().copy() for weight in weights]
    for rows in _BATCHES:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_SPARSE.call(y[rows], model(x[rows])))
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign(weight - rate * tf.convert_to_tensor(slope))
    return {weight.path: weight.numpy() - old for weight, old in zip(weights, before, strict=True)}


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: _dense("elu"), _NUMBERS),
        pytest.param(lambda: _dense("silu"), _NUMBERS, marks=pytest.mark.proof),
        (_images, _IMAGES),
        pytest.param(_more_images, _IMAGES, marks=pytest.mark.proof),
        pytest.param(_words, _WORDS, marks=pytest.mark.slow),
    ],
    ids=["elu", "silu", "convolutions", "pools", "words"],
)
def test_a_compiled_model_trains_as_in_tensorflow(make: Callable[[], Any], x: np.ndarray) -> None:
    model = make()
    program, _ = compile_model(model, loss=_SPARSE, batch=4)
    start = initial_vector(model, program)
    moved = program.split(Runner(program).difference(start, [x], _CLASSES, _BATCHES, rate=0.1))
    expected = _trained_by_tensorflow(model, x, _CLASSES, 0.1)
    assert moved.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(moved[name], values, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [_LAYERS.Dense(7, use_bias=False, activation="relu")],
        pytest.param(lambda: [_LAYERS.Dense(7, use_bias=False, activation="relu6")], marks=pytest.mark.proof),
        pytest.param(lambda: [_LAYERS.Dense(7, use_bias=False), _LAYERS.ReLU()], marks=pytest.mark.proof),
    ],
    ids=["relu", "relu6", "a ReLU after it"],
)
def test_activations_of_layers_without_a_bias_are_kept(layers: Callable[[], list[Any]]) -> None:
    """They were lost: the converter fused them into a product of matrices, which has none."""
    model = keras.Sequential([keras.Input((6,)), *layers(), _LAYERS.Dense(5)])
    program, _ = compile_model(model, loss=_SPARSE, batch=4)
    predicted = Runner(program).predictions(initial_vector(model, program), [_NUMBERS])
    np.testing.assert_allclose(predicted, model(_NUMBERS).numpy(), atol=1e-5)


@pytest.mark.parametrize("what", ["predict", "evaluate"])
def test_a_program_that_computes_something_else_is_refused(compiled: tuple[Program, Functions], what: str) -> None:
    program, functions = compiled
    require_equal(functions, program)

    def twice(*given: Any) -> Any:
        found = getattr(functions, what)(*given)
        return {name: 2 * one for name, one in found.items()} if isinstance(found, dict) else 2 * found

    named = {"predict": "a prediction differs", "evaluate": "the loss differs"}[what]
    with pytest.raises(ConfigurationError, match=named):
        require_equal(dataclasses.replace(functions, **{what: twice}), program)


def test_a_gradient_of_something_else_is_refused(compiled: tuple[Program, Functions]) -> None:
    program, functions = compiled

    def flatter(*given: Any) -> dict[str, Any]:
        """The same numbers with half of the slope."""
        return {name: (one + tf.stop_gradient(one)) / 2 for name, one in functions.evaluate(*given).items()}

    with pytest.raises(ConfigurationError, match="the gradient differs"):
        require_equal(dataclasses.replace(functions, evaluate=flatter), program)


def _less_the_mean_of_the_batch(numbers: Any) -> Any:
    return numbers - tf.reduce_mean(numbers, axis=0)


def _all_pairs(targets: Any, predictions: Any) -> Any:
    return tf.square(tf.reshape(targets, [-1]) - predictions)


def test_results_that_follow_from_other_examples_of_the_batch_are_refused() -> None:
    """Devices fill their batches up with examples of zeros, which the mean was taken over as well."""
    mixed = [keras.Input((6,)), _LAYERS.Dense(7), _LAYERS.Lambda(_less_the_mean_of_the_batch), _LAYERS.Dense(1)]
    with pytest.raises(ConfigurationError, match=r"a prediction differs by .* with other examples in the batch"):
        compile_model(keras.Sequential(mixed), loss="mean_squared_error", batch=4)
    plain = keras.Sequential([keras.Input((6,)), _LAYERS.Dense(1)])
    with pytest.raises(ConfigurationError, match=r"the loss differs by .* with other examples in the batch"):
        compile_model(plain, loss=_all_pairs, batch=4)
    with pytest.raises(ConfigurationError, match=r"the error differs by .* with other examples in the batch"):
        compile_model(plain, loss="mean_squared_error", metrics={"error": _all_pairs}, batch=4)


def _one_for_the_batch(targets: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(targets - predictions))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("nothing", "Expected loss='nothing' to be a Keras loss or its name"),
        (None, "Expected loss=None to be a Keras loss or its name"),
        (["mse"], "to be a Keras loss or its name"),
        (_one_for_the_batch, "of a number per example, .* one number for the batch"),
        (lambda targets, predictions: tf.reshape(targets, [3, 7]) - predictions, "Cannot reshape a tensor"),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2), "no ignore_class"),
    ],
    ids=["name", "none", "list", "scalar", "raises", "ignored class"],
)
def test_a_loss_that_cannot_be_compiled_is_one_refusal(loss: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        compile_model(_dense("relu"), loss=loss, batch=4)
    assert len(str(refused.value).splitlines()) == 1


def test_networks_that_do_not_take_a_list_of_numbers_are_one_refusal() -> None:
    first, second = keras.Input((3,), name="b"), keras.Input((3,), name="a")
    by_name = keras.Model({"b": first, "a": second}, _LAYERS.Dense(1)(_LAYERS.Subtract()([first, second])))
    words = keras.Sequential([
        keras.Input((1,), dtype="string"), _LAYERS.StringLookup(vocabulary=["a"]), _LAYERS.Embedding(3, 1),
        _LAYERS.Flatten(),
    ])  # fmt: skip
    weight = tf.Variable(tf.ones((6, 4)))
    stray = keras.Sequential([keras.Input((6,)), _LAYERS.Lambda(lambda x: x @ weight), _LAYERS.Dense(1)])
    for model, message in (
        (by_name, "several inputs as a list; it fails: The structure of `inputs`"),
        (words, "takes numbers, .* Cast int32 to string"),
        (stray, "weights that belong to layers; TensorFlow says: Tried to export .* 'untracked'"),
    ):
        with pytest.raises(ConfigurationError, match=message) as refused:
            compile_model(model, loss="mean_squared_error", batch=4)
        assert len(str(refused.value).splitlines()) == 1


def test_a_layer_of_fixed_statistics_is_compiled_when_it_is_frozen() -> None:
    def network(*, trainable: bool) -> Any:
        scaled = _LAYERS.Normalization(trainable=trainable)
        scaled.adapt(3 + 5 * np.random.default_rng(1).normal(size=(50, 6)))
        return keras.Sequential([keras.Input((6,)), scaled, _LAYERS.Dense(1)])

    with pytest.raises(ConfigurationError, match=r"freeze the layer \(trainable=False\)"):
        compile_model(network(trainable=True), loss="mean_squared_error", batch=4)
    model = network(trainable=False)
    program, _ = compile_model(model, loss="mean_squared_error", batch=4)
    predicted = Runner(program).predictions(initial_vector(model, program), [_NUMBERS])
    np.testing.assert_allclose(predicted, model(_NUMBERS).numpy(), atol=1e-5)


def test_the_stored_program_is_what_the_compiler_makes() -> None:
    made, stored = compile_mlp.compiled(), compile_mlp.stored()
    assert [one.shape for one in made.parameters] == [one.shape for one in stored.parameters]
    vector = np.random.default_rng(2).normal(size=made.size).astype(np.float32)
    moved = [
        Runner(one).difference(vector, [_NUMBERS], _CLASSES, _BATCHES, rate=0.1, proximal=0.5) for one in (made, stored)
    ]
    np.testing.assert_allclose(*moved, rtol=0, atol=1e-6)


def test_local_layers_come_last_and_inputs_may_be_several() -> None:
    user, item = keras.Input((3,), name="user"), keras.Input((6,), name="item")
    left, right = _LAYERS.Dense(4, name="own")(user), _LAYERS.Dense(4, name="shared")(item)
    model = keras.Model([user, item], _LAYERS.Dot(axes=1)([left, right]))
    program, _ = compile_model(model, loss="mean_squared_error", batch=2, local=["own"])
    assert [one.local for one in program.parameters] == [False, False, True, True]
    assert (program.shared_size, program.size) == (28, 44)
    vector = initial_vector(model, program)
    x = [_NUMBERS[:, :3].copy(), _NUMBERS]
    np.testing.assert_allclose(Runner(program).predictions(vector, x), model(x).numpy(), atol=1e-5)


def test_a_local_layer_is_trained_alone_and_then_stays_as_in_tensorflow() -> None:
    model = _dense("elu")
    head = model.layers[-1]
    program, _ = compile_model(model, loss=_SPARSE, batch=4, local=[head.name])
    start = initial_vector(model, program)
    own, others = head.trainable_variables, [one for layer in model.layers[:-1] for one in layer.trainable_variables]
    before = [one.numpy().copy() for one in others]
    for weights, rate, batches in ((own, 0.2, _BATCHES[:2]), (others, 0.1, _BATCHES)):
        for rows in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(_SPARSE.call(_CLASSES[rows], model(_NUMBERS[rows])))
            for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign(weight - rate * tf.convert_to_tensor(slope))
    moved = Runner(program).difference(
        start, [_NUMBERS], _CLASSES, _BATCHES, rate=0.1, local=LocalSteps(_BATCHES[:2], 0.2)
    )
    expected = np.concatenate([(one.numpy() - old).ravel() for one, old in zip(others, before, strict=True)])
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        (lambda: [_LAYERS.Dense(7, activation="gelu")], "Erfc"),
        (lambda: [_LAYERS.Reshape((6, 1)), _LAYERS.MaxPooling1D(3, strides=1), _LAYERS.Flatten()], "MaxPoolGrad"),
        (lambda: [_LAYERS.Dense(7), _LAYERS.BatchNormalization()], "moving_mean"),
        (lambda: [_LAYERS.Dense(7), _LAYERS.Dropout(0.5)], "dropout"),
        (lambda: [_LAYERS.RepeatVector(3), _LAYERS.Flatten()], "LiteRT runs"),
        (lambda: [_LAYERS.GaussianNoise(1.0)], "gaussian_noise"),
        (lambda: [_LAYERS.Dense(7, kernel_regularizer="l1")], "no regularizer of '.*kernel'"),
        (lambda: [_LAYERS.Dense(7, kernel_constraint="non_neg")], "no constraint of '.*kernel'"),
        (lambda: [_LAYERS.Dense(7, activity_regularizer="l2")], "losses that layers add"),
        (lambda: [_LAYERS.Reshape((2, 3)), _LAYERS.Masking(), _LAYERS.Dense(4)], "without a mask"),
    ],
    ids=[
        "operation", "gradient", "statistics", "dropout", "not run", "noise", "regularizer", "constraint", "activity",
        "mask",
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_by_name(layers: Callable[[], list[Any]], named: str) -> None:
    model = keras.Sequential([keras.Input((6,)), _LAYERS.Dense(6), *layers(), _LAYERS.Dense(5)])
    with pytest.raises(ConfigurationError, match=named):
        compile_model(model, loss=_SPARSE)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"keras\.Model"):
        compile_model(object(), loss=_SPARSE)
    with pytest.raises(ConfigurationError, match="local='other'"):
        compile_model(_dense("relu"), loss=_SPARSE, local=["other"])
    with pytest.raises(ConfigurationError, match="shape"):
        compile_model(keras.Sequential([keras.Input((None, 3)), _LAYERS.Dense(1)]), loss="mean_squared_error")
    with pytest.raises(ConfigurationError, match="got sum"):
        compile_model(_dense("relu"), loss=keras.losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(ConfigurationError, match="accuracy"):
        compile_model(_dense("relu"), loss="mean_squared_error", metrics=["accuracy"])
