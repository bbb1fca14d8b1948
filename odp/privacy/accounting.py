"""From events to (epsilon, delta), and back from a budget to noise.

Gaussian releases of full participation compose exactly: all of them together are one Gaussian of
``mu = sqrt(sum (sensitivity / std)^2)``, and its privacy profile is known in closed form,

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2).

Epsilon is always computed from the list of events, never added up from other epsilons. Every result is rounded to the
safe side, and includes the delta that sampling the noise on a computer and the graphs of secure aggregation add. A
list that holds sampled rounds goes to ``composition.py``. The accountants of the dp-accounting library serve as a
cross-check; they are imported where they are used, because that takes seconds.

Sources: Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 2.

The tails of the normal distribution in plain floating point, without underflow: devices have no SciPy.

``math.erfc`` underflows near 26, where privacy profiles begin to matter; scaled by ``e^(x^2)`` it does not.

Source: the continued fraction of erfc, Abramowitz and Stegun 7.1.14.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import composition, concentrated
from odp.privacy.events import DistributedRelease, Event, GaussianRelease, LocalReport, SampledRound, ShuffledReports
from odp.privacy.mechanisms.rounded_gaussian import ADDED_DELTA
from odp.privacy.numerical import Left, left_of_gaussians, left_of_shares, require_delta
from odp.privacy.shuffling import amplified_epsilon, amplified_epsilon_k_rr

_SPLIT = 134217729.0  # 2^27 + 1: cuts a double into two halves whose products are exact (Dekker 1971)
_FAR = 8.0
_TERMS = 40
_LARGEST_NEGATIVE = -26.0


def erfcx(x: float) -> float:
    """``e^(x^2) erfc(x)``, with a relative error below 1e-14; infinity below -26, where it overflows a double.

    >>> round(erfcx(0.0), 12), round(erfcx(100.0), 12)
    (1.0, 0.005641613782)
    """
    if x < _LARGEST_NEGATIVE:
        return math.inf
    if x < _FAR:
        return _exp_square(x) * math.erfc(x)
    # x + (1/2)/(x + (2/2)/(x + (3/2)/(x + ..))), from the inside; 40 terms are exact to the last digit from 8 on.
    fraction = x
    for term in range(_TERMS, 0, -1):
        fraction = x + 0.5 * term / fraction
    return 1.0 / (math.sqrt(math.pi) * fraction)


def ndtr(x: float) -> float:
    """The distribution function of the standard normal law, also far out in its lower tail."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _exp_square(x: float) -> float:
    """``e^(x^2)``: the rounding error of x^2 would be multiplied by x^2 in a plain ``exp(x * x)``."""
    square = x * x
    high = _SPLIT * x - (_SPLIT * x - x)
    low = x - high
    error = ((high * high - square) + 2.0 * high * low) + low * low
    return math.exp(square) * (1.0 + error)


ACCOUNTANT = "closed form of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)"
SAMPLED_ACCOUNTANT = "privacy loss distributions of truncated Poisson sampling (arXiv 2508.15089), never too small"
PROVED_UP_TO = 40.0
"""The bound of the added delta is proved up to this epsilon; above, a claim has no meaning anyway."""

_RELATIVE_MARGIN = 1e-9
_MOST_USERS = 10**15
_MOST_STEPS = 100
_LARGEST_EXPONENT = 700.0


def mu(events: Iterable[Event]) -> float:
    """The mu of Gaussian differential privacy of all events together, ``sqrt(sum of mu^2)``; 0 without events.

    Holds for adaptively chosen events. Source: Dong, Roth, Su 2022, Corollary 2.

    Raises:
        PrivacyError: an event is a sampled round, or has noise in shares. A mu for the first is an approximation by the
            central limit theorem, up to 1.9 times too small (rule P10); only ``epsilon`` is theirs.
    """
    squares = []
    for event in events:
        if not isinstance(event, GaussianRelease):
            raise PrivacyError(
                f"{event.name} is no Gaussian of full participation and has no mu: compute epsilon from the events"
            )
        squares.append(event.mu**2)
    return math.sqrt(math.fsum(squares))


def noised_coordinates(events: Iterable[Event]) -> int:
    """Number of noised numbers of all events."""
    return sum(event.coordinates for event in events)


def added_delta(events: Iterable[Event]) -> float:
    """Upper bound of the delta that adds to the mechanisms' own.

    2^-48 per noised number for sampling the noise, at any grid; of sampled rounds also the probability that a cap is
    reached, and the rounding of their accountant; of noise in shares, that the graph of a session fails. Of many
    numbers, ``epsilon`` takes off less (``numerical.py``).
    """
    counts = _counted(events)
    sampled = composition.overflow_delta(counts) + composition.rounding_delta(counts)
    return _coordinates(counts) * ADDED_DELTA + sampled + graph_delta(counts)


def epsilon(events: Iterable[Event] | Mapping[Event, int], *, delta: float, interval: float | None = None) -> float:
    """The epsilon at ``delta`` of all events together, 0 without events; a mapping gives the count of each event.

    Never too small; too large by at most a part in 1e8 plus 1e-12, and with sampled rounds by the discretisation.

    Args:
        events: what was released.
        delta: of the claim.
        interval: discretisation for lists with sampled rounds; by rule P9 unless given. A coarser one is faster and
            never below.

    Raises:
        ConfigurationError: ``delta`` is not strictly between 0 and 1.
        PrivacyError: what is added to delta (noise on a computer, caps that can be reached) uses it up.
    """
    counts = _counted(events)
    if any(isinstance(event, (LocalReport, ShuffledReports)) for event in counts):
        return _with_reports(counts, delta, interval)
    squares = [times * event.mu**2 for event, times in counts.items() if isinstance(event, GaussianRelease)]
    if any(isinstance(event, DistributedRelease) for event in counts):
        return _with_shares(counts, delta)
    if len(squares) < len(counts):
        left = _left_of(counts, delta)
        return composition.epsilon(counts, delta_left=left.delta, interval=interval) + left.epsilon
    return epsilon_of_mu(math.sqrt(math.fsum(squares)), delta=delta, coordinates=_coordinates(counts))


def _with_reports(counts: Mapping[Event, int], delta: float, interval: float | None) -> float:
    """Basic composition: epsilons and deltas add up, of local reports, of shuffled ones, and of all else as one.

    Shuffled reports share what the rest leaves of delta, equally; one event alone gets all of it. Half of delta is for
    the rest, whatever it is: so epsilon never falls when an event is added.
    """
    require_delta(delta)
    rest: dict[Event, int] = {}
    shuffled: dict[ShuffledReports, int] = {}
    total = []
    for event, times in counts.items():
        if isinstance(event, LocalReport):
            total.append(times * event.epsilon)
        elif isinstance(event, ShuffledReports):
            shuffled[event] = times
        else:
            rest[event] = times
    share = 0.5 * delta if rest and shuffled else delta
    if rest:
        total.append(epsilon(rest, delta=share, interval=interval))
    each = share / max(1, sum(shuffled.values()))
    total += [times * _of_shuffled(event, each) for event, times in shuffled.items()]
    return math.fsum(total)


def _of_shuffled(event: ShuffledReports, delta: float) -> float:
    if event.choices:
        return amplified_epsilon_k_rr(event.epsilon0, event.reports, delta, event.choices)
    return amplified_epsilon(event.epsilon0, event.reports, delta)


def _with_shares(counts: Mapping[Event, int], delta: float) -> float:
    """Epsilon of lists with noise in shares: in closed form, or with sampled rounds by Renyi DP; never by a profile
    (rule P21).
    """
    left = _left_of(counts, delta).delta
    far = closeness(counts)
    if any(isinstance(event, SampledRound) for event in counts):
        return _renyi(counts, left * math.exp(-far)) + 2.0 * far
    rho = math.fsum(
        0.5 * times * event.mu**2
        for event, times in counts.items()
        if isinstance(event, (GaussianRelease, DistributedRelease))
    )
    return concentrated.epsilon_of_shares(rho, delta=left, closeness=far)


def closeness(events: Iterable[Event] | Mapping[Event, int]) -> float:
    """The distance of the sums of shares from discrete Gaussians, over all numbers (``concentrated.py``)."""
    return math.fsum(
        times * event.coordinates * concentrated.closeness(event.share_std, sharers=event.sharers)
        for event, times in _counted(events).items()
        if isinstance(event, DistributedRelease)
    )


def graph_delta(events: Iterable[Event] | Mapping[Event, int]) -> float:
    """Upper bound of the probability that the graph of any session behind the events fails; it adds to delta.

    With a failed graph the server may learn the sum of some devices alone. Whether one fails follows from random
    numbers of the devices and from no data, so its probability is added once, to either of two neighbours.
    """
    counts = _counted(events)
    return math.fsum(
        times * event.graph_delta for event, times in counts.items() if isinstance(event, DistributedRelease)
    )


def epsilon_if_alone(events: Iterable[Event], *, delta: float) -> float:
    """Epsilon at ``delta`` of one device if all other devices of its sessions work for the server.

    Of a sum with noise in shares, its own share is then all that hides it, and of shuffled reports the randomiser of
    its own one; other releases are as they were.

    Raises:
        ConfigurationError, PrivacyError: as ``epsilon``.
    """
    return epsilon([_alone(event) for event in events], delta=delta)


def _alone(event: Event) -> Event:
    if isinstance(event, ShuffledReports):
        return LocalReport(event.name, event.epsilon0)
    if not isinstance(event, DistributedRelease):
        return event
    return dataclasses.replace(event, noise_std=event.noise_std / math.sqrt(event.sharers), sharers=1)


def epsilon_of_rho(
    rho: float, *, delta: float, coordinates: int, closeness: float = 0.0, graph_delta: float = 0.0
) -> float:
    """The epsilon at ``delta`` of rho-zCDP releases that noise ``coordinates`` numbers; for devices, without a library.

    ``closeness`` and ``graph_delta`` are those of the events, by the functions of these names.

    Raises:
        ConfigurationError, PrivacyError: as ``epsilon_of_mu``.
    """
    left = left_of_shares(delta, coordinates, graph_delta)
    return concentrated.epsilon_of_shares(rho, delta=left, closeness=closeness)


def mu_for_shares(*, epsilon: float, delta: float, coordinates: int, graph_delta: float) -> float:
    """The largest sensitivity over noise within the budget for noise in shares; as ``mu_for``.

    ``graph_delta`` is of all rounds together.

    Raises:
        ConfigurationError, PrivacyError: as ``mu_for``.
    """
    left = left_of_shares(delta, coordinates, graph_delta)
    return math.sqrt(2.0 * concentrated.rho_for(epsilon=epsilon, delta=left)) * (1.0 - _RELATIVE_MARGIN)


def epsilon_of_mu(total: float, *, delta: float, coordinates: int = 0) -> float:
    """The epsilon at ``delta`` of a mu-GDP mechanism that noises ``coordinates`` numbers, rounded as in ``epsilon``.

    Raises:
        ConfigurationError: ``delta`` is not strictly between 0 and 1, or ``total`` is negative or not finite.
        PrivacyError: so many numbers were noised that sampling alone uses up ``delta``.
    """
    _validate.within(low=0.0, high=1e100, mu=total)
    left = left_of_gaussians(delta, coordinates)
    if math.erf(total / math.sqrt(8.0)) <= left.delta:  # delta(0) = Phi(mu/2) - Phi(-mu/2)
        return left.epsilon
    return _epsilon_of_gaussian(total, left.delta) + left.epsilon


# A device asks for the same few totals at every contribution, and so do the devices of one host.
@functools.lru_cache(maxsize=1024)
def _epsilon_of_gaussian(total: float, delta: float) -> float:
    low, high = 0.0, max(1.0, total * total)
    target = math.log(delta) - _rounding(total)
    while _log_delta(high, total) > target:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * max(high, 1e-3):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if _log_delta(middle, total) > target else (low, middle)
    return high


def mu_for(*, epsilon: float, delta: float, coordinates: int = 0) -> float:
    """The largest mu within the budget when ``coordinates`` numbers are noised in all; a part in 1e9 below it.

    The margin lets a sum of squares that is rounded otherwise still fit.

    Raises:
        ConfigurationError: ``epsilon`` is not positive, or ``delta`` not strictly between 0 and 1.
        PrivacyError: so many numbers are noised that sampling alone uses up ``delta``.
    """
    _validate.within(low=1e-6, high=1e6, epsilon=epsilon)
    left = left_of_gaussians(delta, coordinates)
    if left.epsilon >= epsilon:
        raise PrivacyError(
            f"coordinates={coordinates} noised numbers add {left.epsilon:.2e} to epsilon, which is not below"
            f" epsilon={epsilon!r}: release fewer numbers, or state a larger epsilon"
        )
    epsilon -= left.epsilon
    target = math.log(left.delta) - _rounding(math.sqrt(2.0 * epsilon))
    low, high = 0.0, math.sqrt(2.0 * epsilon) + 1.0
    while _log_delta(epsilon, high) < target:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if _log_delta(epsilon, middle) > target else (middle, high)
    return low * (1.0 - _RELATIVE_MARGIN)


def noise_multiplier_for(*, epsilon: float, delta: float, releases: int = 1, coordinates: int = 0) -> float:
    """Noise std over sensitivity that each of ``releases`` equal releases needs to fit the budget together.

    ``coordinates`` counts the noised numbers of all releases.

    Raises:
        ConfigurationError: as ``mu_for``, or ``releases`` < 1.
        PrivacyError: as ``mu_for``.
    """
    _validate.integer(low=1, high=10**9, releases=releases)
    return math.sqrt(releases) / mu_for(epsilon=epsilon, delta=delta, coordinates=coordinates)


def default_delta(n_users: int) -> float:
    """The largest power of ten that is at most ``0.1 / n_users``, and at most 1e-5.

    Raises:
        ConfigurationError: ``n_users`` is not a positive whole number.
    """
    _validate.integer(low=1, high=_MOST_USERS, n_users=n_users)
    return float(f"1e-{max(5, len(str(10 * n_users - 1)))}")  # 10^k >= 10 N exactly when 10 N - 1 has at most k digits


def check_delta(delta: float, n_users: int) -> None:
    """Refuses a ``delta`` at which publishing one user's data outright would be within the guarantee.

    Raises:
        ConfigurationError: ``delta`` is not strictly between 0 and 1, or ``n_users`` < 1.
        PrivacyError: ``delta * n_users`` >= 1.
    """
    _validate.integer(low=1, high=_MOST_USERS, n_users=n_users)
    require_delta(delta)
    if delta * n_users >= 1.0:
        raise PrivacyError(
            f"delta={delta!r} is too large for n_users={n_users}: delta * n_users must be below 1;"
            f" default for this population: {default_delta(n_users)!r}"
        )


def most_users(delta: float) -> int:
    """The largest ``n_users`` that ``check_delta`` accepts, or 0.

    Raises:
        ConfigurationError: ``delta`` is not strictly between 0 and 1.
    """
    require_delta(delta)
    most = min(_MOST_USERS, math.floor(1.0 / delta))
    # The quotient is rounded, and so is the product that is compared with 1: both by less than one user.
    while delta * most >= 1.0:
        most -= 1
    return most


def epsilon_pld(events: Iterable[Event], *, delta: float, interval: float = 1e-4) -> float:
    """Cross-check by privacy loss distributions of dp-accounting, event by event; never below ``epsilon``.

    Takes seconds, and memory in proportion to epsilon / ``interval``.

    Raises:
        ConfigurationError: ``delta`` or ``interval`` is out of range.
        PrivacyError: as ``epsilon``.
    """
    return _by_pld("ADD_OR_REMOVE_ONE", events, delta, interval)


def epsilon_replace_one(events: Iterable[Event], *, delta: float, interval: float = 1e-4) -> float:
    """For information: epsilon when one user's data are *replaced* instead of added or removed, by PLD.

    Raises:
        ConfigurationError: ``delta`` or ``interval`` is out of range.
        PrivacyError: as ``epsilon``.
    """
    return _by_pld("REPLACE_ONE", events, delta, interval)


def _by_pld(relation: str, events: Iterable[Event], delta: float, interval: float) -> float:
    _validate.within(low=1e-6, high=0.1, interval=interval)
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    return _by_library(PLDAccountant(dp_accounting.NeighboringRelation[relation], interval), events, delta)


def epsilon_rdp(events: Iterable[Event], *, delta: float) -> float:
    """Cross-check by Renyi differential privacy of dp-accounting: an upper bound, 5 to 20 % above ``epsilon``.

    It knows no cap, so sampled rounds enter as Poisson sampling without one; a cap that is hardly ever reached, which
    is the only one that can be charged, changes epsilon in the sixth digit.

    Raises:
        ConfigurationError: ``delta`` is not strictly between 0 and 1.
        PrivacyError: as ``epsilon``.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    # The relation is a constant: with REPLACE_ONE this accountant of dp-accounting 0.6 is off by a factor of 2.
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    return _by_library(accountant, events, delta, capped=False)


def _by_library(accountant: Any, events: Iterable[Event], delta: float, *, capped: bool = True) -> float:
    counts = _counted(events)
    left = _left_of(counts, delta)
    return _compose(accountant, counts, left.delta, capped=capped) + left.epsilon


def _renyi(counts: Mapping[Event, int], left: float) -> float:
    """Epsilon by Renyi DP, which knows no caps: that one is reached is paid for, on both sides of the inequality.

    Without caps the rounds are (epsilon, left - e^epsilon tau)-DP, and with them no farther than tau from that, for
    either of two neighbours; the first tau is out of ``left`` already.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    bound = _compose(accountant, counts, left, capped=False)
    overflow = composition.overflow_delta(counts)
    for _ in range(_MOST_STEPS):
        remaining = left - math.exp(min(bound, _LARGEST_EXPONENT)) * overflow
        if remaining <= 0.0:
            break
        if (needed := float(accountant.get_epsilon(remaining))) <= bound:
            return bound
        bound = needed * (1.0 + _RELATIVE_MARGIN)
    raise PrivacyError(
        f"A cap that is reached with a probability of {overflow:.2e} cannot be charged together with noise in shares at"
        f" epsilon {bound:.4g}: raise the cap"
    )


def _compose(accountant: Any, counts: Mapping[Event, int], left: float, *, capped: bool) -> float:
    import dp_accounting

    if not counts:
        return 0.0
    library: Counter[Any] = Counter()
    for event, times in counts.items():
        if isinstance(event, (LocalReport, ShuffledReports)):
            raise PrivacyError(f"{event.name} are reports of local randomisers: the library's accountants take none")
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        if isinstance(event, GaussianRelease) or (isinstance(event, DistributedRelease) and not capped):
            library[gaussian] += times  # the Renyi divergence of shares is at most this one's
        elif isinstance(event, DistributedRelease):
            raise PrivacyError(f"{event.name} has noise in shares: no privacy loss distribution is known to bound it")
        elif capped:
            library[
                dp_accounting.TruncatedSubsampledGaussianDpEvent(
                    dataset_size=event.sampling.population_bound,
                    sampling_probability=event.sampling.probability,
                    truncated_batch_size=event.sampling.cap,
                    noise_multiplier=event.noise_multiplier,
                )
            ] += times
        else:
            library[dp_accounting.PoissonSampledDpEvent(event.sampling.probability, gaussian)] += times
    for event, times in library.items():
        accountant.compose(event, times)
    return float(accountant.get_epsilon(left))


def _counted(events: Iterable[Event] | Mapping[Event, int]) -> Mapping[Event, int]:
    counts = events if isinstance(events, Mapping) else Counter(events)
    for event, times in counts.items():
        if not isinstance(event, Event) or times < 1:
            raise ConfigurationError(
                f"Expected privacy events of odp.privacy.events, got {type(event).__name__} {times} times"
            )
    return counts


def _coordinates(counts: Mapping[Event, int]) -> int:
    return sum(times * event.coordinates for event, times in counts.items())


def _left_of(counts: Mapping[Event, int], delta: float) -> Left:
    """The part of ``delta`` that is left for the mechanisms, and what is added to their epsilon."""
    numbers = _coordinates(counts)
    if any(isinstance(event, DistributedRelease) for event in counts):
        left = Left(left_of_shares(delta, numbers, graph_delta(counts)), 0.0)
    else:
        left = left_of_gaussians(delta, numbers)
    overflow, rounding = composition.overflow_delta(counts), composition.rounding_delta(counts)
    if overflow + rounding >= left.delta:
        what = "raise the cap" if overflow > rounding else "state a larger delta"
        raise PrivacyError(
            f"Sampled rounds add a delta of {overflow:.2e} (a cap is reached) + {rounding:.0e} (rounding), not below"
            f" delta={delta!r}: {what}"
        )
    return left._replace(delta=left.delta - overflow - rounding)


def _rounding(total: float) -> float:
    """Above the rounding error of ``_log_delta``: the argument of the normal law has that of mu, times at most 38."""
    return 1e-12 + 1e-14 * (total + 1.0 / total)


def _log_delta(epsilon: float, total: float) -> float:
    """Logarithm of the privacy profile, for ``total`` > 0.

    With the Mills ratio m(x) = Phi(x) / phi(x), and e^epsilon phi(b) = phi(a), the profile is phi(a) (m(a) - m(b)):
    no e^epsilon that overflows, no difference of nearly equal probabilities.
    """
    centre = epsilon / total
    a, b = total / 2.0 - centre, -total / 2.0 - centre
    mills_b = math.sqrt(math.pi / 2.0) * erfcx(-b / math.sqrt(2.0))
    log_density = -0.5 * a * a - 0.5 * math.log(2.0 * math.pi)
    if a > 5.0:  # m(a) grows like e^(a^2/2); here the profile is close to 1 and the second term is tiny
        return math.log(ndtr(a) - math.exp(log_density) * mills_b)
    mills_a = math.sqrt(math.pi / 2.0) * erfcx(-a / math.sqrt(2.0))
    return log_density + math.log(max(mills_a - mills_b, 5e-324))
