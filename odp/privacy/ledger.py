"""A complete ledger for auditors, reports and files: every entry, each checked against those before it.

An enclave keeps only the state (``ledger_state.py``), and gives out the entries and a signed head. Whoever has both has
the ledger. The hash chain detects damage and gives the transparency log one value to hold.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from odp import _validate
from odp.errors import PrivacyError, StateError
from odp.privacy import accounting
from odp.privacy.events import Event, SampledRound, ShuffledReports
from odp.privacy.ledger_entry import FORMAT, Budget, Entry, ReleaseState, canonical, entry_of, refuse_constant
from odp.privacy.ledger_events import LedgerEvent
from odp.privacy.ledger_state import LedgerState


@dataclass(frozen=True)
class Ledger:
    """All releases of one population in the order of their charges; ``state`` is their total.

    Raises:
        ConfigurationError: ``population`` is not a name.
        StateError: the entries do not form a chain, or one of them cannot follow those before it.
    """

    population: str
    entries: tuple[Entry, ...] = ()
    state: LedgerState = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        state = LedgerState(self.population)
        for entry in self.entries:
            state.append(entry)
        object.__setattr__(self, "state", state)

    @property
    def head(self) -> bytes:
        """SHA-256 that stands for the whole ledger: of the last entry, or of the population's name."""
        return self.state.head.sha256

    @property
    def population_events(self) -> tuple[Event, ...]:
        """Every event charged to the population, in order."""
        return tuple(event for entry in self.entries for event in entry.charged)

    def task_events(self, task_id: str) -> tuple[Event, ...]:
        """Every event charged to the task, in order; void rounds included."""
        return tuple(event for entry in self.entries if entry.task_id == task_id for event in entry.charged)

    def charge(
        self, *, task_id: str, round: int, events: Sequence[LedgerEvent], contributions: int, population_size: int,
        id_set_sha256: bytes, task_budget: Budget, population_budget: Budget, noise_id: bytes = b"",
    ) -> Ledger:  # fmt: skip
        """The ledger with one more release, or this same ledger if that very release was charged before.

        A round is one release: the same noise under another set of contributions would reveal their difference, so any
        difference to the charge on record is refused.

        Raises:
            BudgetExceeded, PrivacyError, ConfigurationError: as ``LedgerState.charge``; or the round is void.
        """
        wanted = {
            "id_set_sha256": id_set_sha256, "noise_id": noise_id, "events": tuple(events),
            "contributions": contributions, "task_budget": task_budget,
        }  # fmt: skip
        recorded = next((e for e in self.entries if e.task_id == task_id and e.round == round), None)
        if recorded is None:
            entry = self.state.charge(
                task_id=task_id, round=round, events=events, contributions=contributions, noise_id=noise_id,
                population_size=population_size, id_set_sha256=id_set_sha256, task_budget=task_budget,
                population_budget=population_budget,
            )  # fmt: skip
            return Ledger(self.population, (*self.entries, entry))
        where, standing = f"round {round} of task {task_id}", self.state.find(task_id, round)
        if standing is not None and standing.state is ReleaseState.VOID:
            raise PrivacyError(f"The {where} is void: its charge stays, and it can have no release; open another round")
        for name, value in wanted.items():
            if getattr(recorded, name) != value:
                raise PrivacyError(
                    f"The {where} was charged with another {name} and is released once; open another round"
                )
        return self

    def advance(self, *, task_id: str, round: int, state: ReleaseState, release_sha256: bytes = b"") -> Ledger:
        """The ledger with the release in its next state, or this same ledger if it is there already.

        Raises:
            PrivacyError: as ``LedgerState.advance``.
        """
        entry = self.state.advance(task_id=task_id, round=round, state=state, release_sha256=release_sha256)
        return self if entry is None else Ledger(self.population, (*self.entries, entry))

    def verify(self) -> None:
        """Recomputes the recorded epsilons from the events before them: an auditor's check.

        Raises:
            StateError: as ``EpsilonCheck.add``.
        """
        EpsilonCheck(self.population).add(self.entries)

    def encode(self) -> bytes:
        """Canonical JSON (sorted keys, no spaces, shortest floats), ASCII; equal ledgers give equal bytes."""
        rest = canonical({"format": FORMAT, "head": self.head.hex(), "population": self.population})
        # Entries come first in the order of keys, and each was written when it was hashed.
        return b'{"entries":[' + b",".join(entry.canonical for entry in self.entries) + b"]," + rest[1:]

    @staticmethod
    def decode(data: bytes) -> Ledger:
        """The ledger that ``encode`` wrote.

        Raises:
            StateError: the bytes are no ledger of this version, not canonical, or any of them was altered.
        """
        try:
            value = json.loads(data.decode("ascii"), parse_constant=refuse_constant)
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise StateError(f"Expected a privacy ledger of format {FORMAT!r}")
            _validate.known_keys(value, ("entries", "format", "head", "population"), where="a privacy ledger")
            ledger = Ledger(value["population"], tuple(entry_of(item) for item in value["entries"]))
        except StateError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, PrivacyError) as error:
            raise StateError(f"The privacy ledger cannot be read: {type(error).__name__}: {error}") from error
        if ledger.encode() != data:  # covers the hash that the bytes state
            raise StateError("The privacy ledger was altered: its bytes do not match its hash")
        return ledger


class EpsilonCheck:
    """Recomputes the claims of one ledger's entries, one batch after the other.

    Every epsilon of a list of Gaussian releases is recomputed. With sampled rounds a recomputation takes a second, so
    of each batch only the last one of each task and of the population is (at each delta); those before never fall.
    """

    def __init__(self, population: str) -> None:
        self._population = population
        self._number = 0
        self._spent: dict[str, Counter[Event]] = {}
        self._sampled: set[str] = set()
        self._before: dict[tuple[str, float], float] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Takes the next entries.

        Raises:
            StateError: a recorded epsilon differs by more than a part in 1e9 (1e-6 with sampled rounds or shuffled
                reports), or falls.
        """
        batch = list(entries)
        last = {key: place for place, entry in enumerate(batch) if entry.events for key, _ in entry.claims}
        for place, entry in enumerate(batch):
            self._number += 1
            if not entry.events:
                continue
            for key, recorded in entry.claims:
                self._claim(key, recorded, entry, settle=place == last[key])

    def _claim(self, key: tuple[str, float], recorded: float, entry: Entry, *, settle: bool) -> None:
        whose, delta = key
        events = self._spent.setdefault(whose, Counter())
        events.update(entry.charged)
        if any(isinstance(event, (SampledRound, ShuffledReports)) for event in entry.events):
            self._sampled.add(whose)
        sampled = whose in self._sampled
        wrong = sampled and recorded < self._before.get(key, 0.0)
        if not wrong and (settle or not sampled):
            recomputed = accounting.epsilon(events, delta=delta)
            wrong = not math.isclose(recorded, recomputed, rel_tol=1e-6 if sampled else 1e-9, abs_tol=1e-12)
        if wrong:
            raise StateError(
                f"Entry {self._number - 1} of ledger {self._population!r} states an epsilon its events do not have"
            )
        self._before[key] = recorded
