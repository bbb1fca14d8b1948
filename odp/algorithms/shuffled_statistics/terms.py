"""The numbers of one task of shuffled reports, read from its definition and checked: one source for every party."""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate
from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS
from odp.algorithms.dense.records import check_question
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.errors import ConfigurationError
from odp.privacy.local_charge import LocalCharge
from odp.privacy.local_events import ShuffledReports
from odp.v1 import common_pb2

RELEASE = "reports"


@dataclass(frozen=True)
class Terms:
    """A :class:`odp.v1.TaskDefinition` of shuffled reports, checked.

    Attributes:
      reports: what one report is.
      honest: reports of honest devices that the charge counts on.
      maximum: largest number of reports of the round.
    """

    reports: ReportTerms
    honest: int
    maximum: int

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task is another, a field is out of range, or the charge counts on more reports than
            the enclave waits for.
        """
        check_question(definition, "shuffled_statistics")
        message = definition.shuffled_statistics
        _validate.integer(low=1, high=MAX_CONTRIBUTIONS, maximum=message.maximum)
        _validate.integer(low=1, high=definition.cohort.minimum, honest=message.honest)
        if message.maximum < definition.cohort.goal:
            raise ConfigurationError(
                f"Expected maximum={message.maximum} to be at least the cohort's goal={definition.cohort.goal}"
            )
        return cls(ReportTerms.of(message.reports), message.honest, message.maximum)

    @property
    def charge(self) -> ShuffledReports:
        """What the release costs: by the reports that are honest at least, so it holds for all more."""
        return ShuffledReports(
            name=RELEASE, epsilon0=self.reports.epsilon, reports=self.honest, choices=self.reports.choices
        )

    @property
    def local_charge(self) -> LocalCharge:
        """What the one report of a device costs by itself, also where the enclave fails."""
        return LocalCharge((("answer", self.reports.epsilon),), 1)
