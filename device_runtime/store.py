"""One device's own storage: a small SQLite file with its identity, its ratings, and the ledger of what it sent.

Thousands of devices may share a process, so a store is opened for one use and closed again, its pages are small, and
every change is one short transaction, on the disk when it returns. A device's file is private to its user
(mode 0600) and lies at ``devices/<nn>/<number>.sqlite``.

A participation goes through ``PREPARED -> SENT | REFUSED``. It is PREPARED, with the exact bytes to send, before the
first byte leaves: a device that dies in between sends the same bytes again, and never makes a second contribution to
the same round. The bytes are erased as soon as an answer is stored, or the task has moved on to another round.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from device_runtime.limits import Limits
from odp.algorithms.seam import LocalRatings
from odp.errors import DiskFull, Refusal, StateError

SCHEMA_VERSION = 1
SECRET_BYTES = 32
ID_BYTES = 16

_APPLICATION_ID = 0x4F445031  # "ODP1"
_BUSY_SECONDS = 10.0
_SHARDS = 256
# A store holds a few kilobytes: with small pages its many tables do not fill the disk with empty space.
_PAGE_BYTES = 1024
_SYNCHRONOUS = {True: "PRAGMA synchronous=FULL", False: "PRAGMA synchronous=OFF"}
_CREATE = (
    """CREATE TABLE identity (
        one INTEGER PRIMARY KEY CHECK (one = 1), device_id BLOB NOT NULL, secret BLOB NOT NULL, seed BLOB NOT NULL,
        filled_from BLOB)""",
    "CREATE TABLE ratings (item INTEGER PRIMARY KEY, value REAL NOT NULL)",
    """CREATE TABLE local_parameters (
        task_sha256 BLOB PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE participations (
        task_sha256 BLOB NOT NULL, round INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('PREPARED', 'SENT', 'REFUSED')), refusal INTEGER,
        contribution_id BLOB NOT NULL, model_sha256 BLOB NOT NULL, payload BLOB, sealed BLOB, recipient BLOB NOT NULL,
        epsilon REAL NOT NULL, delta REAL NOT NULL, policy_sha256 BLOB NOT NULL, image_digest TEXT NOT NULL,
        time REAL NOT NULL, PRIMARY KEY (task_sha256, round)) WITHOUT ROWID""",
    "CREATE TABLE limits (one INTEGER PRIMARY KEY CHECK (one = 1), data TEXT NOT NULL)",
    f"PRAGMA application_id={_APPLICATION_ID}",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)


class State(enum.Enum):
    """Where a participation stands."""

    PREPARED = "PREPARED"
    SENT = "SENT"
    REFUSED = "REFUSED"


@dataclass(frozen=True)
class Identity:
    """Who the device is, to itself: nothing of it ever leaves the device. Its ``repr`` shows no secret."""

    device_id: bytes
    secret: bytes = field(repr=False)
    seed: int = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """A line of the device's own ledger.

    ``epsilon`` and ``delta`` are the terms of the whole task, ``policy_sha256`` and ``image_digest`` those of the
    aggregator's enclave that the contribution was encrypted to, ``time`` is in seconds since the epoch. ``payload`` and
    ``sealed`` are what is still to be sent: None once there is nothing more to send. Of a masked contribution,
    ``payload`` is the enclave's half alone, and ``sealed`` ends with the masked vector: the vector is never stored.
    """

    task_sha256: bytes
    round: int
    contribution_id: bytes
    model_sha256: bytes
    recipient: bytes
    epsilon: float
    delta: float
    policy_sha256: bytes
    image_digest: str
    time: float
    state: State = State.PREPARED
    refusal: Refusal | None = None
    payload: bytes | None = field(default=None, repr=False)
    sealed: bytes | None = field(default=None, repr=False)


_COLUMNS = (
    "task_sha256, round, contribution_id, model_sha256, recipient, epsilon, delta, policy_sha256, image_digest, time, "
    "state, refusal, payload, sealed"
)


def store_path(folder: Path, device: int) -> Path:
    """The file of device number ``device`` below a state folder; 256 sub-folders keep listings short."""
    return folder / "devices" / f"{device % _SHARDS:02x}" / f"{device}.sqlite"


class Store:
    """An open store; a context manager for one use in one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path, *, durable: bool = True) -> Store:
        """Opens an existing store.

        ``durable=True`` has every transaction on the disk before it returns: what was sent survives a power cut. With
        ``False`` it survives the death of the process, and a power cut may damage the file; a host that plays thousands
        of devices saves the thousands of disk syncs.

        Raises:
          StateError: there is none, it is damaged or unreadable, or of another version.
        """
        if not path.exists():
            raise StateError(f"device store {path} does not exist; give the device its data first")
        store = cls._connect(path, durable)
        if store is None:
            raise StateError(f"device store {path} was never completed; give the device its data again")
        return store

    @classmethod
    def open_or_create(
        cls, path: Path, *, durable: bool = True, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> Store:
        """Opens the store, made first (with a new identity) where it is missing or its making was interrupted.

        Raises:
          StateError: as ``open``, and when the disk is full or the folder cannot be written.
        """
        with _errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its journal the mode of the database, so the file exists with the right one first.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        store = cls._connect(path, durable)
        return store if store is not None else cls._create(path, durable, random_bytes)

    @classmethod
    def _connect(cls, path: Path, durable: bool) -> Store | None:
        with _errors(path):
            connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
            )
            try:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    connection.close()
                    return None
                if version != SCHEMA_VERSION:
                    raise StateError(
                        f"device store {path} has version {version}, not {SCHEMA_VERSION}; use the program that made it"
                    )
                connection.execute(_SYNCHRONOUS[durable])
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    @classmethod
    def _create(cls, path: Path, durable: bool, random_bytes: Callable[[int], bytes]) -> Store:
        with _errors(path):
            connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            store = cls(path, connection)
            try:
                connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
                connection.execute(_SYNCHRONOUS[durable])
                with store._transaction():
                    # Another process may have been faster.
                    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        for statement in _CREATE:
                            connection.execute(statement)
                        connection.execute(
                            "INSERT INTO identity (one, device_id, secret, seed) VALUES (1, ?, ?, ?)",
                            (random_bytes(ID_BYTES), random_bytes(SECRET_BYTES), random_bytes(8)),
                        )
            except BaseException:
                connection.close()
                raise
        return store

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def identity(self) -> Identity:
        """The device's identity. Raises StateError where the store lacks it."""
        row = self._one("SELECT device_id, secret, seed FROM identity")
        if row is None or (len(row[0]), len(row[1]), len(row[2])) != (ID_BYTES, SECRET_BYTES, 8):
            raise StateError(f"device store {self.path} is damaged: its identity is missing; restore it from a backup")
        return Identity(device_id=row[0], secret=row[1], seed=int.from_bytes(row[2], "little"))

    def ratings(self) -> LocalRatings:
        """The device's data: distinct items, ascending."""
        with _errors(self.path):
            rows = self._connection.execute("SELECT item, value FROM ratings ORDER BY item").fetchall()
        if not rows:
            return LocalRatings(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64))
        items, values = zip(*rows, strict=True)
        return LocalRatings(np.array(items, dtype=np.int64), np.array(values, dtype=np.float64))

    def fill(self, items: npt.NDArray[np.integer], values: npt.NDArray[np.floating], *, filled_from: bytes) -> bool:
        """Gives an empty store its ratings; ``filled_from`` (a hash) says which data they are.

        Returns False where the store already holds that same data: nothing is changed.

        Raises:
          StateError: the store holds other data.
        """
        with self._transaction():
            (known,) = self._connection.execute("SELECT filled_from FROM identity").fetchone()
            if known == filled_from:
                return False
            if known is not None or self._connection.execute("SELECT 1 FROM ratings LIMIT 1").fetchone():
                raise StateError(f"device store {self.path} already holds other data; give another --state folder")
            rows = zip(np.asarray(items).tolist(), np.asarray(values).tolist(), strict=True)
            self._connection.executemany("INSERT INTO ratings (item, value) VALUES (?, ?)", rows)
            self._connection.execute("UPDATE identity SET filled_from = ?", (filled_from,))
        return True

    def rate(self, item: int, value: float) -> None:
        """Sets the device's rating of one item."""
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO ratings (item, value) VALUES (?, ?)", (item, value))

    def limits(self) -> Limits | None:
        """The limits that this device's person set, or None where they left the host's."""
        row = self._one("SELECT data FROM limits")
        if row is None:
            return None
        try:
            values = json.loads(row[0])
            return Limits(**{**values, "populations": tuple(values["populations"])})
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(f"device store {self.path} is damaged: its limits are gone; set them again") from error

    def set_limits(self, limits: Limits) -> None:
        """Sets the person's limits for this device; they hold from the next participation on."""
        with self._transaction():
            data = json.dumps(asdict(limits))
            self._connection.execute("INSERT OR REPLACE INTO limits (one, data) VALUES (1, ?)", (data,))

    def participation(self, task_sha256: bytes, round: int) -> Participation | None:
        """What the device did in one round of one task, or None where it did nothing yet."""
        statement = f"SELECT {_COLUMNS} FROM participations WHERE task_sha256 = ? AND round = ?"
        row = self._one(statement, (task_sha256, round))
        return None if row is None else self._participation(row)

    def ledger(self) -> tuple[Participation, ...]:
        """Everything that the device sent or prepared to send, oldest first."""
        with _errors(self.path):
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM participations ORDER BY time, round").fetchall()
        return tuple(self._participation(row) for row in rows)

    def settled(self) -> list[tuple[bytes, int, State]]:
        """(task, round, state) of the participations in which nothing is left to send."""
        with _errors(self.path):
            rows = self._connection.execute(
                "SELECT task_sha256, round, state FROM participations WHERE state <> 'PREPARED' OR sealed IS NULL"
            ).fetchall()
        return [(task, round, State(state)) for task, round, state in rows]

    def spent_elsewhere(self, task_sha256: bytes) -> float:
        """Sum of the epsilons of all other tasks, each once; a refused contribution was not used and does not count."""
        row = self._one(
            "SELECT total(most) FROM (SELECT max(epsilon) AS most FROM participations "
            "WHERE state <> 'REFUSED' AND task_sha256 <> ? GROUP BY task_sha256)",
            (task_sha256,),
        )
        return float(row[0]) if row is not None else 0.0

    def prepare(self, participation: Participation, *, local_parameters: bytes) -> None:
        """Stores what will be sent, and the new local parameters with it, before it is sent.

        Raises:
          StateError: the device already has a participation in that round; the stored one is untouched.
        """
        one = participation
        with self._transaction():
            # A round of the past is closed: whether it counted or not, its bytes are never sent again.
            self._connection.execute(
                "UPDATE participations SET payload = NULL, sealed = NULL WHERE task_sha256 = ? AND round < ?",
                (one.task_sha256, one.round),
            )
            try:
                self._connection.execute(
                    f"INSERT INTO participations ({_COLUMNS}) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'PREPARED', NULL, ?, ?)",
                    (
                        one.task_sha256, one.round, one.contribution_id, one.model_sha256, one.recipient, one.epsilon,
                        one.delta, one.policy_sha256, one.image_digest, one.time, one.payload, one.sealed,
                    ),
                )  # fmt: skip
            except sqlite3.IntegrityError as error:
                raise StateError(f"device store {self.path} already has a contribution to round {one.round}") from error
            self._connection.execute(
                "INSERT OR REPLACE INTO local_parameters (task_sha256, version, data) VALUES (?, ?, ?)",
                (one.task_sha256, one.round, local_parameters),
            )

    def reseal(self, participation: Participation) -> None:
        """Replaces the sealed bytes of a PREPARED participation: the same contribution, for another enclave key."""
        one = participation
        with self._transaction():
            self._connection.execute(
                "UPDATE participations SET sealed = ?, recipient = ?, policy_sha256 = ?, image_digest = ? "
                "WHERE task_sha256 = ? AND round = ? AND state = 'PREPARED'",
                (one.sealed, one.recipient, one.policy_sha256, one.image_digest, one.task_sha256, one.round),
            )

    def settle(self, task_sha256: bytes, round: int, state: State, refusal: Refusal | None = None) -> None:
        """Stores the aggregator's answer and erases what was kept for sending."""
        with self._transaction():
            self._connection.execute(
                "UPDATE participations SET state = ?, refusal = ?, payload = NULL, sealed = NULL "
                "WHERE task_sha256 = ? AND round = ? AND state = 'PREPARED'",
                (state.value, None if refusal is None else refusal.value, task_sha256, round),
            )

    def local_parameters(self, task_sha256: bytes) -> tuple[int, bytes] | None:
        """(model version, bytes) of the newest local parameters of a task; they never leave the device."""
        return self._one("SELECT version, data FROM local_parameters WHERE task_sha256 = ?", (task_sha256,))

    def _one(self, statement: str, arguments: tuple[object, ...] = ()) -> tuple | None:  # type: ignore[type-arg]  # a row of any columns
        with _errors(self.path):
            row: tuple | None = self._connection.execute(statement, arguments).fetchone()  # type: ignore[type-arg]
        return row

    def _participation(self, row: tuple) -> Participation:  # type: ignore[type-arg]  # a row of _COLUMNS
        return Participation(
            task_sha256=row[0], round=row[1], contribution_id=row[2], model_sha256=row[3], recipient=row[4],
            epsilon=row[5], delta=row[6], policy_sha256=row[7], image_digest=row[8], time=row[9], state=State(row[10]),
            refusal=None if row[11] is None else Refusal(row[11]), payload=row[12], sealed=row[13],
        )  # fmt: skip

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turns what SQLite or the file system says into one line that names the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        reason = str(error).lower()
        if "full" in reason or "disk i/o" in reason:
            raise DiskFull(f"device store {path}: disk full; free some space, nothing was lost") from error
        if "locked" in reason or "busy" in reason:
            raise StateError(f"device store {path} is locked by another program; stop it") from error
        if "unable to open" in reason or "readonly" in reason:
            raise StateError(f"device store {path} cannot be written; check the path and its permissions") from error
        raise StateError(f"device store {path} is damaged ({error}); restore it from a backup or remove it") from error
    except OSError as error:
        raise StateError(f"device store {path}: {error.strerror or error}; check path and permissions") from error
