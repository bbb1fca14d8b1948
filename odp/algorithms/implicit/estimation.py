"""From noisy sums to item rows: empirical Bayes with the known noise level, all of it post-processing.

Let M [h, h] be the mean of x x' over users, x a user's weighted interactions of length 1. A factor round that starts
from V (orthonormal columns) releases Y = sum over users of x times the direction of x V: a noisy measurement of M V, up
to a factor. Subspace iteration goes on from the last Y alone. Here every round counts: each is a linear measurement of
the same M, and what they say together of M W, for a basis W of the newest subspace, has less noise than the last.

Source: Halko, Martinsson, Tropp 2011 (arXiv 0909.4061) for subspace iteration; Hardt and Price 2014 (arXiv 1311.2495)
for its noisy form; Efron and Morris 1973 for shrinkage. The combination and the variance model are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odp.numerics.arrays import Float32Array, Float64Array

_STEPS = 10
_COMBINATIONS = 2
# What features tell is first unknown and counts as the items' own variance: the second and third time it does not.
_FEATURE_TURNS = 3
# Of the largest eigenvalue: directions that the rounds measured less are estimated as if they had this much.
_LEAST_INFORMATION = 1e-6
# Of the largest singular value: columns of features that say less are rounding error.
_LEAST_DIRECTION = 1e-6

#: A training round scales its rows so that a user of random taste has a row of this many clips.
REACH = 4.0


@dataclass(frozen=True)
class Visitors:
    """Sum over an item's users of their weighted rows, ``sums`` [h, d]; the ``mean`` row [d] of a user of any item."""

    sums: Float64Array
    mean: Float64Array


@dataclass(frozen=True)
class Measurement:
    """One factor round: ``sums`` [h, d] over ``users`` whose rows have length 1, from ``start`` [h, d], orthonormal."""

    users: float
    start: Float32Array
    sums: Float32Array

    @property
    def scale(self) -> float:
        """c in sums = c M start + noise: users by the mean length of x V, which the trace of V' sums tells.

        The length is at most 1, and is taken to be no less than what makes a row reach its clip.
        """
        users = max(self.users, 1.0)
        total = float(np.einsum("hd,hd->", self.start, self.sums, dtype=np.float64))
        least = math.sqrt(self.start.shape[1] / len(self.start)) / REACH
        return users / min(max(total / users, least), 1.0)


def visitors(
    noisy: Float64Array,
    mass: Float64Array,
    *,
    noise_std: float,
    directions: Float64Array | None = None,
    supported: bool = False,
) -> Visitors:
    """Noisy right-hand sides, each shrunk toward its mass times what all items have in common, and features tell of it.

    Model: noisy_j = mass_j x_j + noise, x_j ~ N(mean + features_j B, covariance). The mean is the least-squares one.
    Along each direction of the features, B is the least-squares one by a factor of James and Stein, 0 where the energy
    is no more than items without features would have. The covariance is estimated by a few steps of EM. Where noise
    drowns an item, it keeps its popularity and what features tell, and loses its own character.

    Args:
      noisy: [h, d].
      mass: estimated masses [h] > 0, up to a common factor, on which ``sums`` do not depend.
      noise_std: of every entry of ``noisy``; with 0 they are returned as they are.
      directions: orthonormal columns [h, k] of mass times features (``feature_directions``); None is the first one
        alone.
      supported: leaves out axes of the covariance that noise alone may explain: those that raise the log likelihood by
        at most d. The first of d axes of pure noise reaches about d (the edge of its eigenvalues).
    """
    mean = mass @ noisy / max(float(mass @ mass), 1e-300)
    if not noise_std:
        return Visitors(noisy, mean)
    variance = noise_std**2
    expected, start = _predicted_sums(noisy, mass, mean, variance=variance, directions=directions)
    off = noisy - expected
    covariance = start * np.eye(noisy.shape[1])
    for _ in range(_STEPS):
        # In the covariance's own axes every coordinate of every item is a scalar problem.
        values, axes = np.linalg.eigh(covariance)
        values = np.maximum(values, 0.0)
        prior_variance = mass[:, None] ** 2 * values
        gain = prior_variance / (prior_variance + variance)
        turned = off @ axes
        change = gain * turned / mass[:, None]
        spread = change.T @ change + np.diag((values * (1.0 - gain)).sum(axis=0))
        covariance = axes @ (spread / len(noisy)) @ axes.T
        covariance = (covariance + covariance.T) / 2
    if supported:
        likelihood = 0.5 * (gain * turned**2 / variance - np.log1p(prior_variance / variance)).sum(axis=0)
        change = change * (likelihood > len(likelihood))
    return Visitors(expected + mass[:, None] * (change @ axes.T), mean)


def _predicted_sums(
    noisy: Float64Array, mass: Float64Array, mean: Float64Array, *, variance: float, directions: Float64Array | None
) -> tuple[Float64Array, float]:
    """(what mean and features tell of the sums [h, d], mean variance of an item's x_j around it in each column)."""
    first = mass[:, None] * mean
    expected, start = first, 0.0
    for turn in range(1 if directions is None else 1 + _FEATURE_TURNS):
        if directions is not None and turn:
            further = directions[:, 1:]
            coefficients = further.T @ noisy
            alike = noisy.shape[1] * (variance + start * (mass**2 @ further**2))
            expected = first + further @ (
                np.maximum(1.0 - alike / np.square(coefficients).sum(axis=1), 0.0)[:, None] * coefficients
            )
        spread = float(np.square(noisy - expected).mean()) - variance
        start = max(spread, 1e-3 * variance) / float((mass**2).mean())
    return expected, start


def combined(
    measurements: Sequence[Measurement],
    mass: Float64Array,
    *,
    noise_std: float,
    directions: Float64Array | None = None,
    supported: bool = False,
) -> Visitors:
    """M W [h, d] up to a factor, from all rounds so far, W a basis of the column space of the newest estimate.

    With Y_s = c_s M V_s + noise and M V_s ~ M W W' V_s, each round measures M W through B_s = c_s W' V_s. The
    least-squares sums are turned and scaled so that their noise is white, shrunk, and turned back. What lies outside of
    W counts as noise of its round: the second time, a round's noise is that of its residuals, if that is more.

    Args:
      measurements: in the order of the rounds; of the newest alone, its sums are shrunk.
      mass, directions, supported: as of ``visitors``.
      noise_std: of every entry of every round's sums; with 0, the newest sums are exact and are returned.
    """
    newest = measurements[-1].sums.astype(np.float64)
    estimate = visitors(
        newest, mass, noise_std=noise_std, directions=directions, supported=supported and len(measurements) == 1
    )
    if len(measurements) == 1 or not noise_std:
        return estimate
    stds = [noise_std] * len(measurements)
    for turn in range(_COMBINATIONS):
        basis = orthonormal(estimate.sums)
        information = np.zeros((basis.shape[1], basis.shape[1]))
        sums = np.zeros_like(basis)
        reaches = [basis.T @ measured.start * measured.scale for measured in measurements]
        for measured, reach, std in zip(measurements, reaches, stds, strict=True):
            information += reach @ reach.T / std**2
            sums += measured.sums @ (reach.T / std**2)
        values, axes = np.linalg.eigh(information)
        root = np.sqrt(np.maximum(values, _LEAST_INFORMATION * values[-1]))
        last = turn == _COMBINATIONS - 1
        white = visitors(sums @ axes / root, mass, noise_std=1.0, directions=directions, supported=supported and last)
        estimate = Visitors((white.sums / root) @ axes.T, (white.mean / root) @ axes.T)
        residuals = [
            measured.sums - estimate.sums @ reach for measured, reach in zip(measurements, reaches, strict=True)
        ]
        stds = [max(noise_std, math.sqrt(float(np.square(residual).mean()))) for residual in residuals]
    return estimate


def orthonormal(columns: Float64Array) -> Float64Array:
    """An orthonormal basis [h, d] of a space that has the columns of [h, d], d <= h."""
    return np.asarray(np.linalg.qr(columns)[0])


def feature_directions(features: Float64Array, mass: Float64Array) -> Float64Array:
    """Orthonormal columns [h, at most 1 + p]: ``mass`` [h] itself, then those of mass times features, strongest first.

    An item's row of sums is its mass times what its users have in common, which ``features`` [h, p] may tell.
    """
    first = (mass / max(float(np.linalg.norm(mass)), 1e-300))[:, None]
    columns = mass[:, None] * features
    largest = float(np.linalg.norm(columns, axis=0).max())
    columns = columns - first @ (first.T @ columns)
    basis, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.concatenate((first, basis[:, values > _LEAST_DIRECTION * largest]), axis=1)


def spectral_map(sums: Float64Array, *, exponent: float) -> Float64Array:
    """T [d, d] such that, with sums = U diag(s) W', sums T = U diag((s / s_1)^exponent).

    Directions whose singular value is rounding error become 0.
    """
    _, values, axes = np.linalg.svd(sums, full_matrices=False)
    real = values > values[0] * max(sums.shape) * np.finfo(np.float64).eps
    inverse = np.zeros_like(values)
    inverse[real] = (values[real] / values[0]) ** exponent / values[real]
    return np.asarray(axes.T * inverse)
