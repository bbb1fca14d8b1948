"""When a host checks in next, in a small file: a retry window of the server holds over a restart and a power cut.

A process waits by a clock that only grows, and reports jumps of the machine's clock. Over a restart the stored time
counts. A clock that is behind the time of the last plan went back: the check-in moves back by as much, so that no host
waits for years. Nothing can be said about a clock that is ahead.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from odp._system.files.private_files import make_private
from odp.errors import DiskFull, StateError

#: A clock that is set by so little is no jump: networks correct clocks all the time.
JUMP_SECONDS = 60.0
_FORMAT = 1
# Earlier versions planned jobs of more kinds; the columns without a use have constants.
_CREATE = (
    """CREATE TABLE IF NOT EXISTS jobs (
        name TEXT PRIMARY KEY, due REAL NOT NULL, every REAL, retry_low REAL NOT NULL, retry_high REAL NOT NULL,
        deadline REAL, failures INTEGER NOT NULL, started REAL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS jobs_due ON jobs (due, name)",
    "CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), seen REAL NOT NULL)",
    f"PRAGMA user_version={_FORMAT}",
)


class CheckInPlan:
    """The next check-in of a host for one population; for one thread at a time; a context manager.

    Args:
      path: of the file, made where it is missing.
      population: what the host checks in for.
      clock: seconds since the epoch.
      monotonic: seconds that only grow, at the pace of ``clock`` between its jumps.
      report: called with ``"clock_went_back"`` or ``"clock_jumped_ahead"`` and the seconds.

    Raises:
      StateError: the file is damaged, of another version or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        population: str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        report: Callable[[str, float], None] = lambda event, seconds: None,
    ) -> None:
        self._path = path
        self._name = f"check-in {population}"
        self._clock, self._monotonic, self._report = clock, monotonic, report
        self._clocks = clock(), monotonic()
        with contextlib.ExitStack() as undo, self._errors():
            make_private(path)  # SQLite gives its journal the mode of the file
            # One thread at a time, not always the same one: a host is made in one and runs in another.
            self._connection = sqlite3.connect(path, check_same_thread=False)
            undo.callback(self._connection.close)
            self._connection.execute("PRAGMA synchronous=EXTRA")
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise StateError(
                    f"the jobs {path} have version {version}, not {_FORMAT}; use the version of the program that "
                    "wrote them"
                )
            if version == 0:
                self._connection.executescript(";".join(("BEGIN", *_CREATE, "COMMIT")))
            undo.pop_all()

    def wait(self) -> float:
        """Seconds until the check-in that an earlier process planned, at least 0; 0 without one."""
        with self._errors():
            planned_at = self._connection.execute("SELECT seen FROM clock").fetchone()
        back = 0.0 if planned_at is None else planned_at[0] - self._clock()
        if back > JUMP_SECONDS:
            self._report("clock_went_back", back)
            self._move_back(back)
        with self._errors():
            row = self._connection.execute("SELECT due FROM jobs WHERE name = ?", (self._name,)).fetchone()
        return 0.0 if row is None else max(float(row[0]) - self._clock(), 0.0)

    def store(self, seconds: float) -> None:
        """Plans the next check-in in ``seconds``. Raises StateError."""
        before, self._clocks = self._clocks, (self._clock(), self._monotonic())
        (now, steady), (now_before, steady_before) = self._clocks, before
        jump = (now - now_before) - (steady - steady_before)
        if abs(jump) > JUMP_SECONDS:
            self._report("clock_went_back" if jump < 0 else "clock_jumped_ahead", abs(jump))
            if jump < 0:
                self._move_back(-jump)
        self._store(now + seconds, now)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> CheckInPlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _move_back(self, seconds: float) -> None:
        """Moves the check-ins of all populations with the clock, which they share."""
        with self._errors(), self._connection:
            self._connection.execute("UPDATE jobs SET due = due - ?", (seconds,))
            self._connection.execute("UPDATE clock SET seen = seen - ?", (seconds,))

    def _store(self, due: float, now: float) -> None:
        with self._errors(), self._connection:
            self._connection.execute(
                "INSERT OR REPLACE INTO jobs (name, due, retry_low, retry_high, failures) VALUES (?, ?, 0, 0, 0)",
                (self._name, due),
            )
            self._connection.execute("INSERT OR REPLACE INTO clock (one, seen) VALUES (1, ?)", (now,))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, OSError) as error:
            if "full" in str(error).lower():
                raise DiskFull(f"the jobs {self._path}: disk full; free some space; nothing was lost") from error
            raise StateError(
                f"the jobs {self._path} cannot be used ({error}); remove the file: the jobs are then planned again"
            ) from error
