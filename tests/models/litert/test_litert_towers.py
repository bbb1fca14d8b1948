"""Federated training of two towers: devices and simulator draw the same negatives, and make the same payloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

from device_runtime.isolated.training import IsolatedTrainer
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.federated.reading import ROWS
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.predicting import PredictingClient, RankedItems
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows, NoisyTensors, ProgramClient
from odp.crypto.signing import SigningKey
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.litert.program import Array, Program, TensorSpec
from odp.models.litert.runner import Runner
from odp.models.litert.trained import network_message
from odp.models.litert.trained_towers import TrainedTowers
from odp.models.litert.trainer import LocalSteps, Measured
from odp.models.local_training import LocalTraining
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import Slices
from odp.signed.task import check_definition
from odp.v1 import common_pb2, federated_pb2

from .compile_towers import FEATURES, ITEMS, stored

USERS = 5
START = (np.random.default_rng(4).normal(size=stored().size) * 0.5).astype(np.float32)
EXAMPLES = Examples({"about": Tensor((FEATURES,), -2.0, 2.0), "item": Tensor((1,), 0, ITEMS - 1)}, label="chosen")
TRAINING = DPFedAvg(rounds=2, epochs=2, batch=5, rate=0.2)


def definition_of(
    *, program: Program | None = None, negatives: int = 2, items: int = ITEMS, data: Examples = EXAMPLES
) -> common_pb2.TaskDefinition:
    privacy = UserLevelDP(epsilon=4, delta=1e-5)
    definition = common_pb2.TaskDefinition(
        name="films",
        population="people",
        developer_key=SigningKey.generate().public,
        privacy=common_pb2.PrivacyTerms(epsilon=privacy.epsilon, delta=privacy.delta),
        cohort=Cohort(minimum=2, goal=USERS).to_proto(privacy.delta),
    )
    network = network_message(program or stored(), START)
    definition.two_tower.CopyFrom(federated_pb2.TwoTowerModel(network=network, items=items, negatives=negatives))
    data.write(definition)
    TRAINING.write(definition)
    return definition


def people() -> UsersExamples:
    """Ragged users, the first without examples; some examples have an item that is none, or no class."""
    generator = np.random.default_rng(1)
    features = np.column_stack((generator.normal(size=(23, FEATURES)), generator.integers(0, ITEMS, 23)))
    targets = (generator.random(23) < 0.8).astype(np.float32)
    features[4, -1], features[5, -1], targets[6], features[7, 0] = 2.5, np.nan, np.nan, np.nan
    offsets = np.concatenate(([0], np.cumsum([0, 1, 9, 6, 7])))
    return UsersExamples(features.astype(np.float32), targets, np.arange(23), offsets)


def rows_of(users: UsersExamples, user: int) -> LocalRows:
    rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
    columns = {"about": users.features[rows, :-1], "item": users.features[rows, -1:]}
    return LocalRows(np.arange(len(rows)), users.targets[rows].astype(np.float64), columns)


class RecordingTrainer:
    """``ProgramTrainer`` in this process, which keeps the items and targets that it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[Array, Array]] = []

    def require(self, program: Program, *, most_examples: int) -> None:
        """Runs all programs."""

    def prepare(self, program: Program) -> None:
        """Needs nothing."""

    def difference(
        self,
        program: Program,
        start: Float32Array,
        features: list[Array],
        targets: Array,
        batches: list[Int64Array],
        *,
        rate: float,
        proximal: float = 0.0,
        local: LocalSteps | None = None,
    ) -> Float32Array:
        """By LiteRT."""
        self.given.append((features[-1], targets))
        return Runner(program).difference(start, features, targets, batches, rate=rate, proximal=proximal, local=local)

    def measured(
        self, program: Program, vector: Float32Array, features: list[Array], targets: Array, *, items: int = 0
    ) -> Measured:
        """By LiteRT."""
        return Runner(program).measured(vector, features, targets, items=items)


def test_devices_and_the_simulator_make_the_same_sum() -> None:
    definition, users, trainer = definition_of(), people(), RecordingTrainer()
    check_definition(definition)
    algorithm = algorithm_for(definition)
    server = algorithm.server(item_features=START[:, None])
    state = server.start()
    for round in range(server.rounds):
        broadcast = server.broadcast(state)
        seeds = np.arange(USERS, dtype=np.uint64) + 100
        expected = algorithm.population().contribute(broadcast, users, round=round, seeds=seeds)[RELEASE]
        client = algorithm.client()
        assert isinstance(client, ProgramClient)
        client = client.run_by(trainer)
        slices = Slices(
            0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32),
            {PARAMETERS: broadcast.dense[PARAMETERS]},
        )  # fmt: skip
        total = np.zeros(len(expected), dtype=np.int64)
        for user, seed in enumerate(seeds.tolist()):
            own = algorithm.data_of(rows_of(users, user))
            payload, _ = client.contribute(slices, own, round=round, seed=seed)
            algorithm.query(round).check(payload)
            total += np.frombuffer(payload, dtype="<i4")
        np.testing.assert_array_equal(total, expected)
        assert expected.any()
        step = algorithm.query(round).releases[0].step
        state = server.step(state, NoisyTensors(round, {RELEASE: expected * step}, USERS))
    items, targets = trainer.given[-3]  # the third of five users, in the last round
    # Of nine examples, four cannot be used; the class is 1 of those whose item is drawn beside.
    usable = people().targets[[1, 2, 3, 8, 9]]
    assert len(targets) == 5 + 2 * int(usable.sum())
    assert not set(items[5:, 0].tolist()) & set(items[:5, 0].tolist())
    np.testing.assert_array_equal(targets[:, 0], [*usable, *np.zeros(len(targets) - 5)])


def test_negatives_move_the_items_that_nobody_chose() -> None:
    users = UsersExamples(
        np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 3]], dtype=np.float32), np.ones(2, dtype=np.float32),
        np.arange(2), np.array([0, 2]),
    )  # fmt: skip
    training, seeds = LocalTraining(rate=0.1, batch=5), np.array([9], dtype=np.uint64)
    moved = {}
    for negatives in (0, 3):
        model = TrainedTowers(stored(), b"", items=ITEMS, negatives=negatives)
        out = np.empty((1, model.size), dtype=np.float32)
        model.differences(START, users, training, seeds=seeds, round=0, users=slice(0, 1), out=out)
        rows = model.program.split(out[0])["sequential_1/embedding/embeddings"]
        moved[negatives] = set(np.flatnonzero(rows.any(axis=1)).tolist())
    assert moved[0] == {0, 3}
    assert moved[3] > {0, 3}


def _data(**changes: Tensor) -> Examples:
    return Examples({**EXAMPLES.features, **changes}, label="chosen")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: definition_of(items=1), "items=1"),
        (lambda: definition_of(negatives=65), "negatives=65"),
        (lambda: definition_of(data=_data(item=Tensor((1,), 0, ITEMS))), r"0, 11\)"),
        (lambda: definition_of(data=_data(item=Tensor((1,), 0, ITEMS - 1, scale=2.0))), "'item', to be the item"),
        (lambda: definition_of(program=dataclasses.replace(stored(), classes=0)), "negatives=2 with a loss of two"),
        (
            lambda: definition_of(program=dataclasses.replace(stored(), features=stored().features[:1])),
            "one number, an item",
        ),
        (
            lambda: definition_of(
                program=dataclasses.replace(stored(), features=(stored().features[0], TensorSpec("x1", (2,), "int32")))
            ),
            "one number, an item",
        ),
    ],
    ids=["items", "negatives", "range", "scale", "classes", "inputs", "vector"],
)
def test_towers_that_do_not_fit_are_refused(make: Callable[[], common_pb2.TaskDefinition], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        algorithm_for(make()).check()


def test_all_items_are_ranked_behind_the_walls_as_here_and_own_ones_are_left_out() -> None:
    client = algorithm_for(definition_of()).client()
    assert isinstance(client, PredictingClient)
    assert client.ranked_feature == "item"
    about = np.array([[0.5] * FEATURES, [-1.5] * FEATURES], dtype=np.float32)
    asked = np.column_stack((about, np.zeros(2, dtype=np.float32)))
    dense = {PARAMETERS: START[:, None], "clip": np.ones((1, 1), dtype=np.float32)}
    every = np.arange(ITEMS, dtype=np.float32)
    with IsolatedTrainer() as trainer:
        scores = client.scored(dense, asked, trainer)
        pairs = [client.predicted(dense, np.column_stack((np.repeat(row[None], ITEMS, 0), every)), None, trainer)
                 for row in about]  # fmt: skip
    assert scores.shape == (2, ITEMS)
    for of_row, probabilities in zip(scores, pairs, strict=True):
        np.testing.assert_array_equal(np.argsort(of_row), np.argsort(probabilities[:, 1]))
    best = int(scores[0].argmax())
    ranked = RankedItems.best(scores, count=3, without=np.array([best]), names=None, version=1, offline=None)
    np.testing.assert_array_equal(ranked.items[0], [item for item in np.argsort(-scores[0]) if item != best][:3])
    assert [row["item"] for row in ranked.rows()[1]] == ranked.items[1].tolist()
    rows = LocalRows(np.zeros(0, np.int64), np.ones(3), {"about": np.tile(about[0], (3, 1)),
                     "item": np.array([[4.0], [2.0], [4.0]])})  # fmt: skip
    np.testing.assert_array_equal(client.own_items({ROWS: rows}), [2, 4])
