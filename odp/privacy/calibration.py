"""From a budget to noise for sampled rounds: the inverse of ``composition.py``, found by search.

A run is described by how it divides mu^2 among its rounds, and by its draw. Searching is done at the coarse
discretisation, whose epsilon is never below that of the ledger, so that what is found here is never refused there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from odp import _validate
from odp.errors import PrivacyError
from odp.privacy import accounting, composition
from odp.privacy.events import GaussianRelease, SampledRound, Sampling

_STEP_BACK = 1e-4
_MOST_STEPS = 100
_LARGEST_MU = 10.0 * (1.0 - 1e-9)  # per round: the least noise that an event may have


def total_mu_for(
    shares: Sequence[float],
    *,
    epsilon: float,
    delta: float,
    coordinates: int,
    sampling: Sampling | Sequence[Sampling] | None = None,
) -> float:
    """The largest ``t`` for which rounds of joint mu ``sqrt(share) * t`` together stay within the budget.

    Without ``sampling`` this is ``accounting.mu_for``, whatever the shares. With it, ``t`` is what the noise is made
    from, before amplification; the search stops up to a part in 1e3 below the largest.

    Args:
        shares: of the rounds, positive, 1 together.
        epsilon, delta: the budget.
        coordinates: noised numbers of all rounds.
        sampling: the draw of every round, or one per round; without any, every contribution counts.

    Raises:
        ConfigurationError: a number is out of range.
        PrivacyError: sampling the noise, or caps that are reached, use up delta.
    """
    _validate.positive(**{f"share_{number}": share for number, share in enumerate(shares)})
    _validate.within(low=1.0 - 1e-9, high=1.0 + 1e-9, sum_of_shares=math.fsum(shares))
    if not sampling:
        return accounting.mu_for(epsilon=epsilon, delta=delta, coordinates=coordinates)
    draws = (sampling,) * len(shares) if isinstance(sampling, Sampling) else tuple(sampling)
    _validate.integer(low=len(shares), high=len(shares), draws=len(draws))
    return _sampled(tuple(shares), epsilon, delta, coordinates, draws)


@functools.lru_cache(maxsize=64)
def _sampled(
    shares: tuple[float, ...], epsilon: float, delta: float, coordinates: int, draws: tuple[Sampling, ...]
) -> float:
    least = accounting.mu_for(epsilon=epsilon, delta=delta, coordinates=coordinates)  # sampling never costs epsilon
    # Far quicker, and close.
    uncapped = tuple(dataclasses.replace(draw, cap=draw.population_bound) for draw in draws)

    def spent(total: float, draws: tuple[Sampling, ...]) -> float:
        rounds = [
            SampledRound((GaussianRelease("round", math.sqrt(share) * total, 1.0, numbers),), draw)
            for share, numbers, draw in zip(shares, _split(coordinates, len(shares)), draws, strict=True)
        ]
        return accounting.epsilon(rounds, delta=delta, interval=composition.COARSE_INTERVAL)

    most = _LARGEST_MU / math.sqrt(max(shares))
    total = least if least >= most else largest_within(
        lambda total: spent(total, uncapped), epsilon, start=least, most=most
    )  # fmt: skip
    for _ in range(_MOST_STEPS):
        if spent(total, draws) <= epsilon:
            return total * (1.0 - 1e-9)
        total *= 1.0 - _STEP_BACK
    raise PrivacyError(
        f"cap={min(draw.cap for draw in draws)} of the draw is too tight for delta={delta:g}: use that of "
        "truncation_cap, or a larger one"
    )


def largest_within(cost: Callable[[float], float], budget: float, *, start: float, most: float) -> float:
    """The largest x up to ``most`` with ``cost(x) <= budget``, to a part in 1e6 and below; ``cost`` rises with x.

    ``start`` is a guess on the safe side: ``cost(start) <= budget``. Where it is not, ``start`` is returned.
    """
    low, high = start, start
    while cost(min(1.5 * high, most)) <= budget:
        low = high = min(1.5 * high, most)
        if high >= most:
            return most
    high = min(1.5 * high, most)
    # Illinois' variant of regula falsi on logarithms: the cost is close to a power of x.
    at_low, at_high = _gap(cost(low), budget), _gap(cost(high), budget)
    if at_low > 0.0:
        return start
    side = 0
    while math.log(high / low) > 1e-6:
        weight = at_low / (at_low - at_high)
        middle = low * (high / low) ** min(max(weight, 1e-3), 1.0 - 1e-3)
        gap = _gap(cost(middle), budget)
        if gap <= 0.0:
            low, at_low = middle, gap
            at_high *= 0.5 if side < 0 else 1.0
            side = -1
        else:
            high, at_high = middle, gap
            at_low *= 0.5 if side > 0 else 1.0
            side = 1
        if -1e-6 < gap <= 0.0:
            break
    return low


def _gap(cost: float, budget: float) -> float:
    return math.log(max(cost, 1e-12) / budget)


def _split(coordinates: int, rounds: int) -> list[int]:
    """Numbers per round that add up to ``coordinates`` or just above."""
    return [max(1, coordinates - rounds + 1), *[1] * (rounds - 1)]
