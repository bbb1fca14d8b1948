"""The quotient of two noisy sums, and its interval.

Source: Fieller 1954, "Some problems in interval estimation".
"""

from __future__ import annotations

import math


def quotient_interval(
    total: tuple[float, float], weight: tuple[float, float], *, deviations: float, covariance: float = 0.0
) -> tuple[float, float] | None:
    """Every r for which ``total - r weight`` is within ``deviations`` of 0, as (low, high).

    The interval is exact where both sums have normal errors, whatever the true weight is.

    Args:
      total, weight: (sum, variance of its error).
      deviations: standard deviations on either side.
      covariance: of the two errors.

    Returns:
      None where every number is possible, because the errors hide whether there is any weight.
    """
    square = deviations**2
    (numerator, first), (denominator, second) = total, weight
    return quadratic_interval(
        denominator**2 - square * second,
        numerator * denominator - square * covariance,
        numerator**2 - square * first,
        positive=denominator > 0,
    )


def quadratic_interval(a: float, b: float, c: float, *, positive: bool = True) -> tuple[float, float] | None:
    """Every r with ``a r^2 - 2 b r + c <= 0``, as (low, high); None where they are no interval, or not ``positive``."""
    if not positive or a <= 0.0:
        return None
    reach = math.sqrt(max(b * b - a * c, 0.0))
    return (b - reach) / a, (b + reach) / a
