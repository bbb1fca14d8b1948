"""The storage of the aggregator's host: accepted ciphertexts, and the records of the enclave, through SQL.

``sqlite_storage`` and ``postgresql_storage`` are the two kinds; both pass the conformance suite
``tests/trusted_aggregator/host/test_storage.py``.

Where a round is masked, a contribution's ciphertext ends with SHA-256 of its masked vector.

Ciphertexts and masked vectors of more than 1 MiB are files (``large_files.py``), written before their rows, which name
them. Contributions are many, and many in one commit (``ingest.py``). Sealed records are few and large; numbers too long
for them are files (``large_files.py``).
"""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy import BigInteger, Column, Float, Integer, LargeBinary, MetaData, Table, Text

from odp._system.files.state_folder import StateFolder
from odp.crypto.secure_aggregation.masked import DIGEST_BYTES
from odp.errors import OdpError, StateError
from odp.storage.database import Database
from odp.storage.migrations import Schema, bring_up, note_new
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host.large_files import LARGE_BYTES, LONGEST_RECORD, LargeFiles, PieceFiles
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
#: Task, round, digest, ciphertext and masked vector of a contribution.
Row = tuple[bytes, int, bytes, bytes, bytes | None]


class Tables:
    """The tables of a store, with ``prefix`` before their names; ``contributions`` may lie in a database of its own."""

    def __init__(self, prefix: str = "") -> None:
        # Numbers of rounds are unsigned and of 32 bits.
        integer = BigInteger().with_variant(Integer(), "sqlite")
        self.contributions = Table(
            f"{prefix}contributions",
            MetaData(),
            Column("sequence", integer, primary_key=True),
            Column("task", LargeBinary, nullable=False),
            Column("round", integer, nullable=False),
            Column("digest", LargeBinary, nullable=False),
            Column("ciphertext", LargeBinary, nullable=False),
            # Null: the contribution is not masked. Empty: its masked vector is a file.
            Column("masked", LargeBinary, nullable=True),
            # No index: an entry in a random place of it costs as much as the row, and the enclave counts each once.
        )
        # Of open rounds, what the host itself holds of them.
        self.parts = Table(
            f"{prefix}parts",
            MetaData(),
            Column("sequence", integer, primary_key=True),
            Column("task", LargeBinary, nullable=False),
            Column("round", integer, nullable=False),
            Column("digest", LargeBinary, nullable=False),
            # Empty: it is the file ``name``.
            Column("data", LargeBinary, nullable=False),
            Column("name", LargeBinary, nullable=False),
        )
        self.of_rounds = (self.contributions, self.parts)
        self.records = Table(
            f"{prefix}sealed_records",
            MetaData(),
            Column("key", Text, primary_key=True),
            Column("data", LargeBinary, nullable=False),
        )
        # Of each population, every entry of its ledger: public, and chained to the head that the enclave signs.
        self.ledgers = Table(
            f"{prefix}ledgers",
            MetaData(),
            Column("population", Text, primary_key=True),
            Column("number", integer, primary_key=True, autoincrement=False),
            Column("line", LargeBinary, nullable=False),
        )
        # Of each population, all charters that were ever in force: public, and signed by those who may.
        self.charters = Table(
            f"{prefix}charters",
            MetaData(),
            Column("population", Text, primary_key=True),
            Column("sequence", integer, primary_key=True, autoincrement=False),
            Column("signed", LargeBinary, nullable=False),
        )
        # When somebody last worked on a task that the enclave holds.
        self.work = Table(
            f"{prefix}work",
            MetaData(),
            Column("task", LargeBinary, primary_key=True),
            Column("at", Float, nullable=False),
        )
        self.sealed = (self.records, self.ledgers, self.charters, self.work)


def make_tables(connection: sqlalchemy.Connection, tables: Sequence[Table], schema: Schema) -> None:
    """Makes what is missing of ``tables``, in the transaction of ``connection``, and marks them with their schema.

    Raises StateError where they are of a newer one.
    """
    is_marked = bring_up(connection, schema)
    for table in tables:
        table.create(connection, checkfirst=True)
    if not is_marked:
        note_new(connection, schema)


class _Statements:
    """Made once: a release changes a handful of records, and making a statement costs as much as running it."""

    def __init__(self, tables: Tables, insert: Callable[[Table], Any]) -> None:
        parameter, lines = sqlalchemy.bindparam, tables.ledgers.c
        self.erase_record = tables.records.delete().where(tables.records.c.key == parameter("erased"))
        self.put_record = tables.records.insert()
        self.lines = (
            sqlalchemy.select(lines.line)
            .where(
                lines.population == parameter("of"), lines.number >= parameter("first"), lines.number < parameter("end")
            )
            .order_by(lines.number)
        )
        line = insert(tables.ledgers)
        self.put_line = line.on_conflict_do_update(
            index_elements=[lines.population, lines.number], set_={"line": line.excluded.line}
        )
        self.put_part = insert(tables.parts).on_conflict_do_nothing()
        self.put_charter = insert(tables.charters).on_conflict_do_nothing()
        work = insert(tables.work)
        self.note_new_work = work.on_conflict_do_nothing()
        self.note_work = work.on_conflict_do_update(index_elements=[tables.work.c.task], set_={"at": work.excluded.at})


class Storage(abc.ABC):
    """A host's store. Thread-safe; ``add`` is meant for one thread that adds many contributions at once.

    What a method stores is on the disk before it returns, all of it or none, so what was acknowledged, and what is
    charged for, survives a power cut. Contributions that could not be stored are never acknowledged, and nothing more
    is accepted: the program stops, and the next start finds exactly what was acknowledged.

    Every method raises StateError where the store cannot be used, DiskFull and DiskFailed among them.

    Args:
        contributions, sealed: the databases of the two kinds of tables, which exist; may be the same one.
        tables: the tables in them.
        insert: SQLAlchemy's ``insert`` with ``ON CONFLICT``, of this kind of database.
        state: takes the files.

    Raises:
        StateError: a database or the folder cannot be used.
    """

    def __init__(
        self, contributions: Database, sealed: Database, *, tables: Tables, insert: Callable[[Table], Any],
        state: StateFolder,
    ) -> None:  # fmt: skip
        self._contributions, self._sealed = contributions, sealed
        self._tables = tables
        self._statements = _Statements(tables, insert)
        self._large = LargeFiles(state.path("large"), state.health)
        self._pieces = PieceFiles(state.path("pieces"), state.health)
        if not self._pieces.is_empty():
            self._pieces.keep_only(self._with_pieces())
        last = sqlalchemy.select(sqlalchemy.func.max(tables.parts.c.sequence))
        self._part_numbers = itertools.count(1 + (contributions.run(functools.partial(_scalars, last))[0] or 0))
        self._changed = threading.Condition()
        self._stored: dict[tuple[bytes, int], int] = {}
        self._failure: StateError | None = None
        self._closing = False
        # Whether erased rows may still be somewhere on the disk.
        self._remains = True

    # What each kind of database does in its own way

    @abc.abstractmethod
    def _inserting(self, rows: Sequence[Row]) -> Callable[[sqlalchemy.Connection], Any]:
        """What inserts contributions in the transaction of its connection, once however often it runs."""

    def _before_erasing(self, connection: sqlalchemy.Connection) -> None:  # noqa: B027
        """Prepares the transaction of ``connection`` for an erasure."""

    @abc.abstractmethod
    def _remove_traces(self) -> None:
        """Removes what is left of erased contributions. Raises StateError where that cannot be done now."""

    def add(self, contributions: Sequence[SealedContribution]) -> None:
        """Stores accepted contributions, all or none.

        Raises:
            StateError: they could not be stored, or earlier ones could not: the program has to stop.
        """
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
        """Returns once ``count`` contributions of a round are stored. Raises StateError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._stored.get((task_sha256, round), 0) < count:
                self._require_working()
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise StateError(f"contributions of round {round} were not stored in time; close the round again")

    def contributions(self, task_sha256: bytes, round: int) -> Iterator[bytes]:
        """The stored ciphertexts of a round, in the order of their addition.

        Empty, which no enclave accepts, where a ciphertext or its masked vector is gone or damaged.
        """
        table = self._tables.contributions
        held = sqlalchemy.func.length(table.c.masked).label("held")
        for row in self._rows(task_sha256, round, table.c.digest, table.c.ciphertext, held, page=_PAGE):
            if row.held == 0 and not _is_of(row.ciphertext, self._large.read(task_sha256, round, row.digest)):
                yield b""
            else:
                yield row.ciphertext or self._large.read(task_sha256, round, row.digest)

    def masked(self, task_sha256: bytes, round: int, digests: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """(SHA-256, masked vector) of those of ``digests`` that are stored and intact, a few in memory at a time."""
        table = self._tables.contributions
        for row in self._rows(task_sha256, round, table.c.digest, table.c.ciphertext, table.c.masked, page=_FEW):
            if row.masked is not None and row.ciphertext[-DIGEST_BYTES:] in digests:
                vector = row.masked or self._large.read(task_sha256, round, row.digest)
                if _is_of(row.ciphertext, vector):
                    yield row.ciphertext[-DIGEST_BYTES:], vector

    def _rows(self, task_sha256: bytes, round: int, *columns: Any, page: int) -> Iterator[Any]:
        table, last = self._tables.contributions, 0
        while True:
            query = (
                sqlalchemy.select(table.c.sequence, *columns)
                .where(table.c.task == task_sha256, table.c.round == round, table.c.sequence > last)
                .order_by(table.c.sequence)
                .limit(page)
            )
            if not (rows := self._contributions.run(functools.partial(_all, query))):
                return
            yield from rows
            last = rows[-1].sequence

    def keep_only(self, rounds: Collection[tuple[bytes, int]]) -> None:
        """Erases contributions and parts of all other rounds, which a crash left behind."""
        queries = [sqlalchemy.select(table.c.task, table.c.round).distinct() for table in self._tables.of_rounds]
        results = [self._contributions.run(functools.partial(_all, query)) for query in queries]
        for task_sha256, round in {(row.task, row.round) for rows in results for row in rows}:
            if (task_sha256, round) not in rounds:
                self.erase(task_sha256, round)
        self._large.keep_only(rounds)

    def set_stored(self, task_sha256: bytes, round: int, count: int) -> None:
        """Sets, for ``wait_for``, how many stored contributions of a round the enclave took back at start."""
        with self._changed:
            self._stored[task_sha256, round] = count

    def add_part(self, task_sha256: bytes, round: int, data: bytes) -> None:
        """Stores one more part of what the host itself holds of a round. ``erase`` and ``keep_only`` erase it too."""
        name = self._large.write(task_sha256, round, data) if len(data) > LARGE_BYTES else b""
        row = {
            "sequence": next(self._part_numbers), "task": task_sha256, "round": round,
            "digest": hashlib.sha256(data).digest(), "name": name, "data": b"" if name else data,
        }  # fmt: skip
        self._contributions.run(lambda connection: connection.execute(self._statements.put_part, row))

    def parts(self, task_sha256: bytes, round: int) -> list[bytes]:
        """The parts of a round in the order of their addition; up to the first that is gone or damaged."""
        columns = self._tables.parts.c
        query = sqlalchemy.select(columns.digest, columns.name, columns.data)
        query = query.where(columns.task == task_sha256, columns.round == round).order_by(columns.sequence)
        rows: list[bytes] = []
        for row in self._contributions.run(functools.partial(_all, query)):
            data = self._large.read(task_sha256, round, row.name) if row.name else row.data
            if hashlib.sha256(data).digest() != row.digest:
                break
            rows.append(data)
        return rows

    def erase(self, task_sha256: bytes, round: int) -> None:
        """Erases contributions and parts of a round; after ``finish_erasing`` no byte of them is left.

        PostgreSQL keeps some in its log, its backups and free space: sealed, to a key that the enclave has erased.
        """

        def delete(connection: sqlalchemy.Connection) -> None:
            self._before_erasing(connection)
            for table in self._tables.of_rounds:
                connection.execute(table.delete().where(table.c.task == task_sha256, table.c.round == round))

        self._contributions.run(delete)
        self._large.erase(task_sha256, round)
        with self._changed:
            self._stored.pop((task_sha256, round), None)
            self._remains = True

    def finish_erasing(self) -> None:
        """Removes the traces of erased data. Idempotent.

        Raises StateError while another program reads the store: then they stay.
        """
        with self._changed:
            remains, self._remains = self._remains, False
        if not remains:
            return
        try:
            self._remove_traces()
        except BaseException:
            with self._changed:
                self._remains = True
            raise

    def apply(self, writes: Sequence[SealedRecord]) -> None:
        """Stores the enclave's writes in order, all or none; erased and replaced records leave no trace."""
        if not writes:
            return
        before = [] if self._pieces.is_empty() else self._with_pieces(record.key for record in writes)
        statements = self._statements

        def write(connection: sqlalchemy.Connection) -> None:
            self._before_erasing(connection)
            for record in writes:
                if (entry := ledger_entry(record.key)) is not None:
                    line = {"population": entry[0], "number": entry[1], "line": record.data}
                    connection.execute(statements.put_line, line)
                    continue
                connection.execute(statements.erase_record, {"erased": record.key})
                if record.data is not None:
                    connection.execute(statements.put_record, {"key": record.key, "data": record.data})

        self._sealed.run(write)
        if before:
            now = {record.data for record in writes}
            self._pieces.erase(record for record in before if record not in now)

    def records(self) -> dict[str, bytes]:
        """All records that an enclave needs to start; of ledgers, the state and the entries after it."""
        table = self._tables.records
        later = [table.c.key.startswith(prefix, autoescape=True) for prefix in LATER_PREFIXES]
        query = sqlalchemy.select(table).where(~sqlalchemy.or_(*later))
        lines = self._tables.ledgers.c

        def read(connection: sqlalchemy.Connection) -> dict[str, bytes]:
            stored = {row.key: row.data for row in connection.execute(query)}
            for population in connection.execute(sqlalchemy.select(lines.population).distinct()).scalars().all():
                covered, _ = split_state(stored.get(ledger_state_key(population), b""))
                behind = sqlalchemy.select(lines.number, lines.line)
                behind = behind.where(lines.population == population, lines.number >= covered)
                for row in connection.execute(behind):
                    stored[ledger_key(population, row.number)] = row.line
            return stored

        return self._sealed.run(read)

    def ledger_lines(self, population: str, first: int, end: int, *, most_bytes: int) -> bytes:
        """Entries of a ledger from number ``first`` to before ``end``, in order; as many as fit, at least one."""
        parameters = {"of": population, "first": first, "end": end}

        def read(connection: sqlalchemy.Connection) -> bytes:
            size = 0
            lines: list[bytes] = []
            with connection.execution_options(yield_per=_PAGE).execute(self._statements.lines, parameters) as rows:
                for line in rows.scalars():
                    size += len(line)
                    if lines and size > most_bytes:
                        break
                    lines.append(line)
            return b"".join(lines)

        return self._sealed.run(read)

    def keys(self, *, after: str = "") -> list[str]:
        """The names of all records above ``after``, entries of ledgers included, ascending."""
        lines = sqlalchemy.select(self._tables.ledgers.c.population, self._tables.ledgers.c.number)

        def read(connection: sqlalchemy.Connection) -> list[str]:
            keys = list(connection.execute(sqlalchemy.select(self._tables.records.c.key)).scalars())
            return keys + [ledger_key(row.population, row.number) for row in connection.execute(lines)]

        keys = self._sealed.run(read)
        return sorted(key for key in keys if key > after)

    def record(self, key: str) -> bytes | None:
        """One record, or None."""
        if (entry := ledger_entry(key)) is None:
            query = sqlalchemy.select(self._tables.records.c.data).where(self._tables.records.c.key == key)
        else:
            lines = self._tables.ledgers.c
            query = sqlalchemy.select(lines.line).where(lines.population == entry[0], lines.number == entry[1])
        charters: Sequence[bytes] = self._sealed.run(functools.partial(_scalars, query))
        return charters[0] if charters else None

    def write_pieces(self, record: bytes, pieces: Iterable[bytes]) -> None:
        """Stores the sealed pieces of a record, all or none, before ``apply`` stores the record itself.

        They are erased with it, and those of a record that was never stored at the next start.
        """
        self._pieces.write(record, pieces)

    def pieces(self, record: bytes, *, first: int = 0) -> Iterator[bytes]:
        """The stored pieces of a record from ``first`` on, one in memory at a time; none where they are gone."""
        return self._pieces.read(record, first=first)

    def holds(self, key: str) -> bool:
        """Whether a sealed record is stored; entries of ledgers are none."""
        query = sqlalchemy.select(self._tables.records.c.key).where(self._tables.records.c.key == key)
        return bool(self._sealed.run(functools.partial(_scalars, query)))

    def keep_charter(self, population: str, sequence: int, signed: bytes) -> None:
        """Stores a SignedCharter that is in force, unless one with this sequence is stored.

        The enclave keeps the newest one alone.
        """
        values = {"population": population, "sequence": sequence, "signed": signed}
        self._sealed.run(lambda connection: connection.execute(self._statements.put_charter, values))

    def charters(self, population: str, first: int, most: int) -> list[bytes]:
        """At most ``most`` SignedCharters of a population from sequence ``first`` on, oldest first."""
        table = self._tables.charters
        query = (
            sqlalchemy.select(table.c.signed)
            .where(table.c.population == population, table.c.sequence >= first)
            .order_by(table.c.sequence)
            .limit(most)
        )
        return list(self._sealed.run(functools.partial(_scalars, query)))

    def note_work(self, task_sha256: bytes, at: float, *, unless_noted: bool = False) -> None:
        """Records the time of work on a task, in seconds since the epoch."""
        noting = self._statements.note_new_work if unless_noted else self._statements.note_work
        self._sealed.run(lambda connection: connection.execute(noting, {"task": task_sha256, "at": at}))

    def idle(self, before: float) -> list[bytes]:
        """Tasks without work since ``before``."""
        query = sqlalchemy.select(self._tables.work.c.task).where(self._tables.work.c.at < before)
        return list(self._sealed.run(functools.partial(_scalars, query)))

    def forget_work(self, task_sha256: bytes) -> None:
        """Deletes the record of ``note_work``."""
        forgetting = self._tables.work.delete().where(self._tables.work.c.task == task_sha256)
        self._sealed.run(lambda connection: connection.execute(forgetting))

    def close(self) -> None:
        """Closes the store. Idempotent; ``add`` and ``wait_for`` then raise StateError."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._contributions.close()
        self._sealed.close()

    def _with_pieces(self, keys: Iterable[str] | None = None) -> list[bytes]:
        """The stored records that may have pieces; of ``keys`` alone if they are given."""
        columns = self._tables.records.c
        query = sqlalchemy.select(columns.data).where(sqlalchemy.func.length(columns.data) <= LONGEST_RECORD)
        if keys is not None:
            query = query.where(columns.key.in_([key for key in keys if key.startswith(LATER_PREFIXES)]))
        return list(self._sealed.run(functools.partial(_scalars, query)))

    def _require_working(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise StateError("the aggregator is stopping; try again later")

    def _commit(self, contributions: Sequence[SealedContribution]) -> StateError | None:
        try:
            self._contributions.run(self._inserting([self._row(contribution) for contribution in contributions]))
        except StateError as error:
            return error
        except (OdpError, sqlalchemy.exc.SQLAlchemyError) as error:
            return StateError(f"contributions could not be stored ({type(error).__name__}); start the program again")
        return None

    def _row(self, contribution: SealedContribution) -> Row:
        task_sha256, round, ciphertext = contribution.task_sha256, contribution.round, contribution.stored
        masked = contribution.host_part
        if masked is not None and len(masked) > LARGE_BYTES:
            return task_sha256, round, self._large.write(task_sha256, round, masked), ciphertext, b""
        if len(ciphertext) > LARGE_BYTES:
            return task_sha256, round, self._large.write(task_sha256, round, ciphertext, read_again=False), b"", masked
        return task_sha256, round, hashlib.sha256(ciphertext).digest(), ciphertext, masked


def _is_of(ciphertext: bytes, masked: bytes) -> bool:
    """Whether ``masked`` is the vector that the row of ``ciphertext`` names, unchanged."""
    return hashlib.sha256(masked).digest() == ciphertext[-DIGEST_BYTES:]


def _all(query: sqlalchemy.Select[Any], connection: sqlalchemy.Connection) -> Sequence[Any]:
    return connection.execute(query).all()


def _scalars(query: sqlalchemy.Select[Any], connection: sqlalchemy.Connection) -> Sequence[Any]:
    return connection.execute(query).scalars().all()
