"""Fixed features of pictures: public, of one picture alone, and the same as those of a Keras network."""

from __future__ import annotations

import numpy as np
import pytest

import odp
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.errors import ConfigurationError, DataError
from odp.research.reproductions.gradient_features import RAW, GradientFeatures
from odp.research.reproductions.strokes import strokes


def pictures(count: int = 40) -> np.ndarray:
    return np.concatenate(
        (strokes(count - 2, seed=7), np.zeros((1, 28, 28), np.uint8), np.full((1, 28, 28), 255, "u1"))
    )


def test_strokes_are_drawn_in_the_middle_and_repeat_by_seed() -> None:
    drawn = strokes(50, seed=3)
    np.testing.assert_array_equal(drawn, strokes(50, seed=3))
    assert (drawn != strokes(50, seed=4)).any()
    ink = drawn.reshape(50, -1).sum(axis=1)
    assert (ink > 0).all()
    border = drawn.astype(np.int64).sum() - drawn[:, 1:-1, 1:-1].astype(np.int64).sum()
    assert border < 0.02 * ink.sum()
    with pytest.raises(ConfigurationError, match="count"):
        strokes(0, seed=1)


def test_features_are_white_on_invented_strokes_and_finite_everywhere() -> None:
    layer = GradientFeatures.whitened(30)
    assert layer.count == 30
    found = layer.of(strokes(2000, seed=99))  # others than those it was measured on
    assert np.abs(found.mean(axis=0)).max() < 0.2
    assert np.abs(found.std(axis=0) - 1.0).max() < 0.25
    assert np.isfinite(layer.of(pictures())).all()


def test_features_are_of_one_picture_alone() -> None:
    layer, given = GradientFeatures.whitened(20), pictures(300)
    alone = np.concatenate([layer.of(given[place : place + 1]) for place in (0, 17, 299)])
    np.testing.assert_allclose(layer.of(given)[[0, 17, 299]], alone, rtol=0, atol=1e-5)


def test_a_turned_picture_has_other_features_and_a_brighter_one_the_same() -> None:
    layer, given = GradientFeatures.whitened(20), strokes(5, seed=11) // 2
    np.testing.assert_allclose(layer.of(given), layer.of(given * 2), rtol=0, atol=5e-2)
    assert np.abs(layer.of(given) - layer.of(np.ascontiguousarray(given.transpose(0, 2, 1)))).max() > 0.5


def test_wrong_pictures_and_counts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="count"):
        GradientFeatures.whitened(RAW + 1)
    layer = GradientFeatures.whitened(5)
    for wrong in (np.zeros((2, 28, 27), np.uint8), np.zeros((2, 28, 28), np.float32)):
        with pytest.raises(DataError, match="uint8"):
            layer.of(wrong)


def test_a_keras_network_computes_the_same_and_its_training_is_that_of_the_glm() -> None:
    keras = pytest.importorskip("keras", reason="TensorFlow is not installed: pip install 'odp-platform[keras]'")
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")
    from odp.research.reproductions.gradient_network import gradient_network

    layer, given = GradientFeatures.whitened(100), pictures()
    network = gradient_network(layer, classes=10)
    bright = given[..., None].astype(np.float32) / np.float32(255.0)
    whitened = keras.Model(network.inputs, network.get_layer("whitened").output).predict(bright, verbose=0)
    np.testing.assert_allclose(whitened, layer.of(given), rtol=0, atol=1e-3)
    assert [variable.shape for variable in network.trainable_variables] == [(100, 10), (10,)]

    labels = (np.arange(len(given)) % 10).astype(np.float32)
    users = np.arange(len(given)) % 4
    pixels = UsersExamples.of_users(given.reshape(len(given), -1), labels, users)
    numbers = UsersExamples.of_users(layer.of(given), labels, users)
    model = odp.KerasModel(network, "sparse_categorical_crossentropy")
    glm = odp.Glm("multinomial", features=100, classes=10)
    trained = odp.simulate(
        task(model, odp.Tensor((28, 28, 1), 0, 255, scale=1 / 255)), ExamplesSplit(pixels, pixels), noise=False
    )
    expected = odp.simulate(task(glm, odp.Tensor((100,), -20, 20)), ExamplesSplit(numbers, numbers), noise=False)
    model.load(trained.model)
    kernel, found = network.get_layer("trained").get_weights()
    weights, biases = glm.split(expected.model.dense["parameters"][:, 0])
    assert np.abs(weights).max() > 0.05
    np.testing.assert_allclose(kernel.T, weights, rtol=0, atol=5e-4)
    np.testing.assert_allclose(found, biases, rtol=0, atol=5e-4)


def task(model: object, tensor: odp.Tensor) -> odp.Task:
    return odp.Task(
        name="pictures", model=model, data=odp.Examples({"picture": tensor}, label="digit"),  # type: ignore[arg-type]
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-2),
        training=odp.DPFedAvg(rounds=2, rate=0.2, clip=10.0, batch=10), cohort=odp.Cohort(minimum=4),
    )  # fmt: skip
