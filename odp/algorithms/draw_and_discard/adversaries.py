"""What three adversaries learn of one report: one guarantee, and two expectations that are none.

=====  =========================================  ================================================================
who    sees                                       what holds
=====  =========================================  ================================================================
I      the instance that a device got, and its    epsilon, per feature and for the model: the guarantee
       report
II     all instances before and after, but not    an average over the server's coins of worst cases: no guarantee.
       which one the device got                   ``mean_loss``
III    one instance, T updates later              likewise; ``lineage`` is the probability that anything of the
                                                  report is left, ``convolved_epsilon`` what T noises hide
=====  =========================================  ================================================================

The published bound for III (Lemma 3) is too small for 100 updates and more, and exceeds epsilon for few:
``published_convolved_epsilon`` is for comparison. The exact number is a hockey-stick divergence of T-fold sums of
Laplace noise, computed by Fourier transform.

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", section IV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.algorithms.draw_and_discard.terms import MOST_INSTANCES
from odp.numerics.arrays import Float64Array

_MOST_UPDATES = 10**6
_GRID = 1 << 19
_BISECTIONS = 40


def mean_loss(epsilon: float, *, instances: int) -> float:
    """Adversary II: (k - 1) / (2 k) epsilon, the published average of Lemma 1; an expectation, and no guarantee."""
    _check(epsilon, instances)
    return (instances - 1) / (2.0 * instances) * epsilon


def lineage(*, instances: int, updates: int) -> float:
    """The probability that no instance descends from a report any more, ``updates`` updates after it was stored.

    The number of descendants goes up and down by one with probability i (k - i) / k^2 each; in the end it is 0 with
    probability 1 - 1/k, or k.
    """
    _validate.integer(low=1, high=MOST_INSTANCES, instances=instances)
    _validate.integer(low=0, high=_MOST_UPDATES, updates=updates)
    count = np.arange(instances + 1, dtype=np.float64)
    moves = count * (instances - count) / instances**2
    chain = np.diag(1.0 - 2.0 * moves)
    chain[np.arange(1, instances + 1), np.arange(instances)] = moves[1:]
    chain[np.arange(instances), np.arange(1, instances + 1)] = moves[:-1]
    return float(np.linalg.matrix_power(chain, updates)[min(1, instances), 0])


def convolved_epsilon(epsilon: float, *, updates: int, delta: float) -> float:
    """The least e such that T = ``updates`` noises hide one report in (e, delta); never above ``epsilon``.

    Noise of T reports is a T-fold convolution of Laplace(2 c rate / epsilon), whose characteristic function is
    (1 + b^2 w^2)^-T; two inputs differ by 2 c rate. Units of 2 c rate here, so that b = 1 / epsilon.

    Raises:
      ConfigurationError: a number is out of range.
    """
    _check(epsilon, 1)
    _validate.integer(low=1, high=_MOST_UPDATES, updates=updates)
    _validate.within(low=1e-12, high=0.5, delta=delta)
    if updates == 1:
        return epsilon
    density, step = _density(1.0 / epsilon, updates)
    shift = round(1.0 / step)
    low, high = 0.0, epsilon
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        excess = density[:-shift] - math.exp(middle) * density[shift:]
        if float(np.maximum(excess, 0.0).sum()) * step > delta:
            low = middle
        else:
            high = middle
    return high


def published_convolved_epsilon(epsilon: float, *, updates: int, delta: float) -> float:
    """Lemma 3 as printed, epsilon / sqrt(2 T) sqrt(log(1 / (2 delta))): not a bound; for comparison."""
    _check(epsilon, 1)
    return epsilon / math.sqrt(2.0 * updates) * math.sqrt(math.log(1.0 / (2.0 * delta)))


@dataclass(frozen=True)
class Learned:
    """What the adversaries learn of one report; see the module.

    Attributes:
      feature_epsilon, model_epsilon: of adversary I: the guarantee.
      mean_loss: of adversary II, per feature: an expectation.
      lineage: probability that the report left no trace after ``updates`` updates.
      convolved_epsilon: of adversary III per feature, at ``delta``, where a trace is left.
    """

    feature_epsilon: float
    model_epsilon: float
    mean_loss: float
    lineage: float
    convolved_epsilon: float
    updates: int
    delta: float


def disclosure_of(
    feature_epsilon: float, *, weights: int, instances: int, updates: int = 1000, delta: float = 1e-8
) -> Learned:
    """What the three adversaries learn. Raises ConfigurationError for a number out of range."""
    return Learned(
        feature_epsilon=feature_epsilon, model_epsilon=weights * feature_epsilon,
        mean_loss=mean_loss(feature_epsilon, instances=instances),
        lineage=lineage(instances=instances, updates=updates),
        convolved_epsilon=convolved_epsilon(feature_epsilon, updates=updates, delta=delta),
        updates=updates, delta=delta,
    )  # fmt: skip


def _check(epsilon: float, instances: int) -> None:
    _validate.within(low=1e-6, high=1e4, epsilon=epsilon)
    _validate.integer(low=1, high=MOST_INSTANCES, instances=instances)


def _density(scale: float, updates: int) -> tuple[Float64Array, float]:
    """(density of the sum of ``updates`` Laplace noises on a grid from below to above, its step, a whole part of 1)."""
    deviation = math.sqrt(2.0 * updates) * scale
    half = 1.0 + 9.0 * deviation + 30.0 * scale
    per_unit = max(1, math.floor(_GRID / (2.0 * half)))
    step = 1.0 / per_unit
    points = 2 * math.ceil(half / step)
    points += points % 2
    # The inverse transform of the periodic density, at the middle of its period.
    frequency = 2.0 * np.pi * np.fft.rfftfreq(points, d=step)
    transform = np.exp(-updates * np.log1p((scale * frequency) ** 2))
    density = np.fft.fftshift(np.fft.irfft(transform, n=points)) / step
    return np.maximum(density, 0.0), step
