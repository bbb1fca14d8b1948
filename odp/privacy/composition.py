"""Epsilon of lists that hold sampled rounds: privacy loss distributions (PLD) of the dp-accounting library.

- Equal rounds are composed in one step, and all Gaussian releases of full participation enter as one of their joint mu,
  so that the time depends on the number of *different* rounds.
- Discretisation rounds every privacy loss upwards: the result is never too small by it, and too large by less than 2e-4
  for 100 rounds (rule P9). Beyond 10,000 rounds the grid is five times finer.
- The library composes by fast Fourier transforms of doubles. Their rounding is not pessimistic: it moves delta by up to
  1e-13 for 10,000 rounds. ``ROUNDING_DELTA`` is ten times that, and taken off delta first.
- ``overflow_delta``, the probability that the cap of any round is reached, is taken off delta too.

Why the library's event bounds what the enclave does (``trusted_aggregator/modes/enclave/sampling.py``), under
``zero_out_user``: let at most N contribute to a round, each drawn with probability q, and let the cap be B. Let A be
the event that fewer than B of the *others* are drawn; where it fails, add an independent coin, so that it fails with
probability tau = P[Bin(N - 1, q) >= B] whatever the number of contributions. A depends on coins of others alone, so it
is as likely for both neighbours.

1. Given A and the coins of all others, the round is a Gaussian of noise multiplier z with mean 0 or, with probability
   q, the user's vector of norm at most 1; zeroed out, with mean 0. That is the pair P of Poisson sampling without a
   cap: at most B are drawn, so the user moves nobody else, and is moved by nobody.
2. Let M' be the round M, but telling only that A failed where it did. It has the pair (1 - tau) P + tau (equal laws).
   The library's event has the pair (1 - tau) P + tau R, for a draw beyond the cap that evicts, where R is some pair. R
   dominates equal laws, so the library's pair dominates that of M', and so it does for compositions, adaptive too.
3. M gives something in a set S at least as often as M' does, and at most tau more often. So with the library's epsilon
   and delta of all rounds together,

       P[M(x) in S]  <=  P[M'(x) in S] + sum of tau
                     <=  e^epsilon P[M'(x') in S] + delta + sum of tau
                     <=  e^epsilon P[M(x') in S] + delta + sum of tau.

Nothing was said about what happens where A fails: eviction, as in the library's event, or noise alone, as here. With
the user absent instead of zeroed out, all of it holds word for word, so ``add_remove_user`` has the same bound where
nothing else tells how many contribute.

The library is imported where it is used, because that takes seconds. The caches hold values of pure functions.

Source: arXiv 2508.15089 (truncated Poisson sampling); Doroshenko et al. 2022 (connect-the-dots discretisation).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.events import Event, GaussianRelease, SampledRound, Sampling

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

INTERVAL = 1e-4
COARSE_INTERVAL = 1e-3
ROUNDING_DELTA = 1e-12
"""Per 10,000 sampled rounds, at least once: above what Fourier transforms of doubles can move delta."""

_FINE_INTERVAL = 2e-5
_MANY_ROUNDS = 10_000

_Group = tuple[tuple[Sampling, float], int]  # sampling and joint noise multiplier, number of rounds


def truncation_cap(*, probability: float, population_bound: int, rounds: int, delta: float) -> int:
    """The smallest cap that all rounds together reach with a probability of at most delta / 100 (rule P14).

    A looser cap costs next to nothing, a tighter one is costly. At most ``population_bound``, which is no cap.

    Raises:
        ConfigurationError: a number is out of range.
    """
    _validate.within(low=1e-9, high=1.0, sampling_probability=probability)
    _validate.integer(low=1, high=10**9, population_bound=population_bound, rounds=rounds)
    _validate.within(low=1e-300, high=1.0, delta=delta)
    allowed = delta / (100 * rounds)
    low, high = 0, population_bound  # the cap is above low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _at_least(middle, population_bound - 1, probability) <= allowed else (middle, high)
    return high


@functools.lru_cache(maxsize=256)
def _reached(sampling: Sampling) -> float:
    return _at_least(sampling.cap, sampling.population_bound - 1, sampling.probability)


def _at_least(successes: int, trials: int, probability: float) -> float:
    """P[X >= successes] of a binomial X, for ``successes`` >= 1."""
    from scipy.special import betainc  # scipy.stats has it too, and takes a quarter of a second to load

    return float(betainc(successes, trials - successes + 1, probability)) if successes <= trials else 0.0


def overflow_delta(events: Mapping[Event, int]) -> float:
    """Upper bound of the probability that any of the sampled rounds reaches its cap."""
    return math.fsum(
        times * _reached(event.sampling) for event, times in events.items() if isinstance(event, SampledRound)
    )


def rounding_delta(events: Mapping[Event, int]) -> float:
    """The delta that the floating-point composition of these events may add; 0 without sampled rounds."""
    rounds = _sampled_rounds(events)
    return ROUNDING_DELTA * max(1.0, rounds / _MANY_ROUNDS) if rounds else 0.0


def interval_for(events: Mapping[Event, int]) -> float:
    """The discretisation of a claim about these events (rule P9)."""
    return INTERVAL if _sampled_rounds(events) <= _MANY_ROUNDS else _FINE_INTERVAL


def epsilon(events: Mapping[Event, int], *, delta_left: float, interval: float | None = None) -> float:
    """Epsilon of the events with their counts, at the rest of delta.

    Args:
        events: Gaussian releases and sampled rounds; no other type.
        delta_left: delta, without what sampling noise, caps and rounding add to it.
        interval: the discretisation; the default is that of ``interval_for``. A coarser one is never below.

    Raises:
        ConfigurationError: an event of another type, or a number out of range.
        PrivacyError: the events are too many or too costly for a finite epsilon.
    """
    _validate.within(low=1e-300, high=1.0, delta=delta_left)
    if not all(isinstance(event, (GaussianRelease, SampledRound)) for event in events):
        raise ConfigurationError("Expected every privacy event to be a GaussianRelease or a SampledRound")
    groups: Counter[tuple[Sampling, float]] = Counter()
    for event, times in events.items():
        if isinstance(event, SampledRound):
            groups[event.sampling, event.noise_multiplier] += times
    square = math.fsum(times * event.mu**2 for event, times in events.items() if isinstance(event, GaussianRelease))
    ordered = sorted(groups.items(), key=lambda group: (group[0][1], group[0][0].probability, group[0][0].cap))
    step = interval_for(events) if interval is None else interval
    composed = _composed(tuple(ordered), math.sqrt(square), step)
    bound = max(0.0, float(composed.get_epsilon_for_delta(delta_left)))
    if not math.isfinite(bound):
        raise PrivacyError(f"No finite epsilon at delta={delta_left:.3g}: add noise, or plan fewer rounds")
    return bound


@functools.lru_cache(maxsize=4)  # the budgets of a charge ask for the same lists; some 20 MB each
def _composed(groups: Sequence[_Group], total_mu: float, interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = None
    for (sampling, multiplier), times in groups:
        single_round = _one_round(sampling, multiplier, interval)
        several = single_round if times == 1 else single_round.self_compose(times)
        composed = several if composed is None else composed.compose(several)
    if total_mu:
        gaussian = pld.from_gaussian_mechanism(1.0 / total_mu, value_discretization_interval=interval)
        composed = gaussian if composed is None else composed.compose(gaussian)
    return pld.identity(interval) if composed is None else composed


@functools.lru_cache(maxsize=16)
def _one_round(sampling: Sampling, multiplier: float, interval: float) -> PrivacyLossDistribution:
    """Of TruncatedSubsampledGaussianDpEvent, one user's vector against zero and zero against it (add/remove there).

    The same call as in the library's PLDAccountant.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=sampling.population_bound,
        sampling_probability=sampling.probability,
        truncated_batch_size=sampling.cap,
        noise_multiplier=multiplier,
        value_discretization_interval=interval,
    )


def _sampled_rounds(events: Mapping[Event, int]) -> int:
    return sum(times for event, times in events.items() if isinstance(event, SampledRound))
