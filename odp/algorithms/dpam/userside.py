"""What a device computes, for a batch of devices at once: ``client.py`` runs it for one, ``population.py`` for many.

Arrays are padded to the longest user of the batch; ``mask`` tells real entries. A user's entries stand in the order of
``factorization/slices.py``, so the first ``max_items`` of them are the ones that the user contributes.

What a device makes of the numbers of a model, which come from an untrusted server.

- The *ridges* are the same for every device of a round. A model whose ridges would let a solve fail is refused, by
  every device alike.
- The *rows* that a device receives follow from what it holds, so nothing in them is refused: their numbers are brought
  within bounds. With them and the ridges, a user's system of equations is positive definite, and its rounding errors
  stay below its smallest eigenvalue for up to 4,096 items of rank 64.

==============  ==========================================  =============================================
column          within                                      a row with a number that is not finite
==============  ==========================================  =============================================
count           1 .. 2^40                                   1
bias, factors   +-2^8 standard deviations of a residual     0
trust           0 .. 1                                      0: the row takes no part in the solve
==============  ==========================================  =============================================

The simulator applies the same to all rows of a model, so that its users compute what devices do.

Predictions on a device: a linear model of the item rows, plus a smooth one for what is not linear in them.

Training learns item rows for users whose taste is linear in them. A person who likes one half of a genre and not the
other has a taste that no row of theirs can tell. A Gaussian process over the same item rows can: items whose rows are
close are liked alike. It is fitted together with bias and row on the person's own data, on the device, each time
something is predicted. Nothing of it is sent, so it costs no privacy. The same fit says how far a prediction may be off
(``half_widths``).

    value - base  =  bias + <row, item row> + f(item row) + noise,    f ~ GP(0, kernel_variance k(distance of rows))

k is the rational quadratic kernel (1 + d^2 / (2 a l^2))^-a with a = 16: close to the squared exponential, and four
squarings instead of an exponential. ``f`` is a sum of kernels around at most 128 of the person's own items, so the time
of a fit is linear in their number.

Sources: Rasmussen and Williams 2006, *Gaussian Processes for Machine Learning*, sections 2.7 (explicit basis
functions), 4.2.1 (rational quadratic), 8.3.1 (subset of regressors) and 8.3.3 (its variance far from the own items).

How far a prediction may be off: ranges from a person's own leave-one-out residuals. Imports numpy alone.

For item j with row r_j and trust t_j, a person's own fit (``predictions``) says how uncertain a value is, in units of
the residual variance:

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
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dpam import codec
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.terms import (
    BIAS_COLUMN,
    COUNT_COLUMN,
    COUNTS_ROUND,
    FACTOR_COLUMNS,
    GLOBALS_TABLE,
    LEAST_RIDGE,
    RIDGES,
    TRUST_COLUMN,
    Terms,
)
from odp.algorithms.factorization.codec import ROW_UNITS, adaptive_weights, fit, shortened, uniform_weights
from odp.algorithms.factorization.slices import within
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion


@dataclass(frozen=True)
class Batch:
    """Local data of n users: items int64 [n, L], values and mask [n, L], item rows float64 [n, L, width]."""

    items: Int64Array
    values: Float64Array
    mask: npt.NDArray[np.bool_]
    rows: Float64Array


@dataclass(frozen=True)
class LocalParameters:
    """What stays on the devices: bias float64 [n] and row float64 [n, rank], before any clip."""

    bias: Float64Array
    row: Float64Array


def solve(terms: Terms, batch: Batch, ridges: Float64Array, *, rank: int) -> LocalParameters:
    """Each user's bias and row by weighted ridge regression of its residuals on (1, item row), in closed form.

    An entry counts with its item's trust (1 where the server knows the item's row well). ``ridges`` float64 [2] are
    the ridge on the row and on the bias. ``rank`` is 0 before the first factor round: only the bias is solved.
    """
    trust = np.where(batch.mask, batch.rows[:, :, TRUST_COLUMN], 0.0)
    residual = batch.values - terms.centre - batch.rows[:, :, BIAS_COLUMN]
    features = np.empty((*batch.mask.shape, 1 + rank))
    features[:, :, 0] = 1.0
    features[:, :, 1:] = batch.rows[:, :, FACTOR_COLUMNS : FACTOR_COLUMNS + rank]
    weighted = (features * trust[:, :, None]).transpose(0, 2, 1)  # [n, 1 + rank, L]
    normal = weighted @ features
    right = weighted @ residual[:, :, None]
    diagonal = np.arange(1 + rank)
    normal[:, diagonal, diagonal] += np.concatenate((ridges[1:2], np.repeat(ridges[:1], rank)))
    solution = np.linalg.solve(normal, right)[:, :, 0]
    return LocalParameters(bias=solution[:, 0], row=solution[:, 1:])


def predict(terms: Terms, local: LocalParameters, user: Int64Array, rows: Float64Array) -> Float64Array:
    """centre + biases + inner product, float64 [k], for ``user`` [k] (places in ``local``) and item rows [k, width]."""
    rank = local.row.shape[1]
    product = np.einsum("kd,kd->k", local.row[user], rows[:, FACTOR_COLUMNS : FACTOR_COLUMNS + rank])
    return np.asarray(terms.centre + local.bias[user] + rows[:, BIAS_COLUMN] + product)


def smooth_predictions(terms: Terms, batch: Batch, ridges: Float64Array, rows: Float64Array) -> Float64Array:
    """Predictions float64 [k] for item rows [k, width], of the one user in ``batch``; see ``py``."""
    order = np.argsort(batch.items[0], kind="stable")
    sorted_rows = batch.rows[0][order]
    added = predictions(
        sorted_rows[:, FACTOR_COLUMNS:],
        batch.values[0][order] - terms.centre - sorted_rows[:, BIAS_COLUMN],
        sorted_rows[:, TRUST_COLUMN],
        rows[:, FACTOR_COLUMNS:],
        row_ridge=float(ridges[0]),
        bias_ridge=float(ridges[1]),
        variance=terms.kernel_variance,
    )
    return np.asarray(terms.centre + rows[:, BIAS_COLUMN] + added)


def shares(terms: Terms, batch: Batch, ridges: Float64Array, rows: Float64Array, *, rank: int) -> Float64Array:
    """What each entry of the one user in ``batch`` adds to its predictions for item rows [k, width], float64 [k, L].

    A prediction is centre + item bias and the sum of these: it is linear in the own values less their items' base
    values. ``rank`` is 0 before the first factor round.
    """
    order, columns = np.argsort(batch.items[0], kind="stable"), slice(FACTOR_COLUMNS, FACTOR_COLUMNS + rank)
    sorted_rows = batch.rows[0][order]
    residual = batch.values[0][order] - terms.centre - sorted_rows[:, BIAS_COLUMN]
    trust = sorted_rows[:, TRUST_COLUMN]
    fit = fitted(
        sorted_rows[:, columns],
        residual,
        trust,
        row_ridge=float(ridges[0]),
        bias_ridge=float(ridges[1]),
        variance=terms.kernel_variance if rank else 0.0,
    )
    weighted = fit.basis.design(sorted_rows[:, columns]).T * (trust * residual)
    added = np.empty((len(rows), len(order)))
    added[:, order] = fit.basis.design(rows[:, columns]) @ np.linalg.solve(fit.normal, weighted)
    return added


def counted(terms: Terms, items: Int64Array, mask: npt.NDArray[np.bool_]) -> Contributions:
    """Contributions of the round of counts: the first ``max_items`` items of each user."""
    return Contributions(
        rows=np.zeros((len(items), 0), dtype=np.int64),
        items=fit(items, terms.max_items),
        weights=fit(mask, terms.max_items).astype(np.int64),
        targets=np.zeros((len(items), terms.max_items), dtype=np.int64),
    )


def contributions(terms: Terms, batch: Batch, local: LocalParameters, *, round: int) -> Contributions:
    """Clipped, weighted, rounded to integer units: what leaves the devices in a round of biases or factors."""
    if round == COUNTS_ROUND:
        return counted(terms, batch.items, batch.mask)
    rank = terms.rank_of(round)
    first = slice(None, terms.max_items)
    mask = batch.mask[:, first]
    residual = batch.values[:, first] - terms.centre - batch.rows[:, first, BIAS_COLUMN] - local.bias[:, None]
    targets = quantised_targets(residual, terms.target_clip(round))
    weights = quantised_weights(terms, batch.rows[:, first, COUNT_COLUMN], mask)
    targets = bounded_targets(weights, np.where(mask, targets, 0), codec.vector_limit(terms, round))
    return Contributions(
        rows=quantised_rows(terms, local.row) if rank else local.row[:, :0].astype(np.int64),
        items=fit(batch.items[:, first], terms.max_items),
        weights=fit(weights, terms.max_items),
        targets=fit(targets, terms.max_items),
    )


def quantised_targets(targets: Float64Array, clip: float) -> Int64Array:
    """Targets clipped to +-``clip``, in units of clip / 2^9."""
    return np.rint(np.clip(targets / clip, -1.0, 1.0) * codec.TARGET_UNITS).astype(np.int64)


def bounded_targets(weights: Int64Array, targets: Int64Array, limit: int) -> Int64Array:
    """Targets [n, k], a user's scaled down toward zero where its sum of (weight target)^2 exceeds ``limit`` (rule P17).

    Rounding cannot exceed the limit: the sum is an integer, and moves by less than 2^38 2^-50 where it is met.
    """
    products = weights * targets
    squares = (products * products).sum(axis=1, keepdims=True)
    scaled = np.trunc(targets * np.sqrt(limit / np.maximum(squares, 1))).astype(np.int64)
    return np.where(squares > limit, scaled, targets)


def quantised_rows(terms: Terms, rows: Float64Array) -> Int64Array:
    """Rows [n, rank] scaled down to L2 norm ``row_clip`` where longer, in integer units."""
    return shortened(rows * (ROW_UNITS / terms.full_row_bound), codec.row_limit(terms))


def quantised_weights(terms: Terms, counts: Float64Array, mask: npt.NDArray[np.bool_]) -> Int64Array:
    """Weights [n, k] with sum of squares at most 2^20 per user, in units of sqrt(K) / 2^10.

    Uniform: 1 for each item. Adaptive: proportional to (noisy count)^-exponent and up to the bound, so a user with few
    items gives each a larger weight. Source: Krichene et al. 2023 (arXiv 2302.07975), algorithm 2.
    """
    if not terms.adaptive:
        return uniform_weights(mask, terms.max_items)
    return adaptive_weights(np.where(mask, np.maximum(counts, 1.0) ** -terms.weight_exponent, 0.0))


_LARGEST_COUNT = 2.0**40
_LARGEST_DEVIATIONS = 2.0**8
_LARGEST_RIDGE = 2.0**40
# A ridge travels as float32.
_ROUNDING = 1e-6


def ridges(terms: Terms, dense: Mapping[str, Float32Array]) -> Float64Array:
    """The ridges float64 [2] of a model, on a user's row and on its bias.

    Raises:
      ConfigurationError: one is below the least that a definition may ask for, not finite, or huge.
    """
    ridge_pair = np.asarray(dense[GLOBALS_TABLE][0, :RIDGES], dtype=np.float64)
    least = LEAST_RIDGE * (1.0 - _ROUNDING)
    try:
        if terms.rank:
            unit = terms.residual_variance
            _validate.within(row_ridge=float(ridge_pair[0]), low=least * unit, high=_LARGEST_RIDGE * unit)
        _validate.within(bias_ridge=float(ridge_pair[1]), low=least, high=_LARGEST_RIDGE)
    except ConfigurationError as error:
        raise ConfigurationError(f"the model cannot be trained on: {error}") from None
    return ridge_pair


def usable_rows(terms: Terms, rows: Float32Array) -> Float32Array:
    """Item rows float32 [.., width] within the bounds of this module's table."""
    most = _LARGEST_DEVIATIONS * math.sqrt(terms.residual_variance)
    low, high = np.full(terms.width, -most), np.full(terms.width, most)
    low[COUNT_COLUMN], high[COUNT_COLUMN] = 1.0, _LARGEST_COUNT
    low[TRUST_COLUMN], high[TRUST_COLUMN] = 0.0, 1.0
    return within(rows, low, high)


def usable(terms: Terms, broadcast: ModelVersion) -> ModelVersion:
    """A whole model as devices use it. Raises ConfigurationError as ``ridges``."""
    ridges(terms, broadcast.dense)
    return broadcast.with_rows(usable_rows(terms, broadcast.keyed.rows))


#: Own items that kernels stand around.
MOST_CENTRES = 128
#: The kernel's exponent a is 2 to this power.
SQUARINGS = 4
#: Squared length scale l^2, as a share of the variance of the own items' rows.
LENGTH = 0.4
#: Prior variance of the row, beside what it is without the smooth part, which explains some of the same.
ROW_SHARE = 0.7
#: Added to the kernels' own products, so that two items with the same row are no singular system.
JITTER = 1e-4
#: Rows that differ by less, as a share of their squares, count as the same one: there is nothing to be smooth over.
SAME = 1e-12


def centres(entries: int) -> slice:
    """Which of a person's entries, in the order of their items, have a kernel."""
    return slice(None, None, max(1, -(-entries // MOST_CENTRES)))


def predictions(
    rated: Float64Array,
    residual: Float64Array,
    trust: Float64Array,
    wanted: Float64Array,
    *,
    row_ridge: float,
    bias_ridge: float,
    variance: float,
) -> Float64Array:
    """What one person's predictions add to the base values of items, float64 [n].

    Args:
      wanted: rows of the items to predict [n, rank].
      own, residual, trust, row_ridge, bias_ridge: as in ``fitted``.
      variance: of the smooth part, in units of the residual variance; > 0.
    """
    fit = fitted(rated, residual, trust, row_ridge=row_ridge, bias_ridge=bias_ridge, variance=variance)
    return fit.added(wanted)


@dataclass(frozen=True)
class Basis:
    """What a prediction is a sum of: 1, the item's row, and kernels around some of the person's own items.

    Attributes:
      middle: rows of these items [c, rank]; none of a linear model.
      mean: of these rows [rank].
      scale: what squared distances of rows are multiplied by.
    """

    middle: Float64Array
    mean: Float64Array
    scale: float

    def kernels(self, rows: Float64Array) -> Float64Array:
        """Of items with ``rows`` [n, rank]: [n, c]."""
        # Around the mean, since differences of large squares would be inexact.
        off, others = rows - self.mean, self.middle - self.mean
        squares = (off**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * off @ others.T
        kernels = 1.0 / (1.0 + self.scale * np.maximum(squares, 0.0))
        for _ in range(SQUARINGS):
            kernels *= kernels
        return np.asarray(kernels)

    def own_kernels(self) -> Float64Array:
        """Of the items that kernels stand around, [c, c], a matrix that can be inverted."""
        kernels = self.kernels(self.middle)
        kernels[np.diag_indices(len(kernels))] += JITTER
        return kernels

    def design(self, rows: Float64Array) -> Float64Array:
        """[n, 1 + rank + c]."""
        return np.concatenate((np.ones((len(rows), 1)), rows, self.kernels(rows)), axis=1)


@dataclass(frozen=True)
class Fit:
    """One person's bias, row and smooth part, fitted to their own values.

    Attributes:
      basis: what predictions are sums of, p terms.
      variance: of the smooth part.
      normal, right: the system of equations [p, p] and [p].
    """

    basis: Basis
    variance: float
    normal: Float64Array
    right: Float64Array

    def added(self, rows: Float64Array) -> Float64Array:
        """What is added to the base values of items with ``rows`` [n, rank], float64 [n]."""
        return np.asarray(self.basis.design(rows) @ np.linalg.solve(self.normal, self.right))

    def with_variances(self, rows: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
        """(``added``, its variances, variances beside it), float64 [n] each, in units of the residual variance.

        The second are those of the sums given the own values; the third is what the process may do that no sum of its
        kernels does: 0 at an item with a kernel.
        """
        design = self.basis.design(rows)
        inverse = np.linalg.inv(self.normal)
        added, variances = design @ (inverse @ self.right), ((design @ inverse) * design).sum(axis=1)
        unexplained = np.zeros(len(rows))
        if len(self.basis.middle):
            kernels = design[:, -len(self.basis.middle) :]
            explained = ((kernels @ np.linalg.inv(self.basis.own_kernels())) * kernels).sum(axis=1)
            unexplained = self.variance * np.maximum(1.0 - explained, 0.0)
        return added, np.maximum(variances, 0.0), unexplained


def fitted(
    rated: Float64Array,
    residual: Float64Array,
    trust: Float64Array,
    *,
    row_ridge: float,
    bias_ridge: float,
    variance: float,
) -> Fit:
    """The fit to one person's own values.

    Args:
      rated: rows of the own items [k, rank], in ascending order of the items.
      residual: own values less the items' base values [k].
      trust: weight of each entry [k], from 0 to 1.
      row_ridge, bias_ridge: as in ``userside.solve``.
      variance: of the smooth part, in units of the residual variance; 0 for a linear model, as ``userside.solve``.
    """
    size, rank = rated.shape
    middle = rated[centres(size)] if variance else rated[:0]
    mean = middle.mean(axis=0) if len(middle) else np.zeros(rank)
    spread = float(((middle - mean) ** 2).sum())
    scale = 0.0
    if spread > SAME * float((middle**2).sum()):
        scale = 0.5 / (2**SQUARINGS * LENGTH * spread / (len(middle) - 1))
    else:
        middle = middle[:0]
    basis = Basis(middle, mean, scale)
    design = basis.design(rated)
    weighted = design.T * trust
    normal = weighted @ design
    row = row_ridge / ROW_SHARE if variance else row_ridge
    normal[np.diag_indices(1 + rank)] += np.concatenate(([bias_ridge], np.full(rank, row)))
    if len(middle):
        normal[1 + rank :, 1 + rank :] += basis.own_kernels() / variance
    return Fit(basis, variance, normal, weighted @ residual)


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
      ridges, variance: as in ``fitted``; ridges [2] on the row and on the bias.
    """
    fit = fitted(
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
