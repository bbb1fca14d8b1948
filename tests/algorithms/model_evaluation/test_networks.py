"""Networks and recommenders: devices behind walls measure what the simulator measures, and what a loop gives."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

from algorithms.model_evaluation.worlds import slices_of
from models.litert import compile_mlp, compile_towers, hostile
from models.litert.stored_models import CHOICES, DIGITS, choosers, network, readers, towers, vector

import odp
from device_runtime.isolated import HandlerFailed
from device_runtime.isolated.training import IsolatedTrainer
from odp.algorithms.model_evaluation.client import EvaluationClient
from odp.algorithms.model_evaluation.results import EvaluationResults
from odp.algorithms.model_evaluation.terms import RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalData, LocalRows, ProgramClient
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, DataError, StateError
from odp.models.examples import ExamplesTerms
from odp.models.litert import runner, service
from odp.models.litert.program import Program
from odp.models.litert.runner import Runner
from odp.models.litert.trained import TrainedNetwork
from odp.models.litert.trained_towers import TrainedTowers
from odp.models.litert.trainer import Measured
from odp.numerics.arrays import Float32Array
from odp.signed.task import check_definition

USERS = 14
MLP, TOWERS = compile_mlp.stored(), compile_towers.stored()
# The grid rounds each number of each user by less than a step, without bias.
CLOSE = 5e-3


@pytest.fixture(scope="module")
def trainer() -> Iterator[IsolatedTrainer]:
    with IsolatedTrainer() as made:
        yield made


def of_network(program: Program = MLP, **changes: object) -> odp.Evaluation:
    return _evaluation({"model": network(program), "data": DIGITS, "of": vector(program), **changes})


def of_towers(program: Program = TOWERS, **changes: object) -> odp.Evaluation:
    return _evaluation({"model": towers(program), "data": CHOICES, "of": vector(program), **changes})


def _evaluation(given: dict[str, object]) -> odp.Evaluation:
    shared: dict[str, object] = {
        "name": "quality", "privacy": odp.UserLevelDP(epsilon=4, delta=1e-6),
        "cohort": odp.Cohort(minimum=5, goal=USERS),
    }  # fmt: skip
    return odp.Evaluation(**{**shared, **given})  # type: ignore[arg-type]


def own_data(task: odp.Evaluation, users: odp.data.UsersExamples, user: int) -> LocalData:
    features, targets = users.of(user)
    columns, begin = {}, 0
    for name, tensor in task.data.features.items():
        columns[name] = features[:, begin : begin + tensor.size].reshape(-1, *tensor.shape)
        begin += tensor.size
    rows = LocalRows(np.arange(len(targets)), targets.astype(np.float64), columns)
    return algorithm_for(task.definition()).data_of(rows)


def simulated(task: odp.Evaluation, users: odp.data.UsersExamples, seeds: np.ndarray) -> np.ndarray:
    algorithm = algorithm_for(task.definition())
    server = algorithm.server(item_features=task.public_matrix)
    return algorithm.population().contribute(server.broadcast(server.start()), users, round=0, seeds=seeds)[RELEASE]


def exact(task: odp.Evaluation, users: odp.data.UsersExamples) -> EvaluationResults:
    found = odp.simulate(task, users, noise=False).results
    assert isinstance(found, EvaluationResults)
    return found


@pytest.mark.parametrize(
    "case",
    ["network", "halves", "personal", "towers", "recommended", "halves of recommended", "personal recommended"],
)
@pytest.mark.slow
def test_devices_behind_walls_make_the_sum_of_the_simulator(trainer: IsolatedTrainer, case: str) -> None:
    """The same bits: LiteRT runs the examples of one user after the other in both."""
    ranked = {"metrics": ["recall@2", "recall@5"], "most_examples": 6}
    training = odp.PersonalTraining(rate=0.3, epochs=2, batch=4)
    task = {
        "network": lambda: of_network(metrics=["loss", "accuracy", "recall@2", "calibration"], most_examples=4),
        "halves": lambda: of_network(against=vector(MLP, seed=9)),
        "personal": lambda: of_network(personal=training),
        "towers": lambda: of_towers(),
        "recommended": lambda: of_towers(**ranked),
        "halves of recommended": lambda: of_towers(against=vector(TOWERS, seed=9), **ranked),
        "personal recommended": lambda: of_towers(personal=training, **ranked),
    }[case]()
    users = choosers(USERS) if task.data is CHOICES else readers(USERS)
    definition = task.definition()
    definition.developer_key = SigningKey.generate().public
    check_definition(definition)
    algorithm, seeds = algorithm_for(definition), np.arange(USERS, dtype=np.uint64) + 100
    client = algorithm.client()
    assert isinstance(client, ProgramClient)
    client = client.run_by(trainer)
    total = np.zeros(algorithm.query(0).payload_bytes // 4, dtype=np.int64)
    for user, seed in enumerate(seeds.tolist()):
        payload, kept = client.contribute(slices_of(task), own_data(task, users, user), round=0, seed=seed)
        algorithm.query(0).check(payload)
        assert kept == b""
        total += np.frombuffer(payload, dtype="<i4")
    np.testing.assert_array_equal(total, simulated(task, users, seeds))
    assert np.count_nonzero(total) > 2


def _read(task: odp.Evaluation, users: odp.data.UsersExamples, user: int) -> tuple[Float32Array, Float32Array]:
    """The examples that the model reads, side by side."""
    definition = task.definition()
    features, targets = users.of(user)
    features, scale = ExamplesTerms.of(definition.examples).clamped(features, scale=1.0)
    features = (features * np.float32(scale)).astype(np.float32)
    model = TrainedTowers.of(definition.two_tower) if task.data is CHOICES else TrainedNetwork.of(definition.network)
    usable = model.usable(features, targets)
    return features[usable], targets[usable]


def test_metrics_of_a_network_are_those_of_its_program() -> None:
    task, users, program = (
        of_network(metrics=["loss", "accuracy", "recall@2", "calibration"]),
        readers(USERS),
        Runner(MLP),
    )
    losses, hits, share = [], {1: [], 2: []}, []
    for user in range(USERS):
        x, y = _read(task, users, user)
        if not len(y):
            continue
        logits = program.predictions(task.of, [x]).astype(np.float64)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        own = p[np.arange(len(y)), y.astype(int)]
        losses.append(np.minimum(-np.log(own), 2 * math.log(compile_mlp.CLASSES)).mean())
        for top, found in hits.items():
            found.append(((p > own[:, None]).sum(axis=1) < top).mean())
        share.append((p.max(axis=1) < 0.5).mean())
    found = exact(task, users)
    assert found["loss"].value == pytest.approx(np.mean(losses), abs=CLOSE)
    assert found["accuracy"].value == pytest.approx(np.mean(hits[1]), abs=CLOSE)
    assert found["recall@2"].value == pytest.approx(np.mean(hits[2]), abs=CLOSE)
    groups = found.models()["model"].calibration
    assert groups is not None
    assert sum(one.share for one in groups.groups if one.high <= 0.5) == pytest.approx(np.mean(share), abs=CLOSE)


def test_recall_is_the_share_of_chosen_items_among_the_first_of_all_that_the_person_did_not_choose() -> None:
    task, users, program = of_towers(metrics=["recall@1", "recall@4"]), choosers(USERS, seed=2), Runner(TOWERS)
    hits: dict[int, list[float]] = {1: [], 4: []}
    for user in range(USERS):
        x, y = _read(task, users, user)
        x = x[y == 1]
        chosen, places = {int(item) for item in x[:, -1]}, []
        for example in x:
            about = np.repeat(example[None, :-1], compile_towers.ITEMS, axis=0)
            every = np.arange(compile_towers.ITEMS, dtype=np.int32)[:, None]
            scores = program.predictions(task.of, [about, every])[:, 0]
            own = int(example[-1])
            places.append(sum(scores[item] > scores[own] for item in range(compile_towers.ITEMS) if item not in chosen))
        for top, found in hits.items():
            if places:
                found.append(float(np.mean(np.array(places) < top)))
    found = exact(task, users)
    assert list(found) == ["recall@1", "recall@4"]
    for top, expected in hits.items():
        assert 0.0 < np.mean(expected) < 1.0
        assert found[f"recall@{top}"].value == pytest.approx(np.mean(expected), abs=CLOSE)
    assert found.models()["model"].users.value == pytest.approx(len(hits[1]), abs=0.1)


def test_probabilities_follow_from_logits_and_from_probabilities_alike() -> None:
    """A program whose description says that it gives probabilities is taken at its word, within 0 and 1."""
    given = TrainedTowers(TOWERS, b"", items=compile_towers.ITEMS)
    said = TrainedTowers(dataclasses.replace(TOWERS, threshold=0.5), b"", items=compile_towers.ITEMS)
    x, y = _read(of_towers(), choosers(USERS), 2)
    scores = Runner(TOWERS).predictions(vector(TOWERS), [x[:, :-1], x[:, -1:].astype(np.int32)])[:, 0]
    from_logits = given.tested_here(vector(TOWERS), x, y, ranked=False).probabilities
    as_it_is = said.tested_here(vector(TOWERS), x, y, ranked=False).probabilities
    assert from_logits is not None
    assert as_it_is is not None
    np.testing.assert_allclose(from_logits[:, 1], 1 / (1 + np.exp(-scores.astype(np.float64))), rtol=1e-6)
    np.testing.assert_array_equal(as_it_is[:, 1], scores.astype(np.float64))


def test_numbers_of_a_wild_program_stay_in_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is not a number is the largest one, and classes without finite probabilities are alike."""

    class Wild(Runner):
        def measured(self, *given: object, **more: object) -> Measured:
            found = super().measured(*given, **more)  # type: ignore[arg-type]
            return Measured(np.full_like(found.losses, np.nan), np.full_like(found.predictions, np.inf), found.places)

    monkeypatch.setattr(runner, "Runner", Wild)
    found = exact(of_network(metrics=["loss", "accuracy", "calibration"], bins=5), readers(USERS))
    assert found["loss"].value == pytest.approx(2 * math.log(compile_mlp.CLASSES), abs=CLOSE)
    groups = found.models()["model"].calibration
    assert groups is not None
    # A fifth each: all examples are in one bin.
    assert sorted(one.share for one in groups.groups)[-1] == pytest.approx(1.0, abs=CLOSE)


def test_on_a_device_a_program_runs_only_by_its_trainer(trainer: IsolatedTrainer) -> None:
    task = of_network()
    client = algorithm_for(task.definition()).client()
    assert isinstance(client, EvaluationClient)
    with pytest.raises(ConfigurationError, match="without a trainer"):
        client.run_by(None)
    with pytest.raises(StateError, match="trainer"):
        client.contribute(slices_of(task), own_data(task, readers(USERS), 2), round=0, seed=1)
    own = TrainedNetwork(MLP, b"", trainer=trainer)
    with pytest.raises(StateError, match="process of a device"):
        own.tested_here(task.of, np.zeros((1, 6), np.float32), np.zeros(1, np.float32), ranked=False)


@pytest.mark.parametrize("make", [hostile.refusing, hostile.hungry], ids=lambda make: make.__name__)
@pytest.mark.parametrize("signature", ["evaluate", "infer"])
def test_a_hostile_program_fails_alone(
    trainer: IsolatedTrainer, make: Callable[[Program, str], Program], signature: str
) -> None:
    """What fails is answered by the empty contribution (``device_runtime.round.contribution``)."""
    task = of_network(make(MLP, signature))
    algorithm = algorithm_for(task.definition())
    client = algorithm.client()
    assert isinstance(client, ProgramClient)
    own = own_data(task, readers(USERS), 2)
    with pytest.raises(HandlerFailed):
        client.run_by(trainer).contribute(slices_of(task), own, round=0, seed=1)
    algorithm.query(0).check(client.empty(0))


def _text(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


@pytest.mark.parametrize(
    "result",
    [
        {}, {"losses": "no base64"}, {"losses": _text(np.zeros(2, np.float32))},
        {"losses": _text(np.zeros(3, np.float32)), "predictions": _text(np.zeros(12, np.float32))},
        {"losses": _text(np.zeros(3, np.float32)), "predictions": _text(np.zeros(15, np.float32)), "places": "AA=="},
    ],
)  # fmt: skip
def test_measurements_of_other_shapes_are_refused(result: dict[str, str]) -> None:
    with pytest.raises(DataError, match="measurements of 3 examples"):
        service.measured_of(result, MLP, examples=3, items=0)


@pytest.mark.parametrize("place", [-1, 12])
def test_a_place_that_no_item_has_is_refused(place: int) -> None:
    places = {"places": _text(np.array([0, place]))}
    with pytest.raises(DataError, match="places from 0 to 11"):
        service.measured_of(places, TOWERS, examples=2, items=12)
    with pytest.raises(DataError, match="measurements of 3 examples"):
        service.measured_of(places, TOWERS, examples=3, items=12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of_towers(metrics=["recall@3", "loss"]), "metrics='loss' in an evaluation of its own"),
        (lambda: of_towers(metrics=[f"recall@{compile_towers.ITEMS}"]), "recall=12"),
        (lambda: of_network(metrics=["recall@5"]), "recall=5"),
        (lambda: of_network(metrics=["auc"]), "two classes"),
        (lambda: of_network(personal=odp.PersonalTraining(batch=5)).definition(), "batch=5 to be at most batch=4"),
        (lambda: of_network(of=vector(TOWERS)), "of to be the 89 finite parameters"),
        (lambda: of_network(dataclasses.replace(MLP, classes=4)).definition(), "one of classes=4 classes"),
        (
            lambda: of_towers(metrics=["recall@3"], most_examples=5000).definition(),
            "most_examples=5000 .* at most 4096",
        ),
    ],
)
def test_evaluations_of_networks_that_make_no_sense_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        algorithm_for(make()).check()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.model_evaluation.ranked.append(2), "ascending"),
        (lambda d: d.model_evaluation.ranked.append(12), "ranked=12"),
        (lambda d: d.model_evaluation.top.append(1), "without loss, top and bins"),
        (lambda d: d.model_evaluation.__setattr__("bins", 4), "without loss, top and bins"),
        (lambda d: d.network.CopyFrom(d.two_tower.network), "ranks no items"),
    ],
)
def test_a_ranking_out_of_its_bounds_is_refused(spoil: object, message: str) -> None:
    definition = of_towers(metrics=["recall@3"]).definition()
    definition.developer_key = SigningKey.generate().public
    check_definition(definition)
    spoil(definition)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)
