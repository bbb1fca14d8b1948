"""Sums of squares of rows in one stated order, so that numpy and machine code find the same bits.

A row is added up in 16 lanes: lane l has the numbers at l, l + 16, .. in their order, and the lanes are added one after
the other. Any order would be as good; what matters is that device and simulation round the same vector alike.
"""

from __future__ import annotations

import numpy as np

from odp.numerics.arrays import Float64Array

LANES = 16
_NUMBERS = 2**16  # of squares that are held at once


def row_squares(values: Float64Array) -> Float64Array:
    """The sum of squares of each row of ``values`` [n, size], float64 [n]."""
    width = values.shape[1]
    whole = width // LANES * LANES
    lanes = np.zeros((len(values), LANES))
    at_once = max(1, _NUMBERS // (LANES * max(1, len(values)))) * LANES
    for start in range(0, whole, at_once):
        part = values[:, start : min(start + at_once, whole)]
        steps = np.empty((len(values), 1 + part.shape[1] // LANES, LANES))
        steps[:, 0] = lanes
        np.square(part.reshape(len(values), -1, LANES), out=steps[:, 1:])
        # The last axis is the innermost, so numpy adds step by step along the other, and no pairs.
        lanes = np.add.reduce(steps, axis=1)
    lanes[:, : width - whole] += np.square(values[:, whole:])
    total = lanes[:, 0].copy()
    for lane in range(1, LANES):
        total += lanes[:, lane]
    return np.asarray(total)
