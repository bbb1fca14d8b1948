"""What the noise of a stream does to its prefix sums: the oracle of what designs of matrices make small."""

from __future__ import annotations

import numpy as np

from odp.numerics.arrays import Float64Array
from odp.privacy.matrix import EncoderMatrix


def noise_factors(matrix: EncoderMatrix) -> Float64Array:
    """Norm of each row of A C^-1, float64 [rounds]: error std of each prefix sum over the std of the noise."""
    factors: Float64Array = np.linalg.norm(np.cumsum(np.linalg.inv(matrix.matrix()), axis=0), axis=1)
    return factors
