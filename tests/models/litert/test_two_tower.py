"""``odp.TwoTower``: two Keras encoders in one program, which trains as in TensorFlow; their vectors give its scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

_REASON = "TensorFlow is not installed: pip install 'odp-platform[keras]'"
tf = pytest.importorskip("tensorflow", reason=_REASON)
keras = pytest.importorskip("keras", reason=_REASON)

import odp  # noqa: E402
from odp.algorithms.federated.terms import PARAMETERS  # noqa: E402
from odp.models.litert.runner import Runner  # noqa: E402
from odp.protocol.wire.model import ModelVersion, TableValues  # noqa: E402

from . import compile_towers  # noqa: E402
from .compile_towers import FEATURES, ITEMS, WIDTH  # noqa: E402

_GENERATOR = np.random.default_rng(3)
_ABOUT = _GENERATOR.normal(size=(6, FEATURES)).astype(np.float32)
_CHOSEN = _GENERATOR.integers(0, ITEMS, (6, 1)).astype(np.int32)
_CLASSES = np.array([[1], [0], [1], [1], [0], [1]], dtype=np.float32)
_BATCHES = [np.array([0, 1, 2, 3]), np.array([4, 5]), np.array([5, 1, 0, 2])]


@pytest.fixture(scope="module")
def towers() -> Any:
    return compile_towers.towers()


def _head() -> Any:
    vectors = [keras.Input((WIDTH,)), keras.Input((WIDTH,))]
    return keras.Model(vectors, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))


def _slopes_of(user: Any, item: Any, score: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
    """By TensorFlow, of the mean loss of a batch."""
    weights = [*user.trainable_variables, *item.trainable_variables]
    with tf.GradientTape() as tape:
        given = _CLASSES[rows]
        predicted = score(user(_ABOUT[rows]), item(_CHOSEN[rows]))
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(given, predicted, from_logits=True))
    return {
        weight.path: tf.convert_to_tensor(slope).numpy()
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True)
    }


def test_two_towers_train_as_in_tensorflow(towers: Any) -> None:
    program = towers.program
    start = towers.public_matrix[:, 0]
    runner = Runner(program)
    rows = _BATCHES[0]
    moved = program.split(runner.difference(start, [_ABOUT, _CHOSEN], _CLASSES, [rows], rate=0.5))
    slopes = _slopes_of(
        towers.user, towers.item, lambda own, other: tf.reduce_sum(own * other, axis=1, keepdims=True), rows
    )
    assert moved.keys() == slopes.keys()
    for name, slope in slopes.items():
        np.testing.assert_allclose(moved[name], -0.5 * slope, rtol=0, atol=1e-6, err_msg=name)


def test_vectors_of_users_and_items_give_the_scores_of_the_program(towers: Any) -> None:
    version = ModelVersion(
        1, (TableValues(PARAMETERS, _GENERATOR.normal(size=(towers.size, 1)).astype(np.float32), keyed=False),)
    )
    towers.load(version)
    items, users = towers.item_vectors(), towers.user_vectors(_ABOUT)
    assert (items.shape, users.shape, items.dtype) == ((ITEMS, WIDTH), (6, WIDTH), np.float32)
    scores = towers.scores(users, items)
    program = Runner(towers.program).predictions(version.dense[PARAMETERS][:, 0], [_ABOUT, _CHOSEN])
    np.testing.assert_allclose(scores[np.arange(6), _CHOSEN[:, 0]], program[:, 0], rtol=0, atol=1e-5)
    with pytest.raises(odp.errors.DataError, match="1 arrays"):
        towers.user_vectors(_ABOUT, _ABOUT)


@pytest.mark.slow
def test_a_head_may_score_two_vectors() -> None:
    towers = compile_towers.towers(head=_head())
    assert towers.size == FEATURES * WIDTH + WIDTH + ITEMS * WIDTH + 2 * WIDTH + 1
    scores = towers.scores(towers.user_vectors(_ABOUT), towers.item_vectors())
    program = Runner(towers.program).predictions(towers.public_matrix[:, 0], [_ABOUT, _CHOSEN])
    np.testing.assert_allclose(scores[np.arange(6), _CHOSEN[:, 0]], program[:, 0], rtol=0, atol=1e-5)


def test_the_stored_towers_are_what_the_compiler_makes(towers: Any) -> None:
    stored = compile_towers.stored()
    assert [one.shape for one in towers.program.parameters] == [one.shape for one in stored.parameters]
    vector = _GENERATOR.normal(size=stored.size).astype(np.float32)
    moved = [
        Runner(one).difference(vector, [_ABOUT, _CHOSEN], _CLASSES, _BATCHES, rate=0.1)
        for one in (towers.program, stored)
    ]
    np.testing.assert_allclose(*moved, rtol=0, atol=1e-6)


def _wide() -> Any:
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(WIDTH + 1)])


def _of_two_items() -> Any:
    return keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 2), keras.layers.Flatten()])


def _two_scores() -> Any:
    vectors = [keras.Input((WIDTH,)), keras.Input((WIDTH,))]
    return keras.Model(vectors, keras.layers.Dense(2)(keras.layers.Concatenate()(vectors)))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (lambda: {"user": "tower"}, r"user to be a keras\.Model"),
        (lambda: {"user": _wide()}, r"\(4,\) and \(3,\)"),
        (lambda: {"item": _of_two_items()}, r"shape \(1,\), the item's number \(got \(2,\)\)"),
        (lambda: {"head": _two_scores()}, r"score of shape \(1,\) \(got \(2,\)\)"),
        (lambda: {"items": 1}, "items=1"),
        (lambda: {"negatives": -1}, "negatives=-1"),
    ],
    ids=["kind", "widths", "item", "head", "items", "negatives"],
)
def test_towers_that_do_not_meet_are_refused(changes: Any, named: str) -> None:
    with pytest.raises(odp.errors.ConfigurationError, match=named):
        compile_towers.towers(**changes())


def _gap(towers: Any, version: ModelVersion) -> float:
    """By how much the items 0, 1 and 2 score higher than others, on average."""
    towers.load(version)
    scores = towers.scores(towers.user_vectors(_ABOUT), towers.item_vectors())
    return float(scores[:, :3].mean() - scores[:, 3:].mean())


def test_a_task_of_two_towers_is_simulated(towers: Any) -> None:
    generator = np.random.default_rng(5)
    # Everybody chose the items 0, 1 and 2 alone.
    features = np.column_stack((generator.normal(size=(400, FEATURES)), generator.integers(0, 3, 400)))
    people = odp.data.UsersExamples.of_users(features.astype(np.float32), np.ones(400), np.arange(400) % 40)
    task = odp.Task(
        name="films",
        model=towers,
        data=odp.Examples(
            {"about": odp.Tensor((FEATURES,), -3, 3), "item": odp.Tensor((1,), 0, ITEMS - 1)}, label="chosen"
        ),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-3),
        training=odp.DPFedAvg(rounds=10, rate=0.5, clip=1.0, batch=5),
        cohort=odp.Cohort(minimum=10, goal=40),
    )
    run = odp.simulate(task, odp.data.ExamplesSplit(train=people, test=people), noise=False)
    first = ModelVersion(0, (TableValues(PARAMETERS, towers.public_matrix, keyed=False),))
    assert _gap(towers, run.model) > _gap(towers, first) + 0.5
