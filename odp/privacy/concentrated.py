"""Noise in shares: the privacy cost of the sum of discrete Gaussians of many devices, in closed form.

A sum of m independent discrete Gaussians of variance s^2 (grid units) is no discrete Gaussian. Each of its
probabilities is within a factor e^(+-tau) of the one of variance m s^2, per number, with

    tau <= 10 sum over k = 1 .. m - 1 of exp(-2 pi^2 s^2 k / (k + 1)) <= 10 (m - 1) exp(-pi^2 s^2).

The discrete Gaussian of variance V, added to integers, is rho-zCDP, rho = Delta^2 / 2V, for a sensitivity Delta (L2) in
grid units. So, with Q for it and P for what is really added, over d numbers, for every event S of the neighbours x, x':

    P(x in S) <= e^(tau d) Q(x in S) <= e^(tau d) (e^epsilon Q(x' in S) + delta)
              <= e^(epsilon + 2 tau d) P(x' in S) + e^(tau d) delta.

The same holds for many releases, one after the other, with the sum of their rho and of their tau d: all ratios
multiply. Gaussian releases are rho-zCDP too, with rho = mu^2 / 2, and join the sum. Shares of at least four grid units
are required, so that tau d < 1e-54 for a million sharers and four million numbers: it is computed all the same.

Never too small, for adaptively chosen releases; 5 to 10 % above the profile of the continuous Gaussian.

Sources: Kairouz, Liu, Steinke 2021, section 3 (tau); Canonne, Kamath, Steinke 2020, theorem 4 (rho), proposition 12
(epsilon); Bun and Steinke 2016 (composition).
"""

from __future__ import annotations

import math

from odp import _validate

ACCOUNTANT = "concentrated differential privacy of discrete Gaussian shares (Canonne, Kamath, Steinke 2020)"

PROVED_UP_TO = 28.0
"""Up to this epsilon, 2^-48 per number is above what the samplers of a million shares of any size can add to delta."""

# Above the rounding error of ``epsilon_of_rho``.
_MARGIN = 1e-9
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_LOG_ORDERS = (-18.0, 30.0)  # of alpha - 1


def closeness(share_std: float, *, sharers: int) -> float:
    """tau per number: the largest difference of a sum's log-probability from the discrete Gaussian's.

    ``share_std`` is of one share, in grid units.

    Raises:
        ConfigurationError: a number is out of range.
    """
    _validate.within(low=0.5, high=1e100, share_std=share_std)
    _validate.integer(low=1, high=2**32, sharers=sharers)
    # Every term of the sum is at most the first one.
    return 10.0 * (sharers - 1) * math.exp(-(math.pi**2) * share_std * share_std)


def epsilon_of_rho(rho: float, *, delta: float) -> float:
    """The epsilon at ``delta`` of anything that is rho-zCDP, rounded up; 0 for ``rho`` 0.

    The bound holds for every order alpha; the best one is searched, so that the search cannot make it too small.

    Raises:
        ConfigurationError: ``delta`` is not strictly between 0 and 1, or ``rho`` is negative or not finite.
    """
    _validate.within(low=0.0, high=1e200, rho=rho)
    _validate.within(low=1e-300, high=1.0 - 2.0**-53, delta=delta)
    if rho == 0.0:
        return 0.0
    low, high = _LOG_ORDERS
    first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_first, at_second = _at_order(first, rho, delta), _at_order(second, rho, delta)
    while high - low > 1e-9:
        if at_first <= at_second:
            high, second, at_second = second, first, at_first
            first = high - _GOLDEN * (high - low)
            at_first = _at_order(first, rho, delta)
        else:
            low, first, at_first = first, second, at_second
            second = low + _GOLDEN * (high - low)
            at_second = _at_order(second, rho, delta)
    return max(0.0, min(at_first, at_second)) * (1.0 + _MARGIN)


def epsilon_of_shares(rho: float, *, delta: float, closeness: float) -> float:
    """``epsilon_of_rho`` of releases whose tau times numbers together is ``closeness``.

    Raises:
        ConfigurationError: a number is out of range.
    """
    _validate.within(low=0.0, high=1.0, closeness=closeness)
    return epsilon_of_rho(rho, delta=delta * math.exp(-closeness)) + 2.0 * closeness


def rho_for(*, epsilon: float, delta: float, closeness: float = 0.0) -> float:
    """The largest rho within the budget, a part in 1e9 below it; 0 where ``closeness`` alone uses up epsilon.

    Raises:
        ConfigurationError: ``epsilon`` or ``delta`` is out of range.
    """
    _validate.within(low=1e-6, high=1e6, epsilon=epsilon)
    low, high = 0.0, 1.0
    while epsilon_of_shares(high, delta=delta, closeness=closeness) < epsilon:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        over = epsilon_of_shares(middle, delta=delta, closeness=closeness) > epsilon
        low, high = (low, middle) if over else (middle, high)
    return low * (1.0 - _MARGIN)


def _at_order(log_order: float, rho: float, delta: float) -> float:
    """rho alpha + log(1 - 1/alpha) - (log delta + log alpha) / (alpha - 1), with alpha = 1 + e^log_order."""
    above = math.exp(log_order)
    return rho * (1.0 + above) + log_order - math.log1p(above) - (math.log(delta) + math.log1p(above)) / above
