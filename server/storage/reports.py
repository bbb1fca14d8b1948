"""The reports of tasks of local trust in the server's store: rows that reports overwrite, or the reports themselves.

No row is hot: a report overwrites one of k rows, drawn at random, and adds a row of its own that has its id, by which
the same report counts once, however often it comes. There is no counter: how many were taken is in both tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from server.storage.schema import LOCAL_REPORTS, LOCAL_ROWS

ID_BYTES = 32
# Rows that one query names.
_PLACES = 500


@dataclass(frozen=True)
class NewReport:
    """A report to be stored: it becomes the content of the row ``place``; None: it is kept itself."""

    task_sha256: bytes
    report_id: bytes
    place: int | None
    content: bytes


class Reports:
    """The store of reports; thread-safe, durable when a method returns. Raises StateError as ``Storage``.

    Arguments as of ``server.storage.sql.Storage``.
    """

    def __init__(
        self, engine: sa.Engine, *, insert: Callable[[sa.Table], Any],
        errors: Callable[[], AbstractContextManager[None]], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._engine, self._errors, self._clock = engine, errors, clock
        ids = (LOCAL_REPORTS.c.task_sha256, LOCAL_REPORTS.c.report_id)
        self._add = insert(LOCAL_REPORTS).on_conflict_do_nothing().returning(*ids)
        self._overwrite = (
            sa.update(LOCAL_ROWS)
            .where(LOCAL_ROWS.c.task_sha256 == sa.bindparam("of_task"), LOCAL_ROWS.c.place == sa.bindparam("at_place"))
            .values(content=sa.bindparam("new"), overwritten=LOCAL_ROWS.c.overwritten + sa.bindparam("times"))
        )
        self._begin = insert(LOCAL_ROWS).on_conflict_do_nothing()

    def begin(self, sha256: bytes, rows: Sequence[bytes]) -> bool:
        """Stores the first rows of a stored task; False if it has rows."""
        values = [
            {"task_sha256": sha256, "place": place, "overwritten": 0, "content": content}
            for place, content in enumerate(rows)
        ]
        with self._errors(), self._engine.begin() as connection:
            if not values or connection.execute(_of(LOCAL_ROWS, sha256).limit(1)).first() is not None:
                return False
            connection.execute(self._begin, values)
            return True

    def rows(self, sha256: bytes) -> list[bytes]:
        """The rows of a task, in the order of their places; none of a task that keeps reports."""
        query = sa.select(LOCAL_ROWS.c.content).where(LOCAL_ROWS.c.task_sha256 == sha256)
        with self._errors(), self._engine.connect() as connection:
            return [bytes(row.content) for row in connection.execute(query.order_by(LOCAL_ROWS.c.place))]

    def changed_rows(self, sha256: bytes, overwritten: Mapping[int, int]) -> dict[int, tuple[int, bytes]]:
        """(times overwritten, content) of the rows that were overwritten other times than ``overwritten`` has, or 0."""
        of = LOCAL_ROWS.c.task_sha256 == sha256
        query = sa.select(LOCAL_ROWS.c.place, LOCAL_ROWS.c.overwritten).where(of)
        with self._errors(), self._engine.connect() as connection:
            places = [
                row.place for row in connection.execute(query) if row.overwritten != overwritten.get(row.place, 0)
            ]
            changed: dict[int, tuple[int, bytes]] = {}
            for start in range(0, len(places), _PLACES):
                some = LOCAL_ROWS.c.place.in_(places[start : start + _PLACES])
                rows = sa.select(LOCAL_ROWS.c.place, LOCAL_ROWS.c.overwritten, LOCAL_ROWS.c.content).where(of, some)
                changed |= {row.place: (row.overwritten, bytes(row.content)) for row in connection.execute(rows)}
        return changed

    def take(self, reports: Sequence[NewReport]) -> list[bool]:
        """Stores reports, in this order and together; False for each whose id was stored before."""
        if not reports:
            return []
        now = self._clock()
        # One line per id: of two with the same id in one call the first one counts.
        first = {(report.task_sha256, report.report_id): report for report in reversed(reports)}
        lines = [
            {
                "task_sha256": report.task_sha256,
                "report_id": report.report_id,
                "received": now,
                "content": b"" if report.place is not None else report.content,
            }
            for report in sorted(first.values(), key=lambda report: (report.task_sha256, report.report_id))
        ]
        with self._errors(), self._engine.begin() as connection:
            added = {(bytes(row[0]), bytes(row[1])) for row in connection.execute(self._add, lines)}
            taken = [
                (report.task_sha256, report.report_id) in added
                and first[report.task_sha256, report.report_id] is report
                for report in reports
            ]
            last: dict[tuple[bytes, int], tuple[bytes, int]] = {}
            for written, new in zip(reports, taken, strict=True):
                if new and written.place is not None:
                    key = written.task_sha256, written.place
                    last[key] = written.content, last.get(key, (b"", 0))[1] + 1
            if last:
                # Always in the same order: two servers never wait for each other's rows.
                changes = [
                    {"of_task": task, "at_place": place, "new": content, "times": times}
                    for (task, place), (content, times) in sorted(last.items())
                ]
                connection.execute(self._overwrite, changes)
        return taken

    def has(self, sha256: bytes, report_id: bytes) -> bool:
        """Whether a report was stored, and its id not forgotten."""
        query = _of(LOCAL_REPORTS, sha256).where(LOCAL_REPORTS.c.report_id == report_id)
        with self._errors(), self._engine.connect() as connection:
            return connection.execute(query).first() is not None

    def count(self, sha256: bytes) -> int:
        """Reports that were stored."""
        rows = sa.select(sa.func.count(), sa.func.sum(LOCAL_ROWS.c.overwritten)).where(
            LOCAL_ROWS.c.task_sha256 == sha256
        )
        reports = sa.select(sa.func.count()).where(LOCAL_REPORTS.c.task_sha256 == sha256)
        with self._errors(), self._engine.connect() as connection:
            places, overwritten = connection.execute(rows).one()
            return int(overwritten) if places else int(connection.execute(reports).scalar_one())

    def all_reports(self, sha256: bytes) -> bytes:
        """All reports that were kept, one after the other, in any order."""
        query = sa.select(LOCAL_REPORTS.c.content).where(LOCAL_REPORTS.c.task_sha256 == sha256)
        with self._errors(), self._engine.connect() as connection:
            return b"".join(connection.execute(query).scalars())

    def forget_ids(self, *, before: float) -> None:
        """Forgets the ids of reports that overwrote rows before that time, in seconds since the epoch."""
        with self._errors(), self._engine.begin() as connection:
            old = sa.delete(LOCAL_REPORTS).where(LOCAL_REPORTS.c.received < before, LOCAL_REPORTS.c.content == b"")
            connection.execute(old)


def _of(table: sa.Table, sha256: bytes) -> sa.Select[Any]:
    return sa.select(sa.literal(1)).select_from(table).where(table.c.task_sha256 == sha256)
