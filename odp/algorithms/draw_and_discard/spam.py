"""Thresholds of the test for spam, so that honest reports are refused with a stated probability.

The published rule, weights within t standard deviations of the mean of the instances, is for one weight and a normal
law. Here the two statistics of ``kernels.compare`` are simulated for reports of pure noise, with this number of
instances and of weights: their tails are heavy, and the weights share one genealogy of instances. Half of the false
alarms belong to the largest deviation, half to the spread; by the union bound both together refuse no more than asked.

The stated share is for reports whose gradients are small beside the noise, as those of a model that has converged:
gradients that move all reports add to what is refused.

Source: Pihur et al. 2018, section III-D4, whose thresholds hold for one weight alone.
"""

from __future__ import annotations

import math

import numpy as np

from odp import _validate
from odp.algorithms.draw_and_discard.terms import MOST_INSTANCES, MOST_WEIGHTS, Spam
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array

_NUMBERS = 1 << 31  # drawn noise at most: some seconds
_CHEAP = 1 << 27
_TAIL = 20  # simulated reports beyond each threshold, at least
_BURN = 2  # times k^2 updates, four times what the variance needs to settle
_SEED = 20261123


def honest_statistics(
    *, instances: int, weights: int, updates: int, seed: int = _SEED
) -> tuple[Float64Array, Float64Array]:
    """(largest deviations, spreads), float64 [updates] each, of honest reports without data.

    Raises:
      ConfigurationError: a number is out of range.
    """
    from odp.algorithms.draw_and_discard import kernels
    from odp.algorithms.factorization.public_normals import public_normals

    _validate.integer(low=2, high=MOST_INSTANCES, instances=instances)
    _validate.integer(low=1, high=MOST_WEIGHTS, weights=weights)
    # Near the law of the chain's end already: the variance over instances of scale-1 noise is instances * 2 / 2.
    rows = (math.sqrt(instances) * public_normals(seed, (instances, weights))).astype(np.float32)
    largest, spread = np.empty(updates), np.empty(updates)
    kernels.honest_statistics(rows, _BURN * instances * instances, np.uint64(seed), largest, spread)
    return largest, spread


def thresholds(*, instances: int, weights: int, false_alarms: float) -> Spam:
    """The rule that refuses the share ``false_alarms`` of honest reports at most.

    ``false_alarms`` 0 is no rule. With one instance there is no spread to compare with, so there is no rule either.

    Raises:
      ConfigurationError: so rare alarms cannot be simulated for this number of weights and instances.
    """
    _validate.within(low=0.0, high=0.5, false_alarms=false_alarms)
    if not false_alarms or instances < 2:
        return Spam()
    updates = math.ceil(2 * _TAIL / false_alarms)
    most_updates = _NUMBERS // weights - _BURN * instances * instances
    if updates > most_updates:
        least = 2 * _TAIL / most_updates if most_updates > 2 * _TAIL else math.inf
        raise ConfigurationError(
            f"Expected false_alarms={false_alarms!r} to be 0, for no test, or at least {least:.2g}: rarer "
            f"alarms cannot be simulated for {instances} instances of {weights} weights"
        )
    # Longer where it is cheap: reports in a row share their instances, which renew themselves every k^2 / 2 updates.
    updates = max(updates, min(_CHEAP // weights, 50 * updates + 200 * instances * instances))
    largest, spread = honest_statistics(instances=instances, weights=weights, updates=updates)
    level = 1.0 - false_alarms / 2
    return Spam(float(np.quantile(largest, level)), float(np.quantile(spread, level)), false_alarms)
