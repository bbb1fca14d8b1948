"""What a device makes of the rows of a model on implicit feedback, which come from an untrusted server.

The rows that a device receives follow from what it holds, so nothing in them is refused: weights are brought within
0 .. 1, factors within +-2^8 (a typical row of a finished model has norm 1), and a row with a number that is not finite
is all zeros. A user's row is a sum of these with weights of length 1, so it is finite whatever a user has. The
simulator applies the same to all rows of a model.
"""

from __future__ import annotations

import numpy as np

from odp.algorithms.factorization.slices import within
from odp.algorithms.implicit.terms import LARGEST_FACTOR, WEIGHT_COLUMN
from odp.numerics.arrays import Float32Array


def usable_rows(rows: Float32Array) -> Float32Array:
    """Item rows float32 [.., width] within the bounds of this module."""
    low, high = np.full(rows.shape[-1], -LARGEST_FACTOR), np.full(rows.shape[-1], LARGEST_FACTOR)
    low[WEIGHT_COLUMN], high[WEIGHT_COLUMN] = 0.0, 1.0
    return within(rows, low, high)
