"""DP-SGD: a contribution is the clipped mean gradient of a user's loss, and nothing else of federated averaging."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import odp
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.federated.terms import PARAMETERS
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError
from odp.protocol.wire.model import Slices
from odp.signed.task import check_definition
from odp.v1 import common_pb2

FEATURES = 5
MODEL = odp.Glm("poisson", FEATURES)


def task(**changes: object) -> odp.Task:
    given = {
        "name": "visits",
        "model": MODEL,
        "data": odp.Examples({"x": odp.Tensor((FEATURES,), -1.0, 1.0)}, label="visits", label_low=0.0, label_high=9.0),
        "privacy": odp.UserLevelDP(epsilon=4, delta=1e-5),
        "training": odp.DPSGD(rounds=3, clip=2.0, server_rate=0.5),
        "cohort": odp.Cohort(minimum=2, goal=30),
    }
    return odp.Task(**{**given, **changes})  # type: ignore[arg-type]


def definition() -> common_pb2.TaskDefinition:
    written = task().definition()
    written.developer_key = bytes(range(32))
    return written


@pytest.mark.parametrize("clip", [100.0, 1e-2])
def test_a_contribution_is_the_clipped_gradient_downhill(clip: float) -> None:
    generator = np.random.default_rng(5)
    features = generator.uniform(-1, 1, (40, FEATURES)).astype(np.float32)
    targets = generator.integers(0, 10, 40).astype(np.float32)
    start = (generator.normal(size=MODEL.size) * 0.3).astype(np.float32)
    algorithm = algorithm_for(task(training=odp.DPSGD(rounds=1, clip=clip)).definition())
    rows = LocalRows(np.arange(40), targets.astype(np.float64), {"x": features})
    slices = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {PARAMETERS: start[:, None]})
    payload, local = algorithm.client().contribute(slices, algorithm.data_of(rows), round=0, seed=1)
    query = algorithm.query(0)
    assert isinstance(query, DenseQuery)
    query.check(payload)
    assert local == b""
    sent = np.frombuffer(payload, dtype="<i4") * query.grid.step * clip
    gradient = np.zeros(MODEL.size)
    for place in range(MODEL.size):
        apart = np.zeros(MODEL.size)
        apart[place] = 1e-3
        ends = [
            MODEL.losses((start + side * apart).astype(np.float64), features, targets).mean()  # type: ignore[arg-type]
            for side in (1.0, -1.0)
        ]
        gradient[place] = (ends[0] - ends[1]) / 2e-3
    wanted = -gradient * min(1.0, clip / float(np.linalg.norm(gradient)))
    assert np.abs(sent - wanted).max() <= 1e-3 * float(np.linalg.norm(wanted)) + 2 * query.grid.step * clip


def test_training_learns() -> None:
    generator = np.random.default_rng(8)
    truth = np.array([1.0, -0.5, 0.0, 0.7, -1.0])
    features = generator.uniform(-1, 1, (6000, FEATURES)).astype(np.float32)
    targets = np.minimum(generator.poisson(np.exp(features @ truth)), 9).astype(np.float32)
    users = np.arange(6000) % 300
    people = odp.data.ExamplesSplit(
        train=odp.data.UsersExamples.of_users(features, targets, users),
        test=odp.data.UsersExamples.of_users(features, targets, users),
    )
    run = odp.simulate(
        task(training=odp.DPSGD(rounds=30, clip=2.0, server_rate=0.3), cohort=odp.Cohort(minimum=50, goal=300),
             privacy=odp.UserLevelDP(epsilon=8, delta=1e-4)),
        people,
    )  # fmt: skip
    vector = run.model.dense[PARAMETERS][:, 0]
    assert np.abs(vector[:-1] - truth).max() < 0.25
    assert 7.98 < run.epsilon <= 8.0


def _reconstructing(written: common_pb2.TaskDefinition) -> None:
    written.dpsgd.local.reconstruction.rate, written.dpsgd.local.reconstruction.epochs = 0.5, 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.dpsgd.local.__setattr__("epochs", 2), "one step"),
        (lambda d: d.dpsgd.local.__setattr__("rate", 0.5), "one step"),
        (lambda d: d.dpsgd.local.__setattr__("proximal", 0.5), "one step"),
        (_reconstructing, "reconstruction"),
        (lambda d: d.dpsgd.local.__setattr__("batch", 10), "batch=10"),
    ],
)
def test_a_definition_of_other_work_is_refused(
    spoil: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    written = definition()
    check_definition(written)
    spoil(written)
    with pytest.raises(ConfigurationError, match=message):
        check_definition(written)


def test_choices_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="most_examples"):
        odp.DPSGD(most_examples=0)
    with pytest.raises(ConfigurationError, match="rounds"):
        odp.DPSGD(rounds=0)
