"""Local reports as the platform sees them: no enclave takes part, and no party is trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.capabilities import Answers
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.dense.records import check_question
from odp.algorithms.local_reports import LocalReports
from odp.algorithms.local_seam import RELEASE, Words
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.algorithms.seam import LocalData, LocalTable
from odp.errors import ConfigurationError
from odp.models.computing_cost import SORTED_SECONDS, ComputingCost
from odp.numerics.arrays import Int64Array
from odp.privacy.events import Event
from odp.privacy.local_events import LocalReport

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.models.left_out import LeftOut


class TaskAlgorithm(LocalReports):
    """``odp.algorithms.local_reports.LocalReports`` of tasks that ask for statistics."""

    simulates = "ratings"

    def terms(self) -> ReportTerms:
        """The definition, read and checked."""
        check_question(self.definition, "local_statistics")
        terms = ReportTerms.of(self.definition.local_statistics.reports)
        if terms.epsilon > self.definition.privacy.epsilon:
            raise ConfigurationError(
                f"Expected reports of epsilon {terms.epsilon!r} to be within the task's "
                f"epsilon={self.definition.privacy.epsilon!r}"
            )
        return terms

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return self.terms().local_data

    @property
    def computing_cost(self) -> ComputingCost:
        return reading_cost(self.local_data, row_seconds=SORTED_SECONDS)

    @property
    def cells(self) -> int:
        return self.terms().cells

    @property
    def charge(self) -> float:
        return self.terms().epsilon

    @property
    def most_updates(self) -> int:
        return self.definition.local_statistics.most_reports or super().most_updates

    def cell_of(self, data: LocalData, words: Words) -> int:
        return self.terms().cell_of(data, words)

    def answers_of_counts(self, counts: Int64Array) -> Answers:
        from odp.algorithms.local_statistics.results import answers_of

        terms = self.terms()
        return answers_of(terms, counts, epsilon=terms.epsilon, delta=0.0)

    def left_out(self, users: Ratings) -> dict[str, LeftOut]:
        from odp.algorithms.statistics.bins import rows_left_out

        return rows_left_out(self.terms().parts, users)

    def exact(self, users: Ratings) -> Answers:
        from odp.algorithms.local_statistics.results import exact_answers

        return exact_answers(self.terms(), users, delta=0.0)

    def simulated(self, users: Ratings, *, seeds: npt.NDArray[np.uint64]) -> tuple[Answers, tuple[Event, ...]]:
        from odp.algorithms.local_statistics.population import counts_of

        terms = self.terms()
        return self.answers_of_counts(counts_of(terms, users, seeds=seeds)), (LocalReport(RELEASE, terms.epsilon),)
