"""Answers from reports: those of statistics, with the epsilon that each report has on its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from odp.algorithms.dense.population import records_by_name
from odp.algorithms.estimates import CONFIDENCE
from odp.algorithms.local_statistics.estimates import exact_results, results_of_counts
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.algorithms.statistics.results import Results
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.numerics.arrays import Int64Array


@dataclass(frozen=True)
class ReportResults(Results):
    """What reports say, by the names of the queries, in their order.

    Attributes:
      report_epsilon: of each report on its own, whoever reads it; infinite where nothing was randomised. ``epsilon`` is
        of the answers at ``delta``, for whoever sees these alone.
    """

    report_epsilon: float = math.inf

    def to_json(self, confidence: float = CONFIDENCE) -> dict[str, object]:
        """Plain values."""
        report_terms = {"report_epsilon": self.report_epsilon if math.isfinite(self.report_epsilon) else None}
        return {**super().to_json(confidence), **report_terms}

    def lines(self, confidence: float, exact: Results | None = None) -> Iterator[object]:
        """What a terminal shows."""
        yield from super().lines(confidence, exact)
        if math.isfinite(self.report_epsilon):
            yield (
                f"each report is private by itself: epsilon {self.report_epsilon:.4g} for whoever reads it; "
                f"the answers cost epsilon {self.epsilon:.4g} at delta {self.delta:g}"
            )


def answers_of(terms: ReportTerms, counts: Int64Array, *, epsilon: float, delta: float) -> ReportResults:
    """The answers in the numbers of reports per cell, int64 [cells].

    Raises:
      ConfigurationError: ``counts`` has another length, or a negative number.
    """
    if counts.shape != (terms.cells,) or (counts < 0).any():
        raise ConfigurationError(f"Expected {terms.cells} numbers of reports, none below 0 (got {list(counts.shape)})")
    users = int(counts.sum())
    results = results_of_counts(terms.parts, counts, users=users)
    return ReportResults(results, users, epsilon, delta, report_epsilon=terms.epsilon)


def exact_answers(terms: ReportTerms, ratings: Ratings, *, delta: float) -> ReportResults:
    """The users' own answers, which no party sees: for simulations."""
    results = exact_results(terms.parts, records_by_name(terms.reads, ratings, 0, ratings.n_users))
    return ReportResults(results, ratings.n_users, math.inf, delta)
