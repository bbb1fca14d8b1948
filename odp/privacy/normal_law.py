"""The tails of the normal distribution in plain floating point, without underflow: devices have no SciPy.

``math.erfc`` underflows near 26, where privacy profiles begin to matter; scaled by ``e^(x^2)`` it does not.

Source: the continued fraction of erfc, Abramowitz and Stegun 7.1.14.
"""

from __future__ import annotations

import math

_SPLIT = 134217729.0  # 2^27 + 1: cuts a double into two halves whose products are exact (Dekker 1971)
_FAR = 8.0
_TERMS = 40
_LARGEST_NEGATIVE = -26.0


def erfcx(x: float) -> float:
    """``e^(x^2) erfc(x)``, with a relative error below 1e-14; infinity below -26, where it overflows a double.

    >>> round(erfcx(0.0), 12), round(erfcx(100.0), 12)
    (1.0, 0.005641613782)
    """
    if x < _LARGEST_NEGATIVE:
        return math.inf
    if x < _FAR:
        return _exp_square(x) * math.erfc(x)
    # x + (1/2)/(x + (2/2)/(x + (3/2)/(x + ..))), from the inside; 40 terms are exact to the last digit from 8 on.
    fraction = x
    for term in range(_TERMS, 0, -1):
        fraction = x + 0.5 * term / fraction
    return 1.0 / (math.sqrt(math.pi) * fraction)


def ndtr(x: float) -> float:
    """The distribution function of the standard normal law, also far out in its lower tail."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _exp_square(x: float) -> float:
    """``e^(x^2)``: the rounding error of x^2 would be multiplied by x^2 in a plain ``exp(x * x)``."""
    square = x * x
    high = _SPLIT * x - (_SPLIT * x - x)
    low = x - high
    error = ((high * high - square) + 2.0 * high * low) + low * low
    return math.exp(square) * (1.0 + error)
