"""Rows of examples, as the platform has them, as the arrays that a program takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from odp.models.litert.program import Array, Program
from odp.numerics.arrays import Float32Array


def inputs_of(program: Program, features: npt.NDArray[np.generic]) -> list[Array]:
    """The arrays of the program's inputs, [n, ..] each, of rows [n, numbers of all inputs].

    An input of whole numbers gets the nearest ones.
    """
    arrays, begin = [], 0
    for spec in program.features:
        part = features[:, begin : begin + spec.size].reshape(-1, *spec.shape)
        arrays.append(_typed(part, spec.dtype))
        begin += spec.size
    return arrays


def targets_of(program: Program, targets: Float32Array) -> Array:
    """The array of the program's target, [n, ..], of targets float32 [n]."""
    return _typed(targets.reshape(-1, *program.target.shape), program.target.dtype)


def _typed(values: npt.NDArray[Any], dtype: str) -> Array:
    whole = np.rint(values) if dtype == "int32" else values
    return np.ascontiguousarray(whole, dtype=dtype)
