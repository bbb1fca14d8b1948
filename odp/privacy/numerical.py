"""The part of a budget that sampling noise on a computer takes.

Every sampled number has a law near the exact rounded Gaussian (``mechanisms/rounded_gaussian.py``): within total
variation ``tau = 2^-116`` of a law whose every probability is within a factor ``exp(+-kappa)`` of the exact one,
``kappa = 2^-49.2``. Let the exact mechanism be (epsilon, delta)-DP, and let it noise ``n`` numbers in all.

- *Few numbers*: each adds at most 2^-48 to delta, at any epsilon up to 40.
- *Many numbers*: whatever was released before, the conditional density of a number is within ``exp(+-kappa)``, so that
  of all numbers is within ``exp(+-n kappa)``, mixtures over random cohorts included. For neighbours x, x', the exact
  mechanism M, the near one M' and any set S,

      P[M'(x) in S]  <=  e^(n kappa) P[M(x) in S]
                     <=  e^(n kappa) (e^epsilon P[M(x') in S] + delta)
                     <=  e^(epsilon + 2 n kappa) P[M'(x') in S] + e^(n kappa) delta,

  and the variation adds ``n (1 + e^(epsilon + 2 n kappa)) tau``, at most ``n 2^-58`` up to an epsilon of 40.

Both bounds hold for the same claim. The first is used while it takes at most half of delta, and the second, with at
most that half left, from there on: so epsilon never falls when a number is added. 25 million parameters in 100 rounds
add 8e-6 to epsilon, and 9e-9 to delta.

The second bound is not for noise in shares: a sum of discrete Gaussians is near another law in total variation only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.mechanisms.rounded_gaussian import ADDED_DELTA, CLOSENESS, TABLE_DELTA

_MARGIN = 1.0 + 1e-9  # above the rounding errors of this module


class Left(NamedTuple):
    """The delta that is left for the exact mechanism, and what is to be added to its epsilon there."""

    delta: float
    epsilon: float


def require_delta(delta: float) -> None:
    """Raises ConfigurationError unless ``delta`` is strictly between 0 and 1."""
    _validate.finite(delta=delta)
    if not 0.0 < delta < 1.0:
        raise ConfigurationError(f"Expected delta={delta!r} to be strictly between 0 and 1")


def left_of_gaussians(delta: float, coordinates: int) -> Left:
    """The rest after ``coordinates`` rounded Gaussians.

    Raises:
        ConfigurationError: ``delta`` is not strictly between 0 and 1, or ``coordinates`` is out of range.
        PrivacyError: the numbers use up delta.
    """
    require_delta(delta)
    _validate.integer(low=0, high=2**62, coordinates=coordinates)
    added = coordinates * ADDED_DELTA
    if added <= 0.5 * delta:
        return Left(delta - added, 0.0)
    table = coordinates * TABLE_DELTA
    if table >= 0.5 * delta:
        raise _used_up(coordinates, table, delta)
    far = coordinates * CLOSENESS * _MARGIN
    return Left(min(0.5 * delta, (delta - table) * math.exp(-far) / _MARGIN), 2.0 * far)


def left_of_shares(delta: float, coordinates: int, graph_delta: float = 0.0) -> float:
    """The delta that is left where some of the ``coordinates`` numbers have noise in shares.

    ``graph_delta`` is the probability that the graph of any session fails.

    Raises:
        ConfigurationError: as ``left_of_gaussians``.
        PrivacyError: numbers and graphs use up delta.
    """
    require_delta(delta)
    _validate.integer(low=0, high=2**62, coordinates=coordinates)
    added = coordinates * ADDED_DELTA
    if added >= delta:
        raise _used_up(coordinates, added, delta)
    if added + graph_delta >= delta:
        raise PrivacyError(
            f"the graphs of secure aggregation fail with a probability of up to {graph_delta:.2e}, which is not below"
            f" what delta={delta!r} leaves: state a larger delta, or plan fewer rounds"
        )
    return delta - added - graph_delta


def _used_up(coordinates: int, added: float, delta: float) -> PrivacyError:
    return PrivacyError(
        f"coordinates={coordinates} noised numbers add a delta of {added:.2e}, too much for delta={delta!r}:"
        " release fewer numbers, or state a larger delta"
    )
