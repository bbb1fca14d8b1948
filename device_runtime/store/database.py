"""An encrypted SQLite file: opened with its key, changed in short transactions, with one-line errors.

The file is SQLCipher's: every page is encrypted with AES-256 and authenticated, the journal too, and what SQLite keeps
on the side stays in memory. The key is 256 random bits and no pass phrase, so nothing is stretched and opening is fast.

``Bounds`` keep apps from filling the disk, and from blocking a write to the ledger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlcipher3 import dbapi2 as sqlcipher

from device_runtime.store.keys import StoreKey
from odp import _validate
from odp._system.closing import Closing
from odp._system.files.durability import Health, disk_failed
from odp.errors import DataError, DiskFull, StateError, StoreDamaged, StoreUnreachable

#: What a constraint of a table refuses.
IntegrityError = sqlcipher.IntegrityError

_BUSY_SECONDS = 10.0
# Of SQLite's virtual machine, between two looks whether its time is over: a few rows, each of which may be long.
_STEPS_BETWEEN = 100
# A store holds a few kilobytes: with small pages its many tables do not fill the disk with empty space.
PAGE_BYTES = 1024
#: Transactions survive a power cut. The folder is synced as well: a journal that comes back with the power takes its
#: transaction back. Executed once the file was found to be a database, which it reads.
DURABLE = "PRAGMA synchronous=EXTRA"
#: Transactions survive the death of the process, and not a power cut.
NOT_DURABLE = "PRAGMA synchronous=OFF"


def quoted_key(key: StoreKey) -> str:
    """The key in SQLCipher's notation: raw, with the salt at the start of the file."""
    return f"\"x'{key.key.hex()}{key.salt.hex()}'\""


def connected(path: Path, key: StoreKey | None) -> Any:
    """A connection; without a key, to an unencrypted file. It has read and written nothing yet.

    ``DURABLE`` or ``NOT_DURABLE`` says what transactions survive.
    """
    connection = sqlcipher.connect(str(path), timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        # What it would write to standard error, an exception says.
        connection.execute("PRAGMA cipher_log_level=NONE")
        if key is not None:
            connection.execute(f"PRAGMA key={quoted_key(key)}")
            connection.execute(f"PRAGMA cipher_page_size={PAGE_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


class Database(Closing):
    """An open file; a context manager for one use in one thread. After a failure of the disk, no further change is
    made.
    """

    def __init__(self, path: Path, connection: Any, *, key: StoreKey | None = None) -> None:
        self.path = path
        self._connection, self._key = connection, key
        self._health = Health()

    @property
    def key(self) -> StoreKey:
        """What the file is encrypted under. Raises StateError where it is not."""
        if self._key is None:
            raise StateError(f"device store {self.path} is not encrypted")
        return self._key

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._connection.close()

    def first(self, statement: str, arguments: tuple[object, ...] = ()) -> tuple | None:  # type: ignore[type-arg]  # a row of any columns
        """The first row, or None. Raises StateError."""
        with errors(self.path):
            row: tuple | None = self._connection.execute(statement, arguments).fetchone()  # type: ignore[type-arg]
        return row

    def value(self, statement: str, arguments: tuple[object, ...] = ()) -> Any:
        """The first column of the first row; None without a row. Raises StateError."""
        return next(iter(self.first(statement, arguments) or ()), None)

    def all(self, statement: str, arguments: tuple[object, ...] = ()) -> list[tuple]:  # type: ignore[type-arg]  # rows of any columns
        """All rows. Raises StateError."""
        with errors(self.path):
            rows: list[tuple] = self._connection.execute(statement, arguments).fetchall()  # type: ignore[type-arg]
        return rows

    def execute(self, statement: str, arguments: tuple[object, ...] = ()) -> int:
        """Changes rows within ``transaction``; returns how many."""
        return int(self._connection.execute(statement, arguments).rowcount)

    def execute_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Changes rows within ``transaction``, once for each of ``rows``."""
        self._connection.executemany(statement, rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits all changes within, durably, or none of them. A nested transaction is part of the outer one.

        Raises StateError.
        """
        if self._connection.in_transaction:
            yield
            return
        with self._health, errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def end_when(self, over: Callable[[], bool]) -> None:
        """Ends statements, also one under way, once ``over`` is true; they raise TimeoutError then."""
        self._connection.set_progress_handler(lambda: int(over()), _STEPS_BETWEEN)

    def used_bytes(self) -> int:
        """Bytes of the file in use."""
        pages = self.value("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")
        return int(pages or 0) * PAGE_BYTES


@contextlib.contextmanager
def errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite or the file system into one line that names the file."""
    try:
        yield
    except sqlcipher.DatabaseError as error:
        reason = str(error).lower()
        if "could not decode" in reason:
            # A lone surrogate, which earlier versions stored. This error has no name.
            raise DataError(f"device store {path} holds an event whose text is no UTF-8") from error
        if error.sqlite_errorname == "SQLITE_INTERRUPT":
            raise TimeoutError from None
        if "malformed json" in reason:
            raise DataError(f"device store {path} holds an event that SQLite cannot read as JSON") from error
        if error.sqlite_errorname.startswith("SQLITE_IOERR"):
            raise disk_failed(path, error.sqlite_errorname) from error
        if "full" in reason:
            raise DiskFull(f"device store {path}: disk full; free some space; nothing was lost") from error
        if "locked" in reason or "busy" in reason:
            raise StoreUnreachable(f"device store {path} is locked by another program; stop it") from error
        if "unable to open" in reason or "readonly" in reason:
            raise StateError(f"device store {path} cannot be written; check the path and its permissions") from error
        raise StoreDamaged(
            f"device store {path} is damaged ({error}); `odp device repair` rebuilds what can be read"
        ) from error
    except TimeoutError:
        raise  # an OSError, and none of the file system
    except OSError as error:
        raise StateError(f"device store {path}: {error.strerror or error}; check path and permissions") from error


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Sizes, in bytes, and numbers of rows, per service but for ``file_bytes``, which is of the whole store.

    Beyond ``file_bytes`` no row of these tables is added; the ledger and the person's decisions always are.
    """

    event_bytes: int = 16 * 2**10
    events: int = 100_000
    example_bytes: int = 4 * 2**20
    examples: int = 100_000
    request_bytes: int = 64 * 2**10
    requests: int = 10_000
    value_bytes: int = 2**20
    local_bytes: int = 8 * 2**20
    keys: int = 10_000
    downloads_bytes: int = 16 * 2**20
    file_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=2**31, **vars(self))


def require_space(database: Database, size: int, bounds: Bounds, *, whose: str) -> None:
    """Returns if ``size`` further bytes fit into the file. Raises DataError."""
    used, most = database.used_bytes(), bounds.file_bytes
    if used + size > most:
        raise DataError(
            f"device store {database.path} has {used} bytes of at most file_bytes={most}: nothing of {whose} was "
            "added; delete some of its data, or wait until rows expire"
        )
