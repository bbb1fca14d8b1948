"""What the server must not lose: tasks, model versions, rounds, and an append-only history of both.

States are enums with gaps between their codes (below 50 under way, 50 done, 60 ended early, 100 failed). Every
transition is a compare-and-set, ``UPDATE .. WHERE state = expected``, whose row count decides: of two writers one wins,
and the other reads again. What belongs together happens in one transaction: a process may die between any two calls.

The tables of a version are stored as the bytes that its signed manifest hashes, beside the algorithm's state:
publishing again after a crash sends the same bytes, whatever library versions are in use by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from odp.transport.database import database_errors, open_database
from odp.transport.durability import Health
from odp.v1 import common_pb2
from server.schema import HISTORY, ITEM_FEATURES, METADATA, ROUNDS, TASKS, VERSIONS, RoundState, TaskState

#: The first version that predicts: 0 is drawn at random, and 1 is made of how often each item occurs.
FIRST_MODEL = 2
_WITH_MODELS = (TaskState.FINISHED, TaskState.ACTIVE, TaskState.FAILED)


@dataclass(frozen=True)
class TaskRecord:
    """A submitted task; ``failure`` is one line, empty unless the state is FAILED."""

    sha256: bytes
    name: str
    population: str
    definition: bytes
    signature: bytes
    planned_rounds: int
    state: TaskState = TaskState.ACTIVE
    failure: str = ""

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
    """The model that devices of a population predict with."""

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


class Storage:
    """The server's database. Thread-safe; methods that change something answer whether they were the ones to do it."""

    def __init__(self, path: Path, *, health: Health | None = None, clock: Callable[[], float] = time.time) -> None:
        """Opens or creates the SQLite file ``path``. Raises StateError where it cannot be used."""
        self._path = path
        self._clock = clock
        self._engine = open_database(path, health=health)
        with database_errors(path):
            METADATA.create_all(self._engine)

    def close(self) -> None:
        """Closes the file."""
        self._engine.dispose()

    # Tasks

    def add_task(self, task: TaskRecord, *, item_features: bytes = b"") -> bool:
        """Stores a new task with the matrix it names; False where it is known already, in whatever state."""
        with self.transaction() as connection:
            values = {
                "task_sha256": task.sha256,
                "name": task.name,
                "population": task.population,
                "definition": task.definition,
                "signature": task.signature,
                "planned_rounds": task.planned_rounds,
                "state": int(task.state),
                "failure": task.failure,
            }
            added = connection.execute(insert(TASKS).values(values).on_conflict_do_nothing()).rowcount == 1
            if added:
                if item_features:
                    matrix = {"task_sha256": task.sha256, "matrix": item_features}
                    connection.execute(sa.insert(ITEM_FEATURES).values(matrix))
                self._note(connection, task.sha256, "submitted")
            return added

    def item_features(self, sha256: bytes) -> bytes:
        """The public matrix that came with a task; empty for one without."""
        query = sa.select(ITEM_FEATURES.c.matrix).where(ITEM_FEATURES.c.task_sha256 == sha256)
        with self._reading() as connection:
            row = connection.execute(query).first()
        return b"" if row is None else bytes(row.matrix)

    def task(self, sha256: bytes) -> TaskRecord | None:
        """One task, or None."""
        with self._reading() as connection:
            row = connection.execute(_task_columns().where(TASKS.c.task_sha256 == sha256)).first()
        return None if row is None else _task_of(row)

    def tasks(self, state: TaskState | None = None) -> list[TaskRecord]:
        """All tasks, or those in ``state``, newest first."""
        query = _task_columns().order_by(TASKS.c.sequence.desc())
        if state is not None:
            query = query.where(TASKS.c.state == int(state))
        with self._reading() as connection:
            return [_task_of(row) for row in connection.execute(query)]

    def tasks_to_abandon(self) -> list[TaskRecord]:
        """Tasks that were cancelled or failed, and that the aggregator may still hold; newest first."""
        ended = (int(TaskState.CANCELLING), int(TaskState.FAILED))
        query = _task_columns().where(TASKS.c.state.in_(ended), TASKS.c.abandoned.is_(None))
        with self._reading() as connection:
            return [_task_of(row) for row in connection.execute(query.order_by(TASKS.c.sequence.desc()))]

    def mark_abandoned(self, sha256: bytes) -> bool:
        """Notes that the aggregator has ended a task: CANCELLING -> CANCELLED. False where that was noted before."""
        with self.transaction() as connection:
            change = sa.update(TASKS).where(TASKS.c.task_sha256 == sha256, TASKS.c.abandoned.is_(None))
            marked = connection.execute(change.values(abandoned=self._clock())).rowcount == 1
            if marked:
                done = sa.update(TASKS).where(TASKS.c.task_sha256 == sha256, TASKS.c.state == int(TaskState.CANCELLING))
                connection.execute(done.values(state=int(TaskState.CANCELLED)))
                self._note(connection, sha256, "abandoned")
            return marked

    def end_task(self, sha256: bytes, to: TaskState, *, failure: str = "") -> bool:
        """ACTIVE -> ``to``. False where the task was not active any more."""
        with self.transaction() as connection:
            ended = self._move_task(connection, sha256, to, failure)
            if ended:
                self._note(connection, sha256, to.name.lower(), detail=failure)
            return ended

    # Model versions

    def newest_version(self, sha256: bytes) -> VersionRecord | None:
        """The newest stored version, published or not; None before the first."""
        return self._version(sha256, VERSIONS.c.version.is_not(None))

    def published_version(self, sha256: bytes) -> VersionRecord | None:
        """The newest version that the distributor took; None before the first."""
        return self._version(sha256, VERSIONS.c.published.is_not(None))

    def state_and_tables(self, sha256: bytes, version: int) -> tuple[bytes, bytes] | None:
        """The algorithm's state and the tables' bytes of ``version``; None where a newer version replaced it."""
        query = sa.select(VERSIONS.c.state, VERSIONS.c.tables).where(*_at(VERSIONS, sha256, version=version))
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None or row.state is None else (bytes(row.state), bytes(row.tables))

    def add_first_version(self, sha256: bytes, new: NewVersion) -> bool:
        """Stores the version before round 0 of an active task; False where one is stored."""
        with self.transaction() as connection:
            return self._is_active(connection, sha256) and self._add_version(connection, sha256, new)

    def mark_published(self, sha256: bytes, version: int) -> bool:
        """Notes that the distributor took ``version``; False where that was noted before."""
        with self.transaction() as connection:
            change = (
                sa.update(VERSIONS)
                .where(*_at(VERSIONS, sha256, version=version), VERSIONS.c.published.is_(None))
                .values(published=self._clock())
            )
            marked = connection.execute(change).rowcount == 1
            if marked:
                self._note(connection, sha256, "published", round=version)
            return marked

    # Rounds

    def open_round(self, sha256: bytes, round: int, key: common_pb2.SignedRoundKey | None = None) -> bool:
        """Stores that the aggregator opened ``round``; False where it is stored, or the task is not active any more.

        ``key`` is what its contributions are sealed to.
        """
        with self.transaction() as connection:
            if not self._is_active(connection, sha256):
                return False
            values = {
                "task_sha256": sha256,
                "round": round,
                "state": int(RoundState.OPEN),
                "contributions": 0,
                "opened": self._clock(),
                "closed": 0.0,
                "release": b"",
                "release_signature": b"",
                "round_key": _round_key(key),
            }
            opened = connection.execute(insert(ROUNDS).values(values).on_conflict_do_nothing()).rowcount == 1
            if opened:
                self._note(connection, sha256, "round_opened", round=round)
            return opened

    def set_round_key(self, sha256: bytes, round: int, key: common_pb2.SignedRoundKey) -> bool:
        """Stores the key of an open round that the aggregator had lost, and opened again."""
        with self.transaction() as connection:
            change = _round_update(sha256, round, RoundState.OPEN).values(round_key=_round_key(key))
            return connection.execute(change).rowcount == 1

    def set_contributions(self, sha256: bytes, round: int, contributions: int) -> bool:
        """Notes how many contributions an open round has."""
        with self.transaction() as connection:
            change = _round_update(sha256, round, RoundState.OPEN).values(contributions=contributions)
            return connection.execute(change).rowcount == 1

    def release_round(
        self, sha256: bytes, round: int, release: common_pb2.SignedRelease, *, contributions: int
    ) -> bool:
        """OPEN -> RELEASED with the aggregator's release; False where the round was not open."""
        with self.transaction() as connection:
            change = _round_update(sha256, round, RoundState.OPEN).values(
                state=int(RoundState.RELEASED),
                contributions=contributions,
                closed=self._clock(),
                release=release.release,
                release_signature=release.signature,
            )
            released = connection.execute(change).rowcount == 1
            if released:
                self._note(connection, sha256, "round_released", round=round)
            return released

    def apply_round(self, sha256: bytes, round: int, new: NewVersion) -> bool:
        """RELEASED -> APPLIED together with the version that it made; False where the round was not RELEASED."""
        with self.transaction() as connection:
            change = _round_update(sha256, round, RoundState.RELEASED).values(state=int(RoundState.APPLIED))
            if connection.execute(change).rowcount != 1:
                return False
            self._add_version(connection, sha256, new)
            replaced = sa.update(VERSIONS).where(VERSIONS.c.task_sha256 == sha256, VERSIONS.c.version < new.version)
            connection.execute(replaced.values(state=None, tables=None))
            self._note(connection, sha256, "round_applied", round=round)
            return True

    def rounds(self, sha256: bytes) -> list[RoundRecord]:
        """All rounds so far, oldest first."""
        with self._reading() as connection:
            query = _round_columns().where(ROUNDS.c.task_sha256 == sha256).order_by(ROUNDS.c.round)
            return [_round_of(row) for row in connection.execute(query)]

    def round(self, sha256: bytes, round: int) -> RoundRecord | None:
        """One round, or None."""
        with self._reading() as connection:
            row = connection.execute(_round_columns().where(*_at(ROUNDS, sha256, round=round))).first()
        return None if row is None else _round_of(row)

    def release(self, sha256: bytes, round: int) -> common_pb2.SignedRelease:
        """The release of a round; empty while it is open."""
        query = sa.select(ROUNDS.c.release, ROUNDS.c.release_signature).where(*_at(ROUNDS, sha256, round=round))
        with self._reading() as connection:
            row = connection.execute(query).first()
        if row is None:
            return common_pb2.SignedRelease()
        return common_pb2.SignedRelease(release=row.release, signature=row.release_signature)

    def open_rounds(self) -> list[OpenRound]:
        """Every active task, oldest first, with its open round where it has one."""
        joined = TASKS.outerjoin(
            ROUNDS, sa.and_(ROUNDS.c.task_sha256 == TASKS.c.task_sha256, ROUNDS.c.state == int(RoundState.OPEN))
        ).outerjoin(
            VERSIONS, sa.and_(VERSIONS.c.task_sha256 == TASKS.c.task_sha256, VERSIONS.c.version == ROUNDS.c.round)
        )
        query = (
            sa.select(
                TASKS.c.population,
                TASKS.c.definition,
                TASKS.c.signature,
                ROUNDS.c.round,
                ROUNDS.c.round_key,
                VERSIONS.c.manifest,
                VERSIONS.c.signature.label("manifest_signature"),
            )
            .select_from(joined)
            .where(TASKS.c.state == int(TaskState.ACTIVE))
            .order_by(TASKS.c.sequence)
        )
        with self._reading() as connection:
            return [_open_round_of(row) for row in connection.execute(query)]

    def published_models(self) -> list[PublishedModel]:
        """One entry for each population that has a model to predict with: a published version from ``FIRST_MODEL`` on.

        It is the newest of the newest task that is finished; where none is, of the newest task that is under way, and
        then of the newest that failed. A cancelled task has none, and released statistics are none.
        """
        # A model that is half trained takes no place of one that is whole.
        rank = {int(state): rank for rank, state in enumerate(_WITH_MODELS)}
        others = VERSIONS.alias()
        newest_version = (
            sa.select(sa.func.max(others.c.version))
            .where(others.c.task_sha256 == TASKS.c.task_sha256, others.c.published.is_not(None))
            .scalar_subquery()
        )
        query = (
            sa.select(
                TASKS.c.population,
                TASKS.c.definition,
                TASKS.c.signature,
                VERSIONS.c.manifest,
                VERSIONS.c.signature.label("manifest_signature"),
            )
            .join_from(TASKS, VERSIONS, VERSIONS.c.task_sha256 == TASKS.c.task_sha256)
            .where(VERSIONS.c.version == newest_version, VERSIONS.c.version >= FIRST_MODEL)
            .where(TASKS.c.state.in_(rank))
            .order_by(sa.case(rank, value=TASKS.c.state), TASKS.c.sequence.desc())
        )
        found: dict[str, PublishedModel] = {}
        with self._reading() as connection:
            for row in connection.execute(query):
                # Which kind a task is stands in its signed definition alone.
                if row.population in found or not _has_model(row.definition):
                    continue
                found[row.population] = PublishedModel(
                    row.population,
                    common_pb2.SignedTask(definition=row.definition, signature=row.signature),
                    common_pb2.SignedManifest(manifest=row.manifest, signature=row.manifest_signature),
                )
        return list(found.values())

    # History

    def history(self, sha256: bytes) -> list[HistoryEntry]:
        """Everything that happened to a task, oldest first."""
        query = (
            sa.select(HISTORY.c.at, HISTORY.c.event, HISTORY.c.round, HISTORY.c.detail)
            .where(HISTORY.c.task_sha256 == sha256)
            .order_by(HISTORY.c.sequence)
        )
        with self._reading() as connection:
            return [HistoryEntry(row.at, row.event, row.round, row.detail) for row in connection.execute(query)]

    def _version(self, sha256: bytes, condition: sa.ColumnElement[bool]) -> VersionRecord | None:
        query = (
            sa.select(VERSIONS.c.version, VERSIONS.c.manifest, VERSIONS.c.signature, VERSIONS.c.published)
            .where(VERSIONS.c.task_sha256 == sha256, condition)
            .order_by(VERSIONS.c.version.desc())
            .limit(1)
        )
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else VersionRecord(row.version, row.manifest, row.signature, row.published)

    def _move_task(self, connection: sa.Connection, sha256: bytes, to: TaskState, failure: str = "") -> bool:
        change = sa.update(TASKS).where(TASKS.c.task_sha256 == sha256, TASKS.c.state == int(TaskState.ACTIVE))
        return connection.execute(change.values(state=int(to), failure=failure)).rowcount == 1

    def _is_active(self, connection: sa.Connection, sha256: bytes) -> bool:
        # Written, not read: the row stays locked until the commit, so that a cancellation comes before or after.
        return self._move_task(connection, sha256, TaskState.ACTIVE)

    def _add_version(self, connection: sa.Connection, sha256: bytes, new: NewVersion) -> bool:
        values = {
            "task_sha256": sha256,
            "version": new.version,
            "manifest": new.manifest.manifest,
            "signature": new.manifest.signature,
            "published": None,
            "state": new.state,
            "tables": new.tables,
        }
        return connection.execute(insert(VERSIONS).values(values).on_conflict_do_nothing()).rowcount == 1

    def _note(
        self, connection: sa.Connection, sha256: bytes, event: str, *, round: int | None = None, detail: str = ""
    ) -> None:
        values = {"task_sha256": sha256, "at": self._clock(), "event": event, "round": round, "detail": detail}
        connection.execute(sa.insert(HISTORY).values(values))

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A connection whose changes are kept together, or not at all. Raises StateError."""
        with database_errors(self._path), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with database_errors(self._path), self._engine.connect() as connection:
            yield connection


def _at(table: sa.Table, sha256: bytes, **key: int) -> list[sa.ColumnElement[bool]]:
    return [table.c.task_sha256 == sha256, *(table.c[name] == value for name, value in key.items())]


def _round_key(key: common_pb2.SignedRoundKey | None) -> bytes:
    return b"" if key is None else key.SerializeToString(deterministic=True)


def _round_update(sha256: bytes, round: int, expected: RoundState) -> sa.Update:
    return sa.update(ROUNDS).where(*_at(ROUNDS, sha256, round=round), ROUNDS.c.state == int(expected))


def _task_columns() -> sa.Select[Any]:
    return sa.select(*(column for column in TASKS.c if column.name not in ("sequence", "abandoned")))


def _round_columns() -> sa.Select[Any]:
    size = sa.func.length(ROUNDS.c.release).label("release_bytes")
    names = ("round", "state", "contributions", "opened", "closed")
    return sa.select(*(ROUNDS.c[name] for name in names), size)


def _task_of(row: Any) -> TaskRecord:
    return TaskRecord(
        sha256=row.task_sha256,
        name=row.name,
        population=row.population,
        definition=row.definition,
        signature=row.signature,
        planned_rounds=row.planned_rounds,
        state=TaskState(row.state),
        failure=row.failure,
    )


def _round_of(row: Any) -> RoundRecord:
    return RoundRecord(row.round, RoundState(row.state), row.contributions, row.opened, row.closed, row.release_bytes)


def _open_round_of(row: Any) -> OpenRound:
    task = common_pb2.SignedTask(definition=row.definition, signature=row.signature)
    if row.round is None:
        return OpenRound(row.population, task, None, None)
    model = common_pb2.SignedManifest(manifest=row.manifest, signature=row.manifest_signature)
    return OpenRound(row.population, task, row.round, model, common_pb2.SignedRoundKey.FromString(row.round_key))


def _has_model(definition: bytes) -> bool:
    return common_pb2.TaskDefinition.FromString(definition).HasField("model")
