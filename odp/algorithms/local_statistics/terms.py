"""The numbers of tasks whose devices send reports, read from a definition and checked: one source for every party."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odp import _validate
from odp.algorithms.dense.records import Records
from odp.algorithms.local_statistics.layout import MOST_LEVELS, ReportPart, best_levels, choices_of
from odp.algorithms.seam import LocalData, LocalTable, most_rows
from odp.algorithms.statistics.terms import check_queries, kind_of
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.models.events_query import AGGREGATES, EventsTerms
from odp.numerics.arrays import Int64Array
from odp.privacy.mechanisms.randomized_response import LARGEST_EPSILON, MOST_CHOICES, SMALLEST_EPSILON
from odp.v1 import local_statistics_pb2

if TYPE_CHECKING:
    from odp.algorithms.local_seam import Words

#: Numbers that a report can be.
MOST_CELLS = 2**20
#: A report on the wire: its cell, little-endian.
REPORT = np.dtype("<u4")
OWN_TABLES = frozenset({"ratings", "events"})


@dataclass(frozen=True)
class ReportTerms:
    """A checked :class:`odp.v1.ReportTerms`."""

    parts: tuple[ReportPart, ...]

    @classmethod
    def of(cls, message: local_statistics_pb2.ReportTerms) -> ReportTerms:
        """Reads and checks the message.

        Raises:
          ConfigurationError: a field is missing, out of range, or beyond what randomised response takes.
        """
        check_queries(message.queries)
        _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, report_epsilon=message.report_epsilon)
        if len(message.levels) != len(message.queries):
            raise ConfigurationError(
                f"Expected one number of levels per query (got {len(message.levels)} for {len(message.queries)})"
            )
        parts: list[ReportPart] = []
        offset = 0
        for query, levels in zip(message.queries, message.levels, strict=True):
            column, kind = kind_of(query)
            least = min(best_levels(kind, 1.0), 1)
            _validate.integer(low=least, high=MOST_LEVELS if least else 0, levels=levels)
            if choices_of(kind, levels) > MOST_CHOICES:
                raise ConfigurationError(
                    f"Expected at most {MOST_CHOICES - 1:,} bins of shares in the histogram {query.name!r}"
                )
            events = EventsTerms.of(query, aggregates=tuple(AGGREGATES))
            part = ReportPart(
                name=query.name, table=query.table, column=column, kind=kind, share=query.share, levels=levels,
                offset=offset, epsilon=message.report_epsilon, events=events,
            )  # fmt: skip
            parts.append(part)
            offset += part.cells
        if offset > MOST_CELLS:
            raise ConfigurationError(
                f"Expected reports of at most {MOST_CELLS:,} cells (got {offset:,}): ask for fewer bins"
            )
        return cls(tuple(parts))

    @property
    def cells(self) -> int:
        """Numbers that a report can be."""
        return self.parts[-1].offset + self.parts[-1].cells

    @property
    def epsilon(self) -> float:
        """Of one report: the largest of the parts'."""
        return max(part.response.epsilon for part in self.parts)

    @property
    def choices(self) -> int:
        """Of k-ary randomised response where a report is nothing else; 0 where it first draws a question."""
        (first, *others) = self.parts
        return first.choices if not others and first.slots == 1 else 0

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        """The rows of each query."""
        return tuple(
            LocalTable(
                part.name,
                part.table,
                OWN_TABLES,
                part.events,
                most_rows(part.events),
                by_id=True,
                labels=part.item_labels,
            )
            for part in self.parts
        )

    @property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """As of ``odp.algorithms.dense.records.VectorTerms``."""
        return {part.name: part.item_labels for part in self.parts}

    def reports(self, records: Mapping[str, Records], words: Words, *, users: int) -> Int64Array:
        """One cell per user, int64 [users]; ``records`` are the rows of each query, by its name."""
        from odp.algorithms.local_statistics.userside import reports

        return reports(self.parts, records, words, users=users)

    def cell_of(self, data: LocalData, words: Words) -> int:
        """The report of one device."""
        records = {
            name: Records(np.zeros(len(rows.items), dtype=np.int64), rows.items, rows.values, users=1)
            for name, rows in data.items()
        }
        return int(self.reports(records, words, users=1)[0])

    def report(self, data: LocalData, words: Words) -> bytes:
        """The same on the wire."""
        return self.cell_of(data, words).to_bytes(REPORT.itemsize, "little")

    def empty(self, words: Words) -> bytes:
        """The report of a device without data: randomised like every other."""
        nothing = Records(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), users=1)
        return self.reports({part.name: nothing for part in self.parts}, words, users=1).astype(REPORT).tobytes()

    def check(self, report: bytes) -> None:
        """Accepts any report that a device can send.

        Raises:
          ContributionRefused: MALFORMED for a wrong length, OUT_OF_BOUNDS for no cell.
        """
        if len(report) != REPORT.itemsize:
            raise ContributionRefused(Refusal.MALFORMED)
        if int.from_bytes(report, "little") >= self.cells:
            raise ContributionRefused(Refusal.OUT_OF_BOUNDS)
