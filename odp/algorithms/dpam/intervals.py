"""How far a prediction may be off: ranges from a person's own leave-one-out residuals. Imports numpy alone.

For item j with row r_j and trust t_j, a person's own fit (``smooth.py``) says how uncertain a value is, in units of the
residual variance:

    s_j^2  =  1 / t_j  +  x_j' N^-1 x_j  +  v_j

The item's own uncertainty and the noise of a rating are in 1 / t_j, the person's in the second term, with N the system
of equations of the fit and x_j what stands for the item in it. v_j is what the smooth part may do far from all own
items. How large the unit is, and what the tails look like, the person's own ratings tell: each is predicted from all
others,

    e_i  =  (y_i - prediction) / (1 - h_i),   h_i = t_i x_i' N^-1 x_i,   z_i = |e_i| / s_i without entry i

in closed form. The range at level p is the prediction +- q s_j, q the p-quantile of the z_i together with ten entries
of a half-normal: its variance is that of the z_i and of ten entries with the public residual variance. Own and new
ratings are alike, so that the range covers about p of the new ones, as in the jackknife; what is public counts where a
person has few ratings. It reads own ratings and the public model, and nothing is sent: it costs no privacy.

Sources: Rasmussen and Williams 2006, sections 2.2 and 5.4.2 (leave-one-out); Barber, Candès, Ramdas, Tibshirani 2021,
*Predictive Inference with the Jackknife+* (arXiv 1905.02928).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from odp.algorithms.dpam import smooth
from odp.algorithms.dpam.terms import BIAS_COLUMN, FACTOR_COLUMNS, TRUST_COLUMN, Terms
from odp.algorithms.dpam.userside import Batch
from odp.numerics.arrays import Float64Array

#: Own ratings that each public guess counts as: the variance of residuals, and the shape of their distribution.
PRIOR_ENTRIES = 10.0
#: Points of its distribution.
_POINTS = 100
#: Items of less trust tell nothing of residuals, and have the ranges of this one.
_LEAST_TRUST = 1e-3
#: Of 1 - h, which ridges keep above 0 but for rounding.
_LEAST_LEFT = 1e-9


@dataclass(frozen=True)
class LeaveOneOut:
    """What one person's own ratings say of predictions: ``scores`` z_i [k] of own entries, ``spread`` s_j [n]."""

    scores: Float64Array
    spread: Float64Array


def half_widths(
    terms: Terms, batch: Batch, ridges: Float64Array, rows: Float64Array, levels: Float64Array, *, rank: int
) -> Float64Array:
    """Half widths float64 [levels, n] of the ranges of items with ``rows`` [n, width], for the one user in ``batch``.

    ``rank`` is 0 before the first factor round, and ``ridges`` are as in ``userside.solve``. Every row is one of
    ``received.usable_rows``.
    """
    order = np.argsort(batch.items[0], kind="stable")
    sorted_rows, columns = batch.rows[0][order], slice(TRUST_COLUMN, FACTOR_COLUMNS + rank)
    held_out = leave_one_out(
        sorted_rows[:, columns],
        batch.values[0][order] - terms.centre - sorted_rows[:, BIAS_COLUMN],
        rows[:, columns],
        ridges,
        variance=terms.kernel_variance if rank else 0.0,
    )
    return quantiles(held_out.scores, math.sqrt(terms.residual_variance), levels)[:, None] * held_out.spread


def leave_one_out(
    entries: Float64Array, residual: Float64Array, wanted: Float64Array, ridges: Float64Array, *, variance: float
) -> LeaveOneOut:
    """The scores of own entries and the spreads of others.

    Args:
      entries: trust and factors of own items [k, 1 + rank], in ascending order of the items.
      residual: own values less the items' base values [k].
      wanted: trust and factors of the items to predict [n, 1 + rank].
      ridges, variance: as in ``smooth.fitted``; ridges [2] on the row and on the bias.
    """
    fit = smooth.fitted(
        entries[:, 1:],
        residual,
        entries[:, 0],
        row_ridge=float(ridges[0]),
        bias_ridge=float(ridges[1]),
        variance=variance,
    )
    trusted = entries[:, 0] >= _LEAST_TRUST
    trust, size = entries[trusted, 0], int(trusted.sum())
    added, variances, unexplained = fit.with_variances(np.concatenate((entries[trusted, 1:], wanted[:, 1:])))
    left = np.maximum(1.0 - trust * variances[:size], _LEAST_LEFT)
    errors = np.abs(residual[trusted] - added[:size]) / left
    return LeaveOneOut(
        scores=errors / np.sqrt(1.0 / (trust * left) + unexplained[:size]),
        spread=np.sqrt(1.0 / np.maximum(wanted[:, 0], _LEAST_TRUST) + variances[size:] + unexplained[size:]),
    )


def quantiles(scores: Float64Array, public_std: float, levels: Float64Array) -> Float64Array:
    """Quantiles at ``levels`` of own ``scores`` [k] and of ``PRIOR_ENTRIES`` others, float64 as ``levels``.

    The others are half-normal. Their variance is that of own scores and as many public entries together.
    """
    size = len(scores)
    scale = math.sqrt((float(scores @ scores) + PRIOR_ENTRIES * public_std**2) / (size + PRIOR_ENTRIES))
    points = np.concatenate((scores, scale * _half_normal()))
    weights = np.concatenate((np.ones(size), np.full(_POINTS, PRIOR_ENTRIES / _POINTS)))
    order = np.argsort(points, kind="stable")
    below = np.cumsum(weights[order]) - 0.5 * weights[order]
    return np.asarray(np.interp(levels, below / weights.sum(), points[order]))


@functools.cache
def _half_normal() -> Float64Array:
    """Points of equal probability of |N(0, 1)|, float64 [_POINTS], ascending."""
    normal = NormalDist()
    return np.array([normal.inv_cdf(0.5 + 0.5 * (place + 0.5) / _POINTS) for place in range(_POINTS)])
