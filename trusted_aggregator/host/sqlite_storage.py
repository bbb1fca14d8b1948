"""The host's store as two SQLite files, and separate files for large ciphertexts.

Ciphertexts and masked vectors of more than 1 MiB are files (``large_files.py``), written before their rows, which name
them.

- ``contributions.db`` takes a row per accepted contribution, many in one commit (``ingest.py``): they share its sync.
- ``sealed.db`` takes the sealed records, few and large; numbers too long for them are files (``piece_files.py``).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects.sqlite import insert

from odp.crypto.secure_aggregation.masked import DIGEST_BYTES
from odp.errors import OdpError, StateError
from odp.transport.database import database_errors, empty_log, open_database
from odp.transport.state_folder import StateFolder
from trusted_aggregator.host.large_files import LARGE_BYTES, LargeFiles
from trusted_aggregator.host.piece_files import LONGEST_RECORD, PieceFiles
from trusted_aggregator.host.storage import Contribution
from trusted_aggregator.state.records import (
    LATER_PREFIXES,
    SealedRecord,
    ledger_entry,
    ledger_key,
    ledger_state_key,
    split_state,
)

_PAGE = 512
# Masked vectors in memory at once, of at most 1 MiB each; larger ones are read one by one.
_FEW = 16
_INSERT = "INSERT INTO contributions (task, round, digest, ciphertext, masked) VALUES (?, ?, ?, ?, ?)"

_CONTRIBUTIONS = Table(
    "contributions",
    MetaData(),
    Column("sequence", Integer, primary_key=True),
    Column("task", LargeBinary, nullable=False),
    Column("round", Integer, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
    # Null: the contribution is not masked. Empty: its masked vector is a file.
    Column("masked", LargeBinary, nullable=True),
    # No index: an entry in a random place of it would cost as much as the row, and the enclave counts each once.
)
_RECORDS = Table(
    "sealed_records",
    MetaData(),
    Column("key", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
# Made once: a release changes a handful of records, and making a statement costs as much as running it.
_ERASE_RECORD = _RECORDS.delete().where(_RECORDS.c.key == sqlalchemy.bindparam("erased"))
_PUT_RECORD = _RECORDS.insert()
# Of each population, every entry of its ledger: public, and chained to the head that the enclave signs.
_LEDGERS = Table(
    "ledgers",
    MetaData(),
    Column("population", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("line", LargeBinary, nullable=False),
)
_LINES = (
    sqlalchemy.select(_LEDGERS.c.line)
    .where(
        _LEDGERS.c.population == sqlalchemy.bindparam("of"),
        _LEDGERS.c.number >= sqlalchemy.bindparam("first"),
        _LEDGERS.c.number < sqlalchemy.bindparam("end"),
    )
    .order_by(_LEDGERS.c.number)
)
_PUT_LINE = insert(_LEDGERS).on_conflict_do_update(set_={"line": insert(_LEDGERS).excluded.line})
# Of each population, all charters that were ever in force: public, and signed by those who may.
_CHARTERS = Table(
    "charters",
    MetaData(),
    Column("population", Text, primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("signed", LargeBinary, nullable=False),
)
# When somebody last worked on a task that the enclave holds.
_WORK = Table(
    "work",
    MetaData(),
    Column("task", LargeBinary, primary_key=True),
    Column("at", Float, nullable=False),
)


class SqliteStorage:
    """Implements ``trusted_aggregator.host.storage.Storage`` in a program's state folder.

    Raises:
        StateError: a database cannot be used.
    """

    def __init__(self, state: StateFolder) -> None:
        self._paths = {name: state.path(f"{name}.db") for name in ("contributions", "sealed")}
        for path in self._paths.values():
            state.require_kept(path.name)
        state.require_not_lost("contributions.db", beside="sealed.db")
        self._contributions = open_database(self._paths["contributions"], health=state.health)
        with database_errors(self._paths["contributions"]):
            _CONTRIBUTIONS.create(self._contributions, checkfirst=True)
        self._sealed = open_database(self._paths["sealed"], health=state.health)
        self._large = LargeFiles(state.path("large"), state.health)
        with database_errors(self._paths["sealed"]):
            for table in (_RECORDS, _LEDGERS, _CHARTERS, _WORK):
                table.create(self._sealed, checkfirst=True)
        for path in self._paths.values():
            state.note_kept(path.name)
        self._pieces = PieceFiles(state.path("pieces"), state.health)
        if not self._pieces.is_empty():
            self._pieces.keep_only(self._with_pieces())
        self._changed = threading.Condition()
        self._stored: dict[tuple[bytes, int], int] = {}
        self._failure: StateError | None = None
        self._closing = False
        # Whether the write-ahead log may hold rows that were erased.
        self._remains = True

    def add(self, contributions: Sequence[Contribution]) -> None:
        with self._changed:
            self._require_working()
        if not contributions:
            return
        failure = self._commit(contributions)
        with self._changed:
            for task_sha256, round, *_ in contributions if failure is None else ():
                self._stored[task_sha256, round] = self._stored.get((task_sha256, round), 0) + 1
            self._failure = failure
            self._changed.notify_all()
        if failure is not None:
            raise failure

    def wait_for(self, task_sha256: bytes, round: int, count: int, *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._stored.get((task_sha256, round), 0) < count:
                self._require_working()
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise StateError(f"contributions of round {round} were not stored in time; close the round again")

    def contributions(self, task_sha256: bytes, round: int) -> Iterator[bytes]:
        table = _CONTRIBUTIONS
        held = sqlalchemy.func.length(table.c.masked).label("held")
        for row in self._rows(task_sha256, round, table.c.digest, table.c.ciphertext, held, page=_PAGE):
            if row.held == 0 and not _is_of(row.ciphertext, self._large.read(task_sha256, round, row.digest)):
                yield b""
            else:
                yield row.ciphertext or self._large.read(task_sha256, round, row.digest)

    def masked(self, task_sha256: bytes, round: int, digests: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        table = _CONTRIBUTIONS
        for row in self._rows(task_sha256, round, table.c.digest, table.c.ciphertext, table.c.masked, page=_FEW):
            if row.masked is not None and row.ciphertext[-DIGEST_BYTES:] in digests:
                vector = row.masked or self._large.read(task_sha256, round, row.digest)
                if _is_of(row.ciphertext, vector):
                    yield row.ciphertext[-DIGEST_BYTES:], vector

    def _rows(self, task_sha256: bytes, round: int, *columns: Any, page: int) -> Iterator[Any]:
        table, last = _CONTRIBUTIONS, 0
        while True:
            query = (
                sqlalchemy.select(table.c.sequence, *columns)
                .where(table.c.task == task_sha256, table.c.round == round, table.c.sequence > last)
                .order_by(table.c.sequence)
                .limit(page)
            )
            with database_errors(self._paths["contributions"]), self._contributions.connect() as connection:
                rows = connection.execute(query).all()
            if not rows:
                return
            yield from rows
            last = rows[-1].sequence

    def keep_only(self, rounds: Collection[tuple[bytes, int]]) -> None:
        table = _CONTRIBUTIONS
        query = sqlalchemy.select(table.c.task, table.c.round).distinct()
        with database_errors(self._paths["contributions"]), self._contributions.connect() as connection:
            found = [(row.task, row.round) for row in connection.execute(query)]
        for task_sha256, round in found:
            if (task_sha256, round) not in rounds:
                self.erase(task_sha256, round)
        self._large.keep_only(rounds)

    def set_stored(self, task_sha256: bytes, round: int, count: int) -> None:
        with self._changed:
            self._stored[task_sha256, round] = count

    def erase(self, task_sha256: bytes, round: int) -> None:
        table = _CONTRIBUTIONS
        with database_errors(self._paths["contributions"]), self._contributions.connect() as connection:
            connection.exec_driver_sql("PRAGMA secure_delete=ON")
            connection.execute(table.delete().where(table.c.task == task_sha256, table.c.round == round))
            connection.commit()
        self._large.erase(task_sha256, round)
        with self._changed:
            self._stored.pop((task_sha256, round), None)
            self._remains = True

    def finish_erasing(self) -> None:
        with self._changed:
            remains, self._remains = self._remains, False
        if not remains:
            return
        emptied = False
        try:
            with database_errors(self._paths["contributions"]):
                emptied = empty_log(self._contributions)
        finally:
            if not emptied:
                with self._changed:
                    self._remains = True
        if not emptied:
            raise StateError(
                f"erased contributions stay in {self._paths['contributions']}-wal: another program reads the database; "
                "end it"
            )

    def apply(self, writes: Sequence[SealedRecord]) -> None:
        if not writes:
            return
        before = [] if self._pieces.is_empty() else self._with_pieces(record.key for record in writes)
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            connection.exec_driver_sql("PRAGMA secure_delete=ON")
            for record in writes:
                entry = ledger_entry(record.key)
                if entry is not None:
                    line = {"population": entry[0], "number": entry[1], "line": record.data}
                    connection.execute(_PUT_LINE, line)
                    continue
                connection.execute(_ERASE_RECORD, {"erased": record.key})
                if record.data is not None:
                    connection.execute(_PUT_RECORD, {"key": record.key, "data": record.data})
            connection.commit()
        if before:
            now = {record.data for record in writes}
            self._pieces.erase(record for record in before if record not in now)

    def records(self) -> dict[str, bytes]:
        table = _RECORDS
        later = [table.c.key.startswith(prefix, autoescape=True) for prefix in LATER_PREFIXES]
        query = sqlalchemy.select(table).where(~sqlalchemy.or_(*later))
        lines = _LEDGERS.c
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            found = {row.key: row.data for row in connection.execute(query)}
            for population in connection.execute(sqlalchemy.select(lines.population).distinct()).scalars().all():
                covered, _ = split_state(found.get(ledger_state_key(population), b""))
                behind = sqlalchemy.select(lines.number, lines.line)
                behind = behind.where(lines.population == population, lines.number >= covered)
                for row in connection.execute(behind):
                    found[ledger_key(population, row.number)] = row.line
        return found

    def ledger_lines(self, population: str, first: int, end: int, *, most_bytes: int) -> bytes:
        size = 0
        found: list[bytes] = []
        asked = {"of": population, "first": first, "end": end}
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            rows = connection.execution_options(yield_per=_PAGE).execute(_LINES, asked)
            for line in rows.scalars():
                size += len(line)
                if found and size > most_bytes:
                    break
                found.append(line)
        return b"".join(found)

    def keys(self, *, after: str = "") -> list[str]:
        lines = sqlalchemy.select(_LEDGERS.c.population, _LEDGERS.c.number)
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            found = list(connection.execute(sqlalchemy.select(_RECORDS.c.key)).scalars())
            found += [ledger_key(row.population, row.number) for row in connection.execute(lines)]
        return sorted(key for key in found if key > after)

    def record(self, key: str) -> bytes | None:
        entry = ledger_entry(key)
        if entry is None:
            query = sqlalchemy.select(_RECORDS.c.data).where(_RECORDS.c.key == key)
        else:
            lines = _LEDGERS.c
            query = sqlalchemy.select(lines.line).where(lines.population == entry[0], lines.number == entry[1])
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            found: bytes | None = connection.execute(query).scalar_one_or_none()
        return found

    def write_pieces(self, record: bytes, pieces: Iterable[bytes]) -> None:
        self._pieces.write(record, pieces)

    def pieces(self, record: bytes, *, first: int = 0) -> Iterator[bytes]:
        return self._pieces.read(record, first=first)

    def holds(self, key: str) -> bool:
        query = sqlalchemy.select(_RECORDS.c.key).where(_RECORDS.c.key == key)
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            return connection.execute(query).first() is not None

    def keep_charter(self, population: str, sequence: int, signed: bytes) -> None:
        values = {"population": population, "sequence": sequence, "signed": signed}
        with database_errors(self._paths["sealed"]), self._sealed.begin() as connection:
            connection.execute(insert(_CHARTERS).values(values).on_conflict_do_nothing())

    def charters(self, population: str, first: int, most: int) -> list[bytes]:
        table = _CHARTERS
        query = (
            sqlalchemy.select(table.c.signed)
            .where(table.c.population == population, table.c.sequence >= first)
            .order_by(table.c.sequence)
            .limit(most)
        )
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            return list(connection.execute(query).scalars())

    def note_work(self, task_sha256: bytes, at: float, *, unless_noted: bool = False) -> None:
        table = _WORK
        noting = insert(table).values(task=task_sha256, at=at)
        with database_errors(self._paths["sealed"]), self._sealed.begin() as connection:
            connection.execute(
                noting.on_conflict_do_nothing()
                if unless_noted
                else noting.on_conflict_do_update([table.c.task], set_={"at": at})
            )

    def idle(self, before: float) -> list[bytes]:
        query = sqlalchemy.select(_WORK.c.task).where(_WORK.c.at < before)
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            return list(connection.execute(query).scalars())

    def forget_work(self, task_sha256: bytes) -> None:
        with database_errors(self._paths["sealed"]), self._sealed.begin() as connection:
            connection.execute(_WORK.delete().where(_WORK.c.task == task_sha256))

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._contributions.dispose()
        self._sealed.dispose()

    def _with_pieces(self, keys: Iterable[str] | None = None) -> list[bytes]:
        """The stored records that may have pieces; of ``keys`` alone if they are given."""
        columns = _RECORDS.c
        query = sqlalchemy.select(columns.data).where(sqlalchemy.func.length(columns.data) <= LONGEST_RECORD)
        if keys is not None:
            query = query.where(columns.key.in_([key for key in keys if key.startswith(LATER_PREFIXES)]))
        with database_errors(self._paths["sealed"]), self._sealed.connect() as connection:
            return list(connection.execute(query).scalars())

    def _require_working(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise StateError("the aggregator is stopping; try again later")

    def _commit(self, contributions: Sequence[Contribution]) -> StateError | None:
        try:
            rows = [self._row(contribution) for contribution in contributions]
            with database_errors(self._paths["contributions"]), self._contributions.begin() as connection:
                # As the driver takes it: this is the one statement that runs for every contribution.
                connection.exec_driver_sql(_INSERT, rows)
        except StateError as error:
            return error
        except (OdpError, sqlalchemy.exc.SQLAlchemyError) as error:
            return StateError(f"contributions could not be stored ({type(error).__name__}); start the program again")
        return None

    def _row(self, contribution: Contribution) -> tuple[bytes, int, bytes, bytes, bytes | None]:
        task_sha256, round, ciphertext, masked = contribution
        if masked is not None and len(masked) > LARGE_BYTES:
            return task_sha256, round, self._large.write(task_sha256, round, masked), ciphertext, b""
        if len(ciphertext) > LARGE_BYTES:
            return task_sha256, round, self._large.write(task_sha256, round, ciphertext), b"", masked
        return task_sha256, round, hashlib.sha256(ciphertext).digest(), ciphertext, masked


def _is_of(ciphertext: bytes, masked: bytes) -> bool:
    """Whether ``masked`` is the vector that the row of ``ciphertext`` names, unchanged."""
    return hashlib.sha256(masked).digest() == ciphertext[-DIGEST_BYTES:]
