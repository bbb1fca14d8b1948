"""How long a host waits before it contacts the server again.

Where no round is open, as long as the server's retry window says. That holds over a restart and a power cut, too: a
small file has the time of the next check-in. While a round has nothing for the host to do, a pause that grows a little.

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

from odp._system.closing import Closing
from odp._system.files.durability import disk_failed
from odp._system.files.private_files import make_private
from odp.errors import DiskFull, StateError
from odp.transport.logs import Log
from odp.v1 import server_pb2

_LONGEST_RETRY_SECONDS = 3600.0
#: The shortest pause there is.
SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
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


class CheckIns:
    """When the host checks in next. Only the host's own thread may call it.

    Args:
      plan: stores the time of the next check-in; None: it does not hold over a restart.
      log: where it is said that a host waits from before its start.
      uniform: a random number between two bounds.
    """

    def __init__(self, *, plan: CheckInPlan | None, log: Log, uniform: Callable[[float, float], float]) -> None:
        self._plan, self._log, self._uniform = plan, log, uniform
        self._pause = SHORTEST_PAUSE

    def first_wait(self) -> float:
        """The rest, in seconds, of a retry window from before the last restart."""
        left = 0.0 if self._plan is None else min(self._plan.wait(), _LONGEST_RETRY_SECONDS)
        if left:
            self._log.event("waiting", seconds=round(left, 1))
        return left

    def window(self, window: server_pb2.RetryWindow) -> float:
        """Seconds until the next check-in, drawn from the server's retry window."""
        low = min(float(window.min_seconds), _LONGEST_RETRY_SECONDS)
        high = min(max(float(window.max_seconds), low), _LONGEST_RETRY_SECONDS)
        seconds = max(self._uniform(low, high), SHORTEST_PAUSE)
        if self._plan is not None:
            self._plan.store(seconds)
        return seconds

    def new_round(self) -> None:
        """Resets the pauses for a new round."""
        self._pause = SHORTEST_PAUSE

    def next_pause(self) -> float:
        """The next pause while the open round has nothing to do; each is longer than the one before."""
        pause = self._pause
        self._pause = min(self._pause * 1.6, _LONGEST_PAUSE)
        return pause


class CheckInPlan(Closing):
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
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith("SQLITE_IOERR"):
                raise disk_failed(self._path, name) from error
            if "full" in str(error).lower():
                raise DiskFull(f"the jobs {self._path}: disk full; free some space; nothing was lost") from error
            raise StateError(
                f"the jobs {self._path} cannot be used ({error}); remove the file: the jobs are then planned again"
            ) from error
