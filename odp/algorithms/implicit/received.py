"""What a device makes of the numbers of a model on implicit feedback, which come from an untrusted server.

- The *Gramian* is the same for every device of a round. One with which a solve could fail is refused, by every device
  alike; what float32 rounds off below zero is set to zero.
- The *rows* that a device receives follow from what it holds, so nothing in them is refused: weights are brought within
  0 .. 1, factors within +-2^8 (a typical row has norm 1), and a row with a number that is not finite is all zeros.

With both, a user's system of equations is positive definite, and its rounding errors stay below its smallest eigenvalue
for up to 4,096 items of rank 64. The simulator applies the same to all rows of a model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odp.algorithms.factorization.slices import within
from odp.algorithms.implicit.estimation import nearest_psd
from odp.algorithms.implicit.terms import GRAMIAN_TABLE, WEIGHT_COLUMN, Terms
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array

_LARGEST_FACTOR = 2.0**8
# Of the largest eigenvalue: beyond what rounding to float32 does to a matrix of rank 64.
_ROUNDING = 1e-5
_LARGEST_RATIO = 2.0**40


def gramian(terms: Terms, dense: Mapping[str, Float32Array]) -> Float64Array:
    """The Gramian float64 [rank, rank] of a model: symmetric, positive semidefinite.

    Raises:
      ConfigurationError: it is neither up to rounding, not finite, or huge beside the ridge of the task.
    """
    found = np.asarray(dense[GRAMIAN_TABLE], dtype=np.float64)
    if not np.isfinite(found).all():
        raise ConfigurationError("the model cannot be trained on: Expected its Gramian to be finite")
    symmetric = 0.5 * (found + found.T)
    values = np.linalg.eigvalsh(symmetric)
    most = max(float(np.abs(values).max()), np.finfo(np.float64).tiny)
    if float(np.abs(found - symmetric).max()) > _ROUNDING * most or float(values.min()) < -_ROUNDING * most:
        raise ConfigurationError(
            "the model cannot be trained on: Expected its Gramian to be symmetric and positive semidefinite"
        )
    if terms.unobserved_weight * most > _LARGEST_RATIO * terms.user_ridge:
        raise ConfigurationError(
            f"the model cannot be trained on: Expected its Gramian's largest eigenvalue={most:g} to be smaller"
        )
    return symmetric if values.min() >= 0 else nearest_psd(symmetric)


def usable_rows(rows: Float32Array) -> Float32Array:
    """Item rows float32 [.., width] within the bounds of this module."""
    low, high = np.full(rows.shape[-1], -_LARGEST_FACTOR), np.full(rows.shape[-1], _LARGEST_FACTOR)
    low[WEIGHT_COLUMN], high[WEIGHT_COLUMN] = 0.0, 1.0
    return within(rows, low, high)
