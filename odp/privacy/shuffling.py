"""Amplification by shuffling: what reports that are private by themselves reveal once nobody knows whose is whose.

Each of ``n`` devices sends one report that is ``epsilon0``-locally differentially private: for any two inputs, "no
data" among them. A party that sees only the *multiset* of the reports learns less: this module bounds the epsilon of
the multiset at ``delta``, for the replacement of one device's input by another.

- ``n`` counts the reports of *honest* devices alone, the one in question included. A device that works for the
  observer sends what it likes, the observer subtracts its report, and it hides nobody.
- Every answer is an upper bound: the bisection ends on a point that was checked, the tails that are cut and the
  rounding of doubles are added to delta.
- Never above ``epsilon0``; falls with ``n`` and ``delta``, grows with ``epsilon0``; up to a part in a thousand
  where numbers are grouped for speed.

General bound, any randomiser, chosen adaptively (Feldman, McMillan, Talwar 2021, arXiv 2012.12803, theorem 3.1). With

    C ~ Bin(n - 1, e^-epsilon0),   A ~ Bin(C, 1/2),   D ~ Bern(s),   s = e^epsilon0 / (1 + e^epsilon0)

a fixed random map takes the pair (A + D, C - A + 1 - D), (A + 1 - D, C - A + D) to the shuffled reports of the two
neighbours. Given C = c, with b the binomial law of c fair coins, the difference of the pair at x is
``k1 b(x - 1) - k2 b(x)``, ``k1 = s - e^epsilon (1 - s)``, ``k2 = e^epsilon s - (1 - s)``. It is positive from some x
on, so the hockey-stick divergence is a weighted sum of binomial tails, one per c.

k-ary randomised response (privacy blanket: Balle, Bell, Gascon, Nissim 2019): a report is uniform over the k choices
with probability ``k / (e^epsilon0 + k - 1)``, and only uniform reports on the two inputs in question hide the device;
the others are handed to the observer, so *how many* are uniform is known too, and the bound is a mean over that number.
(A pair that leaves this number out is no bound: with two reports over three choices, the histogram itself tells more.)
With two choices it is the pair above with clones of probability ``2 / (e^epsilon0 + 1)``.

Not used: the general bound of the "stronger clones" theorem of 2023 (arXiv 2208.04591), which its authors withdrew.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odp import _validate
from odp.privacy.numerical import require_delta

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

SMALLEST_EPSILON0 = 1e-6
LARGEST_EPSILON0 = 32.0
MOST_REPORTS = 10**9
MOST_CHOICES = 2**40

#: Of delta, what each cut tail may hold.
_CUT = 2.0**-24
#: Above the relative error of a product of three probabilities here; the incomplete beta function is the worst.
_ROUNDING = 1e-11
#: Relative width of the bracket, or of delta, at which the search ends.
_WIDTH = 1e-8
_MOST_STEPS = 200
#: Logarithm of delta below its goal from which the search bisects.
_FAR = 10.0
#: Most groups of numbers of clones.
_MOST_CLONES = 2**13
#: Reports beyond these are left out of the privacy blanket: a bound for fewer reports holds for more.
_MOST_BLANKET = 10**7
#: Rows of the privacy blanket: the fewest groups of numbers of uniform reports, and the most rows of all together.
_FEWEST_GROUPS = 4
_MOST_ROWS = 2**15


def amplified_epsilon(epsilon0: float, n: int, delta: float) -> float:
    """Epsilon at ``delta`` of ``n`` shuffled reports of any ``epsilon0``-local randomisers: the general clones bound.

    Args:
        epsilon0: of each report, pure, for any two inputs; from 1e-6 to 32.
        n: reports of honest devices, the one in question included; from 1 to 10^9.
        delta: strictly between 0 and 1.

    Returns:
        From 0 to ``epsilon0``.

    Raises:
        ConfigurationError: a number is out of range.
    """
    _checked(epsilon0, n, delta)
    return _epsilon_of_clones(float(epsilon0), n, float(delta), math.exp(-epsilon0))


def amplified_epsilon_binary(epsilon0: float, n: int, delta: float) -> float:
    """Epsilon at ``delta`` of ``n`` shuffled answers to a yes-or-no question by randomised response.

    Also for every other randomiser with two outputs. Arguments, result and errors as of ``amplified_epsilon``.
    """
    _checked(epsilon0, n, delta)
    return _epsilon_of_clones(float(epsilon0), n, float(delta), 2.0 / (math.exp(epsilon0) + 1.0))


def amplified_epsilon_k_rr(epsilon0: float, n: int, delta: float, choices: int) -> float:
    """Epsilon at ``delta`` of ``n`` shuffled answers by randomised response over ``choices`` choices.

    The smaller of the privacy blanket and the general bound: both hold. A device without data answers for a choice
    that does not depend on it, or for a uniform one: a mixture of inputs is no farther than the worst of them.

    Args:
        epsilon0, n, delta: as of ``amplified_epsilon``.
        choices: from 2 to 2^40.

    Raises:
        ConfigurationError: a number is out of range.
    """
    _checked(epsilon0, n, delta)
    _validate.integer(low=2, high=MOST_CHOICES, choices=choices)
    if choices == 2:
        return amplified_epsilon_binary(epsilon0, n, delta)
    blanket = _epsilon_of_blanket(float(epsilon0), min(n, _MOST_BLANKET), float(delta), choices)
    return min(blanket, amplified_epsilon(epsilon0, n, delta))


def _checked(epsilon0: float, n: int, delta: float) -> None:
    _validate.within(low=SMALLEST_EPSILON0, high=LARGEST_EPSILON0, epsilon0=epsilon0)
    _validate.integer(low=1, high=MOST_REPORTS, n=n)
    require_delta(delta)


@functools.lru_cache(maxsize=256)
def _epsilon_of_clones(epsilon0: float, n: int, delta: float, probability: float) -> float:
    return _smallest(_Clones.of(epsilon0, n, delta * _CUT, probability).delta, epsilon0, delta)


@functools.lru_cache(maxsize=256)
def _epsilon_of_blanket(epsilon0: float, n: int, delta: float, choices: int) -> float:
    return _smallest(_Blanket.of(epsilon0, n, delta * _CUT, choices).delta, epsilon0, delta)


def _smallest(delta_at: Callable[[float], float], epsilon0: float, delta: float) -> float:
    """The smallest epsilon of which ``delta_at`` is at most ``delta``; rounded up, and at most ``epsilon0``."""
    low, high = 0.0, epsilon0
    above, below = _excess(delta_at(low), delta), -_FAR
    if above <= 0.0:
        return 0.0
    moved = 0
    # Bisection while log delta is far below, then regula falsi with the Illinois rule. ``high`` always holds.
    for _ in range(_MOST_STEPS):
        share = 0.5 if below <= -_FAR else above / (above - below)
        middle = low + share * (high - low)
        if high - low <= _WIDTH * high or not low < middle < high:
            break
        excess = _excess(delta_at(middle), delta)
        if -_WIDTH <= excess <= 0.0:
            return middle
        side = 1 if excess > 0.0 else -1
        if side > 0:
            low, above, below = middle, excess, below * (0.5 if moved == side else 1.0)
        else:
            high, below, above = middle, excess, above * (0.5 if moved == side else 1.0)
        moved = side
    return high


def _excess(divergence: float, delta: float) -> float:
    return max(math.log(divergence / delta), -_FAR) if divergence > 0.0 else -_FAR


@dataclass(frozen=True)
class _Clones:
    """The pair of the general bound: one weight per number of clones.

    Attributes:
        counts: float64 [m], the whole numbers of clones that are summed.
        weights: float64 [m], their probabilities, at least the true ones.
        cut: the probability of all other numbers.
    """

    epsilon0: float
    counts: Floats
    weights: Floats
    cut: float

    @classmethod
    def of(cls, epsilon0: float, n: int, tail: float, probability: float) -> _Clones:
        counts, weights = _grouped(*_binomial(n - 1, min(probability, 1.0), tail), _MOST_CLONES)
        return cls(epsilon0, counts, weights, 2.0 * tail)

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at ``epsilon``, rounded up."""
        first, second = _factors(epsilon, self.epsilon0)
        if first <= 0.0:
            return 0.0
        least = np.floor(second / (first + second) * (self.counts + 1.0)) + 1.0
        far, near = _tails(self.counts, least)
        return self.cut + _positive(self.weights * first * near, self.weights * second * far)


@dataclass(frozen=True)
class _Blanket:
    """The pair of the privacy blanket of k-ary randomised response, one row per number of uniform reports and ``t``.

    ``t`` counts the reports on the two inputs in question that are either uniform ones of others or the device's own.
    Given B = b uniform reports of others, T ~ Bin(b, 2 / k) of them are there, and the own one with probability
    own = ``own_weight``. The difference of the pair at (b, t, a) is P[B = b] times

        own P[T = t-1] (k1 b(a-1; t-1) - k2 b(a; t-1))  -  (1 - own) P[T = t] (e^epsilon - 1) b(a; t)

    Divided by b(a; t) it is linear in a and growing. Where the rows would be too many, neighbouring b share one.

    Attributes:
        totals: float64 [m], the values of t that are summed, from 1.
        before, at: float64 [m], P[B = b] P[T = t - 1] and P[B = b] P[T = t].
    """

    epsilon0: float
    own_weight: float
    totals: Floats
    before: Floats
    at: Floats
    cut: float

    @classmethod
    def of(cls, epsilon0: float, n: int, tail: float, choices: int) -> _Blanket:
        whole = math.exp(epsilon0) + choices - 1.0
        uniform, weights = _binomial(n - 1, choices / whole, tail)
        each = _binomial(int(uniform[0]), 2.0 / choices, tail)[0].size
        rows = []
        for least, weight in zip(*_grouped(uniform, weights, max(_FEWEST_GROUPS, _MOST_ROWS // each)), strict=True):
            others, law = _binomial(int(least), 2.0 / choices, tail)
            totals = np.append(others, others[-1] + 1.0)
            before, at = np.append(0.0, weight * law), np.append(weight * law, 0.0)
            rows.append(np.stack([totals, before, at])[:, totals >= 1.0])
        totals, before, at = np.concatenate(rows, axis=1)
        return cls(epsilon0, (math.exp(epsilon0) + 1.0) / whole, totals, before, at, 4.0 * tail)

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at ``epsilon``, rounded up."""
        first, second = _factors(epsilon, self.epsilon0)
        if first <= 0.0:
            return 0.0
        weight = self.own_weight * self.before
        blank = (1.0 - self.own_weight) * self.at * math.expm1(epsilon)
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.where(weight > 0.0, blank * self.totals / (2.0 * weight), np.inf)
        least = np.floor(np.minimum((second * self.totals + shift) / (first + second), self.totals + 1.0)) + 1.0
        far, near = _tails(self.totals - 1.0, least)
        all_far = 0.5 * (far + near)  # one more fair coin
        return self.cut + _positive(weight * first * near, weight * second * far + blank * all_far)


def _grouped(values: Floats, weights: Floats, groups: int) -> tuple[Floats, Floats]:
    """At most ``groups`` groups of neighbouring values: the smallest value of each, and the weight of all.

    Fewer clones or uniform reports never reveal less, since anybody can add one, so the bound only grows by this.
    """
    starts = np.unique(np.linspace(0, values.size, min(groups, values.size), endpoint=False).astype(np.int64))
    return values[starts], np.add.reduceat(weights, starts)


def _factors(epsilon: float, epsilon0: float) -> tuple[float, float]:
    """k1 and k2; k1 = (e^epsilon0 - e^epsilon) / (1 + e^epsilon0) without a difference of nearly equal numbers."""
    whole = 1.0 + math.exp(-epsilon0)
    return -math.expm1(epsilon - epsilon0) / whole, (math.exp(epsilon) - math.exp(-epsilon0)) / whole


def _positive(gained: Floats, lost: Floats) -> float:
    """The sum of the positive parts of ``gained - lost``, with a bound of their rounding errors added.

    A threshold that rounding moved by one loses a term that is nearly zero, far below that bound.
    """
    terms = np.maximum(gained - lost, 0.0) + _ROUNDING * (gained + lost)
    return float(np.sum(terms)) * (1.0 + _ROUNDING)


def _tails(trials: Floats, least: Floats) -> tuple[Floats, Floats]:
    """P[Bin(trials, 1/2) >= least] and P[.. >= least - 1]; float64 [m] each.

    ``P[Bin(c, 1/2) >= t] = I_1/2(t, c - t + 1)`` for t from 1 to c.
    """
    return _tail(trials, least), _tail(trials, least - 1.0)


def _tail(trials: Floats, least: Floats) -> Floats:
    from scipy.special import betainc  # devices have no SciPy, and ask for no bound

    inside = (least >= 1.0) & (least <= trials)
    first = np.where(inside, least, 1.0)
    rest = np.where(inside, trials - least + 1.0, 1.0)
    return np.where(inside, betainc(first, rest, 0.5), np.where(least < 1.0, 1.0, 0.0))


def _binomial(trials: int, probability: float, tail: float) -> tuple[Floats, Floats]:
    """The values of Bin(trials, probability) without two tails of at most ``tail`` each, and their probabilities.

    The range is Bernstein's: ``P[|X - mean| >= x] <= exp(-x^2 / (2 (variance + x / 3)))`` on each side. Probabilities
    are ratios of neighbours, scaled to a sum of 1 over the range, which only makes them larger.
    """
    if probability >= 1.0:
        return np.array([float(trials)]), np.ones(1)
    mean, variance, far = trials * probability, trials * probability * (1.0 - probability), -math.log(tail)
    reach = far / 3.0 + math.sqrt(far * far / 9.0 + 2.0 * variance * far)
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    values = np.arange(low, high + 1, dtype=np.float64)
    steps = np.log((trials - values[:-1]) / (values[:-1] + 1.0)) + math.log(probability) - math.log1p(-probability)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(logs - np.max(logs))
    return values, weights / np.sum(weights)
