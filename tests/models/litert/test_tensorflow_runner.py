"""A simulation that trains a network by TensorFlow, beside one by LiteRT."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

_REASON = "TensorFlow is not installed: pip install 'odp-platform[keras]'"
tf = pytest.importorskip("tensorflow", reason=_REASON)
keras = pytest.importorskip("keras", reason=_REASON)
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

import odp  # noqa: E402
from odp.errors import ConfigurationError, DataError  # noqa: E402
from odp.models.litert.runner import Runner  # noqa: E402
from odp.models.litert.tensorflow_runner import TensorFlowRunner  # noqa: E402
from odp.models.litert.work import multiplications  # noqa: E402

_SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_SIDE, _USERS, _EACH = 8, 6, 9
_BATCHES = [np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7]), np.array([8])]
_GENERATOR = np.random.default_rng(3)
_IMAGES = _GENERATOR.random((_USERS * _EACH, _SIDE, _SIDE, 2), dtype=np.float32)
_CLASSES = _GENERATOR.integers(0, 3, _USERS * _EACH).astype(np.int32)


def _network(filters: int = 4, side: int = _SIDE) -> Any:
    keras.utils.set_random_seed(5)
    layers = keras.layers
    return keras.Sequential([
        keras.Input((side, side, 2)), layers.Conv2D(filters, 3, activation="relu"),
        layers.Conv2D(filters, 3, padding="same", activation="elu"), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dense(3),
    ])  # fmt: skip


def _model(**options: Any) -> odp.KerasModel:
    return odp.KerasModel(_network(), _SPARSE, batch=4, proximal=True, **options)


@pytest.fixture(scope="module")
def model() -> odp.KerasModel:
    return _model(engine="tensorflow")


@pytest.fixture(scope="module")
def model_for_litert() -> odp.KerasModel:
    return _model(engine="litert")


def _runner(model: odp.KerasModel) -> TensorFlowRunner:
    engine = model.own_engine()
    assert isinstance(engine, TensorFlowRunner)
    return engine


@pytest.mark.parametrize("proximal", [0.0, 2.0])
def test_it_moves_the_weights_as_litert_does(model: odp.KerasModel, proximal: float) -> None:
    start = model.public_matrix[:, 0].copy()
    given = (start, [_IMAGES[:_EACH]], _CLASSES[:_EACH], _BATCHES)
    expected = Runner(model.program).difference(*given, rate=0.2, proximal=proximal)
    runner, out = _runner(model), np.full(model.size, np.nan, dtype=np.float32)
    for _ in range(2):  # what one user leaves in the variables is not what the next one starts with
        found = runner.difference(*given, rate=0.2, proximal=proximal, out=out)
        assert found is out
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert np.abs(expected).max() > 1e-3


def test_no_examples_and_divergence_give_zeros_and_wrong_batches_are_refused(model: odp.KerasModel) -> None:
    runner, start = _runner(model), model.public_matrix[:, 0].copy()
    assert not runner.difference(start, [_IMAGES[:0]], _CLASSES[:0], [], rate=0.1).any()
    wild = runner.difference(start, [_IMAGES[:4]], _CLASSES[:4], [np.arange(4)] * 8, rate=1e30)
    assert not wild.any()
    for rows in (np.arange(5), np.arange(0)):
        with pytest.raises(DataError, match="1 to 4 examples"):
            runner.difference(start, [_IMAGES[:9]], _CLASSES[:9], [rows], rate=0.1)


def _run(model: odp.KerasModel, rounds: int = 2) -> odp.RunResult:
    people = odp.data.ExamplesSplit(
        train=odp.data.UsersExamples.of_users(
            _IMAGES.reshape(len(_IMAGES), -1), _CLASSES, np.repeat(np.arange(_USERS), _EACH)
        ),
        test=odp.data.UsersExamples.of_users(
            _IMAGES.reshape(len(_IMAGES), -1), _CLASSES, np.zeros(len(_IMAGES), dtype=int)
        ),
    )
    task = odp.Task(
        name="images",
        model=model,
        data=odp.Examples({"x": odp.Tensor((_SIDE, _SIDE, 2), 0, 1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
        training=odp.DPFedAvg(rounds=rounds, rate=0.1, batch=4, clip=1.0),
        cohort=odp.Cohort(minimum=_USERS, goal=_USERS),
    )
    return odp.simulate(task, people, noise=False)


def test_a_simulation_by_tensorflow_is_one_by_litert_up_to_rounding(
    model: odp.KerasModel, model_for_litert: odp.KerasModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_litert = _run(model_for_litert).model.dense["parameters"]
    steps = []
    took = TensorFlowRunner.difference
    monkeypatch.setattr(TensorFlowRunner, "difference", lambda *a, **k: steps.append(1) or took(*a, **k))
    by_tensorflow = _run(model).model.dense["parameters"]
    assert len(steps) == 2 * _USERS
    np.testing.assert_allclose(by_tensorflow, by_litert, rtol=0, atol=2e-5)
    assert np.abs(by_litert - model.public_matrix).max() > 1e-3


def test_the_rule_counts_multiplications_of_an_example(model: odp.KerasModel, model_for_litert: odp.KerasModel) -> None:
    # 6 x 6 places of 3 x 3 x 2 -> 4 and of 3 x 3 x 4 -> 4, then 36 -> 3.
    assert multiplications(model.program) == 36 * (18 * 4 + 36 * 4) + 36 * 3
    assert dataclasses.replace(model, engine="auto").own_engine() is None
    assert model_for_litert.own_engine() is None
    large = odp.KerasModel(_network(filters=32, side=20), _SPARSE, batch=1)
    assert multiplications(large.program) > 2**21
    assert isinstance(large.own_engine(), TensorFlowRunner)


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"engine='tensorfow'.*'tensorflow'"):
        odp.KerasModel(_network(), _SPARSE, engine="tensorfow")
