"""A schedule of one-time and recurrent jobs of a device or a host, kept in a small file.

A job is due at one time, or periodically. A failed job is retried after a random time from its retry window, which
doubles with each failure in a row; past its deadline it is dropped. A job that a crash interrupted is due again at the
next start.

Times are seconds since the epoch, by a clock that may jump:

- *Back*: every job moves back by as much, so that none waits for a time that is years ahead.
- *Ahead*, beyond what was waited for: jobs that became due by the jump alone do not start all at once. Each waits for a
  random part of its retry window first.

A callback reports both. Within a process a jump is what the clock moved beyond a clock that only grows; over a
restart a clock that is behind the last known time went back, and nothing can be said about one that is ahead.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from types import TracebackType

from odp import _validate
from odp.errors import ConfigurationError, DiskFull, StateError
from odp.transport.private_files import make_private

#: A clock that is set by so little is no jump: networks correct clocks all the time.
JUMP_SECONDS = 60.0
_MOST_DOUBLINGS = 16
_LONGEST_RETRY_SECONDS = 24 * 3600.0
_FORMAT = 1
_CREATE = (
    """CREATE TABLE IF NOT EXISTS jobs (
        name TEXT PRIMARY KEY, due REAL NOT NULL, every REAL, retry_low REAL NOT NULL, retry_high REAL NOT NULL,
        deadline REAL, failures INTEGER NOT NULL, started REAL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS jobs_due ON jobs (due, name)",
    "CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), seen REAL NOT NULL)",
    f"PRAGMA user_version={_FORMAT}",
)
_COLUMNS = "name, due, every, retry_low, retry_high, deadline, failures, started"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job; seconds since the epoch, or seconds.

    Attributes:
      name: unique in its scheduler, 1 to 200 characters.
      due: not before.
      every: how long after its end it is due again; None: once.
      retry: smallest and largest time until a failed one is tried again.
      deadline: dropped without success by this time; None: never. Of a recurrent job, only this run is dropped.
      failures: in a row.
      started: when it began, where it is under way.

    Raises:
      ConfigurationError: a value is out of range.
    """

    name: str
    due: float
    every: float | None = None
    retry: tuple[float, float] = (1.0, 60.0)
    deadline: float | None = None
    failures: int = 0
    started: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 200:
            raise ConfigurationError("Expected the name of a job to have 1 to 200 characters")
        low, high = self.retry
        _validate.finite(due=self.due)
        _validate.within(low=0.0, high=_LONGEST_RETRY_SECONDS, retry_low=low)
        _validate.within(low=low, high=_LONGEST_RETRY_SECONDS, retry_high=high)
        if self.every is not None:
            _validate.within(low=1.0, high=1e9, every=self.every)
        if self.deadline is not None:
            _validate.finite(deadline=self.deadline)


class Scheduler:
    """Jobs in a file, for one process at a time and one thread at a time; a context manager.

    Args:
      path: of the file, made where it is missing; None keeps the jobs in memory.
      clock: seconds since the epoch.
      monotonic: seconds that only grow, at the pace of ``clock`` between its jumps.
      uniform: a random number between two bounds.
      told: a callback, called with ``"clock_went_back"`` or ``"clock_jumped_ahead"`` and the seconds.

    Raises:
      StateError: the file is damaged, of another version or cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] | None = None,
        told: Callable[[str, float], None] = lambda event, seconds: None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._monotonic = monotonic
        self._uniform = uniform if uniform is not None else SystemRandom().uniform
        self._told = told
        self._connection = self._open()
        self._seen = self._remembered()
        self._seen_monotonic = monotonic() - max(clock() - self._seen, 0.0)
        self.look_at_the_clock()
        #: Names of jobs that were under way when the last process ended; they are due again.
        self.interrupted = tuple(
            row[0] for row in self._all("SELECT name FROM jobs WHERE started IS NOT NULL ORDER BY name")
        )
        self._change("UPDATE jobs SET started = NULL WHERE started IS NOT NULL")

    def add(self, job: Job, *, replace: bool = False) -> Job:
        """Adds a job and returns it as stored. An existing job of that name stays, unless ``replace``."""
        known = self.get(job.name)
        if known is not None and not replace:
            return known
        self._write(job)
        return job

    def get(self, name: str) -> Job | None:
        """A job by its name."""
        rows = self._all(f"SELECT {_COLUMNS} FROM jobs WHERE name = ?", name)
        return _job(rows[0]) if rows else None

    def jobs(self) -> tuple[Job, ...]:
        """All jobs by due time, the earliest first."""
        return tuple(_job(row) for row in self._all(f"SELECT {_COLUMNS} FROM jobs ORDER BY due, name"))

    def next(self) -> Job | None:
        """The job with the earliest due time; None if there is none that is not running."""
        self.look_at_the_clock()
        rows = self._all(f"SELECT {_COLUMNS} FROM jobs WHERE started IS NULL ORDER BY due, name LIMIT 1")
        return _job(rows[0]) if rows else None

    def now(self) -> float:
        """Seconds since the epoch, by the scheduler's clock."""
        return self._clock()

    def wait(self, job: Job) -> float:
        """Seconds until ``job`` is due, at least 0."""
        return max(job.due - self._clock(), 0.0)

    def begin(self, name: str) -> Job:
        """Marks a job as running. Raises StateError if there is no job of that name."""
        job = replace(self._known(name), started=self._clock())
        self._write(job)
        return job

    def succeeded(self, name: str) -> Job | None:
        """Ends a run: a recurrent job is due after its period; a one-time job is deleted (None)."""
        job = self._known(name)
        if job.every is None:
            self.remove(name)
            return None
        return self._next_turn(job)

    def failed(self, name: str, *, retry: tuple[float, float] | None = None) -> Job | None:
        """Plans a retry after a random time, from a window that doubles with each failure in a row.

        ``retry`` is a window that somebody asked for: it is kept as it is. Past the deadline a one-time job is gone
        (None), and a recurrent one waits for its next turn.
        """
        job = self._known(name)
        low, high = retry if retry is not None else job.retry
        growth = 1.0 if retry is not None else 2.0 ** min(job.failures, _MOST_DOUBLINGS)
        pause = min(self._uniform(low * growth, high * growth), _LONGEST_RETRY_SECONDS)
        due = self._clock() + max(pause, 0.0)
        if job.deadline is not None and due > job.deadline:
            if job.every is None:
                self.remove(name)
                return None
            return self._next_turn(job)
        planned = replace(job, due=due, failures=job.failures + 1, started=None)
        self._write(planned)
        return planned

    def remove(self, name: str) -> None:
        """Forgets a job. Idempotent."""
        self._change("DELETE FROM jobs WHERE name = ?", name)

    def look_at_the_clock(self) -> None:
        """Detects jumps of the clock, and moves the jobs accordingly."""
        now, steady = self._clock(), self._monotonic()
        expected = self._seen + (steady - self._seen_monotonic)
        jump = now - expected
        if jump < -JUMP_SECONDS:
            self._change("UPDATE jobs SET due = due + ?, deadline = deadline + ?, started = started + ?", *[jump] * 3)
            self._told("clock_went_back", -jump)
        elif jump > JUMP_SECONDS:
            for job in self.jobs():
                if expected < job.due <= now:
                    self._write(replace(job, due=now + self._uniform(0.0, job.retry[1])))
            self._told("clock_jumped_ahead", jump)
        self._seen, self._seen_monotonic = now, steady
        if abs(now - self._stored) > JUMP_SECONDS / 2:
            self._remember(now)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_turn(self, job: Job) -> Job:
        every = job.every or 0.0
        deadline = None if job.deadline is None else job.deadline + every
        following = replace(job, due=self._clock() + every, deadline=deadline, failures=0, started=None)
        self._write(following)
        return following

    def _known(self, name: str) -> Job:
        job = self.get(name)
        if job is None:
            raise StateError(f"there is no job {name!r} in {self._path or 'memory'}; add it first")
        return job

    def _write(self, job: Job) -> None:
        low, high = job.retry
        self._change(
            f"INSERT OR REPLACE INTO jobs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            job.name, job.due, job.every, low, high, job.deadline, job.failures, job.started,
        )  # fmt: skip

    def _open(self) -> sqlite3.Connection:
        place = ":memory:" if self._path is None else self._path
        try:
            if self._path is not None:
                make_private(self._path)  # SQLite gives its journal the mode of the file
            # One thread at a time, not always the same one: a host is made in one and runs in another.
            connection = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        except (sqlite3.DatabaseError, OSError) as error:
            raise self._unusable(error) from error
        try:
            connection.execute("PRAGMA synchronous=EXTRA")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise StateError(
                    f"the jobs {self._path} have version {version}, not {_FORMAT}; use the version of "
                    "the program that wrote them"
                )
            for statement in _CREATE if version == 0 else ():
                connection.execute(statement)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise self._unusable(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _remembered(self) -> float:
        rows = self._all("SELECT seen FROM clock")
        # What lies ahead of the last known time is no jump that anybody could see: the host may have been off.
        self._stored = float(rows[0][0]) if rows else -math.inf
        return max(self._stored, self._clock()) if rows else self._clock()

    def _remember(self, now: float) -> None:
        self._stored = now
        self._change("INSERT OR REPLACE INTO clock (one, seen) VALUES (1, ?)", now)

    def _all(self, statement: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]  # rows of any columns
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _change(self, statement: str, *values: object) -> None:
        try:
            self._connection.execute(statement, values)
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.DatabaseError | OSError) -> StateError:
        if "full" in str(error).lower():
            return DiskFull(f"the jobs {self._path}: disk full; free some space; nothing was lost")
        return StateError(
            f"the jobs {self._path} cannot be used ({error}); remove the file: the jobs are then planned again"
        )


def _job(row: tuple) -> Job:  # type: ignore[type-arg]  # a row of _COLUMNS
    name, due, every, low, high, deadline, failures, started = row
    return Job(
        name=name, due=due, every=every, retry=(low, high), deadline=deadline, failures=failures, started=started
    )
