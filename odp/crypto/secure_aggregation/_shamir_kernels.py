"""The field arithmetic of ``shamir.py`` in machine code; the same numbers. Import needs numba.

``evaluate`` runs over many polynomials at once, so that one instruction works on several of them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_P = np.uint64(2**31 - 1)
_SHIFT = np.uint64(31)
_ONE = np.uint64(1)


@numba.njit(nogil=True, cache=True, inline="always")
def _reduce(value: Any) -> Any:
    value = (value & _P) + (value >> _SHIFT)
    value = (value & _P) + (value >> _SHIFT)
    return (value + ((value + _ONE) >> _SHIFT)) & _P


@numba.njit(nogil=True, cache=True)
def evaluate(coefficients: Any, points: Any, values: Any) -> None:
    """See ``shamir.evaluate``."""
    threshold, polynomials = coefficients.shape
    for place in range(len(points)):
        point = points[place]
        for column in range(polynomials):
            values[place, column] = coefficients[threshold - 1, column]
        for row in range(threshold - 2, -1, -1):
            for column in range(polynomials):
                # Below 2^31 * 2^31 + 2^31: two folds leave less than 2^31 + 2, which the next product can bear.
                raw = values[place, column] * point + coefficients[row, column]
                raw = (raw & _P) + (raw >> _SHIFT)
                values[place, column] = (raw & _P) + (raw >> _SHIFT)
        for column in range(polynomials):
            values[place, column] = _reduce(values[place, column])


@numba.njit(nogil=True, cache=True)
def weights_at_zero(points: Any, weights: Any) -> None:
    """See ``shamir.weights_at_zero``; one inversion for all points (Montgomery's trick)."""
    count = len(points)
    above = np.ones(count, np.uint64)
    below = np.ones(count, np.uint64)
    for other in range(count):
        for place in range(count):
            if place != other:
                above[place] = _reduce(above[place] * points[other])
                difference = points[other] + _P - points[place]
                below[place] = _reduce(below[place] * _reduce(difference))
    prefix = np.ones(count + 1, np.uint64)
    for place in range(count):
        prefix[place + 1] = _reduce(prefix[place] * below[place])
    inverse = _ONE
    power = prefix[count]
    exponent = np.uint64(2**31 - 3)
    while exponent:
        if exponent & _ONE:
            inverse = _reduce(inverse * power)
        power = _reduce(power * power)
        exponent >>= _ONE
    for place in range(count - 1, -1, -1):
        weights[place] = _reduce(above[place] * _reduce(inverse * prefix[place]))
        inverse = _reduce(inverse * below[place])
