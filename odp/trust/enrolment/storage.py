"""The storage of an issuer of tokens: the key of each round, and the devices that got a token.

Of a device the database holds its name (a hash of its key), the rounds that it asked for, and the hash of the blinded
message: nothing that a token could be recognised by. A row is on the disk before the signature leaves, so that no kill
and no power cut gives a device a second token. Requests that come together share one commit.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from odp._system.files.durability import Health
from odp.errors import StateError
from odp.storage.sqlite import database_errors, open_database
from odp.v1 import enrolment_pb2

#: The time over which the tokens of one device are counted, seconds.
DAY = 24 * 3600.0

_METADATA = sa.MetaData()
_KEYS = sa.Table(
    "keys",
    _METADATA,
    sa.Column("task_sha256", sa.LargeBinary(32), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("developer", sa.LargeBinary(32), nullable=False, index=True),
    sa.Column("token_key", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
    # NULL once the key signs nothing more.
    sa.Column("private_key", sa.LargeBinary, nullable=True),
    sa.Column("not_after", sa.Integer, nullable=False),
    sa.Column("issued", sa.Integer, nullable=False),
)
_TOKENS = sa.Table(
    "tokens",
    _METADATA,
    sa.Column("device", sa.LargeBinary(32), primary_key=True),
    sa.Column("task_sha256", sa.LargeBinary(32), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("blinded_sha256", sa.LargeBinary(32), nullable=False),
    sa.Column("time", sa.Float, nullable=False),
    sa.Index("tokens_by_time", "device", "time"),
    sqlite_with_rowid=False,
)

# What every token passes: written out, as the building of a statement costs more than its execution.
_STANDING = sa.text(
    "SELECT keys.issued, "
    "(SELECT blinded_sha256 FROM tokens WHERE device = :device AND task_sha256 = :task AND round = :number) AS before, "
    # A token of a later day was given by a clock that was ahead.
    "(SELECT count(*) FROM tokens WHERE device = :device AND time > :since AND time < :until) AS lately "
    "FROM keys WHERE task_sha256 = :task AND round = :number AND private_key IS NOT NULL AND not_after >= :now"
)
_INSERT = sa.text(
    "INSERT INTO tokens (device, task_sha256, round, blinded_sha256, time) "
    "VALUES (:device, :task, :number, :blinded, :now)"
)
_COUNT = sa.text("UPDATE keys SET issued = issued + 1 WHERE task_sha256 = :task AND round = :number")


class Grant(enum.Enum):
    """The outcome of a device's request."""

    NEW = "new"
    #: The same request as before: the answer was lost, or the device was killed.
    AGAIN = "again"
    #: The device has its token of this round.
    OTHER = "other"
    DEVICE_LIMIT = "device limit"
    ROUND_LIMIT = "round limit"
    #: The key signs nothing more.
    ENDED = "ended"


@dataclass(frozen=True)
class KeyRecord:
    """The key of one round; ``private_key`` (PKCS #8) is None after its end. ``not_after`` in seconds."""

    task_sha256: bytes
    round: int
    developer: bytes
    signed: enrolment_pb2.SignedTokenKey
    private_key: bytes | None
    not_after: int

    def __repr__(self) -> str:
        return f"KeyRecord(task_sha256={self.task_sha256.hex()}, round={self.round})"


@dataclass(eq=False)
class _Request:
    """A device's request and its outcome; ``grant`` is None until its commit."""

    mine: dict[str, Any]
    blinded_sha256: bytes
    now: float
    per_device: int
    per_round: int
    grant: Grant | None = None


class Storage:
    """The issuer's database; thread-safe. Every method raises StateError if the file cannot be used."""

    def __init__(self, path: Path, *, health: Health | None = None) -> None:
        self._path = path
        # One writer at a time, which reads what it decides by; the folder's lock keeps other processes out.
        self._lock = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._engine = open_database(path, health=health)
        with database_errors(path):
            _METADATA.create_all(self._engine)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._engine.dispose()

    def key(self, task_sha256: bytes, round: int) -> KeyRecord | None:
        """The key of a round, or None."""
        with database_errors(self._path), self._engine.connect() as connection:
            row = connection.execute(sa.select(_KEYS).where(*_round(_KEYS, task_sha256, round))).one_or_none()
        return None if row is None else _record(row)

    def newest_round(self, task_sha256: bytes) -> int | None:
        """The last round of a task with a key, or None."""
        with database_errors(self._path), self._engine.connect() as connection:
            newest: int | None = connection.execute(
                sa.select(sa.func.max(_KEYS.c.round)).where(_KEYS.c.task_sha256 == task_sha256)
            ).scalar_one()
        return newest

    def keys_of(self, developer: bytes) -> int:
        """Number of the signing keys of a developer's rounds."""
        chosen = (_KEYS.c.developer == developer, _KEYS.c.private_key.is_not(None))
        with database_errors(self._path), self._engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(_KEYS).where(*chosen)).scalar_one())

    def add_key(self, record: KeyRecord) -> None:
        """Stores the key of a round and ends those of the task's earlier rounds."""
        earlier = (_KEYS.c.task_sha256 == record.task_sha256, _KEYS.c.round < record.round)
        with database_errors(self._path), self._lock, self._engine.begin() as connection:
            connection.execute(sa.update(_KEYS).where(*earlier).values(private_key=None))
            connection.execute(
                sa.insert(_KEYS).values(
                    task_sha256=record.task_sha256,
                    round=record.round,
                    developer=record.developer,
                    token_key=record.signed.token_key,
                    signature=record.signed.signature,
                    private_key=record.private_key,
                    not_after=record.not_after,
                    issued=0,
                )
            )

    def grant(
        self,
        device: bytes,
        task_sha256: bytes,
        round: int,
        blinded_sha256: bytes,
        *,
        now: float,
        per_device: int,
        per_round: int,
    ) -> Grant:
        """Records that ``device`` gets its token of a round, unless it has one or a limit is reached.

        ``per_device`` tokens within ``DAY`` are the most of one device, ``per_round`` those of all devices.
        """
        mine = {"device": device, "task": task_sha256, "number": round}
        request = _Request(mine, blinded_sha256, now, per_device, per_round)
        self._waiting.append(request)
        with database_errors(self._path), self._lock:
            if request in self._waiting:
                self._decide_waiting()
        if request.grant is None:
            raise StateError(f"a failed write of {self._path} also affects this request; try again")
        return request.grant

    def _decide_waiting(self) -> None:
        """Decides all waiting requests in their order of arrival, and commits once; under the lock."""
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        with self._engine.begin() as connection:
            decided = [_decided(connection, request) for request in batch]
        for request, grant in zip(batch, decided, strict=True):
            request.grant = grant

    def sizes(self) -> tuple[int, int]:
        """(keys, tokens) in the database."""
        with database_errors(self._path), self._engine.connect() as connection:
            keys, tokens = (
                connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                for table in (_KEYS, _TOKENS)
            )
        return int(keys), int(tokens)

    def prune(self, now: float) -> None:
        """Ends expired keys, and deletes rows that no rule needs any more."""
        signing = sa.select(_KEYS.c.task_sha256, _KEYS.c.round).where(_KEYS.c.private_key.is_not(None))
        needed = sa.tuple_(_TOKENS.c.task_sha256, _TOKENS.c.round).in_(signing)
        with database_errors(self._path), self._lock, self._engine.begin() as connection:
            connection.execute(sa.update(_KEYS).where(_KEYS.c.not_after < now).values(private_key=None))
            connection.execute(sa.delete(_TOKENS).where(_TOKENS.c.time <= now - DAY, sa.not_(needed)))
            connection.execute(sa.delete(_KEYS).where(_KEYS.c.not_after < now - DAY))


def _decided(connection: sa.Connection, request: _Request) -> Grant:
    mine, now = request.mine, request.now
    standing = connection.execute(_STANDING, {**mine, "since": now - DAY, "until": now + DAY, "now": now}).one_or_none()
    if standing is None:
        return Grant.ENDED
    if standing.before is not None:
        return Grant.AGAIN if standing.before == request.blinded_sha256 else Grant.OTHER
    if standing.issued >= request.per_round:
        return Grant.ROUND_LIMIT
    if standing.lately >= request.per_device:
        return Grant.DEVICE_LIMIT
    connection.execute(_INSERT, {**mine, "blinded": request.blinded_sha256, "now": now})
    connection.execute(_COUNT, mine)
    return Grant.NEW


def _round(table: sa.Table, task_sha256: bytes, round: int) -> tuple[Any, Any]:
    return table.c.task_sha256 == task_sha256, table.c.round == round


def _record(row: Any) -> KeyRecord:
    signed = enrolment_pb2.SignedTokenKey(token_key=row.token_key, signature=row.signature)
    return KeyRecord(row.task_sha256, row.round, row.developer, signed, row.private_key, row.not_after)
