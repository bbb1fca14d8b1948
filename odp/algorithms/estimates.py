"""Quantiles by noisy counts in bins, with intervals for the noise.

The quotient of two noisy sums, and its interval.

Source: Fieller 1954, "Some problems in interval estimation".
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and the interval that contains the number without noise, at the requested confidence."""

    value: float
    low: float
    high: float


def quantile(
    counts: Float64Array, *, std: float | Float64Array, edges: Float64Array, q: float, confidence: float = CONFIDENCE
) -> Estimate:
    """The value below which a share ``q`` of what was counted lies, interpolated within its bin.

    The interval ends at edges: those of which the noise leaves open on which side they lie, all at once.

    Args:
      counts: float64 [bins], with noise.
      std: standard deviation of that noise, of all counts or float64 [bins]; a sum of the counts with weights w has
        noise of a variance of at most the sum of (w std)^2, as of independent noise.
      edges: float64 [bins + 1], ascending.
      q: strictly between 0 and 1.
      confidence: of the interval.

    Raises:
      ConfigurationError: ``q`` or ``confidence`` is not strictly between 0 and 1.
    """
    if not _is_share(q):
        raise ConfigurationError(f"Expected q={q!r} to be strictly between 0 and 1")
    _check(confidence)
    bins = len(counts)
    # At edge j: (1 - q) * what lies below - q * what lies above; positive where the quantile is below the edge.
    below = np.concatenate([[0.0], np.cumsum(counts)])
    balance = below - q * below[-1]
    at = np.arange(bins + 1)
    if isinstance(std, np.ndarray):
        squares = np.concatenate([[0.0], np.cumsum(std**2)])
        noise = np.sqrt(squares * (1.0 - q) ** 2 + (squares[-1] - squares) * q**2)
    else:
        noise = std * np.sqrt(at * (1.0 - q) ** 2 + (bins - at) * q**2)
    reach = deviations(1.0 - (1.0 - confidence) / (bins + 1)) * noise
    surely_above, surely_below = np.flatnonzero(balance < -reach), np.flatnonzero(balance > reach)
    low = edges[surely_above[-1]] if len(surely_above) else edges[0]
    high = edges[surely_below[0]] if len(surely_below) else edges[-1]
    cumulative = np.concatenate([[0.0], np.cumsum(np.maximum(counts, 0.0))])
    if cumulative[-1] == 0.0:
        value = float(0.5 * (edges[0] + edges[-1]))
    else:
        bin = min(int(np.searchsorted(cumulative, q * cumulative[-1], side="left")), bins) - 1
        bin = max(bin, 0)
        inside = (q * cumulative[-1] - cumulative[bin]) / max(cumulative[bin + 1] - cumulative[bin], 1e-300)
        value = float(edges[bin] + inside * (edges[bin + 1] - edges[bin]))
    return Estimate(value, float(min(low, value)), float(max(high, value)))


def deviations(confidence: float) -> float:
    """Standard deviations of a normal number on either side that ``confidence`` takes."""
    _check(confidence)
    return NormalDist().inv_cdf(0.5 + 0.5 * confidence)


def _check(confidence: float) -> None:
    if not _is_share(confidence):
        raise ConfigurationError(f"Expected confidence={confidence!r} to be strictly between 0 and 1")


def _is_share(value: object) -> bool:
    return isinstance(value, numbers.Real) and 0.0 < float(value) < 1.0


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
