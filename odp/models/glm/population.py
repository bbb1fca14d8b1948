"""``odp.models.glm.training`` for many users at once: with numba in machine code, without it in batched products."""

from __future__ import annotations

import functools
import importlib.util

import numpy as np
import numpy.typing as npt

from odp.datasets.examples import UsersExamples
from odp.errors import DataError
from odp.models.glm import stacked
from odp.models.glm.shape import Family, Glm
from odp.models.local_training import LocalTraining
from odp.numerics.arrays import Float32Array, require_seeds


def differences(
    shape: Glm,
    start: Float32Array,
    examples: UsersExamples,
    training: LocalTraining,
    *,
    seeds: npt.NDArray[np.uint64],
    round: int,
    users: slice = slice(None),
    out: Float32Array | None = None,
) -> Float32Array:
    """What training moves the parameters by, for each of some users: float32 [users, size].

    Equal to ``odp.models.glm.training.difference`` up to float32 rounding. Memory is that of the result.

    Args:
      start: parameters of the round, float32 [size].
      seeds: of the chosen users, 64 bits each.
      users: consecutive ones; all by default.
      out: filled and returned where given, float32 [users, size]: fresh memory costs a tenth of the work.

    Raises:
      DataError: examples have another number of features, or there is not one seed per user.
    """
    first, last, _ = users.indices(examples.n_users)
    require_seeds(seeds, users=last - first)
    if examples.features.shape[1] != shape.features:
        raise DataError(f"Expected examples of {shape.features} features (got {examples.features.shape[1]})")
    moved = np.empty((len(seeds), shape.size), dtype=np.float32) if out is None else out
    if moved.shape != (len(seeds), shape.size) or moved.dtype != np.float32:
        raise DataError(f"Expected out to be float32 [{len(seeds)}, {shape.size}]")
    if not _compiled():
        stacked.differences(shape, start, examples, training, seeds=seeds, round=round, first=first, out=moved)
        return moved
    from odp.models.glm import kernels

    features = examples.features
    direct = features.dtype == np.float32 and examples.scale == 1.0
    kernels.differences(
        list(Family).index(Family(shape.family)),
        np.ascontiguousarray(start, dtype=np.float32),
        shape.outputs,
        features,
        features.reshape(-1) if direct else np.empty(0, dtype=np.float32),
        examples.targets,
        examples.rows,
        examples.offsets[first : last + 1],
        np.float32(examples.scale),
        seeds,
        round,
        training.epochs,
        training.batch,
        training.most_examples,
        training.rate,
        training.proximal,
        training.shuffle,
        moved,
    )
    return moved


@functools.cache
def _compiled() -> bool:
    return importlib.util.find_spec("numba") is not None
