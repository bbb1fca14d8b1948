"""The height of a random unit vector along an axis, from the logarithm of its tail: for tails of any smallness.

Of a uniform unit vector U the height h with ``P[U_1 >= h] = exp(log_tail)`` is the inverse of SciPy's incomplete beta
function, with one step of Newton's method for small tails, and a bisection of logarithms where the tail is below the
numbers of a float. Its error, and that of sqrt(1 - h^2), is below ``CLOSENESS`` (tests compare with 50 digits).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from odp.numerics.arrays import Float64Array
from odp.privacy.mechanisms.spherical_cap import log_square_radius

CLOSENESS = 2.0**-46
_REFINED = -100.0  # above, the inverse is the better one of both functions: it stops early for small tails alone
_SMALLEST = -690.0  # a little above the logarithm of the smallest float with all its bits


def heights(dimension: int, log_tail: Float64Array) -> tuple[Float64Array, Float64Array]:
    """(heights, sqrt(1 - height^2)) of tails of at most 1/2: both float64 [n], from 0 to 1."""
    half = (dimension - 1) / 2.0
    tail = np.exp(np.maximum(log_tail, _SMALLEST))
    twice = np.minimum(2.0 * tail, 1.0)
    # The smaller one of the squares of both has all its bits.
    square, rest = special.betainccinv(0.5, half, twice), special.betaincinv(half, 0.5, twice)
    small = square < rest
    smaller = np.where(small, square, rest)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        at = np.where(small, special.betaincc(0.5, half, smaller), special.betainc(half, 0.5, smaller))
        # By the smaller square, d log tail = -+ (1 - h^2)^(half - 1) / (2 h B(half, 1/2) tail).
        log_near = np.where(small, np.log1p(-smaller), np.log(smaller))
        log_far = np.where(small, np.log(smaller), np.log1p(-smaller))
        slope = np.exp((half - 1.0) * log_near - 0.5 * log_far - special.betaln(half, 0.5) - np.log(twice))
        step = (at / twice - 1.0) / slope
    usable = (log_tail < _REFINED) & np.isfinite(step) & (np.abs(step) < 1e-3 * smaller)
    smaller = np.where(usable, np.where(small, smaller + step, smaller - step), smaller)
    square, rest = np.where(small, smaller, 1.0 - smaller), np.where(small, 1.0 - smaller, smaller)
    for place in np.flatnonzero(log_tail < _SMALLEST):
        rest[place] = math.exp(log_square_radius(dimension, float(log_tail[place])))
        square[place] = 1.0 - rest[place]
    return np.sqrt(square), np.sqrt(rest)
