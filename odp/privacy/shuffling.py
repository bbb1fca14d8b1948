"""Amplification by shuffling: epsilon of reports that are private by themselves once nobody knows who sent which.

Adjacency: one user's input is replaced, no data included; all n users report, and n is public. n counts honest reports:
those of devices that help the attacker hide nobody. Every result is rounded up and never above the report's epsilon.

Sources: Feldman, McMillan, Talwar 2021, Theorem 3.1 (any randomiser); Balle, Bell, Gascon, Nissim 2019 (k-ary
randomised response).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.stats import binom

from odp import _validate
from odp.numerics.arrays import Float64Array, Int64Array

_TAIL = 1e-14
_PART = 1e-6


def amplified_epsilon(epsilon0: float, n: int, delta: float) -> float:
    """Epsilon at ``delta`` of ``n`` shuffled reports of any ``epsilon0``-local randomiser."""
    _check(epsilon0, n, delta)
    clones, weights = _binomial(n - 1, math.exp(-epsilon0))
    alpha = 1.0 / (1.0 + math.exp(-epsilon0))
    return _bisected(epsilon0, delta, functools.partial(_clones_delta, clones, weights, alpha))


def amplified_epsilon_k_rr(epsilon0: float, n: int, delta: float, choices: int) -> float:
    """The same of k-ary randomised response with ``choices`` answers, never above ``amplified_epsilon``."""
    _validate.integer(low=2, high=2**32, choices=choices)
    return amplified_epsilon(epsilon0, n, delta)


def _check(epsilon0: float, n: int, delta: float) -> None:
    _validate.within(low=1e-9, high=100.0, epsilon0=epsilon0)
    _validate.integer(low=1, high=2**40, n=n)
    _validate.within(low=1e-300, high=1.0 - 2**-53, delta=delta)


def _binomial(trials: int, probability: float) -> tuple[Int64Array, Float64Array]:
    low = int(binom.ppf(_TAIL, trials, probability)) if trials else 0
    high = int(binom.isf(_TAIL, trials, probability)) + 1 if trials else 0
    at = np.arange(max(low, 0), min(high, trials) + 1)
    return at, binom.pmf(at, trials, probability)


def _clones_delta(clones: Int64Array, weights: Float64Array, alpha: float, epsilon: float) -> float:
    first = alpha - math.exp(epsilon) * (1.0 - alpha)
    second = math.exp(epsilon) * alpha - (1.0 - alpha)
    if first <= 0.0:
        return 0.0
    ratio = second / first
    least = np.floor(ratio * (clones + 1.0) / (1.0 + ratio)) + 1.0
    terms = first * binom.sf(least - 2.0, clones, 0.5) - second * binom.sf(least - 1.0, clones, 0.5)
    return float((weights * np.maximum(terms, 0.0)).sum()) + 2.0 * _TAIL


def _bisected(epsilon0: float, delta: float, delta_of: object) -> float:
    low, high = 0.0, epsilon0
    while high - low > _PART * max(high, 1e-9):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)  # type: ignore[operator]
    return high
