"""Training of a generalised linear model on one device's examples. Imports numpy alone."""

from __future__ import annotations

import numpy as np

from odp.models.features import Encoding
from odp.models.glm.shape import Glm
from odp.models.local_training import LocalTraining
from odp.numerics.arrays import Float32Array


def difference(
    shape: Glm,
    start: Float32Array,
    features: Float32Array,
    targets: Float32Array,
    training: LocalTraining,
    *,
    seed: int,
    round: int,
    encoding: Encoding | None = None,
) -> Float32Array:
    """What training moves the parameters by, float32 [size]: zeros without examples, and where it is not finite.

    Args:
      start: parameters of the round, float32 [size].
      features: float32 [n, features], or with an ``encoding`` the numbers of examples [n, width].
      targets: float32 [n]; classes as whole numbers. Those that the family does not know are the caller's to leave out
        (``Glm.usable``).
      seed: of the user, 64 bits.
      encoding: of each batch.
    """
    vector = start.astype(np.float32)
    weights, biases = shape.split(vector)
    first_weights, first_biases = shape.split(start)
    for batch in training.batches(len(targets), seed=seed, round=round):
        x = features[batch] if encoding is None else encoding(features[batch])
        step = np.float32(-training.rate / len(batch))
        with np.errstate(over="ignore", invalid="ignore"):
            moves = step * shape.residuals(x @ weights.T + biases, targets[batch])
            if training.proximal:
                pull = np.float32(training.rate * training.proximal)
                weights -= pull * (weights - first_weights)
                biases -= pull * (biases - first_biases)
            weights += moves.T @ x
            biases += moves.sum(axis=0)
    with np.errstate(invalid="ignore"):
        moved = vector - start
    return moved if np.isfinite(moved).all() else np.zeros_like(moved)
