"""The state after all entries of a ledger: the spending of one population, without the entries.

Guarantee: ``charge`` never gives an entry with which the events of a task, or of all tasks of the population together,
exceed the budgets they are charged against. Epsilon is recomputed at every charge from all events so far. They are
counted, not listed: epsilon does not depend on their order, and equal rounds cost no memory.

The size grows with the number of different events and of rounds, by some 100 bytes for each round. The holder of a
ledger keeps this state and its head; the lines of the entries can lie anywhere, since the head stands for all of them.
The holder makes a new entry durable *before* it acts on it, and binds the head to monotonic counters that it checks at
start, so that an older copy is noticed.

The streams of one task in a ledger: which round of the task holds which release of a charged stream.

Guarantee: a covered release has the newest charge of its name to the same task before it, equal in every number, and
every place of that charge has at most one release. So all of them together are at most the mechanism that was charged.

- The round that charges a stream holds place 0, and round ``r`` after it place ``r`` minus that round: since a task
  charges every round once, no place comes twice. A void round uses up its place.
- Another charge of the same name opens a new stream and ends the one before: a stream whose state was lost starts anew,
  and is paid for in full.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.privacy import accounting, budget_check
from odp.privacy.events import Event, StreamRelease, from_json as event_from_json
from odp.privacy.ledger_entry import FORMAT, NEXT, Budget, Entry, ReleaseState, canonical, entry_of, genesis
from odp.privacy.ledger_events import CoveredRelease, LedgerEvent, charged


class OpenStream(NamedTuple):
    """The newest stream of one name, and the round of the task that charged it."""

    event: StreamRelease
    round: int


def advanced(
    streams: Mapping[str, OpenStream], events: Iterable[LedgerEvent], *, round: int
) -> Mapping[str, OpenStream]:
    """The streams of a task, by name, after ``round`` with the ``events`` of its charge.

    Raises:
        PrivacyError: a release is not covered, or the round has two releases of one stream.
    """
    here: set[str] = set()
    opened: dict[str, OpenStream] = {}
    for event in events:
        if not isinstance(event, (StreamRelease, CoveredRelease)):
            continue
        if event.name in here:
            raise PrivacyError(f"stream {event.name!r} has two releases in round {round}: charge one of each stream")
        here.add(event.name)
        if isinstance(event, StreamRelease):
            opened[event.name] = OpenStream(event, round)
        else:
            _require_covered(streams.get(event.name), event, round)
    return {**streams, **opened} if opened else streams


def _require_covered(stream: OpenStream | None, event: CoveredRelease, round: int) -> None:
    what = f"place {event.place} of stream {event.name!r} in round {round} is not covered"
    if stream is None:
        raise PrivacyError(f"{what}: no stream of this name was charged to the task")
    if event.stream != stream.event:
        raise PrivacyError(f"{what}: the stream that was charged in round {stream.round} has other numbers")
    if event.place != round - stream.round:
        raise PrivacyError(
            f"{what}: the stream was charged in round {stream.round}, so place {round - stream.round} is due"
        )


_STATE_FORMAT = "odp-privacy-ledger-state-1"
_STATES = {state.value: state for state in ReleaseState}
_FREE = "Expected at least one privacy event: a release without events is not free"


@dataclass(frozen=True)
class LedgerHead:
    """The identity of one version of a ledger; an enclave signs its bytes.

    Attributes:
        population: whose ledger it is.
        entries: how many it has.
        sha256: of the last entry, or of the population's name.
    """

    population: str
    entries: int
    sha256: bytes

    def encode(self) -> bytes:
        """Canonical JSON; equal heads give equal bytes."""
        return canonical(
            {"entries": self.entries, "format": FORMAT, "head": self.sha256.hex(), "population": self.population}
        )

    @staticmethod
    def decode(data: bytes) -> LedgerHead:
        """The head from ``encode``. Raises StateError if the bytes are not of this version."""
        try:
            value = json.loads(data.decode("ascii"))
            _validate.identifier(population=value["population"])
            _validate.integer(low=0, high=2**53, entries=value["entries"])
            head = LedgerHead(value["population"], value["entries"], bytes.fromhex(value["head"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(f"The head of a privacy ledger cannot be read: {type(error).__name__}: {error}") from error
        if head.encode() != data or len(head.sha256) != 32:
            raise StateError(f"Expected the head of a privacy ledger of format {FORMAT!r}")
        return head


class Standing(NamedTuple):
    """The state of one release.

    ``charge`` is the entry that charged it, as long as it is neither sealed nor void; ``release_sha256`` names the
    release that was sealed.
    """

    state: ReleaseState
    contributions: int
    release_sha256: bytes
    charge: Entry | None


@dataclass
class Account:
    """The charges of one task: ``last`` is the number of its newest entry; ``streams`` are the newest by name."""

    budget: Budget
    events: Counter[Event] = field(default_factory=Counter)
    rounds: dict[int, Standing] = field(default_factory=dict)
    last: int = 0
    streams: Mapping[str, OpenStream] = field(default_factory=dict)

    def copy(self) -> Account:
        """An independent copy."""
        return Account(self.budget, self.events.copy(), dict(self.rounds), self.last, self.streams)


class Remaining(NamedTuple):
    """The rest for a task: epsilon under its own budget, and under that of the population."""

    task_epsilon: float
    population_epsilon: float


class LedgerState:
    """The spending of one population after all entries that were appended. Raises ConfigurationError: no name."""

    def __init__(self, population: str) -> None:
        _validate.identifier(population=population)
        self.head = LedgerHead(population, 0, genesis(population))
        #: Charged releases.
        self.charges = 0
        #: Contributions of the largest round.
        self.largest_cohort = 0
        self._events: Counter[Event] = Counter()
        self._accounts: dict[str, Account] = {}
        # Tasks whose account no copy of this object shares.
        self._unshared: set[str] = set()

    def copy(self) -> LedgerState:
        """An independent copy; the two share what neither changes."""
        other = LedgerState(self.head.population)
        other.head, other.charges, other.largest_cohort = self.head, self.charges, self.largest_cohort
        other._events, other._accounts = self._events.copy(), dict(self._accounts)
        self._unshared = set()
        return other

    @property
    def events(self) -> Mapping[Event, int]:
        """How often each event was charged to the population."""
        return self._events

    @property
    def tasks(self) -> Iterable[str]:
        """The tasks that were charged, in the order of their first charge."""
        return self._accounts.keys()

    def task_events(self, task_id: str) -> Mapping[Event, int]:
        """How often each event was charged to the task; void rounds included."""
        account = self._accounts.get(task_id)
        return {} if account is None else account.events

    def rounds(self, task_id: str) -> Mapping[int, Standing]:
        """The states of a task's charged rounds."""
        account = self._accounts.get(task_id)
        return {} if account is None else account.rounds

    def last_entry(self, task_id: str) -> int:
        """Number of the newest entry of a task that was charged."""
        return self._accounts[task_id].last

    def find(self, task_id: str, round: int) -> Standing | None:
        """The state of a release; None if nothing was charged."""
        return self.rounds(task_id).get(round)

    def epsilon_of_task(self, task_id: str, *, delta: float) -> float:
        """Epsilon at ``delta`` of everything charged to the task; 0 for an unknown one."""
        return accounting.epsilon(self.task_events(task_id), delta=delta)

    def epsilon_of_population(self, *, delta: float) -> float:
        """Epsilon at ``delta`` of everything charged to the population."""
        return accounting.epsilon(self._events, delta=delta)

    def remaining(self, task_id: str, *, task_budget: Budget, population_budget: Budget) -> Remaining:
        """Budget minus epsilon so far. Epsilon does not add up: ``rounds_possible`` says how many rounds still fit."""
        return Remaining(
            task_epsilon=max(0.0, task_budget.epsilon - self.epsilon_of_task(task_id, delta=task_budget.delta)),
            population_epsilon=max(
                0.0, population_budget.epsilon - self.epsilon_of_population(delta=population_budget.delta)
            ),
        )

    def rounds_possible(
        self, task_id: str, events: Sequence[Event], *, task_budget: Budget, population_budget: Budget
    ) -> int:
        """How many more rounds of ``events`` each fit both budgets, if nothing else is charged in the meantime.

        Raises:
            ConfigurationError: ``events`` is empty.
        """
        return min(
            budget_check.rounds_possible(spent, events, budget=budget.epsilon, delta=budget.delta)
            for _, spent, budget in self._claims(task_id, task_budget, population_budget)
        )

    def charge(
        self, *, task_id: str, round: int, events: Sequence[LedgerEvent], contributions: int, population_size: int,
        id_set_sha256: bytes, task_budget: Budget, population_budget: Budget, noise_id: bytes = b"",
    ) -> Entry:  # fmt: skip
        """The entry that charges one more release; changes nothing until it is appended.

        Raises:
            BudgetExceeded: the task's or the population's budget is too small.
            PrivacyError: the round was charged before, the task's budget changed, a delta is too large for the
                population, or a release is not covered by the stream that it names.
            ConfigurationError: a malformed value, or no events.
        """
        if not events:
            raise ConfigurationError(_FREE)
        entry = Entry(
            task_id=task_id, round=round, state=ReleaseState.CHARGED, events=tuple(events), contributions=contributions,
            population_size=population_size, id_set_sha256=id_set_sha256, noise_id=noise_id, task_budget=task_budget,
            population_budget=population_budget, task_epsilon=0.0, population_epsilon=0.0, previous=self.head.sha256,
        )  # fmt: skip
        if self.find(task_id, round) is not None:
            raise PrivacyError(f"Round {round} of task {task_id} was charged before: open another round")
        advanced(self._streams(task_id), entry.events, round=round)
        self._check_terms(task_id, task_budget, population_budget, population_size)
        epsilons = [
            budget_check.epsilon_within(whose, spent, entry.charged, budget=budget.epsilon, delta=budget.delta)
            for whose, spent, budget in self._claims(task_id, task_budget, population_budget)
        ]
        return replace(entry, task_epsilon=epsilons[0], population_epsilon=epsilons[1])

    def require_budget(
        self, *, task_id: str, events: Sequence[LedgerEvent], population_size: int, task_budget: Budget,
        population_budget: Budget, promised: Sequence[LedgerEvent] | None = None,
    ) -> None:  # fmt: skip
        """Returns if ``events`` could be charged now; charges nothing (rule P29).

        With ``promised``, ``events`` are all that a task has left (``budget_check.require_plan``). ``promised`` are
        charges that other tasks under way have not made yet; they count as spent by the population.

        Raises:
            BudgetExceeded, PrivacyError, ConfigurationError: as ``charge``.
        """
        if not events:
            raise ConfigurationError(_FREE)
        self._check_terms(task_id, task_budget, population_budget, population_size)
        task_claim, (whose, spent, budget) = self._claims(task_id, task_budget, population_budget)
        if promised:
            whose, spent = (
                f"{whose}, with what its tasks under way will spend,",
                Counter(spent) + Counter(charged(promised)),
            )
        judge = budget_check.require_budget if promised is None else budget_check.require_plan
        for who, before, limit in (task_claim, (whose, spent, budget)):
            judge(who, before, charged(events), budget=limit.epsilon, delta=limit.delta)

    def advance(self, *, task_id: str, round: int, state: ReleaseState, release_sha256: bytes = b"") -> Entry | None:
        """The entry that brings a release into its next state; None if it is there already.

        ``release_sha256`` names the release that is sealed.

        Raises:
            PrivacyError: nothing was charged for the round, ``state`` cannot follow its present state, or another
                release was sealed before.
        """
        if (standing := self.find(task_id, round)) is None:
            raise PrivacyError(f"Nothing was charged for round {round} of task {task_id}: charge before releasing")
        if standing.state is state and standing.release_sha256 == release_sha256:
            return None
        if state not in NEXT[standing.state] or standing.charge is None:
            raise PrivacyError(
                f"Round {round} of task {task_id} is {standing.state.name} and cannot become {state.name}"
            )
        return replace(
            standing.charge, state=state, events=(), previous=self.head.sha256, release_sha256=release_sha256
        )

    def append(self, entry: Entry) -> None:
        """Takes the next entry.

        Raises:
            StateError: it does not continue the chain, cannot follow the entries before it, or is over a budget that it
                states. Nothing changed.
        """
        account, standing = self._accounts.get(entry.task_id), self.find(entry.task_id, entry.round)
        charges = entry.state is ReleaseState.CHARGED
        where = f"Entry {self.head.entries} of ledger {self.head.population!r}"
        if entry.previous != self.head.sha256:
            raise StateError(f"{where} does not continue the chain: it was altered")
        follows = charges if standing is None else entry.state in NEXT[standing.state]
        before = None if standing is None else standing.charge
        if not follows or (before is not None and before.id_set_sha256 != entry.id_set_sha256):
            raise StateError(f"{where} cannot follow those before it")
        if account is not None and account.budget != entry.task_budget:
            raise StateError(f"{where} changes the budget of its task")
        if entry.task_epsilon > entry.task_budget.epsilon:
            raise StateError(f"{where} is over the budget of its task")
        if entry.population_epsilon > entry.population_budget.epsilon:
            raise StateError(f"{where} is over the budget of the population")
        try:
            streams = advanced(self._streams(entry.task_id), entry.events, round=entry.round)
        except PrivacyError as error:
            raise StateError(f"{where} cannot follow those before it: {error}") from error
        if account is None or entry.task_id not in self._unshared:
            account = Account(entry.task_budget) if account is None else account.copy()
            self._accounts[entry.task_id] = account
            self._unshared.add(entry.task_id)
        account.rounds[entry.round] = Standing(
            entry.state, entry.contributions, entry.release_sha256, entry if charges else None
        )
        account.last = self.head.entries
        account.streams = streams
        account.events.update(entry.charged)
        self._events.update(entry.charged)
        self.charges += charges
        self.largest_cohort = max(self.largest_cohort, entry.contributions)
        self.head = replace(self.head, entries=self.head.entries + 1, sha256=entry.sha256)

    def encode(self) -> bytes:
        """JSON from which ``decode`` gives the same state: the same epsilons to the last bit, and the same head."""
        places = {event: place for place, event in enumerate(self._events)}
        return canonical(
            {
                "charges": self.charges,
                "events": [[event.to_json(), times] for event, times in self._events.items()],
                "format": _STATE_FORMAT,
                "head": self.head.encode().decode("ascii"),
                "largest_cohort": self.largest_cohort,
                # A list: the order of tasks is that of their first charges.
                "tasks": [
                    [
                        task_id, [account.budget.epsilon, account.budget.delta], account.last,
                        [[places[event], times] for event, times in account.events.items()],
                        [[round, *_standing_json(standing)] for round, standing in account.rounds.items()],
                        *_streams_json(account, places),
                    ]
                    for task_id, account in self._accounts.items()
                ],
            }
        )  # fmt: skip

    @staticmethod
    def decode(data: bytes) -> LedgerState:
        """The state from ``encode``: for unsealed bytes only, since they are trusted.

        Raises:
            StateError: the bytes are no state of this version.
        """
        try:
            value = json.loads(data)
            if value["format"] != _STATE_FORMAT:
                raise StateError(f"Expected a ledger's state of format {_STATE_FORMAT!r}")
            head = LedgerHead.decode(value["head"].encode("ascii"))
            state = LedgerState(head.population)
            state.head, state.charges, state.largest_cohort = head, value["charges"], value["largest_cohort"]
            events = [(event_from_json(event), times) for event, times in value["events"]]
            state._events = Counter(dict(events))
            budgets: dict[tuple[float, float], Budget] = {}  # few, of many tasks
            for task_id, budget, last, places, rounds, *streams in value["tasks"]:
                terms = (budget[0], budget[1])
                if terms not in budgets:
                    budgets[terms] = Budget(*terms)
                state._accounts[task_id] = Account(
                    budgets[terms],
                    Counter({events[place][0]: times for place, times in places}),
                    {round: _standing_of(*standing) for round, *standing in rounds},
                    last,
                    {
                        name: OpenStream(events[place][0], round)
                        for name, place, round in (streams[0] if streams else ())
                    },
                )
        except (ValueError, KeyError, TypeError, IndexError, PrivacyError) as error:
            raise StateError(f"The state of a ledger cannot be read: {type(error).__name__}: {error}") from error
        return state

    def _streams(self, task_id: str) -> Mapping[str, OpenStream]:
        account = self._accounts.get(task_id)
        return {} if account is None else account.streams

    def _claims(
        self, task_id: str, task_budget: Budget, population_budget: Budget
    ) -> tuple[tuple[str, Mapping[Event, int], Budget], ...]:
        """The epsilons that a charge raises: owner, events, and budget."""
        return (
            (f"task {task_id}", self.task_events(task_id), task_budget),
            (f"population {self.head.population}", self._events, population_budget),
        )

    def _check_terms(self, task_id: str, task_budget: Budget, population_budget: Budget, population_size: int) -> None:
        account = self._accounts.get(task_id)
        if account is not None and account.budget != task_budget:
            raise PrivacyError(
                f"The budget of task {task_id} is fixed at {account.budget} and cannot become {task_budget}:"
                " submit a new task"
            )
        accounting.check_delta(task_budget.delta, population_size)
        accounting.check_delta(population_budget.delta, population_size)


def _streams_json(account: Account, places: Mapping[Event, int]) -> list[object]:
    """Nothing without streams: the states of other tasks keep their form."""
    streams = [[name, places[stream.event], stream.round] for name, stream in account.streams.items()]
    return [streams] if streams else []


def _standing_json(standing: Standing) -> list[object]:
    charge = None if standing.charge is None else standing.charge.to_json()
    return [standing.state.value, standing.contributions, standing.release_sha256.hex(), charge]


def _standing_of(state: int, contributions: int, release_sha256: str, charge: Mapping[str, Any] | None) -> Standing:
    entry = None if charge is None else entry_of(charge)
    return Standing(_STATES[state], contributions, bytes.fromhex(release_sha256), entry)
