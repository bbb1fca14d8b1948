"""From noisy sums to item rows: empirical Bayes with the known noise level, all of it post-processing.

An item's right-hand side is its count times the mean row of the users who saw it. Where noise drowns the item, that
mean falls back to the mean of all items' users, so that the item keeps its popularity and loses its character.
Source: Efron and Morris 1973 (empirical Bayes shrinkage); the variance model is derived here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odp.numerics.arrays import Float64Array

_STEPS = 30


@dataclass(frozen=True)
class Visitors:
    """Sum over an item's users of their weighted rows, ``sums`` [h, d]; the ``mean`` row [d] of a user of any item."""

    sums: Float64Array
    mean: Float64Array


def visitors(noisy: Float64Array, mass: Float64Array, *, noise_std: float) -> Visitors:
    """Noisy right-hand sides, each shrunk toward its mass times what all items have in common.

    Model: noisy_j = mass_j x_j + noise, x_j ~ N(mean, covariance); the mean is the least-squares one, the covariance is
    estimated by EM.

    Args:
      noisy: [h, d].
      mass: estimated masses [h] > 0.
      noise_std: of every entry of ``noisy``; with 0 they are returned as they are.
    """
    mean = mass @ noisy / max(float(mass @ mass), 1e-300)
    if not noise_std:
        return Visitors(noisy, mean)
    off = noisy - mass[:, None] * mean
    variance = noise_std**2
    start = max(float((off**2).mean()) - variance, 1e-3 * variance) / float((mass**2).mean())
    covariance = start * np.eye(noisy.shape[1])
    for _ in range(_STEPS):
        # In the covariance's own axes every coordinate of every item is a scalar problem.
        values, axes = np.linalg.eigh(covariance)
        values = np.maximum(values, 0.0)
        own = mass[:, None] ** 2 * values
        gain = own / (own + variance)
        change = gain * (off @ axes) / mass[:, None]
        spread = change.T @ change + np.diag((values * (1.0 - gain)).sum(axis=0))
        covariance = axes @ (spread / len(noisy)) @ axes.T
        covariance = (covariance + covariance.T) / 2
    return Visitors(mass[:, None] * (mean + change @ axes.T), mean)


def item_grams(noisy: Float64Array, mass: Float64Array, *, noise_std: float) -> Float64Array:
    """Gram matrices [h, d, d], positive semidefinite, each shrunk toward its mass times the shape common to all items.

    Args:
      noisy: symmetric [h, d, d].
      mass: [h] > 0.
      noise_std: of diagonal entries; off-diagonals have it divided by sqrt(2). With 0, ``noisy`` is returned.
    """
    if not noise_std:
        return noisy
    width = noisy.shape[1]
    common = nearest_psd(noisy.sum(axis=0)) / float(mass.sum())
    expected = mass[:, None, None] * common
    off = noisy - expected
    noise = noise_std**2 * (width + 1) / 2  # of the squared Frobenius norm, per row of the matrix
    excess = (off**2).sum(axis=(1, 2)) / width - noise
    between = max(float((excess * mass**2).sum() / (mass**4).sum()), 0.0) * mass**2
    gain = between / (between + noise)
    return nearest_psd(expected + gain[:, None, None] * off)


def nearest_psd(matrices: Float64Array) -> Float64Array:
    """Symmetric matrices [.., d, d] with their negative eigenvalues set to zero."""
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.maximum(values, 0.0)[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def unpacked(packed: Float64Array, width: int) -> Float64Array:
    """Symmetric matrices [.., d, d] from packed upper triangles [.., d (d + 1) / 2]."""
    first, second = np.triu_indices(width)
    full = np.empty((*packed.shape[:-1], width, width))
    full[..., first, second] = packed
    full[..., second, first] = packed
    return full
