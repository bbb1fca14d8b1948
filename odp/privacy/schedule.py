"""Schedules of cohorts and noise over the rounds of a training: what they cost, what still fits, and when to stop.

A schedule is a list of blocks (rounds, probability to count, noise multiplier). It is public and fixed before the run,
or follows from releases alone (rule P7). Every round of a block is the same event of the ledger:

- noise multiplier: standard deviation of the noise on the *sum* over the clip norm. Events are in units of the clip
  norm, so a clip norm that changes from round to round changes no event;
- probability: each contribution counts by an independent secret coin; 1 means that all count;
- cap: by rule P14, of all sampled rounds of the schedule together; where more are drawn, none counts;
- divisor of a mean: the expected cohort, probability times population, which is public. Never how many were drawn, and
  a round that drew nobody is released like any other (rule P15).

Of two schedules, compare the noise on the *mean*, ``noise_multiplier / cohort``: at equal noise on the mean, a larger
cohort is always cheaper. Cohorts as large as devices allow, much noise early and little late, is the shape that helps.

The stop rule asks before a round, and a round that would exceed the budget never begins; rounds that failed count.

Sources: arXiv 2508.15089 (truncated Poisson sampling); McMahan et al. 2018 (fixed denominators); Geyer, Klein, Nabi
2017 (schedules and the stop rule).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from odp import _validate
from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError
from odp.privacy import accounting, composition
from odp.privacy.adjacency import Adjacency
from odp.privacy.budget_check import epsilon_within, first_rounds_within
from odp.privacy.calibration import largest_within
from odp.privacy.events import Event, GaussianRelease, SampledRound, Sampling
from odp.privacy.ledger_entry import Budget

MOST_BLOCKS = 1024
_MOST_NOISE = 1e5
_LEAST_NOISE = 0.1
_STEP = 1e-4
_MOST_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class Block:
    """Equal rounds.

    Attributes:
        rounds: how many, at least 1.
        noise_multiplier: standard deviation of the noise on the sum, over the clip norm.
        probability: of a contribution to count; 1 for full participation.

    Raises:
        ConfigurationError: a number is out of range; zero rounds and zero noise are no free events (rule P10).
    """

    rounds: int
    noise_multiplier: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=10**7, rounds=self.rounds)
        _validate.within(low=_LEAST_NOISE, high=_MOST_NOISE, noise_multiplier=self.noise_multiplier)
        _validate.within(low=1e-9, high=1.0, probability=self.probability)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Blocks in order, over one population.

    Attributes:
        blocks: at least one.
        population: most contributions of a round: an upper bound of the users.
        delta: of the claim; the caps follow from it.
        coordinates: noised numbers of one round.
        name: of the release, in events.
        adjacency: of the events.

    Raises:
        ConfigurationError: a number is out of range.
        PrivacyError: delta times population is 1 or more.
    """

    blocks: tuple[Block, ...]
    population: int
    delta: float
    coordinates: int = 1
    name: str = "update"
    adjacency: Adjacency = Adjacency.ZERO_OUT_USER

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_BLOCKS, blocks=len(self.blocks))
        _validate.integer(low=1, high=10**9, population=self.population)
        _validate.integer(low=1, high=2**40, coordinates=self.coordinates)
        accounting.check_delta(self.delta, self.population)

    @property
    def rounds(self) -> int:
        """Of all blocks."""
        return sum(block.rounds for block in self.blocks)

    def cohort(self, round: int) -> float:
        """The expected cohort of a round, and the divisor of its mean: a public number, whoever was drawn."""
        return self.block_of(round).probability * self.population

    def std_of_mean(self, round: int) -> float:
        """Standard deviation of the noise on each number of a round's mean, over the clip norm."""
        return self.block_of(round).noise_multiplier / self.cohort(round)

    def block_of(self, round: int) -> Block:
        """The block of a round, from 0. Raises ConfigurationError where there is none."""
        _validate.integer(low=0, high=self.rounds - 1, round=round)
        for block in self.blocks:
            if round < block.rounds:
                return block
            round -= block.rounds
        raise ConfigurationError("unreachable: the blocks are shorter than their sum")

    def event(self, block: Block) -> Event:
        """What one round of ``block`` is charged."""
        release = GaussianRelease(self.name, 1.0, block.noise_multiplier, self.coordinates, adjacency=self.adjacency)
        if block.probability >= 1.0:
            return release
        return SampledRound((release,), Sampling(block.probability, self.population, self.cap(block)))

    def cap(self, block: Block) -> int:
        """The cap of a sampled block's draws (rule P14)."""
        sampled = sum(other.rounds for other in self.blocks if other.probability < 1.0)
        return composition.truncation_cap(
            probability=block.probability, population_bound=self.population, rounds=max(1, sampled), delta=self.delta
        )

    def events(self, rounds: int | None = None) -> Counter[Event]:
        """What the first ``rounds`` rounds are charged, all unless given: how often each event happens."""
        left = self.rounds if rounds is None else rounds
        _validate.integer(low=0, high=self.rounds, rounds=left)
        counts: Counter[Event] = Counter()
        for block in self.blocks:
            if left:
                counts[self.event(block)] += min(left, block.rounds)
                left -= min(left, block.rounds)
        return counts

    def in_order(self) -> Iterator[Event]:
        """The event of each round."""
        for block in self.blocks:
            event = self.event(block)
            for _ in range(block.rounds):
                yield event

    def epsilon(self, rounds: int | None = None, *, interval: float | None = None) -> float:
        """Of the first ``rounds`` rounds at ``delta``, all unless given; as ``accounting.epsilon``.

        Raises:
            PrivacyError: caps, rounding and noise on a computer use up delta.
        """
        return accounting.epsilon(self.events(rounds), delta=self.delta, interval=interval)


def feasible_rounds(schedule: Schedule, *, epsilon: float) -> int:
    """The most rounds from the first one on that are within ``epsilon``; 0 where the first one is not.

    As ``budget_check.first_rounds_within``.
    """
    _validate.within(low=1e-6, high=1e6, epsilon=epsilon)
    blocks = [(block.rounds, (schedule.event(block),)) for block in schedule.blocks]
    return first_rounds_within(blocks, budget=epsilon, delta=schedule.delta)


def require_within(schedule: Schedule, *, epsilon: float) -> float:
    """The epsilon of the whole schedule, if that is within ``epsilon``: asked before the first round.

    Raises:
        BudgetExceeded: it is not; the message says how many rounds are, and which noise of the last block would be.
    """
    found = schedule.epsilon(interval=composition.COARSE_INTERVAL)
    if found > epsilon:
        found = schedule.epsilon()
    if found <= epsilon:
        return found
    fits = feasible_rounds(schedule, epsilon=epsilon)
    try:
        noise = solved(schedule, epsilon=epsilon).blocks[-1].noise_multiplier
        way = f"the whole schedule is with noise_multiplier={noise:.6g} in the last block"
    except BudgetExceeded:
        way = "no noise in the last block makes the whole schedule fit"
    raise BudgetExceeded(
        f"{schedule.rounds} rounds cost epsilon={found:.6g} at delta={schedule.delta:g}, above the budget of "
        f"{epsilon:g}: the first {fits} rounds are within it; {way}"
    )


def solved(schedule: Schedule, *, epsilon: float) -> Schedule:
    """The schedule with the least noise in its last block that keeps the whole within ``epsilon``.

    The noise of the last block as given is not used. The search is at the coarse discretisation and without caps, which
    are hardly ever reached; what it finds is checked as the ledger will, and raised until it is within. The result is
    up to a part in 1e3 above the least.

    Raises:
        BudgetExceeded: the blocks before the last one use up the budget.
    """
    _validate.within(low=1e-3, high=1e3, epsilon=epsilon)
    loose = _Uncapped(**{name: getattr(schedule, name) for name in _FIELDS})

    def cost(noise: float) -> float:
        return _with_last(loose, noise).epsilon(interval=composition.COARSE_INTERVAL)

    low_noise, high_noise = _LEAST_NOISE * (1.0 + 1e-9), _MOST_NOISE
    noise = 1.0
    while cost(noise) > epsilon:
        if noise >= high_noise:
            raise BudgetExceeded(
                f"The first {len(schedule.blocks) - 1} blocks leave nothing of epsilon={epsilon:g} for the last one: "
                f"{feasible_rounds(schedule, epsilon=epsilon)} rounds of the schedule are within it"
            )
        noise = min(4.0 * noise, high_noise)
    inverse = largest_within(lambda mu: cost(1.0 / mu), epsilon, start=1.0 / noise, most=1.0 / low_noise)
    found = 1.0 / inverse
    for _ in range(_MOST_STEPS):
        candidate = _with_last(schedule, found)
        excess = candidate.epsilon() / epsilon - 1.0
        if excess <= 0.0:
            return candidate
        # Epsilon falls faster than noise rises.
        found *= 1.0 + max(excess, _STEP)
    raise PrivacyError(f"No noise_multiplier was found for epsilon={epsilon:g} at delta={schedule.delta:g}")


_FIELDS = ("blocks", "population", "delta", "coordinates", "name", "adjacency")


class _Uncapped(Schedule):
    """A schedule without caps, far quicker to account for."""

    def cap(self, block: Block) -> int:
        return self.population


def _with_last(schedule: Schedule, noise: float) -> Schedule:
    last = replace(schedule.blocks[-1], noise_multiplier=noise)
    return replace(schedule, blocks=(*schedule.blocks[:-1], last))


class StopRule:
    """Asks before each round whether the budget allows it; what is on record is what was charged, failed rounds too.

    Args:
        who: whose budget it is, in errors.
        budget: epsilon at delta.
        spent: events of the past, each as often as it was charged.
    """

    def __init__(self, who: str, budget: Budget, spent: Mapping[Event, int] | None = None) -> None:
        self._who = who
        self._budget = budget
        self._spent: Counter[Event] = Counter(spent or {})

    def require(self, events: Sequence[Event]) -> float:
        """Epsilon of everything spent and ``events``, which are not spent by it.

        Raises:
            BudgetExceeded: it is above the budget: the round must not begin.
            PrivacyError: what is added to delta uses it up.
        """
        return epsilon_within(self._who, self._spent, events, budget=self._budget.epsilon, delta=self._budget.delta)

    def allows(self, events: Sequence[Event]) -> bool:
        """Whether ``require`` returns."""
        try:
            self.require(events)
        except PrivacyError:
            return False
        return True

    def spend(self, events: Sequence[Event]) -> None:
        """Puts a round on record, after it was charged and whatever becomes of it. Raises as ``require``."""
        self.require(events)
        self._spent.update(events)

    @property
    def epsilon(self) -> float:
        """Of everything spent."""
        return accounting.epsilon(self._spent, delta=self._budget.delta)
