"""Answers from reports: those of statistics, with the epsilon that each report has on its own.

From numbers of reports per cell to answers: unbiased, with the variance of everything that reports are made of.

Of N reports, n answered a slot of K choices, and a share r_v of these gave the answer v. With rho = exp(epsilon) and
D = rho + K - 1, a share h_v = (r_v D - 1) / (rho - 1) of the users is estimated to have the true answer v. A sum over
users of f(true answer) is estimated by N sum_v f_v h_v, whose variance is at most

    N^2 / n  (D / (rho - 1))^2  (sum_v f_v^2 r_v - (sum_v f_v r_v)^2)

It is that of n users drawn from many, so it includes which users answered the slot, which of a user's records was
drawn, and rounding. Where all users answer one slot and have one answer each, it is larger than the noise by the
spread of the answers themselves.

Source: Kairouz, Bonawitz, Ramage 2016, "Discrete distribution estimation under local privacy" (the estimate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from odp.algorithms.dense.population import records_by_name
from odp.algorithms.dense.records import Records
from odp.algorithms.estimates import CONFIDENCE
from odp.algorithms.local_statistics.layout import ReportPart
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.algorithms.statistics.parts import MeanPart, entries_of, records_read
from odp.algorithms.statistics.results import HistogramResult, MeanResult, Results
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array


@dataclass(frozen=True)
class _Answers:
    """The answers to the slots of one query.

    Attributes:
      share: of each answer, float64 [slots, choices].
      likely: the same, moved into what randomised response can give, for variances of few answers.
      gain, shift: h = gain * share - shift.
      factor: N^2 / n * gain^2, float64 [slots].
    """

    users: int
    share: Float64Array
    likely: Float64Array
    gain: float
    shift: float
    factor: Float64Array

    @classmethod
    def of(cls, part: ReportPart, counts: Int64Array, users: int) -> _Answers:
        block = counts[part.offset : part.offset + part.cells].reshape(part.slots, part.choices).astype(np.float64)
        number = block.sum(axis=1)
        rho = float(part.response.ratio)
        every = rho + part.choices - 1.0
        smooth = (block + 1.0) / (number + part.choices)[:, None]
        answered = np.maximum(number, 1.0)
        return cls(
            users=users,
            share=np.where(number[:, None] > 0, block / answered[:, None], 1.0 / part.choices),
            likely=np.clip(smooth, 1.0 / every, rho / every),
            gain=every / (rho - 1.0),
            shift=1.0 / (rho - 1.0),
            factor=users**2 / answered * (every / (rho - 1.0)) ** 2,
        )

    def total(self, values: Float64Array) -> Float64Array:
        """The estimated sum of ``values`` [choices] over all users, from each slot: float64 [slots]."""
        totals: Float64Array = self.users * (self.gain * (self.share @ values) - self.shift * values.sum())
        return totals

    def covariance(self, first: Float64Array, other: Float64Array) -> Float64Array:
        """Of two such sums, float64 [slots]."""
        mean = (self.likely @ first) * (self.likely @ other)
        return self.factor * (self.likely @ (first * other) - mean)


def results_of_counts(
    parts: Sequence[ReportPart], counts: Int64Array, *, users: int
) -> dict[str, HistogramResult | MeanResult]:
    """The answers in ``counts``, int64 [cells], of ``users`` reports, by the names of the queries."""
    return {part.name: _result(part, _Answers.of(part, counts, users)) for part in parts}


def _result(part: ReportPart, answers: _Answers) -> HistogramResult | MeanResult:
    kind = part.kind
    if isinstance(kind, MeanPart):
        steps = np.arange(part.levels + 1) / part.levels
        weight = np.append(np.ones(part.levels + 1), 0.0) * part.bound
        total = np.append(2.0 * steps - 1.0, 0.0) * part.bound
        return MeanResult(
            total=float(answers.total(total)[0]),
            weight=float(answers.total(weight)[0]),
            std=float(np.sqrt(answers.covariance(total, total)[0])),
            low=kind.low,
            high=kind.high,
            weight_std=float(np.sqrt(answers.covariance(weight, weight)[0])),
            covariance=float(answers.covariance(total, weight)[0]),
        )
    if part.chooses_bins:
        share, likely = answers.share[0, : kind.bins], answers.likely[0, : kind.bins]
        counts = answers.users * (answers.gain * share - answers.shift)
        std = np.sqrt(answers.factor[0] * likely * (1.0 - likely))
        # Of a sum of counts with weights w, sum w^2 r - (sum w r)^2 is at most its first term.
        sum_std = np.sqrt(answers.factor[0] * likely)
        return HistogramResult(counts, std, kind.edges, kind.counting, sum_std, kind.labels)
    values = np.arange(part.levels + 1) / part.levels * part.bound
    std = np.sqrt(np.maximum(answers.covariance(values, values), 0.0))
    return HistogramResult(answers.total(values), std, kind.edges, kind.counting, labels=kind.labels)


def exact_results(
    parts: Sequence[ReportPart], records: Mapping[str, Records]
) -> dict[str, HistogramResult | MeanResult]:
    """The same of the users' own records by query, which no party sees: for simulations."""
    results: dict[str, HistogramResult | MeanResult] = {}
    for part in parts:
        entries, kind = entries_of(part.kind, records_read(part.table, records[part.name])), part.kind
        sums = np.bincount(entries.place, weights=entries.value, minlength=kind.size).astype(np.float64)
        if isinstance(kind, MeanPart):
            results[part.name] = MeanResult(float(sums[0]), float(sums[1]), 0.0, kind.low, kind.high)
        else:
            results[part.name] = HistogramResult(sums, 0.0, kind.edges, kind.counting, labels=kind.labels)
    return results


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
