"""The records of the server's storage: tasks, model versions, rounds, and an append-only history of both.

States are enums with gaps between their codes (below 50 under way, 50 done, 60 ended early, 100 failed). Every
transition is a compare-and-set: of two writers one wins, and the other reads again. Changes that belong together are
one call, atomic: a process may die between any two calls, and within any of them.

``server.storage.sql.Storage`` stores them. ``tests/server/test_storage.py`` is its conformance suite, which runs
against each kind of database; ``sqlite`` and ``postgresql`` open one each.

The tables of a version are stored as the bytes that its signed manifest hashes, beside the algorithm's state:
publishing again after a crash sends the same bytes, whatever library versions are in use by then.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from odp.v1 import common_pb2

#: The first version that scores items: 0 is drawn at random, and 1 is made of how often each item occurs.
FIRST_MODEL = 2
#: The first version that predicts of examples.
FIRST_OF_EXAMPLES = 1


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
    """An active task's population, and the round that its devices can join now, if any; no round comes while paused."""

    population: str
    task: common_pb2.SignedTask
    round: int | None
    model: common_pb2.SignedManifest | None
    round_key: common_pb2.SignedRoundKey | None = None
    paused: bool = False


@dataclass(frozen=True)
class PublishedModel:
    """The model with which devices of a population predict; ``of_examples`` says of what: else it scores items."""

    population: str
    task: common_pb2.SignedTask
    model: common_pb2.SignedManifest
    of_examples: bool = False


@dataclass(frozen=True)
class HistoryEntry:
    """One transition, as it happened."""

    at: float
    event: str
    round: int | None
    detail: str
