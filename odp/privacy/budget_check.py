"""The rest of a budget: the check of every charge, and the advice in the error of a charge that does not fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError
from odp.privacy import accounting, composition
from odp.privacy.events import Event, GaussianRelease, LocalReport, SampledRound, ShuffledReports, scaled

_MOST_ROUNDS = 2**40
# Above the error of the coarse grid for 10,000 rounds: what is over the budget by more is not computed a second time,
# which would take memory in proportion to epsilon.
_COARSE_ERROR = 0.1
_LARGEST_FACTOR = 1e6
# Different sampled rounds whose plan is judged at the fine discretisation, at half a second each, and whose refusal
# has a factor of noise, for which about six coarse computations are made.
_MOST_EXACT = 1
_SAMPLED_PRECISION = 5e-2


def epsilon_within(
    who: str, spent: Mapping[Event, int], events: Sequence[Event], *, budget: float, delta: float
) -> float:
    """Epsilon of ``spent``, with the count of each event, and ``events`` together, if ``budget`` allows it.

    Raises:
        BudgetExceeded: it does not; the message holds what is spent, asked and budgeted, how many more rounds of this
            cost fit (none), and how much more noise would fit (rule P29).
        PrivacyError: what is added to delta uses it up.
    """
    coarse, total = composition.COARSE_INTERVAL, _and(spent, events)
    after = accounting.epsilon(total, delta=delta, interval=coarse)
    # Without sampled rounds there is no grid, and the first answer is the exact one.
    if after <= budget + _COARSE_ERROR and any(isinstance(event, SampledRound) for event in total):
        after = accounting.epsilon(total, delta=delta)
    if after <= budget:
        return after
    before = accounting.epsilon(spent, delta=delta, interval=coarse)
    raise BudgetExceeded(
        f"The budget of {who} is epsilon={budget:g} at delta={delta:g}: {before:.6g} is spent,"
        f" this release would make it {after:.6g}; 0 more rounds of this cost fit; "
        f"{_way_out(spent, events, budget=budget, delta=delta)}"
    )


def require_budget(
    who: str, spent: Mapping[Event, int], events: Sequence[Event], *, budget: float, delta: float
) -> None:
    """Returns if ``events`` fits; as ``epsilon_within``, but faster if sampled rounds clearly fit."""
    if accounting.epsilon(_and(spent, events), delta=delta, interval=composition.COARSE_INTERVAL) > budget:
        epsilon_within(who, spent, events, budget=budget, delta=delta)


def require_plan(who: str, spent: Mapping[Event, int], events: Sequence[Event], *, budget: float, delta: float) -> None:
    """As ``require_budget``, in bounded time, of all that a task will spend.

    Several different sampled rounds have to fit by the coarse discretisation, which is never below. Each of their
    rounds fits by it then, too.
    """
    total = _and(spent, events)
    after = accounting.epsilon(total, delta=delta, interval=composition.COARSE_INTERVAL)
    if after <= budget:
        return
    if plan_interval(total) is None:
        epsilon_within(who, spent, events, budget=budget, delta=delta)
        return
    raise BudgetExceeded(
        f"The budget of {who} is epsilon={budget:g} at delta={delta:g}: with what is spent, this plan would make it "
        f"{after:.6g}; take more noise, or fewer rounds"
    )


def rounds_possible(spent: Mapping[Event, int], each: Sequence[Event], *, budget: float, delta: float) -> int:
    """The largest k for which ``spent`` and k times ``each`` are within the budget.

    With sampled rounds the search is at the coarse discretisation, and its answer then made exact.

    Raises:
        ConfigurationError: ``each`` is empty.
    """
    if not each:
        raise ConfigurationError("Expected at least one privacy event: a release without events is not free")
    done, step = Counter(spent), Counter(each)

    def fits(rounds: int, interval: float | None = composition.COARSE_INTERVAL) -> bool:
        counts = done.copy()
        for event, times in step.items():
            counts[event] += rounds * times
        try:
            return accounting.epsilon(counts, delta=delta, interval=interval) <= budget
        except PrivacyError:  # delta is used up
            return False

    if not fits(1, None):
        return 0
    low, high = 1, 2
    while high < _MOST_ROUNDS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    while fits(low + 1, None):
        low += 1
    return low


def first_rounds_within(blocks: Sequence[tuple[int, Sequence[Event]]], *, budget: float, delta: float) -> int:
    """The most rounds, from the first one on, that are within the budget; 0 where the first one is not.

    Epsilon never falls with further rounds, so the search is a bisection, at the coarse discretisation; its answer is
    made exact at the end, unless several different rounds are sampled (``require_plan``).

    Args:
        blocks: in order, (rounds, events of each of them).
        budget, delta: the budget.
    """
    total = sum(rounds for rounds, _ in blocks)

    def fits(rounds: int, *, coarse: bool) -> bool:
        left, counts = rounds, Counter[Event]()
        for length, events in blocks:
            for event in events if left else ():
                counts[event] += min(left, length)
            left -= min(left, length)
        try:
            interval = composition.COARSE_INTERVAL if coarse else plan_interval(counts)
            return accounting.epsilon(counts, delta=delta, interval=interval) <= budget
        except PrivacyError:  # delta is used up
            return False

    low, high = 0, total + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, coarse=True) else (low, middle)
    while low < total and fits(low + 1, coarse=False):
        low += 1
    return low


def plan_interval(events: Iterable[Event]) -> float | None:
    """The discretisation at which a plan of these different events is judged in the end; None for that of a claim."""
    several = sum(isinstance(event, SampledRound) for event in set(events)) > _MOST_EXACT
    return composition.COARSE_INTERVAL if several else None


def _and(spent: Mapping[Event, int], events: Iterable[Event]) -> Counter[Event]:
    total = Counter(spent)
    total.update(events)
    return total


def _way_out(spent: Mapping[Event, int], wanted: Sequence[Event], *, budget: float, delta: float) -> str:
    """The factor on the noise with which ``wanted`` would fit, rounded up."""
    if all(isinstance(event, GaussianRelease) for event in (*spent, *wanted)):
        before = tuple(Counter(spent).elements())
        coordinates = accounting.noised_coordinates((*before, *wanted))
        allowed = accounting.mu_for(epsilon=budget, delta=delta, coordinates=coordinates)
        left = allowed**2 - accounting.mu(before) ** 2
        if left <= 0.0:
            return "the budget is used up: no noise makes it fit"
        times = accounting.mu(wanted) / math.sqrt(left)
        return f"with {math.ceil(1000 * times) / 1000:.3f} times the noise it would fit"

    noisy = [event for event in wanted if not isinstance(event, (LocalReport, ShuffledReports))]
    if len(noisy) < len(wanted):
        return "the devices randomise their reports: take a smaller epsilon of each report, or more reports at least"

    different = Counter(noisy)

    def fits(factor: float) -> bool:
        events = Counter(spent)
        for event, times in different.items():
            events[scaled(event, factor)] += times
        return accounting.epsilon(events, delta=delta, interval=composition.COARSE_INTERVAL) <= budget

    low, high = 1.0, 2.0
    while not fits(high):
        low, high = high, 2.0 * high
        if high > _LARGEST_FACTOR:
            return "the budget is used up: no noise makes it fit"
    precision = _SAMPLED_PRECISION if any(isinstance(event, SampledRound) for event in (*spent, *wanted)) else 1e-3
    while high - low > precision * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return f"with {math.ceil(1000 * high) / 1000:.3f} times the noise it would fit"
