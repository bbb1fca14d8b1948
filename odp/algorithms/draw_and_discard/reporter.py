"""A Draw and Discard task as the service of local reports sees it: the device's half and the server's.

Each member imports the module of its own party alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from odp.algorithms.draw_and_discard.terms import Terms
from odp.algorithms.seam import LocalData, LocalTable
from odp.privacy.adjacency import Adjacency
from odp.privacy.mechanisms.random_source import RandomSource
from odp.v1 import common_pb2


class Reporter:
    """Reports of devices, and the rows that a server's database has of them: one per instance.

    Raises:
      ConfigurationError, PrivacyError: as ``Terms.of``.
    """

    #: What the epsilon of a report is a claim about.
    adjacency = Adjacency.ANY_TWO_INPUTS

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self.definition, self.terms = definition, Terms.of(definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        """What a device's report is made of."""
        return (self.terms.features.local_table,)

    @property
    def charge(self) -> float:
        """Pure epsilon of one report, of the whole model: what a person's ledger is charged."""
        return self.terms.model_epsilon

    @property
    def lifetime(self) -> float:
        """Pure epsilon of all reports that one device may send."""
        return self.terms.lifetime_epsilon

    @property
    def most_reports(self) -> int:
        """Of one device."""
        return self.terms.most_reports

    @property
    def report_bytes(self) -> int:
        """Of each row and each report."""
        return self.terms.report_bytes

    def report(self, drawn: bytes, data: LocalData, *, source: RandomSource) -> bytes:
        """What a device sends for the row ``drawn``. Raises as ``odp.algorithms.draw_and_discard.client.report``."""
        from odp.algorithms.draw_and_discard.client import report

        return report(self.terms, drawn, data[self.local_data[0].name], source=source)

    def rows(self) -> list[bytes]:
        """The rows before any report."""
        from odp.algorithms.draw_and_discard.server import first_instances

        return [self.terms.encode(instance) for instance in first_instances(self.terms)]

    def serve(self, row: bytes) -> bytes:
        """What a device gets of a row that was drawn at random: all of it."""
        return row

    def absorb(self, row: bytes, report: bytes) -> bytes:
        """The new content of a row that was drawn at random, independently of the one served: the report."""
        del row
        return report

    def check(self, report: bytes, rows: Sequence[bytes]) -> None:
        """Raises ContributionRefused as ``odp.algorithms.draw_and_discard.server.check``."""
        from odp.algorithms.draw_and_discard.server import check

        check(self.terms, report, rows)
