"""The spread of raw updates, against which tests hold estimates from releases."""

from __future__ import annotations

import numpy as np

from odp.algorithms.dense.update_spread import Spread
from odp.numerics.arrays import Float64Array


def exact_spread(updates: Float64Array) -> Spread:
    """The exact spread of updates float64 [users, size]."""
    mean = updates.mean(axis=0)
    return Spread(
        scale=float(np.square(mean).mean()), scale_std=0.0,
        variance=float(np.square(updates - mean).mean()), variance_std=0.0,
    )  # fmt: skip
