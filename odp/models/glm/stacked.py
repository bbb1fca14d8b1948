"""``odp.models.glm.training`` of many users at once in numpy: one batched product for a step of all of them.

Users take their steps side by side. A user with fewer examples in a step, or none left, has rows of zeros there, whose
residuals are zeroed too: they move nothing. So a step of users with equal numbers of examples wastes nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odp.datasets.examples import UsersExamples
from odp.models.glm.shape import Glm
from odp.models.local_training import LocalTraining
from odp.numerics.arrays import Float32Array, Int64Array

_NUMBERS = 2**17  # of gathered features, and of parameters, at once: they stay in the processor's cache


def differences(
    shape: Glm,
    start: Float32Array,
    examples: UsersExamples,
    training: LocalTraining,
    *,
    seeds: npt.NDArray[np.uint64],
    round: int,
    first: int,
    out: Float32Array,
) -> None:
    """Fills ``out`` float32 [users, size] for the users from ``first`` on, one per seed.

    Equal to ``training.difference`` up to float32 rounding.
    """
    held = np.diff(examples.offsets)
    widest = min(training.batch, int(held[first : first + len(seeds)].max(initial=1)))
    at_once = max(1, _NUMBERS // max(shape.size, widest * shape.features))
    for begin in range(0, len(seeds), at_once):
        end = min(begin + at_once, len(seeds))
        steps = [
            list(training.batches(int(held[first + user]), seed=int(seeds[user]), round=round))
            for user in range(begin, end)
        ]
        _train(shape, start, examples, training, steps, examples.offsets[first + begin : first + end], out[begin:end])


def _train(
    shape: Glm,
    start: Float32Array,
    examples: UsersExamples,
    training: LocalTraining,
    steps: list[list[Int64Array]],
    offsets: Int64Array,
    out: Float32Array,
) -> None:
    """Fills ``out`` for users with these batches, whose rows begin at ``offsets`` int64 [users] of all rows."""
    # Users with more steps come first, so that those still at work are a slice.
    ranked = sorted(range(len(steps)), key=lambda user: -len(steps[user]))
    vectors = np.repeat(start.astype(np.float32)[None], len(steps), axis=0)
    split = shape.outputs * shape.features
    weights, biases = vectors[:, :split].reshape(len(steps), shape.outputs, shape.features), vectors[:, split:]
    first_weights, first_biases = shape.split(start)
    pull = np.float32(training.rate * training.proximal)
    for step in range(max((len(batches) for batches in steps), default=0)):
        at_work = [user for user in ranked if step < len(steps[user])]
        counts = np.array([len(steps[user][step]) for user in at_work])
        w, b = weights[: len(at_work)], biases[: len(at_work)]
        present = np.arange(counts.max()) < counts[:, None]  # [users, batch]
        rows = np.zeros(present.shape, dtype=np.int64)
        rows[present] = examples.rows[np.concatenate([offsets[user] + steps[user][step] for user in at_work])]
        x = examples.features[rows].astype(np.float32, copy=False)  # [users, batch, features]
        if examples.scale != 1.0:
            x *= np.float32(examples.scale)
        absent = None if present.all() else ~present
        if absent is not None:
            x[absent] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            z = x @ w.transpose(0, 2, 1) + b[:, None]
            moves = shape.residuals(z.reshape(-1, shape.outputs), examples.targets[rows].reshape(-1)).reshape(z.shape)
            moves *= (np.float32(-training.rate) / counts.astype(np.float32))[:, None, None]
            if absent is not None:
                moves[absent] = 0.0
            if training.proximal:
                w -= pull * (w - first_weights)
                b -= pull * (b - first_biases)
            w += moves.transpose(0, 2, 1) @ x
            b += moves.sum(axis=1)
    with np.errstate(invalid="ignore"):
        vectors -= start
    vectors[~np.isfinite(vectors).all(axis=1)] = 0.0
    out[ranked] = vectors
