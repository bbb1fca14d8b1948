"""One step of one release in a population's ledger, as a value and as a line of bytes.

Life of a release, one appended entry per step; the events stand in the first and count for ever::

    CHARGED -> SEALED        the release is made and named by its hash: from here on it may have left, and no other
    CHARGED -> VOID          the round failed after the charge: nothing leaves, nothing is refunded

A line is the canonical JSON of an entry. Each names the hash of the line before it, so that the hash of the newest one
stands for all. In files, messages and the transparency log, every line ends with a newline, and none holds another.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.privacy.events import Event
from odp.privacy.ledger_events import LedgerEvent, charged, from_json as event_from_json

FORMAT = "odp-privacy-ledger-2"
LINE_END = b"\n"
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
    """The state of a release; a later state never goes back."""

    CHARGED = 10
    SEALED = 20
    VOID = 90


NEXT = {
    ReleaseState.CHARGED: (ReleaseState.SEALED, ReleaseState.VOID),
    ReleaseState.SEALED: (),
    ReleaseState.VOID: (),
}


@dataclass(frozen=True)
class Budget:
    """A spending limit: epsilon at delta.

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
    """One step of one release; publishable, except for the exact set behind ``id_set_sha256``.

    Attributes:
        task_id: hash of the task definition, lower-case hexadecimal.
        round: round of the task, from 0.
        state: the state that this entry brings the release into.
        events: what is charged, and what an earlier charge covers; empty in entries after the first of a release.
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
    events: tuple[LedgerEvent, ...]
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
    def charged(self) -> tuple[Event, ...]:
        """The events that count: without releases that an earlier charge covers."""
        return charged(self.events)

    @property
    def claims(self) -> tuple[tuple[tuple[str, float], float], ...]:
        """((owner, delta), epsilon) of the task and of the population; the population's name here is empty."""
        return (
            ((self.task_id, self.task_budget.delta), self.task_epsilon),
            (("", self.population_budget.delta), self.population_epsilon),
        )

    @functools.cached_property
    def canonical(self) -> bytes:
        """The entry in the form of an encoded ledger."""
        return canonical(self.to_json())

    @functools.cached_property
    def sha256(self) -> bytes:
        """Hash of the canonical bytes of this entry, and through ``previous`` of all before it."""
        return hashlib.sha256(self.canonical).digest()


def lines_of(entries: Iterable[Entry]) -> bytes:
    """The lines of some entries, in order."""
    return b"".join(entry.canonical + LINE_END for entry in entries)


def entries_of(lines: bytes) -> Iterator[Entry]:
    """The entries in ``lines_of``; ``LedgerState.append`` checks that they form a chain.

    Raises:
        StateError: a line is no entry of this version, or not canonical.
    """
    if lines and not lines.endswith(LINE_END):
        raise StateError("The entries of a privacy ledger were cut: the last line does not end")
    for line in lines.split(LINE_END)[:-1]:
        try:
            entry = entry_of(json.loads(line.decode("ascii"), parse_constant=refuse_constant))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, PrivacyError) as error:
            raise StateError(f"An entry of a privacy ledger cannot be read: {type(error).__name__}: {error}") from error
        if entry.canonical != line:
            raise StateError("An entry of a privacy ledger was altered: it is not in its canonical form")
        yield entry


def entry_of(value: Mapping[str, object]) -> Entry:
    """The entry that ``Entry.to_json`` wrote.

    Raises ConfigurationError, PrivacyError, ValueError, KeyError, TypeError.
    """
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


def refuse_constant(name: str) -> float:
    """Refuses NaN and infinities in ``json.loads``. Raises ValueError."""
    raise ValueError(f"{name} is no number of a ledger")


def canonical(value: object) -> bytes:
    """Canonical JSON: sorted keys, no spaces, shortest floats, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def genesis(population: str) -> bytes:
    """The head of a ledger without entries."""
    return hashlib.sha256(f"{FORMAT} {population}".encode()).digest()
