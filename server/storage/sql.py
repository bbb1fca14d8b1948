"""The server's store through SQL: every statement of it, on each kind of database that ``schema`` knows.

A transition is ``UPDATE .. WHERE state = expected``, whose row count decides. What belongs together is one transaction.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa
from google.protobuf.message import Message

from odp.algorithms.registry import TABLE, training_of
from odp.v1 import common_pb2, enrolment_pb2, population_pb2
from server.storage.leases import Leases
from server.storage.log_rows import LogRows
from server.storage.records import (
    FIRST_MODEL,
    FIRST_OF_EXAMPLES,
    HistoryEntry,
    NewVersion,
    OpenRound,
    PublishedModel,
    RoundRecord,
    RoundState,
    TaskRecord,
    TaskState,
    VersionRecord,
)
from server.storage.reports import Reports
from server.storage.schema import (
    CHARTERS,
    HISTORY,
    ITEM_FEATURES,
    ROUNDS,
    TASKS,
    TOKEN_KEYS,
    VERSIONS,
    create_tables,
    dialect_of,
)

_WITH_MODELS = (TaskState.FINISHED, TaskState.ACTIVE, TaskState.FAILED)


class Storage:
    """A server's store. Thread-safe, and shared by all processes that opened it.

    A method that changes something is durable when it returns, and returns whether this call changed it. Each is whole
    or has no effect, and notes its transition in the history together with it.

    Every method raises StateError where the store cannot be used: DiskFull, DiskFailed and StoreUnreachable among them.
    What changes something raises Deposed within ``leases.fenced``, where another server leads.

    Attributes:
        leases: who leads what, and the fence around what a leader stores.
        log_rows: the transparency log, and more that servers on one database share.
        reports: what tasks of local trust collect.

    Args:
        engine: of the database; its tables are created on first use.
        errors: turns what the database's driver raises into a StateError of one line.
        clock: gives the time of each transition, in seconds since the epoch.
        lease_clock: gives the time of leases; default: the database's own clock, or ``clock`` where it has none.
        lease_engine: of the same database, for leases alone: they do not wait for other work; default: ``engine``.

    Raises:
        ConfigurationError: no store is made for this kind of database.
        StateError: the database cannot be used.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        errors: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] | None = None,
        lease_engine: sa.Engine | None = None,
    ) -> None:
        self._engine = engine
        self._errors = errors
        self._clock = clock
        dialect = dialect_of(engine)
        # With ON CONFLICT. Those of the other kinds of databases are not imported.
        self._insert = importlib.import_module(f"sqlalchemy.dialects.{engine.dialect.name}").insert
        now: Callable[[], Any] = clock if dialect.now is None else lambda: dialect.now
        self._lease_engine = engine if lease_engine is None else lease_engine
        self.leases = Leases(self._lease_engine, insert=self._insert, errors=errors, now=lease_clock or now)
        self.log_rows = LogRows(transaction=self._transaction, reading=self._reading, insert=self._insert)
        self.reports = Reports(engine, insert=self._insert, errors=errors, clock=clock)
        with errors():
            create_tables(engine)

    def close(self) -> None:
        """Closes the store. Idempotent."""
        self._engine.dispose()
        self._lease_engine.dispose()

    # Tasks

    def add_task(self, task: TaskRecord, *, item_features: bytes = b"") -> bool:
        """Stores a new task with its item features; False if it is known already, in any state."""
        with self._transaction() as connection:
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
            if added := self._inserted(connection, TASKS, values):
                if item_features:
                    matrix = {"task_sha256": task.sha256, "matrix": item_features}
                    connection.execute(sa.insert(ITEM_FEATURES).values(matrix))
                self._note(connection, task.sha256, "submitted")
            return added

    def item_features(self, sha256: bytes) -> bytes:
        """The public item features of a task; empty without any."""
        row = self._first(sa.select(ITEM_FEATURES.c.matrix).where(ITEM_FEATURES.c.task_sha256 == sha256))
        return b"" if row is None else bytes(row.matrix)

    def task(self, sha256: bytes) -> TaskRecord | None:
        """One task, or None."""
        row = self._first(_task_columns().where(TASKS.c.task_sha256 == sha256))
        return None if row is None else _task_of(row)

    def tasks(self, state: TaskState | None = None) -> list[TaskRecord]:
        """All tasks, or those in ``state``, newest first."""
        query = _task_columns().order_by(TASKS.c.sequence.desc())
        if state is not None:
            query = query.where(TASKS.c.state == int(state))
        return [_task_of(row) for row in self._all(query)]

    def tasks_to_abandon(self) -> list[TaskRecord]:
        """Cancelled or failed tasks that the aggregator may still hold; newest first."""
        ended = (int(TaskState.CANCELLING), int(TaskState.FAILED))
        query = _task_columns().where(TASKS.c.state.in_(ended), TASKS.c.abandoned.is_(None))
        return [_task_of(row) for row in self._all(query.order_by(TASKS.c.sequence.desc()))]

    def mark_abandoned(self, sha256: bytes) -> bool:
        """Records that the aggregator has ended a task: CANCELLING -> CANCELLED. False if that was recorded before."""
        with self._transaction() as connection:
            change = sa.update(TASKS).where(TASKS.c.task_sha256 == sha256, TASKS.c.abandoned.is_(None))
            marked = connection.execute(change.values(abandoned=self._clock())).rowcount == 1
            if marked:
                done = sa.update(TASKS).where(TASKS.c.task_sha256 == sha256, TASKS.c.state == int(TaskState.CANCELLING))
                connection.execute(done.values(state=int(TaskState.CANCELLED)))
                self._note(connection, sha256, "abandoned")
            return marked

    def end_task(self, sha256: bytes, to: TaskState, *, failure: str = "") -> bool:
        """ACTIVE -> ``to``. False if the task is not active any more."""
        return self._transition(_task_move(sha256, to, failure), sha256, to.name.lower(), detail=failure)

    def set_paused(self, sha256: bytes, paused: bool) -> bool:
        """Whether an active task opens further rounds. False if it is as it was, or not active."""
        other = TASKS.c.paused.is_(None) if paused else TASKS.c.paused.is_not(None)
        change = sa.update(TASKS).where(TASKS.c.task_sha256 == sha256, TASKS.c.state == int(TaskState.ACTIVE), other)
        if paused:
            return self._transition(change, sha256, "paused", at=TASKS.c.paused)
        return self._transition(change.values(paused=None), sha256, "resumed")

    # Model versions

    def newest_version(self, sha256: bytes) -> VersionRecord | None:
        """The newest stored version, published or not; None before the first."""
        return self._version(sha256, VERSIONS.c.version.is_not(None))

    def published_version(self, sha256: bytes) -> VersionRecord | None:
        """The newest version that the distributor took; None before the first."""
        return self._version(sha256, VERSIONS.c.published.is_not(None))

    def state_and_tables(self, sha256: bytes, version: int) -> tuple[bytes, bytes] | None:
        """The algorithm's state and the tables' bytes of ``version``; None if a newer version replaced it."""
        query = sa.select(VERSIONS.c.state, VERSIONS.c.tables).where(*_at(VERSIONS, sha256, version=version))
        row = self._first(query)
        return None if row is None or row.state is None else (bytes(row.state), bytes(row.tables))

    def add_first_version(self, sha256: bytes, new: NewVersion) -> bool:
        """Stores the version before round 0 of an active task; False if it is stored or the task is not active."""
        with self._transaction() as connection:
            return self._is_active(connection, sha256) and self._add_version(connection, sha256, new)

    def mark_published(self, sha256: bytes, version: int) -> bool:
        """Records that the distributor took ``version``; False if that was recorded before."""
        change = sa.update(VERSIONS).where(*_at(VERSIONS, sha256, version=version), VERSIONS.c.published.is_(None))
        return self._transition(change, sha256, "published", at=VERSIONS.c.published, round=version)

    # Rounds

    def open_round(self, sha256: bytes, round: int, key: common_pb2.SignedRoundKey | None = None) -> bool:
        """Stores that the aggregator opened ``round``; False if that is stored, or the task is not active any more.

        ``key`` is what its contributions are sealed to.
        """
        with self._transaction() as connection:
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
            if opened := self._inserted(connection, ROUNDS, values):
                self._note(connection, sha256, "round_opened", round=round)
            return opened

    def set_round_key(self, sha256: bytes, round: int, key: common_pb2.SignedRoundKey) -> bool:
        """Stores the key of an open round that the aggregator had lost and opened again."""
        return self._transition(_round_update(sha256, round, RoundState.OPEN).values(round_key=_round_key(key)), sha256)

    def set_contributions(self, sha256: bytes, round: int, contributions: int) -> bool:
        """Stores the number of contributions of an open round."""
        change = _round_update(sha256, round, RoundState.OPEN).values(contributions=contributions)
        return self._transition(change, sha256)

    def release_round(
        self, sha256: bytes, round: int, release: common_pb2.SignedRelease, *, contributions: int
    ) -> bool:
        """OPEN -> RELEASED with the aggregator's release; False if the round was not open."""
        change = _round_update(sha256, round, RoundState.OPEN).values(
            state=int(RoundState.RELEASED),
            contributions=contributions,
            release=release.release,
            release_signature=release.signature,
        )
        return self._transition(change, sha256, "round_released", at=ROUNDS.c.closed, round=round)

    def apply_round(self, sha256: bytes, round: int, new: NewVersion) -> bool:
        """RELEASED -> APPLIED together with the version that it made; False if the round was not RELEASED.

        Of the versions before it, state and tables are dropped.
        """
        with self._transaction() as connection:
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
        query = _round_columns().where(ROUNDS.c.task_sha256 == sha256).order_by(ROUNDS.c.round)
        return [_round_of(row) for row in self._all(query)]

    def round(self, sha256: bytes, round: int) -> RoundRecord | None:
        """One round, or None."""
        row = self._first(_round_columns().where(*_at(ROUNDS, sha256, round=round)))
        return None if row is None else _round_of(row)

    def release(self, sha256: bytes, round: int) -> common_pb2.SignedRelease:
        """The release of a round; empty while it is open."""
        query = sa.select(ROUNDS.c.release, ROUNDS.c.release_signature).where(*_at(ROUNDS, sha256, round=round))
        if (row := self._first(query)) is None:
            return common_pb2.SignedRelease()
        return common_pb2.SignedRelease(release=row.release, signature=row.release_signature)

    def open_rounds(self) -> list[OpenRound]:
        """Every active task, oldest first, with its open round if it has one; of a paused one, none comes."""
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
                TASKS.c.paused,
                ROUNDS.c.round,
                ROUNDS.c.round_key,
                VERSIONS.c.manifest,
                VERSIONS.c.signature.label("manifest_signature"),
            )
            .select_from(joined)
            .where(TASKS.c.state == int(TaskState.ACTIVE))
            .order_by(TASKS.c.sequence)
        )
        return [_open_round_of(row) for row in self._all(query)]

    def published_models(self) -> list[PublishedModel]:
        """One entry for each population and kind of model that predicts: a published version that learned something.

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
                VERSIONS.c.version,
                VERSIONS.c.manifest,
                VERSIONS.c.signature.label("manifest_signature"),
            )
            .join_from(TASKS, VERSIONS, VERSIONS.c.task_sha256 == TASKS.c.task_sha256)
            .where(VERSIONS.c.version == newest_version, VERSIONS.c.version >= FIRST_OF_EXAMPLES)
            .where(TASKS.c.state.in_(rank))
            .order_by(sa.case(rank, value=TASKS.c.state), TASKS.c.sequence.desc())
        )
        published: dict[tuple[str, bool], PublishedModel] = {}
        for row in self._all(query):
            # Which kind a task is stands in its signed definition alone.
            of_examples = _predicts_of_examples(row.definition)
            first = FIRST_OF_EXAMPLES if of_examples else FIRST_MODEL
            if of_examples is not None and row.version >= first and (row.population, of_examples) not in published:
                published[row.population, of_examples] = PublishedModel(
                    row.population,
                    common_pb2.SignedTask(definition=row.definition, signature=row.signature),
                    common_pb2.SignedManifest(manifest=row.manifest, signature=row.manifest_signature),
                    of_examples,
                )
        return list(published.values())

    # Charters and token keys

    def add_charter(self, population: str, sequence: int, signed: population_pb2.SignedCharter) -> bool:
        """Stores a charter that is in force; False if one with this sequence is stored."""
        values = {"population": population, "sequence": sequence, "signed": _bytes_of(signed)}
        with self._transaction() as connection:
            return self._inserted(connection, CHARTERS, values)

    def charters(self, population: str) -> list[population_pb2.SignedCharter]:
        """All stored charters of a population, oldest first."""
        query = sa.select(CHARTERS.c.signed).where(CHARTERS.c.population == population).order_by(CHARTERS.c.sequence)
        return [population_pb2.SignedCharter.FromString(row.signed) for row in self._all(query)]

    def set_token_key(self, sha256: bytes, round: int, signed: enrolment_pb2.SignedTokenKey) -> None:
        """Stores the token key of a round of a stored task; it replaces an earlier one."""
        values = {"task_sha256": sha256, "round": round, "signed": _bytes_of(signed)}
        change = self._insert(TOKEN_KEYS).values(values)
        with self._transaction() as connection:
            connection.execute(
                change.on_conflict_do_update(
                    index_elements=[TOKEN_KEYS.c.task_sha256, TOKEN_KEYS.c.round],
                    set_={"signed": change.excluded.signed},
                )
            )

    def newest_token_key(self, sha256: bytes) -> int | None:
        """The last round of a task that has a token key; None where none has."""
        row = self._first(sa.select(sa.func.max(TOKEN_KEYS.c.round)).where(TOKEN_KEYS.c.task_sha256 == sha256))
        return None if row is None else row[0]

    def token_key(self, sha256: bytes, round: int) -> enrolment_pb2.SignedTokenKey | None:
        """The token key of a round, or None."""
        row = self._first(sa.select(TOKEN_KEYS.c.signed).where(*_at(TOKEN_KEYS, sha256, round=round)))
        return None if row is None else enrolment_pb2.SignedTokenKey.FromString(row.signed)

    # History

    def history(self, sha256: bytes) -> list[HistoryEntry]:
        """All transitions of a task, oldest first. No entry is ever changed or removed."""
        query = (
            sa.select(HISTORY.c.at, HISTORY.c.event, HISTORY.c.round, HISTORY.c.detail)
            .where(HISTORY.c.task_sha256 == sha256)
            .order_by(HISTORY.c.sequence)
        )
        return [HistoryEntry(row.at, row.event, row.round, row.detail) for row in self._all(query)]

    def _version(self, sha256: bytes, condition: sa.ColumnElement[bool]) -> VersionRecord | None:
        query = (
            sa.select(VERSIONS.c.version, VERSIONS.c.manifest, VERSIONS.c.signature, VERSIONS.c.published)
            .where(VERSIONS.c.task_sha256 == sha256, condition)
            .order_by(VERSIONS.c.version.desc())
            .limit(1)
        )
        row = self._first(query)
        return None if row is None else VersionRecord(row.version, row.manifest, row.signature, row.published)

    def _transition(
        self, change: sa.Update, sha256: bytes, event: str = "", *, at: sa.Column[float] | None = None, **noted: Any
    ) -> bool:
        """Makes a change of one row, and notes ``event`` with it; returns whether the row was as ``change`` expects.

        The column ``at`` gets the time, which is that within the transaction.
        """
        with self._transaction() as connection:
            if at is not None:
                change = change.values({at: self._clock()})
            changed = connection.execute(change).rowcount == 1
            if changed and event:
                self._note(connection, sha256, event, **noted)
            return changed

    def _is_active(self, connection: sa.Connection, sha256: bytes) -> bool:
        # Written, not read: the row stays locked until the commit, so that a cancellation comes before or after.
        return connection.execute(_task_move(sha256, TaskState.ACTIVE)).rowcount == 1

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
        return self._inserted(connection, VERSIONS, values)

    def _inserted(self, connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> bool:
        """Inserts a row unless one with its key exists; returns whether it did."""
        change = self._insert(table).values(values).on_conflict_do_nothing()
        # Where a database tells the new row's sequence, SQLAlchemy drops the count unless it is asked for.
        return connection.execute(change.execution_options(preserve_rowcount=True)).rowcount == 1

    def _note(
        self, connection: sa.Connection, sha256: bytes, event: str, *, round: int | None = None, detail: str = ""
    ) -> None:
        # A database with several writers would else number a task's entries in another order than they commit in.
        task = sa.select(TASKS.c.sequence).where(TASKS.c.task_sha256 == sha256)
        connection.execute(task.with_for_update(key_share=True))
        values = {"task_sha256": sha256, "at": self._clock(), "event": event, "round": round, "detail": detail}
        connection.execute(sa.insert(HISTORY).values(values))

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._errors(), self._engine.begin() as connection:
            yield connection
            # Last, so that the lease's row is locked for as short a time as can be.
            self.leases.check(connection)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._errors(), self._engine.connect() as connection:
            yield connection

    def _first(self, query: sa.Select[Any]) -> Any:
        with self._reading() as connection:
            return connection.execute(query).first()

    def _all(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._reading() as connection:
            return connection.execute(query).all()


def _task_move(sha256: bytes, to: TaskState, failure: str = "") -> sa.Update:
    change = sa.update(TASKS).where(TASKS.c.task_sha256 == sha256, TASKS.c.state == int(TaskState.ACTIVE))
    return change.values(state=int(to), failure=failure)


def _at(table: sa.Table, sha256: bytes, **key: int) -> list[sa.ColumnElement[bool]]:
    return [table.c.task_sha256 == sha256, *(table.c[name] == value for name, value in key.items())]


def _bytes_of(signed: Message) -> bytes:
    return signed.SerializeToString(deterministic=True)


def _round_key(key: common_pb2.SignedRoundKey | None) -> bytes:
    return b"" if key is None else _bytes_of(key)


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
        paused=row.paused is not None,
    )


def _round_of(row: Any) -> RoundRecord:
    return RoundRecord(row.round, RoundState(row.state), row.contributions, row.opened, row.closed, row.release_bytes)


def _open_round_of(row: Any) -> OpenRound:
    task = common_pb2.SignedTask(definition=row.definition, signature=row.signature)
    if row.round is None:
        return OpenRound(row.population, task, None, None, paused=row.paused is not None)
    model = common_pb2.SignedManifest(manifest=row.manifest, signature=row.manifest_signature)
    return OpenRound(row.population, task, row.round, model, common_pb2.SignedRoundKey.FromString(row.round_key))


def _predicts_of_examples(definition: bytes) -> bool | None:
    """Whether a task's model predicts of examples, and does not score items; None of a task that trains none."""
    parsed = common_pb2.TaskDefinition.FromString(definition)
    if parsed.HasField("model"):
        return False
    entry = TABLE.get(training_of(parsed) or "")
    return True if entry is not None and entry.training and parsed.WhichOneof("trained_model") else None
