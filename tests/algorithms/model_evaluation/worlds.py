"""A population of labelled examples, models of it, and evaluations of those."""

from __future__ import annotations

import numpy as np

import odp
from odp.algorithms.model_evaluation.terms import PARAMETERS, Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.datasets.examples import UsersExamples
from odp.models.glm import Glm
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import Slices

FEATURES = 6
LOGISTIC = Glm("logistic", FEATURES)
MULTINOMIAL = Glm("multinomial", FEATURES, 4)
DATA = odp.Examples({"x": odp.Tensor((2, 3), -2.0, 2.0, scale=0.5)}, label="kind")


def people(users: int, *, classes: int = 2, seed: int = 1) -> UsersExamples:
    """Ragged users, some empty, with numbers out of range, not a number, and missing labels."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 12, users)
    counts[:3] = 0, 1, 2
    total = int(counts.sum())
    features = (generator.normal(size=(total, FEATURES)) * 1.5).astype(np.float32)
    targets = generator.integers(0, classes, total).astype(np.float32)
    features[3, 2], features[4, 1], targets[5:8] = np.nan, np.inf, np.nan
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return UsersExamples(features, targets, np.arange(total), offsets)


def vector(model: Glm, *, seed: int = 2, scale: float = 1.0) -> Float32Array:
    return (np.random.default_rng(seed).normal(size=model.size) * scale).astype(np.float32)


def evaluation(users: int = 60, *, model: Glm = LOGISTIC, mode: str = "enclave", **changes: object) -> odp.Evaluation:
    given: dict[str, object] = {
        "name": "quality", "model": model, "data": DATA, "bins": 10,
        "privacy": odp.UserLevelDP(epsilon=4, delta=1e-6),
        "cohort": odp.Cohort(minimum=min(20, users), goal=users, aggregation=mode),
    }  # fmt: skip
    if "of" not in changes:
        given["of"] = vector(model)
    return odp.Evaluation(**{**given, **changes})  # type: ignore[arg-type]


def terms_of(task: odp.Evaluation) -> Terms:
    return Terms.of(task.definition())


def rows_of(users: UsersExamples, user: int) -> LocalRows:
    features, targets = users.of(user)
    return LocalRows(np.arange(len(targets)), targets.astype(np.float64), {"x": features.reshape(-1, 2, 3)})


def slices_of(task: odp.Evaluation) -> Slices:
    """What a device fetches of the evaluation."""
    algorithm = algorithm_for(task.definition())
    server = algorithm.server(item_features=task.public_matrix)
    dense = server.broadcast(server.start()).dense
    assert set(dense) <= set(PARAMETERS)
    return Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), dense)
