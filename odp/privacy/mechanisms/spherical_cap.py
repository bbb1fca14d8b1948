"""The probability of a cap of the unit sphere, in logarithms and without SciPy: devices have none.

A uniform unit vector U of d dimensions has ``P[U_1 >= h] = I_{1 - h^2}((d - 1) / 2, 1/2) / 2`` for h from 0 to 1, with
I the regularised incomplete beta function. It is computed by its continued fraction, whose logarithm does not
underflow; where that converges slowly, from the complement, which is then no difference of nearly equal numbers.

Source: Abramowitz and Stegun 26.5.8 (continued fraction, evaluated by Lentz's method) and 6.1.47 (ratio of gammas).
"""

from __future__ import annotations

import math

from odp import _validate

LARGEST_DIMENSION = 10**9

_MOST_STEPS = 100_000
_TINY = 1e-300
_CONVERGED = 1e-15
_LARGE = 50.0


def log_probability(dimension: int, height: float) -> float:
    """Logarithm of the probability that a uniform unit vector is at least ``height`` along a fixed axis.

    Relative error of the probability below 1e-9, beyond ten million dimensions 1e-7; minus infinity at height 1.

    Args:
        dimension: from 2 to 10^9.
        height: from 0 to 1.

    Raises:
        ConfigurationError: a number is out of range.
    """
    _validate.integer(low=2, high=LARGEST_DIMENSION, dimension=dimension)
    _validate.within(low=0.0, high=1.0, height=height)
    if height == 1.0:
        return -math.inf
    if height == 0.0:
        return math.log(0.5)
    a, far = 0.5 * (dimension - 1), height * height
    log_near = math.log1p(-height) + math.log1p(height)  # of 1 - height^2
    if far > 1.5 / (a + 2.5):
        return _log_small_cap(a, log_near)
    inside = math.exp(a * log_near + math.log(height) - _log_beta(a) - math.log(0.5)) * _fraction(far, 0.5, a)
    return math.log(0.5) + math.log1p(-inside)


def log_square_radius(dimension: int, log_probability: float) -> float:
    """log(1 - h^2) of the height h with this ``log_probability``, which is -50 or less: however small the cap is.

    A bisection to the last bit, for probabilities that floating-point numbers do not hold.
    """
    a = 0.5 * (dimension - 1)
    high = math.log1p(-1.5 / (a + 2.5))
    low = high - 1.0
    while _log_small_cap(a, low) > log_probability:
        low -= high - low
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return low
        low, high = (low, middle) if _log_small_cap(a, middle) > log_probability else (middle, high)


def _log_small_cap(a: float, log_near: float) -> float:
    """The logarithm of the probability of the cap with this log(1 - h^2), for h^2 above 1.5 / (a + 2.5)."""
    near = math.exp(log_near)
    common = a * log_near + 0.5 * math.log1p(-near) - _log_beta(a)
    return math.log(0.5) + common - math.log(a) + math.log(_fraction(near, a, 0.5))


def _log_beta(a: float) -> float:
    """log B(a, 1/2), without a difference of large logarithms."""
    if a < _LARGE:
        ratio = math.lgamma(a + 0.5) - math.lgamma(a)
    else:
        ratio = 0.5 * math.log(a) - 1.0 / (8.0 * a) + 1.0 / (192.0 * a**3) - 1.0 / (640.0 * a**5)
    return 0.5 * math.log(math.pi) - ratio


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of ``I_x(a, b) a B(a, b) / (x^a (1 - x)^b)``; fast for x below (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    fraction = d
    for m in range(1, _MOST_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        step = 1.0
        for term in (even, odd):
            d = 1.0 / _nonzero(1.0 + term * d)
            c = _nonzero(1.0 + term / c)
            step = c * d
            fraction *= step
        if abs(step - 1.0) < _CONVERGED:
            break
    return fraction


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
