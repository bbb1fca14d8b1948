"""``odp.KerasModel``: compiled when it is made, trained in a simulation, and given back its weights."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from odp.errors import ConfigurationError

_REASON = "TensorFlow is not installed: pip install 'odp-platform[keras]'"


def test_odp_loads_no_tensorflow() -> None:
    code = "import sys, odp; odp.KerasModel; odp.Task; print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_without_tensorflow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odp._system.extras.is_installed", lambda name: False)
    with pytest.raises(ConfigurationError, match=r"tensorflow.*pip install 'odp-platform\[keras\]'"):
        odp.KerasModel(object(), "mean_squared_error")


tf = pytest.importorskip("tensorflow", reason=_REASON)
keras = pytest.importorskip("keras", reason=_REASON)

_SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_EXAMPLES = odp.Examples({"x": odp.Tensor((8,), -1, 1)}, label="kind")


def _network(outputs: int = 3, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(outputs, **options)])


def _people(classes: int = 3) -> odp.data.ExamplesSplit:
    generator = np.random.default_rng(1)
    truth = generator.normal(size=(8, classes))
    features = generator.uniform(-1, 1, (4000, 8)).astype(np.float32)
    kinds = (features @ truth).argmax(axis=1)
    users = np.arange(3000) % 150
    return odp.data.ExamplesSplit(
        train=odp.data.UsersExamples.of_users(features[:3000], kinds[:3000], users),
        test=odp.data.UsersExamples.of_users(features[3000:], kinds[3000:], np.zeros(1000, dtype=int)),
    )


def _task(model: odp.KerasModel, **changes: Any) -> odp.Task:
    parts: dict[str, Any] = {
        "data": _EXAMPLES,
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-4),
        "training": odp.DPFedAvg(rounds=6, rate=0.5, epochs=2, clip=2.0),
        "cohort": odp.Cohort(minimum=50, goal=150),
        **changes,
    }
    return odp.Task(name="kinds", model=model, **parts)


@pytest.fixture(scope="module")
def model() -> odp.KerasModel:
    errors = {"error": lambda targets, predictions: keras.losses.mean_absolute_error(
        tf.one_hot(targets, 3), tf.nn.softmax(predictions))}  # fmt: skip
    return odp.KerasModel(_network(), _SPARSE, metrics=errors, proximal=True)


@pytest.fixture(scope="module")
def model_of_two() -> odp.KerasModel:
    """Of two classes, without layers that stay on devices."""
    return odp.KerasModel(_network(2), _SPARSE)


def test_a_network_learns_and_the_keras_model_gets_its_weights(model: odp.KerasModel) -> None:
    people = _people()
    run = odp.simulate(_task(model), people, noise=False)
    first, last = run.rounds[0].metrics, run.metrics
    assert last["test_accuracy"] > 0.85
    assert last["test_loss"] < first["test_loss"]
    assert 0 < last["test_error"] < first["test_error"]
    model.load(run.model)
    predicted = model.model(people.test.features).numpy().argmax(axis=1)
    assert np.mean(predicted == people.test.targets) == pytest.approx(last["test_accuracy"])


def test_one_step_of_all_users_is_gradient_descent_of_keras(model: odp.KerasModel) -> None:
    """Users of one batch each, an unreachable clip norm and no noise: the mean of the gradients of their losses."""
    people, rate = _people(), 0.3
    training = odp.DPFedAvg(rounds=1, rate=rate, batch=10, most_examples=10, clip=100.0)
    few = people.train.select_users(np.arange(60))
    users = odp.data.UsersExamples(
        few.features, few.targets, np.concatenate([few.rows[few.offsets[u] : few.offsets[u] + 10] for u in range(60)]),
        np.arange(61) * 10,
    )  # fmt: skip
    task = _task(model, training=training, cohort=odp.Cohort(minimum=50, goal=60))
    run = odp.simulate(task, dataclasses.replace(people, train=users), noise=False)
    found = model.program.split(run.model.dense["parameters"][:, 0])
    start = model.program.split(model.public_matrix[:, 0])
    fresh = _network()
    for variable, values in zip(fresh.trainable_variables, start.values(), strict=True):
        variable.assign(values)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(_SPARSE.call(users.targets[users.rows], fresh(users.features[users.rows])))
    slopes = tape.gradient(loss, fresh.trainable_variables)
    for (name, values), slope in zip(found.items(), slopes, strict=True):
        # The grid of contributions is coarse at this clip norm: 100 times its step.
        np.testing.assert_allclose(values - start[name], -rate * slope.numpy(), atol=2e-3, err_msg=name)


def _turned(users: int, seed: int) -> odp.data.UsersExamples:
    """People who see the same two things, and name them in their own ways: no model fits all of them."""
    generator = np.random.default_rng(seed)
    truth = np.random.default_rng(1).normal(size=(8, 2))
    features = generator.uniform(-1, 1, (users * 40, 8)).astype(np.float32)
    owners = np.repeat(np.arange(users), 40)
    signs = generator.choice([-1.0, 1.0], (users, 2))[owners]
    named = (features @ truth * signs).argmax(axis=1)
    return odp.data.UsersExamples.of_users(features, named, owners)


def test_layers_that_stay_on_devices_fit_people_who_differ(model_of_two: odp.KerasModel) -> None:
    people = odp.data.ExamplesSplit(train=_turned(60, 2), test=_turned(40, 3))
    kept = _network(2)
    model = odp.KerasModel(kept, _SPARSE, local=[kept.layers[-1]])
    assert (model.size, model.program.size, model.public_matrix.shape) == (144, 178, (144, 1))
    before = [one.numpy().copy() for one in kept.layers[-1].weights]
    training = odp.DPFedAvg(
        rounds=10, rate=0.5, epochs=2, clip=2.0, reconstruction=odp.Reconstruction(rate=0.5, epochs=10)
    )
    cohort = odp.Cohort(minimum=50, goal=60)
    run = odp.simulate(_task(model, training=training, cohort=cohort), people, noise=False)
    same = dataclasses.replace(training, reconstruction=None)
    together = odp.simulate(_task(model_of_two, training=same, cohort=cohort), people, noise=False)
    assert run.metrics["test_accuracy"] > together.metrics["test_accuracy"] + 0.1
    assert run.metrics["test_loss"] < run.rounds[0].metrics["test_loss"]
    model.load(run.model)
    for one, old in zip(kept.layers[-1].weights, before, strict=True):
        np.testing.assert_array_equal(one.numpy(), old)
    np.testing.assert_array_equal(kept.layers[0].kernel.numpy().ravel(), run.model.dense["parameters"][:128, 0])


def test_a_layer_that_is_none_of_the_model_is_refused() -> None:
    for local, named in (("dense", "list of layers"), (["other"], "local='other'"), ([_network().layers], "local=")):
        with pytest.raises(ConfigurationError, match=named):
            odp.KerasModel(_network(), _SPARSE, local=local)


def test_two_classes_and_numbers_have_their_own_losses() -> None:
    two = odp.KerasModel(_network(1), keras.losses.BinaryCrossentropy(from_logits=True))
    assert odp.simulate(_task(two), _people(2), noise=False).metrics["test_accuracy"] > 0.85
    number = odp.KerasModel(_network(1), "mean_squared_error")
    data = dataclasses.replace(_EXAMPLES, label_low=0.0, label_high=2.0)
    metrics = odp.simulate(_task(number, data=data), _people(), noise=False).metrics
    assert np.isnan(metrics["test_accuracy"])
    assert metrics["test_loss"] < 1.0


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: odp.KerasModel(_network(), "categorical_crossentropy"), "one number or class"),
        (lambda: odp.KerasModel(_network(), _SPARSE, batch=0), "batch=0"),
        (lambda: odp.KerasModel(_network(), _SPARSE, metrics=["accuracy"]), "functions by name"),
        (lambda: odp.KerasModel(_network(), _SPARSE, metrics={"loss": abs}), "always shown"),
        (lambda: odp.KerasModel(_network(activation="gelu"), _SPARSE), "Erfc"),
    ],
    ids=["one-hot", "batch", "names", "loss", "operation"],
)
def test_what_devices_could_not_train_is_refused_by_name(make: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make()


def test_weights_that_are_not_finite_are_refused() -> None:
    network = _network()
    network.trainable_variables[0].assign(np.full((8, 16), np.inf))
    with pytest.raises(ConfigurationError, match="finite"):
        odp.KerasModel(network, _SPARSE)


def test_large_frozen_layers_are_refused_by_size() -> None:
    layers = keras.layers
    frozen = layers.Dense(2000, trainable=False)
    network = keras.Sequential([keras.Input((8,)), frozen, layers.Dense(3)])
    with pytest.raises(ConfigurationError, match="layers that are not trained"):
        odp.KerasModel(network, _SPARSE)


def test_a_version_of_another_model_is_refused(model: odp.KerasModel, model_of_two: odp.KerasModel) -> None:
    run = odp.simulate(_task(model_of_two, training=odp.DPFedAvg(rounds=1)), _people(2), noise=False)
    with pytest.raises(ConfigurationError, match=f"{model.size} parameters"):
        model.load(run.model)


# In CI, `documentation/test_tutorials.py` trains a network of this kind with noise.
@pytest.mark.proof
def test_the_example_reaches_the_accuracy_that_the_documentation_names() -> None:
    example = Path(__file__).parents[3] / "examples" / "keras_classifier.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True, timeout=900)
    accuracy, spent = re.findall(r"accuracy of the Keras model ([\d.]+) at ε = ([\d.]+)", done.stdout)[0]
    assert float(accuracy) > 0.95
    assert 3.9 < float(spent) <= 4.0


WORDS = odp.Examples({"said": odp.Text(("rain", "sun", "wind"), 4), "day": odp.Category(7)}, label="kind")


def _embedding(dtype: str = "int32") -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    said, day = keras.Input((4,), dtype=dtype), keras.Input((1,), dtype=dtype)
    words = layers.GlobalAveragePooling1D()(layers.Embedding(5, 4)(said))
    days = layers.Flatten()(layers.Embedding(7, 2)(day))
    return keras.Model([said, day], layers.Dense(3)(layers.Concatenate()([words, days])))


@pytest.fixture(scope="module")
def embedding_model() -> odp.KerasModel:
    return odp.KerasModel(_embedding(), _SPARSE)


def test_embeddings_of_words_and_categories_are_trained_on_text(embedding_model: odp.KerasModel) -> None:
    kinds = np.arange(600) % 3
    columns = {
        "said": np.array(["Rain, rain", "the sun", "wind"])[kinds], "day": np.arange(600) % 7, "kind": kinds,
    }  # fmt: skip
    users = odp.data.ExampleColumns.of_users(columns, np.arange(600) // 10).users_examples(WORDS)
    cohort = odp.Cohort(minimum=50, goal=60)
    training = odp.DPFedAvg(rounds=8, rate=1.0, epochs=4, clip=4.0)
    task = _task(embedding_model, data=WORDS, cohort=cohort, training=training)
    run = odp.simulate(task, odp.data.ExamplesSplit(users, users), noise=False)
    assert run.metrics["test_accuracy"] > 0.95


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"said": odp.Text(("rain",), 5), "day": odp.Category(7)}, r"shapes \(4,\), \(1,\).*\(5,\), \(\)"),
        ({"said": odp.Text(("rain",), 4)}, "features of the shapes"),
        ({"day": odp.Category(7), "said": odp.Text(("rain",), 4)}, "features of the shapes"),
    ],
)
def test_features_that_do_not_fit_the_inputs_are_refused(
    embedding_model: odp.KerasModel, features: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _task(embedding_model, data=odp.Examples(features, label="kind")).definition()


def test_tokens_are_refused_by_an_input_of_floats(model: odp.KerasModel) -> None:
    data = odp.Examples({"x": odp.Text(("rain",), 8)}, label="kind")
    with pytest.raises(ConfigurationError, match="feature 'x' to be of whole numbers"):
        _task(model, data=data).definition()
