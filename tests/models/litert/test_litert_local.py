"""Layers that stay on the device: found anew in every round, while shared ones stay, and never sent."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

import odp
from device_runtime.inference.offline import Available
from device_runtime.inference.predict import Predictor
from device_runtime.isolated.training import IsolatedTrainer
from odp.algorithms.federated.reading import ROWS, usable_rows
from odp.algorithms.federated.terms import CLIP, PARAMETERS, RELEASE, Terms
from odp.algorithms.predicting import PredictingClient
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows, NoisyTensors, ProgramClient
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, DataError
from odp.models.litert import service
from odp.models.litert.program import Program
from odp.models.litert.runner import Runner
from odp.models.litert.trained import TrainedNetwork, network_message
from odp.models.litert.trainer import LocalSteps, local_steps
from odp.models.local_training import LocalTraining
from odp.models.public_matrix import public_matrix_from
from odp.protocol.wire.model import Slices
from odp.signed.task import check_definition
from odp.v1 import common_pb2

from .compile_partly import CLASSES, FEATURES, HIDDEN, LOCAL, SHARED, stored

USERS = 6
_GENERATOR = np.random.default_rng(4)
START = (_GENERATOR.normal(size=SHARED) * 0.5).astype(np.float32)
LOCAL_START = (_GENERATOR.normal(size=LOCAL) * 0.5).astype(np.float32)
EXAMPLES = odp.Examples({"x": odp.Tensor((FEATURES,), -2.0, 2.0, scale=0.5)}, label="kind")
RECONSTRUCTION = odp.Reconstruction(rate=0.3, epochs=2)
TRAINING = odp.DPFedAvg(rounds=2, epochs=2, batch=4, rate=0.2, reconstruction=RECONSTRUCTION)


def definition_of(training: Any = TRAINING, *, local_start: np.ndarray | None = LOCAL_START) -> Any:
    privacy = odp.UserLevelDP(epsilon=4, delta=1e-5)
    definition = common_pb2.TaskDefinition(
        name="kinds",
        population="people",
        developer_key=SigningKey.generate().public,
        privacy=common_pb2.PrivacyTerms(epsilon=privacy.epsilon, delta=privacy.delta),
        cohort=odp.Cohort(minimum=2, goal=USERS).to_proto(privacy.delta),
    )
    definition.network.CopyFrom(network_message(stored(), START, local_start))
    EXAMPLES.write(definition)
    training.write(definition)
    return definition


def people() -> odp.data.UsersExamples:
    """Ragged users; the first has no examples, the second one."""
    generator = np.random.default_rng(1)
    features = (generator.normal(size=(60, FEATURES)) * 2.0).astype(np.float32)
    targets = generator.integers(0, CLASSES, 60).astype(np.float32)
    counts = np.array([0, 1, 9, 20, 3, 27])
    return odp.data.UsersExamples(features, targets, np.arange(60), np.concatenate(([0], np.cumsum(counts))))


def rows_of(users: odp.data.UsersExamples, user: int) -> LocalRows:
    rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
    return LocalRows(np.arange(len(rows)), users.targets[rows].astype(np.float64), {"x": users.features[rows]})


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(stored())


@pytest.fixture(scope="module")
def trainer() -> Iterator[IsolatedTrainer]:
    with IsolatedTrainer() as made:
        yield made


def _slopes(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    w, b, v, c = weights
    hidden = np.maximum(x @ w + b, 0)
    z = hidden @ v + c
    error = np.exp(z - z.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    back = (error @ v.T) * (hidden > 0)
    return [x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def _weights(vector: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum([FEATURES * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES])[:-1]
    w, b, v, c = np.split(vector.astype(np.float64), ends)
    return [w.reshape(FEATURES, HIDDEN), b, v.reshape(HIDDEN, CLASSES), c]


def _data(count: int = 11) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, FEATURES)).astype(np.float32)
    return x, generator.integers(0, CLASSES, count).astype(np.int32)


@pytest.mark.parametrize("split", [True, False])
def test_local_layers_are_trained_first_and_then_stay(runner: Runner, split: bool) -> None:
    """Against the network in numpy: algorithm 1 of federated reconstruction."""
    x, y = _data()
    training = dataclasses.replace(
        TRAINING.local(), reconstruction=odp.Reconstruction(rate=0.3, epochs=2, split=split), proximal=0.5
    )
    start = np.concatenate([START, LOCAL_START])
    steps = local_steps(training, len(y), seed=8, round=2)
    assert steps is not None
    batches = list(training.batches(len(y), seed=8, round=2))
    weights = _weights(start)
    first = [one.copy() for one in weights[:2]]
    for rows in steps.batches:
        slopes = _slopes(weights, x[rows], y[rows])
        weights[2:] = [one - 0.3 * slope for one, slope in zip(weights[2:], slopes[2:], strict=True)]
    own = np.concatenate([one.ravel() for one in weights[2:]])
    for rows in batches:
        slopes = _slopes(weights, x[rows], y[rows])
        for place in range(2):
            pull = 0.5 * (weights[place] - first[place])
            weights[place] = weights[place] - training.rate * (slopes[place] + pull)
    expected = np.concatenate([(one - old).ravel() for one, old in zip(weights[:2], first, strict=True)])
    moved = runner.difference(start, [x], y, batches, rate=training.rate, proximal=0.5, local=steps)
    assert moved.shape == (SHARED,)
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-6)
    whole = runner.reconstructed(start, [x], y, steps)
    np.testing.assert_array_equal(whole[:SHARED], START)
    np.testing.assert_allclose(whole[SHARED:], own, rtol=0, atol=1e-6)
    assert np.abs(whole[SHARED:] - LOCAL_START).max() > 0.05


def test_a_program_with_local_layers_needs_their_steps(runner: Runner) -> None:
    x, y = _data()
    start = np.concatenate([START, LOCAL_START])
    with pytest.raises(DataError, match="local steps"):
        runner.difference(start, [x], y, [np.arange(4)], rate=0.1)


def test_a_split_gives_each_example_to_one_kind_of_layers_and_depends_on_the_round() -> None:
    training = TRAINING.local()
    for examples in (0, 1, 2, 9, 40):
        local, shared = training.parts(examples, seed=7, round=0)
        assert len(local) == examples // 2
        assert sorted([*local, *shared]) == list(range(examples))
        for batches, part in ((training.local_batches, local), (training.batches, shared)):
            drawn = [row for rows in batches(examples, seed=7, round=0) for row in rows]
            assert sorted(drawn) == sorted([*part, *part])
    first, second = (training.parts(40, seed=7, round=round)[0] for round in (0, 1))
    assert set(first) != set(second)
    every = dataclasses.replace(training, reconstruction=dataclasses.replace(RECONSTRUCTION, split=False))
    assert [len(part) for part in every.parts(9, seed=7, round=0)] == [9, 9]


@pytest.mark.parametrize(
    "training",
    [TRAINING, odp.DPFTRL(rounds=2, epochs=1, batch=3, rate=0.2, reconstruction=RECONSTRUCTION)],
    ids=["averaging", "stream"],
)
def test_devices_behind_walls_and_the_simulator_make_the_same_sum(trainer: IsolatedTrainer, training: Any) -> None:
    definition, users = definition_of(training), people()
    check_definition(definition)
    algorithm = algorithm_for(definition)
    server = algorithm.server(item_features=public_matrix_from(definition, START.tobytes()))
    broadcast = server.broadcast(server.start())
    assert broadcast.dense[PARAMETERS].shape == (SHARED, 1)
    seeds = np.arange(USERS, dtype=np.uint64) + 100
    expected = algorithm.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE]
    assert expected.shape == (SHARED,)
    assert expected.any()
    client = algorithm.client()
    assert isinstance(client, ProgramClient)
    client = client.run_by(trainer)
    slices = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), dict(broadcast.dense))
    total = np.zeros(SHARED, dtype=np.int64)
    for user, seed in enumerate(seeds.tolist()):
        payload, kept = client.contribute(slices, algorithm.data_of(rows_of(users, user)), round=0, seed=seed)
        assert kept == b""
        algorithm.query(0).check(payload)
        total += np.frombuffer(payload, dtype="<i4")
    np.testing.assert_array_equal(total, expected)
    step = algorithm.query(0).releases[0].step
    moved = server.broadcast(server.step(server.start(), NoisyTensors(0, {RELEASE: expected * step}, USERS)))
    assert moved.dense[PARAMETERS].shape == (SHARED, 1)


def test_nothing_of_local_layers_comes_out_of_the_walls(trainer: IsolatedTrainer) -> None:
    program, (x, y) = stored(), _data()
    steps = LocalSteps([np.arange(4), np.array([4])], 0.3)
    start, batches = np.concatenate([START, LOCAL_START]), [np.array([5, 6]), np.array([7])]
    moved = trainer.difference(program, start, [x], y, batches, rate=0.1, local=steps)
    np.testing.assert_array_equal(moved, Runner(program).difference(start, [x], y, batches, rate=0.1, local=steps))
    assert moved.shape == (SHARED,)
    arrays = service.arrays_of(program, start, [x], y, batches, local=steps)
    assert len(arrays["targets/0"]) == 4 * 8
    with pytest.raises(DataError, match=str(SHARED)):
        service.difference_of({"difference": "AAAA" * program.size}, program)


def test_a_prediction_is_that_of_the_layers_that_are_found_of_the_persons_examples(trainer: IsolatedTrainer) -> None:
    """Behind the walls as here; and without own examples, of what local layers start with."""
    client = algorithm_for(definition_of()).client()
    assert isinstance(client, PredictingClient)
    assert client.is_personal
    users, asked = people(), (_data(5)[0] * 0.5).clip(-1, 1)
    dense = {PARAMETERS: START[:, None], CLIP: np.ones((1, 1), dtype=np.float32)}
    start, runner = np.concatenate([START, LOCAL_START]), Runner(stored())
    answers = []
    for user in (3, 5, None):
        data = None if user is None else {ROWS: rows_of(users, user)}
        given = client.predicted(dense, asked, data, trainer)
        vector = start
        if user is not None:
            own = usable_rows(client._terms.model, client.examples, rows_of(users, user))
            steps = local_steps(client._terms.local, len(own[1]), seed=0, round=0)
            assert steps is not None
            vector = runner.reconstructed(start, [own[0]], own[1].astype(np.int32), steps)
        logits = runner.predictions(vector, [asked]).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        np.testing.assert_allclose(given, powers / powers.sum(axis=1, keepdims=True), rtol=1e-6)
        answers.append(given)
    assert np.abs(answers[0] - answers[1]).max() > 1e-3 < np.abs(answers[0] - answers[2]).max()


def test_r458_an_app_is_told_no_prediction_that_depends_on_the_person() -> None:
    definition = definition_of()
    model = SimpleNamespace(definition=definition, client=algorithm_for(definition).client())
    with (
        Predictor(Available(SimpleNamespace(model=model))) as predictor,  # type: ignore[arg-type]
        pytest.raises(ConfigurationError, match="shown to the person alone"),
    ):
        predictor.predict({"x": _data(2)[0]})


def test_what_local_layers_start_with_moves_the_sum() -> None:
    users, seeds = people(), np.arange(USERS, dtype=np.uint64)
    sums = []
    for local_start in (LOCAL_START, None):
        algorithm = algorithm_for(definition_of(local_start=local_start))
        model = algorithm.server(item_features=START[:, None]).broadcast(
            algorithm.server(item_features=START[:, None]).start()
        )
        sums.append(algorithm.population().contribute(model, users, round=0, seeds=seeds)[RELEASE])
    assert not np.array_equal(*sums)


def _set(name: str, value: bytes) -> Callable[[Any], None]:
    return lambda definition: setattr(definition.network, name, value)


def _unreconstructed(definition: Any) -> None:
    definition.fedavg.local.ClearField("reconstruction")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_unreconstructed, "reconstruction=odp.Reconstruction"),
        (_set("local_start", b""), "local_start"),
        (_set("local_start", zlib.compress(bytes(4 * LOCAL + 4))), "local_start"),
        (_set("local_start", zlib.compress(bytes(4 * LOCAL)) + b"x"), "local_start"),
        (_set("local_start", zlib.compress(np.full(LOCAL, np.nan, dtype="<f4").tobytes())), "finite"),
        (lambda definition: definition.fedavg.local.reconstruction.__setattr__("epochs", 0), "epochs"),
        (lambda definition: definition.fedavg.local.reconstruction.__setattr__("rate", -1.0), "rate"),
    ],
    ids=["none", "missing", "long", "trailing", "nan", "epochs", "rate"],
)
def test_a_definition_that_devices_could_not_train_is_refused(change: Callable[[Any], None], named: str) -> None:
    definition = definition_of()
    algorithm_for(definition).check()
    change(definition)
    with pytest.raises(ConfigurationError, match=named):
        algorithm_for(definition).check()


def test_trainings_and_models_without_local_layers_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="have it"):
        algorithm_for(definition_of(odp.DPSGD(rounds=1, most_examples=4))).check()
    with pytest.raises(ConfigurationError, match=r"reconstruction=None with an odp\.Glm"):
        odp.Task(
            name="kinds", model=odp.Glm("multinomial", FEATURES, CLASSES), data=EXAMPLES, training=TRAINING,
            privacy=odp.UserLevelDP(epsilon=4, delta=1e-5), cohort=odp.Cohort(minimum=2, goal=USERS),
        ).definition()  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"to be an odp\.Reconstruction"):
        odp.DPFedAvg(rounds=1, reconstruction={"rate": 0.1})  # type: ignore[arg-type]
    shared = dataclasses.replace(
        stored(), parameters=tuple(dataclasses.replace(one, local=False) for one in stored().parameters)
    )
    with pytest.raises(ConfigurationError, match=r"local=\[\.\.\]"):
        TrainedNetwork(shared, b"").check_training(TRAINING.local())


def test_a_definition_keeps_every_number_of_a_reconstruction() -> None:
    terms = Terms.of(definition_of(odp.DPFedAvg(rounds=1, batch=4, reconstruction=odp.Reconstruction(
        rate=0.25, epochs=3, split=False))))  # fmt: skip
    assert terms.local.reconstruction == odp.Reconstruction(rate=0.25, epochs=3, split=False)
    assert LocalTraining.of(terms.local.to_proto()) == terms.local
    program: Program = terms.model.program  # type: ignore[attr-defined]
    assert (terms.model.size, program.size) == (SHARED, SHARED + LOCAL)
