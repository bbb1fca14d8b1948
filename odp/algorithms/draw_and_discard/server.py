"""The server's half: the first instances, what is refused, and what the model is.

The server is trusted with nothing: whatever it does with reports is a step after their noise. It serves an instance at
random and overwrites one at random, independently of it; so no lock is held between the two, and several devices may
hold instances at once.

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", algorithm 2 and section III-D.
"""

from __future__ import annotations

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


def check(terms: Terms, report: bytes, rows: Sequence[bytes]) -> None:
    """Refuses a report that is no model, or is unlike the instances ``rows`` of the moment.

    A test, and no proof of honesty: it refuses ``terms.spam.false_alarms`` of honest reports, and nothing that stays
    within its bounds.

    Raises:
      ContributionRefused: MALFORMED for another length, OUT_OF_BOUNDS for a weight beyond the bound or an unlike model.
    """
    if len(report) != terms.report_bytes:
        raise ContributionRefused(Refusal.MALFORMED)
    try:
        given = terms.decode(report)
    except ConfigurationError:
        raise ContributionRefused(Refusal.OUT_OF_BOUNDS) from None
    spam = terms.spam
    if terms.instances < 2 or not (spam.most_deviations or spam.most_spread):
        return
    from odp.algorithms.draw_and_discard import kernels

    largest, spread = kernels.compare(given, instances_of(terms, rows))
    if (spam.most_deviations and largest > spam.most_deviations) or (spam.most_spread and spread > spam.most_spread):
        raise ContributionRefused(Refusal.OUT_OF_BOUNDS)
