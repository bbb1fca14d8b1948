"""A device reads its newest rows alone, before it encodes any; a simulation draws from the same ones."""

from __future__ import annotations

import numpy as np
import pytest

import odp
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.datasets.examples import UsersExamples
from odp.models.local_training import ROWS_PER_EXAMPLE
from odp.protocol.wire.model import ModelVersion, Slices
from odp.v1 import common_pb2

FEATURES, MOST, HELD = 3, 2, 30
MODEL = odp.Glm("multinomial", features=FEATURES, classes=3)
DATA = odp.Examples({"x": odp.Tensor((FEATURES,), -1, 1)}, label="kind")
COHORT = odp.Cohort(minimum=20, goal=24, round_seconds=600)
PRIVACY = odp.UserLevelDP(epsilon=4.0, delta=1e-6)
TASKS = {
    "fedavg": odp.Task(
        name="t", model=MODEL, data=DATA, privacy=PRIVACY, cohort=COHORT,
        training=odp.DPFedAvg(rounds=1, most_examples=MOST, epochs=3, batch=1),
    ),
    "evaluation": odp.Evaluation(
        name="t", model=MODEL, data=DATA, of=np.arange(MODEL.size) / 7, privacy=PRIVACY, cohort=COHORT,
        most_examples=MOST, bins=4,
    ),
}  # fmt: skip


def people() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and users of two people, one with more rows than a device reads."""
    generator = np.random.default_rng(3)
    users = np.repeat([0, 1], [HELD, 3])
    features = generator.uniform(-1, 1, (len(users), FEATURES)).astype(np.float32)
    return features, generator.integers(0, 3, len(users)).astype(np.float32), users


def contributed(
    definition: common_pb2.TaskDefinition, model: ModelVersion, *, changed: int | None = None
) -> np.ndarray:
    """The payload of the first person; ``changed`` is a row that holds something else."""
    features, targets, users = people()
    own = features[users == 0].copy()
    if changed is not None:
        own[changed] = 1.0
    rows = LocalRows(np.arange(HELD), targets[users == 0].astype(np.float64), {"x": own})
    algorithm = algorithm_for(definition)
    (table,) = algorithm.local_data
    slices = Slices(0, np.zeros(0, np.int64), np.zeros((0, 0), np.float32), model.dense)
    payload, _ = algorithm.client().contribute(slices, {table.name: rows}, round=0, seed=5)
    return np.frombuffer(payload, dtype="<i4").astype(np.int64)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_device_and_a_simulation_read_the_same_newest_rows(name: str) -> None:
    definition = TASKS[name].definition()
    algorithm = algorithm_for(definition)
    server = algorithm.server(item_features=TASKS[name].public_matrix)
    model = server.broadcast(server.start())
    own = contributed(definition, model)
    oldest_read = HELD - ROWS_PER_EXAMPLE * MOST
    for row in (0, oldest_read - 1):
        np.testing.assert_array_equal(contributed(definition, model, changed=row), own)
    assert any((contributed(definition, model, changed=row) != own).any() for row in range(oldest_read, HELD)), (
        "the newest rows are read"
    )
    features, targets, users = people()
    first = UsersExamples.of_users(features[users == 0], targets[users == 0], users[users == 0])
    sums = algorithm.population().contribute(model, first, round=0, seeds=np.array([5], dtype=np.uint64))
    (simulated,) = sums.values()
    assert np.abs(simulated - own).max() <= 1
