"""The spending of one population: an append-only, hash-chained list of releases, as a value without input or output.

Guarantee: ``charge`` never returns a ledger in which the events of a task, or of all tasks of the population together,
exceed the budgets they are charged against. Epsilon is recomputed from the whole list of events at every charge.

Life of a release, one appended entry per step; the events stand in the first and count for ever::

    CHARGED -> SEALED        the release is made and named by its hash: from here on it may have left, and no other
    CHARGED -> VOID          the round failed after the charge: nothing leaves, nothing is refunded

The holder makes the new ledger durable *before* it acts on it, and binds ``len(ledger.entries)`` to a monotonic counter
that it checks at start, so that an older copy is noticed. The hash chain detects damage and gives the transparency log
one value to sign; whoever may rewrite the whole file can also rewrite the chain, so the file is sealed.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.privacy import accounting, room
from odp.privacy.events import Event, SampledRound
from odp.privacy.events import from_json as event_from_json

_FORMAT = "odp-privacy-ledger-2"
_TASK_ID = re.compile(r"(?:[0-9a-f]{2}){4,64}")
_ENTRY_KEYS = (
    "contributions",
    "events",
    "id_set_sha256",
    "noise_id",
    "population_budget",
    "population_epsilon",
    "population_size",
    "previous",
    "release_sha256",
    "round",
    "state",
    "task_budget",
    "task_epsilon",
    "task_id",
)


class ReleaseState(enum.Enum):
    """Where a release stands; a later state never goes back."""

    CHARGED = 10
    SEALED = 20
    VOID = 90


_NEXT = {
    ReleaseState.CHARGED: (ReleaseState.SEALED, ReleaseState.VOID),
    ReleaseState.SEALED: (),
    ReleaseState.VOID: (),
}


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: epsilon at delta.

    Raises:
        ConfigurationError: epsilon is not positive, or delta not strictly between 0 and 1.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.within(low=1e-6, high=1e6, epsilon=self.epsilon)
        _validate.within(low=1e-300, high=1 - 2**-53, delta=self.delta)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))


@dataclass(frozen=True)
class Entry:
    """One step of one release; all of it may be published, but for the exact set behind ``id_set_sha256``.

    Attributes:
        task_id: hash of the task definition, lower-case hexadecimal.
        round: round of the task, from 0.
        state: the state that this entry brings the release into.
        events: what is charged; empty in entries after the first of a release.
        contributions: accepted uploads of the round.
        population_size: distinct enrolled devices at the time of the round, measured.
        id_set_sha256: hash of the accepted contribution ids; the noise of the release is bound to it.
        noise_id: what names the sealed noise, up to 64 bytes, where it exists at the time of the charge.
        task_budget, population_budget: what the charge was checked against.
        release_sha256: hash of the one release that was signed, in the entry that seals it; empty in every other.
        task_epsilon, population_epsilon: of all events so far, this one included, at the delta of either budget.
        previous: SHA-256 of the entry before, or of the population's name.
    """

    task_id: str
    round: int
    state: ReleaseState
    events: tuple[Event, ...]
    contributions: int
    population_size: int
    id_set_sha256: bytes
    noise_id: bytes
    task_budget: Budget
    population_budget: Budget
    task_epsilon: float
    population_epsilon: float
    previous: bytes = field(repr=False)
    release_sha256: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.task_id, str) or not _TASK_ID.fullmatch(self.task_id):
            raise ConfigurationError(f"Expected task_id={self.task_id!r} to be 4 to 64 bytes in lower-case hexadecimal")
        _validate.integer(low=0, high=2**31 - 1, round=self.round)
        _validate.integer(low=1, high=10**15, population_size=self.population_size)
        _validate.integer(low=0, high=self.population_size, contributions=self.contributions)
        _validate.within(low=0.0, high=1e12, task_epsilon=self.task_epsilon, population_epsilon=self.population_epsilon)
        for name, low, high in (("id_set_sha256", 32, 32), ("previous", 32, 32), ("noise_id", 0, 64)):
            value = getattr(self, name)
            if not isinstance(value, bytes) or not low <= len(value) <= high:
                raise ConfigurationError(f"Expected {name} to be {low} to {high} bytes")
        if (self.state is ReleaseState.CHARGED) != bool(self.events):
            raise ConfigurationError("Expected events in the entry that charges a release, and in no other")
        if len(self.release_sha256) != (32 if self.state is ReleaseState.SEALED else 0):
            raise ConfigurationError(
                "Expected release_sha256 of 32 bytes in the entry that seals a release, and in no other"
            )

    def to_json(self) -> dict[str, object]:
        """Plain values; bytes as lower-case hexadecimal."""
        return {
            "contributions": self.contributions,
            "events": [event.to_json() for event in self.events],
            "id_set_sha256": self.id_set_sha256.hex(),
            "noise_id": self.noise_id.hex(),
            "population_budget": [self.population_budget.epsilon, self.population_budget.delta],
            "population_epsilon": self.population_epsilon,
            "population_size": self.population_size,
            "previous": self.previous.hex(),
            "release_sha256": self.release_sha256.hex(),
            "round": self.round,
            "state": self.state.name,
            "task_budget": [self.task_budget.epsilon, self.task_budget.delta],
            "task_epsilon": self.task_epsilon,
            "task_id": self.task_id,
        }

    @property
    def claims(self) -> tuple[tuple[tuple[str, float], float], ...]:
        """((whose, delta), epsilon) of the task and of the population, whose name here is empty."""
        return (
            ((self.task_id, self.task_budget.delta), self.task_epsilon),
            (("", self.population_budget.delta), self.population_epsilon),
        )

    @functools.cached_property
    def canonical(self) -> bytes:
        """This entry as it stands in an encoded ledger."""
        return _canonical(self.to_json())

    @functools.cached_property
    def sha256(self) -> bytes:
        """Hash of the canonical bytes of this entry, and through ``previous`` of all before it."""
        return hashlib.sha256(self.canonical).digest()


class Remaining(NamedTuple):
    """What is left for a task: epsilon under its own budget, and under that of the population."""

    task_epsilon: float
    population_epsilon: float


@dataclass(frozen=True)
class Ledger:
    """All releases of one population in the order of their charges.

    Raises:
        ConfigurationError: ``population`` is not a name.
        StateError: the entries do not form a chain, or one of them cannot follow those before it.
    """

    population: str
    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        _validate.identifier(population=self.population)
        previous = _genesis(self.population)
        states: dict[tuple[str, int], Entry] = {}
        budgets: dict[str, Budget] = {}
        for number, entry in enumerate(self.entries):
            before = states.get((entry.task_id, entry.round))
            follows = entry.state is ReleaseState.CHARGED if before is None else entry.state in _NEXT[before.state]
            where = f"Entry {number} of ledger {self.population!r}"
            if entry.previous != previous:
                raise StateError(f"{where} does not continue the chain: it was altered")
            if not follows or (before is not None and before.id_set_sha256 != entry.id_set_sha256):
                raise StateError(f"{where} cannot follow those before it")
            if budgets.setdefault(entry.task_id, entry.task_budget) != entry.task_budget:
                raise StateError(f"{where} changes the budget of its task")
            if entry.task_epsilon > entry.task_budget.epsilon:
                raise StateError(f"{where} is over the budget of its task")
            if entry.population_epsilon > entry.population_budget.epsilon:
                raise StateError(f"{where} is over the budget of the population")
            states[entry.task_id, entry.round] = entry
            previous = entry.sha256

    @property
    def head(self) -> bytes:
        """SHA-256 that stands for the whole ledger: of the last entry, or of the population's name."""
        return self.entries[-1].sha256 if self.entries else _genesis(self.population)

    @property
    def population_events(self) -> tuple[Event, ...]:
        """Every event charged to the population, in order."""
        return tuple(event for entry in self.entries for event in entry.events)

    def task_events(self, task_id: str) -> tuple[Event, ...]:
        """Every event charged to the task, in order; void rounds included."""
        return tuple(event for entry in self.entries if entry.task_id == task_id for event in entry.events)

    def epsilon_of_task(self, task_id: str, *, delta: float) -> float:
        """Epsilon at ``delta`` of everything charged to the task; 0 for an unknown one."""
        return accounting.epsilon(self.task_events(task_id), delta=delta)

    def epsilon_of_population(self, *, delta: float) -> float:
        """Epsilon at ``delta`` of everything charged to the population."""
        return accounting.epsilon(self.population_events, delta=delta)

    def find(self, task_id: str, round: int) -> Entry | None:
        """The latest entry of a release, which holds its state; None where nothing was charged."""
        for entry in reversed(self.entries):
            if entry.task_id == task_id and entry.round == round:
                return entry
        return None

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
        """How many more rounds of ``events`` each fit both budgets, if nothing else is charged meanwhile.

        Raises:
            ConfigurationError: ``events`` is empty.
        """
        if not events:
            raise ConfigurationError("Expected at least one privacy event: a release without events is not free")
        return min(
            room.rounds_possible(
                self.task_events(task_id), events, budget=task_budget.epsilon, delta=task_budget.delta
            ),
            room.rounds_possible(
                self.population_events, events, budget=population_budget.epsilon, delta=population_budget.delta
            ),
        )

    def charge(
        self,
        *,
        task_id: str,
        round: int,
        events: Sequence[Event],
        contributions: int,
        population_size: int,
        id_set_sha256: bytes,
        task_budget: Budget,
        population_budget: Budget,
        noise_id: bytes = b"",
    ) -> Ledger:
        """The ledger with one more release, or this same ledger when that very release was charged before.

        Repeating a charge after a crash is therefore safe. A round is one release: the same noise under another set of
        contributions would reveal their difference, so any difference to the charge on record is refused.

        Raises:
            BudgetExceeded: the task's or the population's budget is too small; nothing was charged.
            PrivacyError: the round was charged for something else or is void, the task's budget changed, or a delta is
                too large for the population.
            ConfigurationError: a malformed value, or no events.
        """
        if not events:
            raise ConfigurationError("Expected at least one privacy event: a release without events is not free")
        entry = Entry(
            task_id=task_id,
            round=round,
            state=ReleaseState.CHARGED,
            events=tuple(events),
            contributions=contributions,
            population_size=population_size,
            id_set_sha256=id_set_sha256,
            noise_id=noise_id,
            task_budget=task_budget,
            population_budget=population_budget,
            task_epsilon=0.0,
            population_epsilon=0.0,
            previous=self.head,
        )
        recorded = next((e for e in self.entries if e.task_id == task_id and e.round == round), None)
        if recorded is not None:
            self._require_same(recorded, entry)
            return self
        self._check_terms(task_id, task_budget, population_budget, population_size)
        entry = replace(
            entry,
            task_epsilon=room.epsilon_within(
                f"task {task_id}",
                self.task_events(task_id),
                entry.events,
                budget=task_budget.epsilon,
                delta=task_budget.delta,
            ),
            population_epsilon=room.epsilon_within(
                f"population {self.population}",
                self.population_events,
                entry.events,
                budget=population_budget.epsilon,
                delta=population_budget.delta,
            ),
        )
        return Ledger(self.population, (*self.entries, entry))

    def require_room(
        self,
        *,
        task_id: str,
        events: Sequence[Event],
        population_size: int,
        task_budget: Budget,
        population_budget: Budget,
    ) -> None:
        """Returns if ``events`` could be charged now, in one round or in many; charges nothing (rule P29).

        Raises:
            BudgetExceeded, PrivacyError, ConfigurationError: as ``charge``.
        """
        if not events:
            raise ConfigurationError("Expected at least one privacy event: a release without events is not free")
        self._check_terms(task_id, task_budget, population_budget, population_size)
        for who, spent, budget in (
            (f"task {task_id}", self.task_events(task_id), task_budget),
            (f"population {self.population}", self.population_events, population_budget),
        ):
            room.require_room(who, spent, events, budget=budget.epsilon, delta=budget.delta)

    def _check_terms(self, task_id: str, task_budget: Budget, population_budget: Budget, population_size: int) -> None:
        earlier = next((e for e in self.entries if e.task_id == task_id), None)
        if earlier is not None and earlier.task_budget != task_budget:
            raise PrivacyError(
                f"The budget of task {task_id} is fixed at {earlier.task_budget} and cannot become {task_budget}:"
                " submit a new task"
            )
        accounting.check_delta(task_budget.delta, population_size)
        accounting.check_delta(population_budget.delta, population_size)

    def _require_same(self, recorded: Entry, asked: Entry) -> None:
        where = f"round {asked.round} of task {asked.task_id}"
        latest = self.find(asked.task_id, asked.round)
        if latest is not None and latest.state is ReleaseState.VOID:
            raise PrivacyError(
                f"The {where} is void: its charge stays, nothing can be released for it; open another round"
            )
        for name in ("id_set_sha256", "noise_id", "events", "contributions", "task_budget"):
            if getattr(recorded, name) != getattr(asked, name):
                raise PrivacyError(
                    f"The {where} was charged with another {name} and is released once; open another round"
                )

    def advance(self, *, task_id: str, round: int, state: ReleaseState, release_sha256: bytes = b"") -> Ledger:
        """The ledger with the release in its next state, or this same ledger when it is there already.

        ``release_sha256`` names the release that is sealed.

        Raises:
            PrivacyError: nothing was charged for the round, ``state`` cannot follow its present state, or another
                release was sealed before.
        """
        latest = self.find(task_id, round)
        if latest is None:
            raise PrivacyError(f"Nothing was charged for round {round} of task {task_id}: charge before releasing")
        if latest.state is state and latest.release_sha256 == release_sha256:
            return self
        if state not in _NEXT[latest.state]:
            raise PrivacyError(f"Round {round} of task {task_id} is {latest.state.name} and cannot become {state.name}")
        entry = replace(latest, state=state, events=(), previous=self.head, release_sha256=release_sha256)
        return Ledger(self.population, (*self.entries, entry))

    def verify(self) -> None:
        """Recomputes the epsilons on record from the events before them: what an auditor runs.

        Every epsilon of a list of Gaussian releases is recomputed. With sampled rounds a recomputation takes a second,
        so only the last one of each task and of the population is (at each delta); those before never fall.

        Raises:
            StateError: a recorded epsilon differs by more than a part in 1e9 (1e-6 with sampled rounds), or falls.
        """
        charged = [entry for entry in self.entries if entry.state is ReleaseState.CHARGED]
        last = {key: number for number, entry in enumerate(charged) for key, _ in entry.claims}
        spent: dict[str, Counter[Event]] = {}
        before: dict[tuple[str, float], float] = {}
        for number, entry in enumerate(charged):
            for key, recorded in entry.claims:
                whose, delta = key
                events = spent.setdefault(whose, Counter())
                events.update(entry.events)
                sampled = any(isinstance(event, SampledRound) for event in events)
                wrong = sampled and recorded < before.get(key, 0.0)
                if not wrong and (not sampled or number == last[key]):
                    recomputed = accounting.epsilon(events, delta=delta)
                    wrong = not math.isclose(recorded, recomputed, rel_tol=1e-6 if sampled else 1e-9, abs_tol=1e-12)
                if wrong:
                    raise StateError(
                        f"Entry {self.entries.index(entry)} of ledger {self.population!r} states an epsilon its events"
                        " do not have"
                    )
                before[key] = recorded

    def encode(self) -> bytes:
        """Canonical JSON (sorted keys, no spaces, shortest floats), ASCII; equal ledgers give equal bytes."""
        rest = _canonical({"format": _FORMAT, "head": self.head.hex(), "population": self.population})
        # Entries come first in the order of keys, and each was written when it was hashed.
        return b'{"entries":[' + b",".join(entry.canonical for entry in self.entries) + b"]," + rest[1:]

    @staticmethod
    def decode(data: bytes) -> Ledger:
        """The ledger that ``encode`` wrote.

        Raises:
            StateError: the bytes are no ledger of this version, not canonical, or any of them was altered.
        """
        try:
            value = json.loads(data.decode("ascii"), parse_constant=_refuse_constant)
            if not isinstance(value, dict) or value.get("format") != _FORMAT:
                raise StateError(f"Expected a privacy ledger of format {_FORMAT!r}")
            _validate.known_keys(value, ("entries", "format", "head", "population"), where="a privacy ledger")
            ledger = Ledger(value["population"], tuple(_entry(item) for item in value["entries"]))
        except StateError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, PrivacyError) as error:
            raise StateError(f"The privacy ledger cannot be read: {type(error).__name__}: {error}") from error
        if ledger.encode() != data:  # covers the hash that the bytes state
            raise StateError("The privacy ledger was altered: its bytes do not match its hash")
        return ledger


def _entry(value: Mapping[str, object]) -> Entry:
    _validate.known_keys(value, _ENTRY_KEYS, where="a ledger entry")
    fields: dict[str, object] = dict(value)
    fields["events"] = tuple(event_from_json(item) for item in _list(value["events"]))
    fields["state"] = ReleaseState[str(value["state"])]
    for key in ("task_budget", "population_budget"):
        fields[key] = Budget(*_list(value[key]))  # type: ignore[arg-type]
    for key in ("id_set_sha256", "noise_id", "previous", "release_sha256"):
        fields[key] = bytes.fromhex(str(value[key]))
    return Entry(**fields)  # type: ignore[arg-type]


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ConfigurationError(f"Expected a list, got {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of a ledger")


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _genesis(population: str) -> bytes:
    return hashlib.sha256(f"{_FORMAT} {population}".encode()).digest()
