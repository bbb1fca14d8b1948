"""The server's half: the first instances, what is refused, and what the model is.

The server is trusted with nothing: whatever it does with reports is a step after their noise. It serves an instance at
random and overwrites one at random, independently of it; so no lock is held between the two, and several devices may
hold instances at once.

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", algorithm 2 and section III-D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from odp.algorithms.draw_and_discard.terms import Terms
from odp.algorithms.factorization.public_normals import public_normals
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.numerics.arrays import Float64Array, Int32Array


def first_instances(terms: Terms) -> Int32Array:
    """The instances before any report, int32 [instances, weights]: the start plus normal noise of ``start_std``.

    That is the spread that reports keep up, so that the tests for spam hold from the first report on.
    """
    spread = terms.start_std * public_normals(terms.seed, (terms.instances, terms.weights))
    steps = np.rint((terms.start + spread) / terms.step)
    return np.asarray(np.clip(steps, -terms.largest, terms.largest), dtype=np.int32)


def instances_of(terms: Terms, rows: Sequence[bytes]) -> Int32Array:
    """The instances that a server has, int32 [k, weights]. Raises ConfigurationError as ``Terms.decode``."""
    if not rows:
        raise ConfigurationError("Expected at least one instance")
    return np.stack([terms.decode(row) for row in rows])


def model(terms: Terms, rows: Sequence[bytes]) -> Float64Array:
    """The weights to predict with, float64 [weights]: the mean of all instances."""
    mean: Float64Array = instances_of(terms, rows).mean(axis=0, dtype=np.float64)
    return mean * terms.step


def deviation(terms: Terms, rows: Sequence[bytes]) -> float:
    """How much the instances differ: the root of the mean variance of a weight; 0 of one instance."""
    if len(rows) < 2:
        return 0.0
    return math.sqrt(float(instances_of(terms, rows).var(axis=0, ddof=1, dtype=np.float64).mean())) * terms.step


class InstanceJudge:
    """Refuses reports that are no model, or are unlike the instances of the moment. For one thread at a time.

    A test, and no proof of honesty: it refuses ``terms.spam.false_alarms`` of honest reports, and nothing that stays
    within its bounds. One report costs one pass over its weights: sums over the instances are kept, and made anew after
    as many replacements as there are instances, so that no rounding error adds up.

    Args:
      rows: one per instance.

    Raises:
      ConfigurationError: as ``Terms.decode``.
    """

    def __init__(self, terms: Terms, rows: Sequence[bytes]) -> None:
        self._instances = instances_of(terms, rows)
        self._bytes, self._largest, self._spam, self._count = (
            terms.report_bytes, terms.largest, terms.spam, terms.instances,
        )  # fmt: skip
        self._tests = terms.instances >= 2 and bool(terms.spam.most_deviations or terms.spam.most_spread)
        self._sums: tuple[Float64Array, Float64Array, Float64Array] | None = None
        self._band: tuple[Float64Array, Float64Array, float] | None = None
        self._replaced = 0

    def check(self, report: bytes) -> None:
        """Returns if the report is taken.

        Raises:
          ContributionRefused: MALFORMED for another length, OUT_OF_BOUNDS for a weight beyond the bound or an unlike
            model.
        """
        if len(report) != self._bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        steps = _steps(report)
        if not -self._largest <= int(steps.min()) <= int(steps.max()) <= self._largest:
            raise ContributionRefused(Refusal.OUT_OF_BOUNDS)
        if not self._tests:
            return
        from odp.algorithms.draw_and_discard import kernels

        if self._sums is None:
            self._sums = kernels.sums_of(self._instances)
        if self._band is None:
            centre, total, squares = self._sums
            self._band = kernels.band_of(centre, total, squares, self._count)
        mean, inverse, spreads = self._band
        largest, spread = kernels.compare(steps, mean, inverse, spreads)
        spam = self._spam
        if (spam.most_deviations and largest > spam.most_deviations) or (
            spam.most_spread and spread > spam.most_spread
        ):
            raise ContributionRefused(Refusal.OUT_OF_BOUNDS)

    def replace(self, place: int, report: bytes) -> None:
        """Notes that ``report`` is the instance ``place`` now."""
        if not self._tests:
            return
        from odp.algorithms.draw_and_discard import kernels

        steps = _steps(report)
        if self._sums is not None:
            kernels.move_sums(*self._sums, self._instances[place], steps)
        self._instances[place], self._band = steps, None
        self._replaced += 1
        if self._replaced % self._count == 0:
            self._sums = None


def _steps(report: bytes) -> Int32Array:
    """A report of the right length as int32 [weights], without a copy where the machine has this byte order."""
    return np.frombuffer(report, dtype="<i4").astype(np.int32, copy=False)


def check(terms: Terms, report: bytes, rows: Sequence[bytes]) -> None:
    """``InstanceJudge.check`` beside ``rows``, once."""
    InstanceJudge(terms, rows).check(report)
