"""Public item features in the server's estimates: prior means that a linear map predicts, and columns of the model.

Private data come in through noisy sums alone, so whatever is computed here costs no privacy, however many steps it
takes. Features help in two ways, and both reach items without ratings:

- as prior: an item's bias and row are shrunk toward what a linear map of its features predicts, instead of toward what
  all items have in common;
- as columns: the principal components of the features are factors of the model from the start. A device learns its
  user's taste for them from its own ratings, so even a model without any factor round is personal.

Sources: Krichene et al. 2024 (arXiv 2310.15454) for the principle; Henderson 1975 (mixed models) for the weighting of
the items by the precision of their own statistics; formulas derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import estimation, posteriors
from odp.algorithms.dpam.estimation import Grams
from odp.algorithms.dpam.posteriors import Rows
from odp.numerics.arrays import Float64Array

# Prior variance of a coefficient of the factors' map, in units of the residual variance.
_FACTOR_PRIOR = 0.02
_ALTERNATIONS = 3
_TOLERANCE = 1e-6
_MOST_STEPS = 200
_BLOCK = 1024  # items: bounds the memory of a step
# More components than a model can have columns would mostly be the items' names.
MOST_COMPONENTS = 64
# Components of less than this share of the variance are rounding errors of others.
_SMALLEST_SHARE = 1e-6
_ROUNDING = 1e-12


def components(features: npt.NDArray[np.floating], weight: Float64Array) -> Float64Array:
    """Principal components of public features, largest first: float64 [m, q], q <= 64; their variances add up to 1.

    Means and variances are over items weighted by ``weight`` [m] > 0, such as their masses, so that columns describe
    what people watch. q is smaller than the features' width where columns follow from others.
    """
    share = weight / weight.sum()
    features64 = features.astype(np.float64)
    centred = features64 - share @ features64
    total = float((share @ centred**2).sum())
    if total <= _ROUNDING * float(share @ (features64**2).sum(axis=1)):
        return np.empty((len(features), 0))  # all items look alike
    return _principal(centred / np.sqrt(total), share)


def joined(groups: Sequence[Float64Array], relevance: Float64Array, weight: Float64Array) -> Float64Array:
    """Principal components float64 [m, q], q <= 64, of several groups of :func:`components`.

    The variances of a group add up to its ``relevance`` [g]; a group of relevance 0 is left out.
    """
    scaled = [np.sqrt(share) * part for part, share in zip(groups, relevance, strict=True) if share and part.shape[1]]
    if not scaled:
        return np.empty((len(weight), 0))
    # The components of a single group are principal already.
    return scaled[0] if len(scaled) == 1 else _principal(np.concatenate(scaled, axis=1), weight / weight.sum())


def _principal(centred: Float64Array, share: Float64Array) -> Float64Array:
    variances, directions = np.linalg.eigh((centred * share[:, None]).T @ centred)
    total = float(np.maximum(variances, 0.0).sum())
    strongest = np.flatnonzero(variances > _SMALLEST_SHARE * total)[::-1][:MOST_COMPONENTS]
    return np.asarray(centred @ directions[:, strongest], dtype=np.float64)


def linear_map(
    matrices: Float64Array, targets: Float64Array, features: Float64Array, *, ridge: Float64Array
) -> Float64Array:
    """W float64 [d, q] with sum_j A_j W f_j f_j' + diag(ridge) W = sum_j b_j f_j', by conjugate gradients.

    It minimises the loss sum_j (v_j' A_j v_j - 2 b_j' v_j) + ridge over v_j = W f_j. The system of size d q is never
    formed: a product costs m (d^2 + 2 d q). Preconditioned by its diagonal; stops at a relative residual of 1e-6 or
    after 200 products.

    Args:
      matrices: positive semidefinite [m, d, d].
      targets: [m, d].
      features: [m, q].
      ridge: > 0, per row of W [d].
    """

    def product(matrix: Float64Array) -> Float64Array:
        moved = (matrices @ (features @ matrix.T)[:, :, None])[:, :, 0]
        return np.asarray(moved.T @ features + ridge[:, None] * matrix)

    diagonal = np.diagonal(matrices, axis1=1, axis2=2).T @ features**2 + ridge[:, None]
    return _conjugate_gradients(product, targets.T @ features, diagonal)


def hybrid_rows(
    targets: Float64Array,
    gram: Grams,
    weight: Float64Array,
    start: Float64Array,
    bias_variance: Float64Array,
    features: Float64Array,
    *,
    noise_std: float,
    residual_variance: float,
    ridge: float,
) -> Rows:
    """Full item rows as :func:`posteriors.rows`, around ``start + W f_j`` instead of ``start``.

    W maximises the likelihood of the noisy right-hand sides with the rows' residuals integrated out, so every item
    counts by the precision of its own statistics; it alternates with the estimate of the residuals' covariance.

    Args:
      features: components [m, q] of :func:`components`; the others as of :func:`posteriors.rows`.
    """
    alternations = _ALTERNATIONS if features.shape[1] else 1
    width = targets.shape[1]
    prior_variance = residual_variance * np.concatenate(([estimation.FEATURE_PRIOR], np.full(width - 1, _FACTOR_PRIOR)))
    centre = start
    for alternation in range(alternations):
        item_rows = posteriors.rows(
            targets,
            gram,
            weight,
            centre,
            bias_variance,
            noise_std=noise_std,
            residual_variance=residual_variance,
            ridge=ridge,
        )
        if alternation + 1 < alternations:
            noise = noise_std**2 + gram.variance * (bias_variance + np.trace(item_rows.prior) + (centre**2).sum(axis=1))
            if alternation == 0:
                matrices = gram.matrices
                off = targets - (matrices @ start[:, :, None])[:, :, 0]
            precision, evidence = _projected(
                matrices, item_rows.prior, bias_variance, noise, residual_variance * weight, off
            )
            centre = start + features @ linear_map(precision, evidence, features, ridge=1.0 / prior_variance).T
    return item_rows


def _projected(
    matrices: Float64Array,
    common: Float64Array,
    bias_variance: Float64Array,
    noise: Float64Array,
    sampling: Float64Array,
    off: Float64Array,
) -> tuple[Float64Array, Float64Array]:
    """(A T^-1 A, A T^-1 off) per item, T = A P A + noise I + sampling A: what the targets tell about the rows' means.

    P is the prior covariance of an item's row: ``bias_variance`` of the bias, ``common`` of the factors.
    """
    width = matrices.shape[1]
    precision, evidence = np.empty_like(matrices), np.empty_like(off)
    identity = np.eye(width)
    for begin in range(0, len(matrices), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        some = matrices[block]
        prior = np.zeros_like(some)
        prior[:, 0, 0], prior[:, 1:, 1:] = bias_variance[block], common
        total = some @ prior @ some + noise[block, None, None] * identity + sampling[block, None, None] * some
        total += (1e-9 * np.trace(total, axis1=1, axis2=2) + 1e-12)[:, None, None] * identity
        solved = some @ np.linalg.solve(total, np.concatenate((some, off[block, :, None]), axis=2))
        precision[block], evidence[block] = solved[:, :, :-1], solved[:, :, -1]
    return precision, evidence


def _conjugate_gradients(
    product: Callable[[Float64Array], Float64Array], right: Float64Array, diagonal: Float64Array
) -> Float64Array:
    """Solves a symmetric positive definite system, preconditioned by its diagonal."""
    solution = np.zeros_like(right)
    residual = right.copy()
    scaled = residual / diagonal
    direction = scaled
    strength = float((residual * scaled).sum())
    target = _TOLERANCE * float(np.linalg.norm(right))
    for _ in range(_MOST_STEPS):
        if float(np.linalg.norm(residual)) <= target:
            break
        image = product(direction)
        length = strength / float((direction * image).sum())
        solution = solution + length * direction
        residual = residual - length * image
        scaled = residual / diagonal
        following = float((residual * scaled).sum())
        direction = scaled + following / strength * direction
        strength = following
    return solution
