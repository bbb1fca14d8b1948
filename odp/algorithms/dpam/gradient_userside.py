"""What a device computes in a round of gradients, for a batch of devices at once.

A device solves its bias and row x on the items' rows, errors in variables included, and has their posterior covariance
P. Of its items it sends the gradient of the expected loss (the M-step of EM),

    g_j  =  (e_j,  e_j x - P v_j),    e_j the residual, v_j the learned factors of item j,

all of it shortened to one L2 clip, and once per round its *moments*, of which the server learns what curvature the sums
have: the second moments of (1, x), the variance of its residuals, and how much the derived factors count for it.

All in units of the public standard deviation of a rating. Source: Dempster, Laird, Rubin 1977 (EM); the rest is
derived here, see docs/dpam.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import gradient_codec as codec
from odp.algorithms.dpam.gradient_codec import Contributions
from odp.algorithms.dpam.terms import BIAS_COLUMN, COUNT_COLUMN, DERIVED_FACTORS, FACTOR_COLUMNS, Terms
from odp.algorithms.dpam.uncertainty import Uncertainty
from odp.algorithms.dpam.userside import Batch
from odp.algorithms.factorization.codec import adaptive_weights, fit
from odp.numerics.arrays import Float64Array

#: Largest mean square of a user's residuals, and largest square of a derived factor's coefficient, that moments carry.
MOST_RESIDUAL, MOST_SQUARE = 2.0, 6.0
_AT_ONCE = 128  # items of a user whose covariances are held at once


@dataclass(frozen=True)
class Solved:
    """Of n users: bias and row [n, 1 + rank], in order (1, factors), and their posterior covariance."""

    row: Float64Array
    covariance: Float64Array


def ridges(terms: Terms, residual: float) -> Float64Array:
    """On (bias, row), float64 [1 + rank], where the variance of residuals is ``residual``."""
    return np.concatenate(([terms.user_bias_ridge * min(1.0, residual)], np.full(terms.rank, residual)))


def masses(terms: Terms, batch: Batch) -> Contributions:
    """Contributions of the round of masses: the first ``max_items`` items of each user, which share its bound alike."""
    mask = batch.mask[:, : terms.max_items]
    weights = adaptive_weights(mask.astype(np.float64))
    size = len(mask)
    return Contributions(
        rows=np.zeros((size, 0), dtype=np.int64),
        items=fit(batch.items[:, : terms.max_items], terms.max_items),
        weights=fit(weights, terms.max_items),
        gradients=np.zeros((size, terms.max_items, 0), dtype=np.int16),
        moments=np.zeros((size, 0), dtype=np.int16),
    )


def solve(terms: Terms, batch: Batch, uncertainty: Uncertainty) -> Solved:
    """Each user's bias and row, and how well its data determine them."""
    design, residual = _design(terms, batch)
    released = uncertainty.residual
    trust: Float64Array = np.empty(batch.mask.shape)
    covariance_sums = np.zeros((len(design), terms.learned - 1, terms.learned - 1))
    for start in range(0, batch.mask.shape[1], _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        covariances = uncertainty.of(batch.rows[:, part, COUNT_COLUMN])
        trust[:, part] = np.where(batch.mask[:, part], released / (released + covariances[:, :, 0, 0]), 0.0)
        covariance_sums += np.einsum("nl,nlij->nij", trust[:, part], covariances[:, :, 1:, 1:])
    weighted = (design * trust[:, :, None]).transpose(0, 2, 1)
    normal = weighted @ design
    learned = slice(1 + DERIVED_FACTORS, None)
    normal[:, learned, learned] += covariance_sums
    diagonal = np.arange(1 + terms.rank)
    normal[:, diagonal, diagonal] += ridges(terms, released)
    inverse: Float64Array = np.asarray(np.linalg.inv(normal), dtype=np.float64)
    right = weighted @ residual[:, :, None]
    return Solved(row=(inverse @ right)[:, :, 0], covariance=released * inverse)


def contributions(terms: Terms, batch: Batch, local: Solved) -> Contributions:
    """Gradients and moments, clipped and rounded: what leaves the devices."""
    first = slice(None, terms.max_items)
    design, residual = (part[:, first] for part in _design(terms, batch))
    mask, learned = batch.mask[:, first], slice(1 + DERIVED_FACTORS, None)
    errors = np.where(mask, residual - (design @ local.row[:, :, None])[:, :, 0], 0.0)
    row = local.row[:, learned]
    row = row * np.minimum(1.0, terms.row_clip / np.maximum(np.linalg.norm(row, axis=1, keepdims=True), 1e-300))
    covariance = local.covariance[:, learned, learned]
    gradients = np.empty((*mask.shape, terms.learned))
    gradients[:, :, 0] = errors
    gradients[:, :, 1:] = errors[:, :, None] * row[:, None, :] - (design[:, :, learned] * mask[:, :, None]) @ covariance
    clip = codec.clip(terms)
    norm = np.sqrt((gradients**2).sum(axis=(1, 2)))
    shortened = np.minimum(1.0, clip / np.maximum(norm, 1e-300))

    used = mask.sum(axis=1)
    full = np.concatenate((np.ones((len(row), 1)), row), axis=1)
    second = full[:, :, None] * full[:, None, :]
    second[:, 1:, 1:] += covariance
    upper = np.triu_indices(terms.learned)
    moments = np.zeros((len(row), codec.moments_of(terms)))
    scale = shortened * np.sqrt(used) / (codec.curvature_unit(terms) * math.sqrt(terms.learned))
    moments[:, : terms.learned_pairs] = scale[:, None] * second[:, upper[0], upper[1]]
    moments[:, terms.learned_pairs] = np.minimum((errors**2).sum(axis=1) / np.maximum(used - 1, 1), MOST_RESIDUAL)
    derived = slice(1, 1 + DERIVED_FACTORS)
    squares = local.row[:, derived] ** 2 + np.diagonal(local.covariance, axis1=1, axis2=2)[:, derived]
    moments[:, terms.learned_pairs + 1 :] = 0.5 * np.minimum(squares, MOST_SQUARE)
    moments[used == 0] = 0.0
    units = codec.quantised(gradients, clip)
    return Contributions(
        rows=np.zeros((len(row), 0), dtype=np.int64),
        items=fit(batch.items[:, first], terms.max_items),
        weights=fit(mask.astype(np.int64), terms.max_items),
        gradients=_padded(units, terms.max_items),
        moments=codec.quantised(moments, codec.MOMENTS_CLIP),
    )


def _design(terms: Terms, batch: Batch) -> tuple[Float64Array, Float64Array]:
    """((1, factors) [n, L, 1 + rank], residuals of the items' biases [n, L])."""
    unit = math.sqrt(terms.residual_variance)
    design = np.empty((*batch.mask.shape, 1 + terms.rank))
    design[:, :, 0] = 1.0
    design[:, :, 1:] = batch.rows[:, :, FACTOR_COLUMNS : FACTOR_COLUMNS + terms.rank] / unit
    return design, (batch.values - terms.centre - batch.rows[:, :, BIAS_COLUMN]) / unit


def _padded(units: npt.NDArray[np.int16], width: int) -> npt.NDArray[np.int16]:
    padded = np.zeros((len(units), width, units.shape[2]), dtype=np.int16)
    padded[:, : units.shape[1]] = units
    return padded
