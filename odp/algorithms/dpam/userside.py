"""What a device computes, for a batch of devices at once: ``client.py`` runs it for one, ``population.py`` for many.

Arrays are padded to the longest user of the batch; ``mask`` tells real entries. A user's entries stand in the order of
``factorization/subset.py``, so the first ``max_items`` of them are the ones that the user contributes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import codec, smooth
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.terms import (
    BIAS_COLUMN,
    COUNT_COLUMN,
    COUNTS_ROUND,
    FACTOR_COLUMNS,
    TRUST_COLUMN,
    Terms,
)
from odp.algorithms.factorization.codec import ROW_UNITS, adaptive_weights, fit, shortened, uniform_weights
from odp.numerics.arrays import Float64Array, Int64Array


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
    """Predictions float64 [k] for item rows [k, width], of the one user in ``batch``; see ``smooth.py``."""
    order = np.argsort(batch.items[0], kind="stable")
    sorted_rows = batch.rows[0][order]
    added = smooth.predictions(
        sorted_rows[:, FACTOR_COLUMNS:],
        batch.values[0][order] - terms.centre - sorted_rows[:, BIAS_COLUMN],
        sorted_rows[:, TRUST_COLUMN],
        rows[:, FACTOR_COLUMNS:],
        row_ridge=float(ridges[0]),
        bias_ridge=float(ridges[1]),
        variance=terms.kernel_variance,
    )
    return np.asarray(terms.centre + rows[:, BIAS_COLUMN] + added)


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
