"""One device's own storage: a small encrypted SQLite file with its identity, its data, and the ledger of what it sent.

Thousands of devices may share a process, so a store is opened for one use and closed again. Its pages are small, and
every change is one short transaction, durable when it returns. A device's file is private to its user (mode 0600) and
lies at ``devices/<nn>/<number>.sqlite``.

A participation goes through ``PREPARED -> SENT | REFUSED``; later, one to a void opening of its round is REFUSED. It is
PREPARED, with the exact bytes to send, before the first byte leaves: a device that dies in between sends the same
bytes again, and never makes a second contribution to the same opening. The bytes are erased as soon as an answer is
stored, or the task has moved on to another round; a report that is private by itself stays longer (``retention.py``).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from device_runtime.person.conditions import Standing
from device_runtime.person.decisions import Person
from device_runtime.person.ledger import Answered, Charged, TaskTerms, terms_from_store
from device_runtime.person.limits import Limits
from device_runtime.store.app_data import AppData
from device_runtime.store.database import DURABLE, NOT_DURABLE, Bounds, Database, IntegrityError, connected, errors
from device_runtime.store.keys import HostKey, StoreKey, folder_of, host_key
from device_runtime.store.labelled_examples import LabelledExamples, examples_of
from device_runtime.store.migration import encrypt, upgrade
from device_runtime.store.recovery import PlainStore, opened_version, refuse_set_aside
from device_runtime.store.schema import (
    COLUMNS,
    CREATE,
    EMPTY,
    ERASED,
    ID_BYTES,
    OWN_TABLES,
    SECRET_BYTES,
    Assignment,
    Identity,
    Participation,
    State,
    participation_of,
)
from odp._system.files.private_files import make_folders, make_private
from odp.algorithms.seam import LocalRows
from odp.errors import OdpError, Refusal, StateError
from odp.models.examples import TABLE
from odp.v1 import common_pb2

_SHARDS = 256
_MOST_DECLINED = 32
_MOST_TASKS = 2**31


def store_path(folder: Path, device: int) -> Path:
    """The file of device number ``device`` below a state folder; 256 sub-folders keep listings short."""
    return folder / "devices" / f"{device % _SHARDS:02x}" / f"{device}.sqlite"


class Store(Database):
    """An open store; a context manager for one use in one thread."""

    @classmethod
    def open(cls, path: Path, *, durable: bool = True, key: HostKey | None = None) -> Store:
        """Opens an existing store; encrypts an unencrypted one of an earlier version first.

        ``durable=True`` has every transaction on the disk before it returns: what was sent survives a power cut. With
        ``False`` it survives the death of the process, and a power cut may damage the file; a host that plays thousands
        of devices saves the thousands of disk syncs. ``key`` is the host's, by default that of the path's state folder.

        Raises:
          StoreDamaged: it cannot be read, or was set aside as damaged; nothing was changed.
          StateError: there is none, its key is missing or wrong, or it is of another version.
        """
        if not path.exists():
            refuse_set_aside(path)
            raise StateError(f"device store {path} does not exist; give the device its data first")
        if (store := cls._connect(path, durable, key)) is None:
            raise StateError(f"device store {path} was never completed; give the device its data again")
        return store

    @classmethod
    def open_or_create(
        cls,
        path: Path,
        *,
        durable: bool = True,
        key: HostKey | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> Store:
        """Opens the store; creates it first (with a new identity) if it is missing or its creation was interrupted.

        Raises:
          StoreDamaged: as ``open``: one that was set aside as damaged is never replaced by an empty one.
          StateError: as ``open``, and when the disk is full or the folder cannot be written.
        """
        with errors(path):
            make_folders(path.parent)
            if not path.exists():
                refuse_set_aside(path)
                make_private(path)  # SQLite gives its journal the mode of the database
        store = cls._connect(path, durable, key)
        return store if store is not None else cls._create(path, durable, key, random_bytes)

    @classmethod
    def _connect(cls, path: Path, durable: bool, key: HostKey | None) -> Store | None:
        with errors(path):
            make_private(path)
            if path.stat().st_size == 0:
                return None
        store_key = _key_of(path, key)
        try:
            return cls._opened(path, durable, store_key)
        except PlainStore:
            encrypt(path, store_key)
        return cls._opened(path, durable, store_key)

    @classmethod
    def _opened(cls, path: Path, durable: bool, store_key: StoreKey) -> Store | None:
        with errors(path):
            connection = connected(path, store_key)
            try:
                version = opened_version(path, connection, store_key)
                if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    connection.close()
                    return None
                connection.execute(DURABLE if durable else NOT_DURABLE)
                upgrade(path, connection)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, key=store_key)

    @classmethod
    def _create(cls, path: Path, durable: bool, key: HostKey | None, random_bytes: Callable[[int], bytes]) -> Store:
        with errors(path):
            store_key = _key_of(path, key)
            connection = connected(path, store_key)
            store = cls(path, connection, key=store_key)
            try:
                connection.execute(DURABLE if durable else NOT_DURABLE)
                with store.transaction():
                    # Another process may have been faster.
                    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        for statement in CREATE:
                            connection.execute(statement)
                        connection.execute(
                            "INSERT INTO identity (one, device_id, secret, seed) VALUES (1, ?, ?, ?)",
                            (random_bytes(ID_BYTES), random_bytes(SECRET_BYTES), random_bytes(8)),
                        )
            except BaseException:
                connection.close()
                raise
        return store

    def identity(self) -> Identity:
        """The device's identity. Raises StateError if the store lacks it."""
        row = self.first("SELECT device_id, secret, seed FROM identity")
        if row is None or (len(row[0]), len(row[1]), len(row[2])) != (ID_BYTES, SECRET_BYTES, 8):
            raise StateError(f"device store {self.path} is damaged: its identity is missing; restore it from a backup")
        return Identity(device_id=row[0], secret=row[1], seed=int.from_bytes(row[2], "little"))

    def ratings(self, *, most: int = -1) -> LocalRows:
        """The device's data: distinct items, ascending; the first ``most`` of them, or all."""
        rows = self.all("SELECT item, value FROM ratings ORDER BY item LIMIT ?", (most,))
        if not rows:
            return LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64))
        items, values = zip(*rows, strict=True)
        return LocalRows(np.array(items, dtype=np.int64), np.array(values, dtype=np.float64))

    def fill(self, items: npt.NDArray[np.integer], values: npt.NDArray[np.floating], *, filled_from: bytes) -> bool:
        """Fills an empty store with ratings; ``filled_from`` (a hash) identifies the data.

        Returns False where the store already holds that same data, or the person erased them: nothing is changed.

        Raises:
          StateError: the store holds other data.
        """
        with self.transaction():
            if not self.to_fill(filled_from, "ratings"):
                return False
            rows = zip(np.asarray(items).tolist(), np.asarray(values).tolist(), strict=True)
            self._connection.executemany("INSERT INTO ratings (item, value) VALUES (?, ?)", rows)
            self._connection.execute("UPDATE identity SET filled_from = ?", (filled_from,))
        return True

    def fill_examples(self, columns: Mapping[str, npt.NDArray[Any]], *, filled_from: bytes, time: float) -> bool:
        """As ``fill``, with labelled examples of no service; ``time`` is when they were made, for their retention.

        Raises:
          StateError: the store holds other data.
          ConfigurationError, DataError: as ``LabelledExamples.add``.
        """
        with self.transaction():
            if not self.to_fill(filled_from, "examples WHERE service = ''"):
                return False
            self.examples(TABLE).add(columns, time=time)
            self._connection.execute("UPDATE identity SET filled_from = ?", (filled_from,))
        return True

    def to_fill(self, filled_from: bytes, rows: str) -> bool:
        """Whether it has no ``rows`` yet; False where it has these data. Raises StateError where it has others."""
        (stored,) = self._connection.execute("SELECT filled_from FROM identity").fetchone()
        if stored in (filled_from, ERASED):
            return False
        if stored is not None or self._connection.execute(f"SELECT 1 FROM {rows} LIMIT 1").fetchone():
            raise StateError(f"device store {self.path} already holds other data; give another --state folder")
        return True

    def examples(self, table: str) -> LabelledExamples:
        """The labelled examples of a table, as tasks name it: ``examples``, or ``examples.SERVICE``."""
        return examples_of(self, table)

    def rate(self, item: int, value: float) -> None:
        """Sets the device's rating of one item."""
        with self.transaction():
            replaced = "ON CONFLICT (item) DO UPDATE SET value = excluded.value"
            self._connection.execute(f"INSERT INTO ratings (item, value) VALUES (?, ?) {replaced}", (item, value))

    def person(self) -> Person:
        """The person's decisions for this device."""
        if (row := self.first("SELECT data FROM person")) is None:
            return Person()
        try:
            return Person.from_json(row[0])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(
                f"device store {self.path} is damaged: its person's limits and opt-outs are lost; it "
                "sends nothing; restore it from a backup"
            ) from error

    def change_person(self, change: Callable[[Person], Person]) -> Person:
        """Replaces the person's decisions; they hold from the next step of a participation on.

        Of tasks that they opted out of, queued uploads are cancelled and local parameters deleted with it.
        """
        with self.transaction():
            after = change(self.person())
            self._connection.execute("INSERT OR REPLACE INTO person (one, data) VALUES (1, ?)", (after.to_json(),))
            for terms in self.tasks():
                if after.opted_out_of(terms):
                    self._forget("task_sha256 = ?", (terms.task_sha256,))
        return after

    def set_limits(self, limits: Limits | None) -> None:
        """Sets the person's limits for this device; None leaves them to the host."""
        self.change_person(lambda person: dataclasses.replace(person, limits=limits))

    def tasks(self) -> tuple[TaskTerms, ...]:
        """Every task that the device ever contributed to, or declined."""
        rows = self.all("SELECT task_sha256, definition, charges FROM tasks")
        try:
            return tuple(terms_from_store(*row) for row in rows)
        except (OdpError, ValueError, TypeError, DecodeError) as error:
            raise StateError(
                f"device store {self.path} is damaged: what its tasks cost is lost; restore it from a backup"
            ) from error

    def declined(self, task: common_pb2.SignedTask, terms: TaskTerms, round: int, *, time: float = 0.0) -> None:
        """Stores a task that was declined, so that the person can see why; at most a fixed number of them."""
        with self.transaction():
            self._remember(task, terms, round, most=_MOST_DECLINED)
            if self.first("SELECT 1 FROM tasks WHERE task_sha256 = ?", (terms.task_sha256,)) is not None:
                self._assigned(terms.task_sha256, round, time, "declined")

    def assignments(self, *, most: int = 10_000) -> list[Assignment]:
        """The newest rounds that the device was asked for, oldest first."""
        rows = self.all(
            "SELECT task_sha256, round, time, outcome FROM assignments ORDER BY time DESC, round DESC LIMIT ?", (most,)
        )
        return [Assignment(*row) for row in reversed(rows)]

    def _assigned(self, task_sha256: bytes, round: int, time: float, outcome: str) -> None:
        self.execute(
            "INSERT INTO assignments (task_sha256, round, time, outcome) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (task_sha256, round) DO UPDATE SET outcome = excluded.outcome",
            (task_sha256, round, time, outcome),
        )

    def data(self, service: str, *, bounds: Bounds | None = None) -> AppData:
        """The events, requests, local and downloaded data of one service. Raises ConfigurationError for a bad name."""
        return AppData(self, service, Bounds() if bounds is None else bounds)

    def _remember(self, task: common_pb2.SignedTask, terms: TaskTerms, round: int, *, most: int) -> None:
        """Stores a task, unless ``most`` without a contribution are stored: a server may name any number of them."""
        self._connection.execute(
            "INSERT INTO tasks (task_sha256, definition, signature, charges, offered) SELECT ?, ?, ?, ?, ? "
            "WHERE (SELECT count(*) FROM tasks WHERE task_sha256 NOT IN (SELECT task_sha256 FROM participations)) < ? "
            "ON CONFLICT (task_sha256) DO UPDATE SET offered = max(offered, excluded.offered)",
            (terms.task_sha256, task.definition, task.signature, terms.charges_json(), round, most),
        )

    def offered(self, task_sha256: bytes) -> int:
        """The last round of a task that the device was asked for; 0 if there is none."""
        return int(self.value("SELECT offered FROM tasks WHERE task_sha256 = ?", (task_sha256,)) or 0)

    def signed_task(self, task_sha256: bytes) -> common_pb2.SignedTask | None:
        """A task as its developer signed it; None if the device does not know it."""
        row = self.first("SELECT definition, signature FROM tasks WHERE task_sha256 = ?", (task_sha256,))
        return None if row is None else common_pb2.SignedTask(definition=row[0], signature=row[1])

    def charged(self, *, but: tuple[bytes, int] | None = None, refused: bool = False) -> list[Charged]:
        """The contributions that the person is charged for, except the one to (task, round) ``but``.

        One that the enclave refused under its signature was not used and is left out, unless ``refused`` asks for all
        that left the device. One without an answer, or with a refusal that nobody signed, may have been used.
        """
        which = "" if refused else "WHERE state <> 'REFUSED'"
        rows = self.all(f"SELECT task_sha256, round, time FROM participations {which} ORDER BY time, round")
        terms = {task.task_sha256: task for task in self.tasks()} if rows else {}
        try:
            if any(round >= len(terms[task].rounds) for task, round, _ in rows):
                raise ValueError("a round that its task does not have")
            return [Charged(terms[task], round, time) for task, round, time in rows if (task, round) != but]
        except (KeyError, ValueError) as error:
            raise StateError(
                f"device store {self.path} is damaged: what its tasks cost is lost; restore it from a backup"
            ) from error

    def answers(self) -> list[Answered]:
        """All answers to apps, in order."""
        rows = self.all("SELECT service, app, choices, epsilon, time FROM answers ORDER BY id")
        return [
            Answered(service=service, app=app, choices=choices, epsilon=epsilon, time=time)
            for service, app, choices, epsilon, time in rows
        ]

    def add_answer(self, line: Answered) -> None:
        """Charges an answer, within ``transaction``."""
        self.execute(
            "INSERT INTO answers (service, app, choices, epsilon, time) VALUES (?, ?, ?, ?, ?)",
            (line.service, line.app, line.choices, line.epsilon, line.time),
        )

    def standing(self, *, latest: float) -> Standing:
        """The time of the last contribution until ``latest``; one that is still to be sent does not count."""
        sent = "(state = 'SENT' OR (state = 'PREPARED' AND sealed IS NULL))"
        return Standing(last=self.value(f"SELECT max(time) FROM participations WHERE time <= ? AND {sent}", (latest,)))

    def count_examples(self) -> int:
        """The number of rows that tasks may read: ratings, events and labelled examples."""
        examples = self.value(
            "SELECT (SELECT count(*) FROM ratings) + (SELECT count(*) FROM keyed_ratings) + "
            "(SELECT count(*) FROM events) + (SELECT count(*) FROM examples)"
        )
        return int(examples or 0)

    def empty_contributions(self) -> int:
        """The number of contributions that were empty because the task could not use the device's data."""
        return int(self.value("SELECT count(*) FROM assignments WHERE outcome = ?", (EMPTY,)) or 0)

    def erase(self, *, ledger_too: bool = False) -> None:
        """Wipes all data, local parameters and queued uploads; with ``ledger_too`` also what was sent.

        The identity stays: with a new one the device would count as a second person in rounds that are open. So do
        the numbers of attempts (``round/secagg.py``), and the person's limits and opt-outs. What was freed is
        overwritten; copies that the file system keeps are not.
        """
        with errors(self.path):
            self._connection.execute("PRAGMA secure_delete=ON")
        with self.transaction():
            for table in OWN_TABLES:
                self._connection.execute(f"DELETE FROM {table}")
            self._connection.execute("UPDATE identity SET filled_from = ?", (ERASED,))
            self._forget("1", ())
            if ledger_too:
                for table in ("participations", "answers", "tasks", "assignments"):
                    self._connection.execute(f"DELETE FROM {table}")
        with errors(self.path):
            # Pages that were freed before still hold what was in them.
            self._connection.execute("VACUUM")

    def end_task(self, task_sha256: bytes) -> None:
        """Erases uploads and reports of a task that was ended; they may have counted before, so they stay charged."""
        with self.transaction():
            self._forget("task_sha256 = ?", (task_sha256,))

    def _forget(self, where: str, arguments: tuple[object, ...]) -> None:
        """Erases uploads, reports and local parameters. What was queued may have arrived, so it stays charged."""
        self._erase_bytes(where, arguments)
        self._connection.execute(f"DELETE FROM local_parameters WHERE {where}", arguments)

    def _erase_bytes(self, where: str, arguments: tuple[object, ...]) -> None:
        self.execute(f"UPDATE participations SET report = NULL, sealed = NULL, token = NULL WHERE {where}", arguments)

    def participation(self, task_sha256: bytes, round: int) -> Participation | None:
        """The device's participation in one round of one task, or None."""
        statement = f"SELECT {COLUMNS} FROM participations WHERE task_sha256 = ? AND round = ?"
        row = self.first(statement, (task_sha256, round))
        return None if row is None else participation_of(row)

    def ledger(self) -> tuple[Participation, ...]:
        """Everything that the device sent or prepared to send, oldest first."""
        rows = self.all(f"SELECT {COLUMNS} FROM participations ORDER BY time, round")
        return tuple(participation_of(row) for row in rows)

    def settled(self) -> list[tuple[bytes, int, bytes, State]]:
        """(task, round, recipient, state) of the participations with nothing left to send."""
        rows = self.all(
            "SELECT task_sha256, round, recipient, state FROM participations "
            "WHERE state <> 'PREPARED' OR sealed IS NULL"
        )
        return [(*row, State(state)) for *row, state in rows]

    def prepare(
        self,
        participation: Participation,
        *,
        local_parameters: bytes | None,
        task: common_pb2.SignedTask,
        terms: TaskTerms,
    ) -> None:
        """Stores the bytes to send, their cost, and the new local parameters, before anything is sent.

        Without ``local_parameters`` the contribution is the empty one; earlier ones stay.

        Raises:
          StateError: the device already has a participation in that round; the stored one is untouched.
          NotNow, PrivacyError: the person paused the device or opted out since; nothing is stored.
        """
        line, sha256, round = participation, participation.task_sha256, participation.round
        with self.transaction():
            self.person().check(terms)
            self._remember(task, terms, round, most=_MOST_TASKS)
            # A round of the past is closed: whether it counted or not, its bytes are never sent again.
            self._erase_bytes("task_sha256 = ? AND round < ?", (sha256, round))
            # Under its signature, the enclave counted nothing under that key.
            self.execute(
                "DELETE FROM participations WHERE task_sha256 = ? AND round = ? AND state = 'REFUSED' "
                "AND recipient <> ?",
                (sha256, round, line.recipient),
            )
            try:
                self._connection.execute(
                    f"INSERT INTO participations ({COLUMNS}) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'PREPARED', NULL, ?, ?, ?)",
                    (
                        sha256, round, line.contribution_id, line.model_sha256, line.recipient, line.epsilon,
                        line.delta, line.policy_sha256, line.image_digest, line.time, line.record, line.report,
                        line.sealed, line.token,
                    ),
                )  # fmt: skip
            except IntegrityError as error:
                raise StateError(f"device store {self.path} already has a contribution to round {round}") from error
            self._assigned(sha256, round, line.time, "prepared" if local_parameters is not None else EMPTY)
            if local_parameters is not None:
                self._connection.execute(
                    "INSERT OR REPLACE INTO local_parameters (task_sha256, version, data) VALUES (?, ?, ?)",
                    (sha256, round, local_parameters),
                )

    def give_up(self, task_sha256: bytes, round: int) -> None:
        """Erases the bytes to send without an answer: they may have been counted, so they stay charged."""
        with self.transaction():
            self._erase_bytes("task_sha256 = ? AND round = ? AND state = 'PREPARED'", (task_sha256, round))

    def settle(
        self, task_sha256: bytes, round: int, state: State, refusal: Refusal | None = None, *, void: bool = False
    ) -> None:
        """Stores the aggregator's answer, and erases the bytes to send, but no report.

        A ``refusal`` that the enclave did not sign comes with SENT: the contribution may have been counted. ``void``
        replaces an earlier answer: the enclave signed that the contribution never counted.
        """
        unanswered, unsettled = (
            ("", f"outcome <> '{EMPTY}'") if void else ("AND state = 'PREPARED'", "outcome = 'prepared'")
        )
        with self.transaction():
            self.execute(
                "UPDATE participations SET state = ?, refusal = ?, sealed = NULL, token = NULL "
                f"WHERE task_sha256 = ? AND round = ? {unanswered}",
                (state.value, None if refusal is None else refusal.value, task_sha256, round),
            )
            self.execute(
                f"UPDATE assignments SET outcome = ? WHERE task_sha256 = ? AND round = ? AND {unsettled}",
                (state.value.lower(), task_sha256, round),
            )

    def local_parameters(self, task_sha256: bytes) -> tuple[int, bytes] | None:
        """(model version, bytes) of the newest local parameters of a task; they never leave the device."""
        return self.first("SELECT version, data FROM local_parameters WHERE task_sha256 = ?", (task_sha256,))


def _key_of(path: Path, key: HostKey | None) -> StoreKey:
    return (host_key(folder_of(path)) if key is None else key).of_store(path)
