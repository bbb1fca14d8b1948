"""The storage of the server: tasks, model versions, rounds, and an append-only history of both.

States are enums with gaps between their codes (below 50 under way, 50 done, 60 ended early, 100 failed). Every
transition is a compare-and-set: of two writers one wins, and the other reads again. Changes that belong together are
one call, atomic: a process may die between any two calls, and within any of them.

``Storage`` says what every store guarantees. ``tests/server/test_storage.py`` is its conformance suite.
``sqlite`` and ``postgresql`` open an implementation each.

The tables of a version are stored as the bytes that its signed manifest hashes, beside the algorithm's state:
publishing again after a crash sends the same bytes, whatever library versions are in use by then.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from odp.v1 import common_pb2, enrolment_pb2, population_pb2
from server.storage.leases import LeaseStorage
from server.storage.log_rows import LogRows
from server.storage.reports import ReportStorage

#: The first version that predicts: 0 is drawn at random, and 1 is made of how often each item occurs.
FIRST_MODEL = 2


class TaskState(enum.IntEnum):
    """The codes of ``odp.v1.TaskStatus.State``."""

    ACTIVE = 10
    CANCELLING = 20
    FINISHED = 50
    CANCELLED = 60
    FAILED = 100


class RoundState(enum.IntEnum):
    """The codes of ``odp.v1.RoundStatus.State``."""

    OPEN = 10
    RELEASED = 30
    APPLIED = 50


@dataclass(frozen=True)
class TaskRecord:
    """A submitted task; ``failure`` is one line, empty unless the state is FAILED. A ``paused`` one opens no round."""

    sha256: bytes
    name: str
    population: str
    definition: bytes
    signature: bytes
    planned_rounds: int
    state: TaskState = TaskState.ACTIVE
    failure: str = ""
    paused: bool = False

    @property
    def signed(self) -> common_pb2.SignedTask:
        """The task as devices and enclaves get it."""
        return common_pb2.SignedTask(definition=self.definition, signature=self.signature)


@dataclass(frozen=True)
class VersionRecord:
    """A model version without its tables; ``published`` is None until the distributor took it."""

    version: int
    manifest: bytes
    signature: bytes
    published: float | None

    @property
    def signed(self) -> common_pb2.SignedManifest:
        """The manifest as devices and the distributor get it."""
        return common_pb2.SignedManifest(manifest=self.manifest, signature=self.signature)


@dataclass(frozen=True)
class NewVersion:
    """A model version to store: the algorithm's ``state``, and ``tables``, the bytes that ``manifest`` hashes."""

    version: int
    state: bytes
    tables: bytes
    manifest: common_pb2.SignedManifest


@dataclass(frozen=True)
class RoundRecord:
    """A round without its release, whose size is ``release_bytes``; times are seconds since the epoch."""

    round: int
    state: RoundState
    contributions: int
    opened: float
    closed: float
    release_bytes: int


@dataclass(frozen=True)
class OpenRound:
    """An active task's population, and the round that its devices can join now, if any."""

    population: str
    task: common_pb2.SignedTask
    round: int | None
    model: common_pb2.SignedManifest | None
    round_key: common_pb2.SignedRoundKey | None = None


@dataclass(frozen=True)
class PublishedModel:
    """The model with which devices of a population predict."""

    population: str
    task: common_pb2.SignedTask
    model: common_pb2.SignedManifest


@dataclass(frozen=True)
class HistoryEntry:
    """One transition, as it happened."""

    at: float
    event: str
    round: int | None
    detail: str


class Storage(Protocol):
    """A server's store. Thread-safe, and shared by all processes that opened it.

    A method that changes something is durable when it returns, and returns whether this call changed it. Each is whole
    or has no effect, and notes its transition in the history together with it.

    Every method raises StateError where the store cannot be used: DiskFull, DiskFailed and StoreUnreachable among them.
    What changes something raises Deposed within ``leases.fenced``, where another server leads.
    """

    def close(self) -> None:
        """Closes the store. Idempotent."""
        ...

    @property
    def reports(self) -> ReportStorage:
        """What tasks of local trust collect."""
        ...

    @property
    def leases(self) -> LeaseStorage:
        """Who leads what, and the fence around what a leader stores."""
        ...

    @property
    def log_rows(self) -> LogRows:
        """The transparency log, and more that servers on one database share."""
        ...

    # Tasks

    def add_task(self, task: TaskRecord, *, item_features: bytes = b"") -> bool:
        """Stores a new task with its item features; False if it is known already, in any state."""
        ...

    def item_features(self, sha256: bytes) -> bytes:
        """The public item features of a task; empty without any."""
        ...

    def task(self, sha256: bytes) -> TaskRecord | None:
        """One task, or None."""
        ...

    def tasks(self, state: TaskState | None = None) -> list[TaskRecord]:
        """All tasks, or those in ``state``, newest first."""
        ...

    def tasks_to_abandon(self) -> list[TaskRecord]:
        """Cancelled or failed tasks that the aggregator may still hold; newest first."""
        ...

    def mark_abandoned(self, sha256: bytes) -> bool:
        """Records that the aggregator has ended a task: CANCELLING -> CANCELLED. False if that was recorded before."""
        ...

    def end_task(self, sha256: bytes, to: TaskState, *, failure: str = "") -> bool:
        """ACTIVE -> ``to``. False if the task is not active any more."""
        ...

    def set_paused(self, sha256: bytes, paused: bool) -> bool:
        """Whether an active task opens further rounds. False if it is as it was, or not active."""
        ...

    # Model versions

    def newest_version(self, sha256: bytes) -> VersionRecord | None:
        """The newest stored version, published or not; None before the first."""
        ...

    def published_version(self, sha256: bytes) -> VersionRecord | None:
        """The newest version that the distributor took; None before the first."""
        ...

    def state_and_tables(self, sha256: bytes, version: int) -> tuple[bytes, bytes] | None:
        """The algorithm's state and the tables' bytes of ``version``; None if a newer version replaced it."""
        ...

    def add_first_version(self, sha256: bytes, new: NewVersion) -> bool:
        """Stores the version before round 0 of an active task; False if it is stored or the task is not active."""
        ...

    def mark_published(self, sha256: bytes, version: int) -> bool:
        """Records that the distributor took ``version``; False if that was recorded before."""
        ...

    # Rounds

    def open_round(self, sha256: bytes, round: int, key: common_pb2.SignedRoundKey | None = None) -> bool:
        """Stores that the aggregator opened ``round``; False if that is stored, or the task is not active any more.

        ``key`` is what its contributions are sealed to.
        """
        ...

    def set_round_key(self, sha256: bytes, round: int, key: common_pb2.SignedRoundKey) -> bool:
        """Stores the key of an open round that the aggregator had lost and opened again."""
        ...

    def set_contributions(self, sha256: bytes, round: int, contributions: int) -> bool:
        """Stores the number of contributions of an open round."""
        ...

    def release_round(
        self, sha256: bytes, round: int, release: common_pb2.SignedRelease, *, contributions: int
    ) -> bool:
        """OPEN -> RELEASED with the aggregator's release; False if the round was not open."""
        ...

    def apply_round(self, sha256: bytes, round: int, new: NewVersion) -> bool:
        """RELEASED -> APPLIED together with the version that it made; False if the round was not RELEASED.

        Of the versions before it, state and tables are dropped.
        """
        ...

    def rounds(self, sha256: bytes) -> list[RoundRecord]:
        """All rounds so far, oldest first."""
        ...

    def round(self, sha256: bytes, round: int) -> RoundRecord | None:
        """One round, or None."""
        ...

    def release(self, sha256: bytes, round: int) -> common_pb2.SignedRelease:
        """The release of a round; empty while it is open."""
        ...

    def open_rounds(self) -> list[OpenRound]:
        """Every active task, oldest first, with its open round if it has one."""
        ...

    def published_models(self) -> list[PublishedModel]:
        """One entry for each population that has a model to predict with: a published version from ``FIRST_MODEL`` on.

        It is the newest of the newest task that is finished; where none is, of the newest task that is under way, and
        then of the newest that failed. A cancelled task has none, and released statistics are none.
        """
        ...

    # Charters and token keys

    def add_charter(self, population: str, sequence: int, signed: population_pb2.SignedCharter) -> bool:
        """Stores a charter that is in force; False if one with this sequence is stored."""
        ...

    def charters(self, population: str) -> list[population_pb2.SignedCharter]:
        """All stored charters of a population, oldest first."""
        ...

    def set_token_key(self, sha256: bytes, round: int, signed: enrolment_pb2.SignedTokenKey) -> None:
        """Stores the token key of a round of a stored task; it replaces an earlier one."""
        ...

    def newest_token_key(self, sha256: bytes) -> int | None:
        """The last round of a task that has a token key; None where none has."""
        ...

    def token_key(self, sha256: bytes, round: int) -> enrolment_pb2.SignedTokenKey | None:
        """The token key of a round, or None."""
        ...

    # History

    def history(self, sha256: bytes) -> list[HistoryEntry]:
        """All transitions of a task, oldest first. No entry is ever changed or removed."""
        ...
