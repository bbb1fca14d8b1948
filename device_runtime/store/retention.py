"""How long rows are kept: a period per table, and pruning in bounded steps.

The privacy ledger, its tasks and the person's decisions have no period: they never expire, as limits count on them.

A clock may jump. Pruning believes a time that lies far ahead of the last one, or before it, only when it still holds at
the next pruning: a clock that was wrong for a moment deletes nothing.

Reports that are private by themselves outlive the answer to them. Such a report costs what left the device, whether or
not it counted. So a further opening of its round gets the same report, sealed anew: whoever has both of them knows one
randomisation, and the device pays for one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from device_runtime.person.ledger import TaskTerms
from device_runtime.store.database import Database, errors
from device_runtime.store.schema import EMPTY, Participation
from device_runtime.store.store import Store
from odp import _validate
from odp._system.files.private_files import read_private
from odp._system.files.settings_file import load_settings
from odp.errors import ConfigurationError, StateError

#: A host writes down how long it keeps rows, so that others can show it.
FILE = "retention.json"
_DAY = 24 * 3600.0
_LONGEST_DAYS = 36_500.0
#: A time further ahead of the last pruning than this is noted, and believed the next time.
_LEAP_SECONDS = 2 * _DAY
_MOST_ROWS = 5000
#: Of a transaction.
_ROWS_TOGETHER = 16
_MOST_FILES = 1000


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Days for which rows are kept after they were written; None keeps them until they are erased.

    Attributes:
      events: what the device's apps saw happen.
      examples: labelled examples, also those that the device was given.
      requests: what apps asked, with the rows logged of it.
      local: the developer's local data, after a value was last set.
      downloads: downloaded data, after they were downloaded.
      local_parameters: of a task, after its last contribution.
      reports: those that are private by themselves, for a round that opens again, after they were made.
      assignments: rounds that the device was asked for.
      records: what was verified before a contribution, counted from the contribution; those that no ledger names go
        after this time, too.
    """

    events: float | None = 90.0
    examples: float | None = 365.0
    requests: float | None = 30.0
    local: float | None = 365.0
    downloads: float | None = 90.0
    local_parameters: float | None = 365.0
    reports: float | None = 30.0
    assignments: float | None = 365.0
    records: float | None = 365.0

    def __post_init__(self) -> None:
        for name, days in vars(self).items():
            if days is not None:
                _validate.within(low=0.0, high=_LONGEST_DAYS, **{name: days})

    @classmethod
    def load(cls, path: Path) -> Retention:
        """Reads a TOML file of days per table; 0 keeps that table's rows for ever. Raises ConfigurationError."""
        return load_settings(path, cls._of, what="retention")

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Retention:
        _validate.known_keys(values, [setting.name for setting in fields(cls)], where="the retention")
        for name, days in values.items():
            _validate.within(low=0.0, high=_LONGEST_DAYS, **{name: days})
        return cls(**{name: float(days) if days else None for name, days in values.items()})

    def to_json(self) -> bytes:
        """Days per table, for ``FILE``."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def stored(cls, folder: Path) -> Retention | None:
        """The retention of the host with this state folder; None if none is stored. Raises StateError."""
        try:
            return cls(**json.loads(read_private(folder / FILE)))
        except FileNotFoundError:
            return None
        except (OSError, ConfigurationError, ValueError, TypeError) as error:
            raise StateError(f"{folder / FILE} is damaged; start the device host again to have it written") from error


#: Table, its field of Retention, and the condition of a row that is older than ``?1``.
_TABLES = (
    ("events", "events", "time < ?1"),
    ("examples", "examples", "time < ?1"),
    ("requests", "requests", "time < ?1"),
    ("local_data", "local", "time < ?1"),
    ("downloads", "downloads", "service IN (SELECT service FROM download_versions WHERE time < ?1)"),
    (
        "download_versions",
        "downloads",
        "time < ?1 AND service NOT IN (SELECT service FROM downloads)",
    ),
    (
        "local_parameters",
        "local_parameters",
        "task_sha256 NOT IN (SELECT task_sha256 FROM participations WHERE time >= ?1 OR sealed IS NOT NULL)",
    ),
    ("assignments", "assignments", "time < ?1"),
)
_KEYS = {"local_data": ("service", "key"), "downloads": ("service", "key"), "download_versions": ("service",),
         "local_parameters": ("task_sha256",), "assignments": ("task_sha256", "round")}  # fmt: skip


def prune(
    database: Database,
    retention: Retention,
    *,
    now: float,
    most: int = _MOST_ROWS,
    over: Callable[[], bool] = lambda: False,
) -> int:
    """Deletes rows and reports older than their period, at most ``most`` per table; returns their number.

    A later call goes on where one stopped. ``now`` is in seconds since the epoch; see above for a clock that jumps.
    Once ``over`` is true, no further row is deleted. Few are deleted in a transaction, so that neither its end nor who
    waits for the store takes as long as all that is deleted.

    Raises:
      StateError: the store cannot be written, or is damaged.
    """
    with database.transaction():
        last = database.first("SELECT time FROM pruning")
        database.execute("INSERT OR REPLACE INTO pruning (one, time) VALUES (1, ?)", (now,))
        if last is None or not 0.0 <= now - last[0] <= _LEAP_SECONDS:
            return 0
    deleted = 0
    for table, period, old in _TABLES:
        if (days := getattr(retention, period)) is None:
            continue
        columns, before = _KEYS.get(table, ("id",)), now - days * _DAY
        rows = database.all(f"SELECT {', '.join(columns)} FROM {table} WHERE {old} LIMIT ?2", (before, most))
        # Still old: another program may have written it again meanwhile.
        same = " AND ".join(f"{column} = ?{place}" for place, column in enumerate(columns, start=2))
        statement = f"DELETE FROM {table} WHERE {same} AND {old}"
        for first in range(0, len(rows), _ROWS_TOGETHER):
            with database.transaction():
                for row in rows[first : first + _ROWS_TOGETHER]:
                    if over():
                        return deleted
                    deleted += database.execute(statement, (before, *row))
    if retention.reports is not None:
        limit = deleted + most
        while not over() and deleted < limit:
            with database.transaction():
                erased = erase_reports(
                    database, before=now - retention.reports * _DAY, most=min(_ROWS_TOGETHER, limit - deleted)
                )
            deleted += erased
            if not erased:
                break
    return deleted


def records_needed(database: Database, retention: Retention, *, now: float) -> set[str]:
    """The records (hexadecimal SHA-256) that a store's ledger still needs."""
    oldest = -1e300 if retention.records is None else now - retention.records * _DAY
    rows = database.all("SELECT DISTINCT record FROM participations WHERE time >= ? OR sealed IS NOT NULL", (oldest,))
    return {record.hex() for (record,) in rows if record}


def prune_records(
    folder: Path, needed: Iterable[str], retention: Retention, *, now: float | None = None, most: int = _MOST_FILES
) -> int:
    """Deletes records older than their period that no ledger of ``needed`` names; returns their number.

    Files that are kept: the records ``needed``, what they refer to, and everything that is no record.

    Raises:
      StateError: the folder cannot be read or written.
    """
    if retention.records is None:
        return 0
    limit = (time.time() if now is None else now) - retention.records * _DAY
    deleted = 0
    with errors(folder):
        names = sorted(folder.glob("*.json")) if folder.is_dir() else []
        referred = set(needed)
        for name in names:
            if name.stem in referred:
                referred |= _referred(name)
        for name in names:
            if name.stem not in referred and deleted < most and name.stat().st_mtime < limit:
                name.unlink(missing_ok=True)
                deleted += 1
    return deleted


def _referred(record: Path) -> set[str]:
    """The reference values of a record; none if it cannot be read."""
    try:
        return {str(json.loads(record.read_bytes())["reference_values_sha256"])}
    except (ValueError, TypeError, KeyError):
        return set()


def prepare_again(store: Store, participation: Participation, *, terms: TaskTerms) -> None:
    """Stores what brings the report of a refused participation to another opening of its round, before it is sent.

    Whether the report was empty, and what the device learned with it, stays as it is.

    Raises:
      NotNow, PrivacyError: the person paused the device or opted out since; nothing is stored.
      StateError: the report was erased meanwhile.
    """
    line = participation
    with store.transaction():
        store.person().check(terms)
        changed = store.execute(
            "UPDATE participations SET state = 'PREPARED', refusal = NULL, recipient = ?, policy_sha256 = ?, "
            "image_digest = ?, time = ?, record = ?, sealed = ?, token = ? "
            "WHERE task_sha256 = ? AND round = ? AND state = 'REFUSED' AND report IS NOT NULL",
            (
                line.recipient, line.policy_sha256, line.image_digest, line.time, line.record, line.sealed, line.token,
                line.task_sha256, line.round,
            ),
        )  # fmt: skip
        if changed != 1:
            raise StateError(f"the report of round {line.round} was erased meanwhile, and is not sent again")
        store.execute(
            "UPDATE assignments SET outcome = 'prepared' WHERE task_sha256 = ? AND round = ? AND outcome <> ?",
            (line.task_sha256, line.round, EMPTY),
        )


def erase_reports(database: Database, *, before: float, most: int) -> int:
    """Erases at most ``most`` reports of contributions made before this time that have nothing left to send.

    Returns their number.
    """
    return database.execute(
        "UPDATE participations SET report = NULL WHERE (task_sha256, round) IN (SELECT task_sha256, round "
        "FROM participations WHERE report IS NOT NULL AND sealed IS NULL AND time < ? LIMIT ?)",
        (before, most),
    )
