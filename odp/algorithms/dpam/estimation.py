"""From noisy sums to item parameters: empirical Bayes with the known noise level, all of it post-processing.

Every estimate is a compromise between an item's own noisy statistics and what all items have in common, weighted by
their variances; where the noise drowns an item, the item gets the common value, so noise costs accuracy gently.
Sources: Kiefer and Wolfowitz 1956 (mixtures); Efron and Morris 1973 (empirical Bayes shrinkage).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

_STEPS = 60
_ROW_STEPS = 25
_GRID = 80
_SCATTER = 0.2


@dataclass(frozen=True)
class Estimate:
    """Per-item posterior: mean and variance, float64 [m]."""

    mean: Float64Array
    variance: Float64Array


@dataclass(frozen=True)
class Popularity:
    """What noisy counts tell: a grid of counts [g], each item's posterior over it [m, g], posterior means [m] >= 1."""

    grid: Float64Array
    posterior: Float64Array
    mean: Float64Array


def popularity(counts: Float64Array, *, noise_std: float) -> Popularity:
    """Posterior of the true counts under a common prior, which is estimated from all noisy counts by EM.

    Source: Kiefer and Wolfowitz 1956 (maximum likelihood over mixing distributions).
    """
    top = max(float(counts.max()), 2.0)
    grid = np.geomspace(1.0, top, _GRID)
    cell = np.maximum(0.5 * np.gradient(grid), 0.5)  # spread of the true counts that one grid point stands for
    spread = np.hypot(noise_std, cell)
    likelihood = _normal_likelihood(counts[:, None], grid, spread)
    prior = np.full(_GRID, 1.0 / _GRID)
    posterior = likelihood
    for _ in range(_STEPS):
        posterior = likelihood * prior
        posterior /= posterior.sum(axis=1, keepdims=True)
        prior = posterior.mean(axis=0)
    within = grid + (cell / spread) ** 2 * (counts[:, None] - grid)
    return Popularity(grid, posterior, np.maximum((posterior * within).sum(axis=1), 1.0))


def masses(
    noisy: Float64Array, known: Popularity, used: Float64Array, exponent: float, *, noise_std: float
) -> Estimate:
    """Weight mass of each item from its noisy value and from what is known of its count.

    A rating of item j has the weight c * used_j ** -exponent, where c varies little between users: so the mass is close
    to c * count * used ** -exponent, with a relative scatter of ``_SCATTER``.

    Args:
      noisy: noisy masses [m].
      known: of the counts.
      used: the counts that the devices weighted by [m].
      exponent: of the weights; 0 where they are uniform.
      noise_std: of ``noisy``.
    """
    unit = used**-exponent
    expected = known.mean * unit
    scale = max(float((expected * noisy).sum() / (expected**2).sum()), 1e-9)
    centre = scale * unit[:, None] * known.grid
    own = (_SCATTER * centre) ** 2
    gain = own / (own + noise_std**2)
    chance = known.posterior * _normal_likelihood(noisy[:, None], centre, np.sqrt(own + noise_std**2))
    chance /= chance.sum(axis=1, keepdims=True)
    local = centre + gain * (noisy[:, None] - centre)
    mean = (chance * local).sum(axis=1)
    variance = (chance * (gain * noise_std**2 + (local - mean[:, None]) ** 2)).sum(axis=1)
    return Estimate(mean=np.maximum(mean, 0.05 * expected * scale), variance=variance)


def _normal_likelihood(value: Float64Array, centre: Float64Array, std: Float64Array) -> Float64Array:
    """Normal densities along the last axis, up to a factor per item; never all zero."""
    exponent = -0.5 * ((value - centre) / std) ** 2 - np.log(std)
    return np.asarray(np.exp(exponent - exponent.max(axis=1, keepdims=True)) + 1e-300)


def biases(
    sums: Float64Array, mass: Estimate, counts: Float64Array, *, noise_std: float, residual_variance: float
) -> Estimate:
    """Item biases from noisy weighted target sums, shrunk toward a quadratic in the logarithm of the count.

    Model: sums = mass * bias + noise, bias ~ N(trend, between); ``between`` maximises the marginal likelihood under a
    broad prior, which decides where the noise leaves too little evidence.
    """
    size = mass.mean
    sampling = residual_variance * size**2 / np.maximum(counts, 1.0)
    logarithm = np.log(counts)
    logarithm = (logarithm - logarithm.mean()) / (logarithm.std() + 1e-9)
    features = np.stack((np.ones_like(size), logarithm, logarithm**2), axis=1)
    tightness = np.diag(1.0 / (residual_variance * np.array([1.0, 0.2, 0.03])))
    guess = 0.15 * residual_variance
    best = (-np.inf, np.zeros_like(size), np.zeros_like(size))
    for between in guess * np.geomspace(0.05, 5.0, 25):
        variance = noise_std**2 + sampling + (guess + between) * mass.variance
        total = variance + between * size**2
        weighted = features * (size / total)[:, None]
        normal = weighted.T @ (features * size[:, None]) + tightness
        coefficients = np.linalg.solve(normal, weighted.T @ sums)
        trend = features @ coefficients
        off = sums - size * trend
        evidence = -0.5 * float((off**2 / total + np.log(total)).sum() + coefficients @ tightness @ coefficients)
        evidence -= 0.5 * math.log(between / guess) ** 2 + 0.5 * float(np.linalg.slogdet(normal)[1])
        if evidence > best[0]:
            gain = between * size / total
            best = (evidence, trend + gain * off, between * variance / total)
    return Estimate(mean=best[1], variance=best[2])


def unclipped(clip: float, variance: float) -> float:
    """Factor by which clipping to +-``clip`` shrinks the mean of a normal of ``variance`` near zero, inverted."""
    return 1.0 / math.erf(clip / math.sqrt(2.0 * variance))


def unpacked(packed: Float64Array, width: int) -> Float64Array:
    """Symmetric matrices [m, d, d] from packed upper triangles [m, d (d + 1) / 2]."""
    first, second = np.triu_indices(width)
    full = np.empty((len(packed), width, width))
    full[:, first, second] = packed
    full[:, second, first] = packed
    return full


def nearest_psd(matrices: Float64Array) -> Float64Array:
    """Each symmetric matrix [m, d, d] with its negative eigenvalues set to zero."""
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1))


@dataclass(frozen=True)
class Grams:
    """Gram matrices [m, w, w], positive semidefinite; their common shape [w, w] per mass; variance of entries [m]."""

    matrices: Float64Array
    common: Float64Array
    variance: Float64Array


def grams(packed: Float64Array, mass: Float64Array, *, width: int, noise_std: float) -> Grams:
    """Gram matrices from noisy sums: each shrunk toward mass times the Gram matrix that all items have in common."""
    noisy = unpacked(packed, width)
    total = float(mass.sum())
    common = nearest_psd(noisy.sum(axis=0)[None])[0] / total
    common += (1e-6 * float(np.trace(common)) / width + 1e-12) * np.eye(width)
    expected = mass[:, None, None] * common
    off = noisy - expected
    first, second = np.triu_indices(width)
    noise = np.where(first == second, noise_std**2, noise_std**2 / 2)
    excess = (off[:, first, second] ** 2 - noise).mean(axis=1)
    # Spread around the common shape: mass times a constant (users are random) plus mass^2 times one (audiences differ).
    design = np.stack((mass, mass**2), axis=1)
    weight = 1.0 / (noise.mean() + mass * float(np.trace(common)) ** 2) ** 2
    spread = np.maximum(_nonnegative(design * np.sqrt(weight)[:, None], excess * np.sqrt(weight)), 0.0)
    between = design @ spread
    gain = between / (between + noise.mean() + 1e-300)
    matrices = nearest_psd(expected + gain[:, None, None] * off)
    return Grams(matrices=matrices, common=common, variance=gain * float(noise.mean()))


def _nonnegative(design: Float64Array, values: Float64Array) -> Float64Array:
    """Nonnegative least squares with two columns."""
    both = np.linalg.lstsq(design, values, rcond=None)[0]
    if (both >= 0).all():
        return np.asarray(both)
    single = np.maximum((design * values[:, None]).sum(axis=0) / (design**2).sum(axis=0), 0.0)
    losses = [float(((values - design[:, column] * single[column]) ** 2).sum()) for column in range(2)]
    best = int(np.argmin(losses))
    return np.where(np.arange(2) == best, single, 0.0)


@dataclass(frozen=True)
class Rows:
    """Full item rows (bias, factors): posterior means [m, 1 + d] and variances [m, 1 + d]."""

    mean: Float64Array
    variance: Float64Array


def rows(
    targets: Float64Array,
    gram: Grams,
    weight: Float64Array,
    start: Float64Array,
    bias_variance: Float64Array,
    *,
    noise_std: float,
    residual_variance: float,
    ridge: float,
) -> Rows:
    """Full item rows: posterior mean of r ~ N(start, prior) given targets = gram r + noise.

    The prior covariance of the bias is known per item; that of the factors is common, and estimated by EM.

    Args:
      targets: noisy right-hand sides [m, 1 + d].
      gram: the items' Gram matrices [m, 1 + d, 1 + d].
      weight: typical weight of one rating of the item [m]: turns ratings into units of the sums.
      start: prior means [m, 1 + d].
      bias_variance: prior variances of the biases [m].
      noise_std: of ``targets``.
      residual_variance: of one rating.
      ridge: added to the factors' prior precision, in ratings.
    """
    width = targets.shape[1]
    matrices = gram.matrices
    identity = np.eye(width)
    floor = np.diag(np.concatenate(([0.0], np.full(width - 1, ridge / residual_variance))))
    off = targets - (matrices @ start[:, :, None])[:, :, 0]
    prior = np.zeros((len(targets), width, width))
    prior[:, 0, 0] = bias_variance
    common = 0.1 * residual_variance * np.linalg.inv(gram.common[1:, 1:] + 1e-3 * identity[1:, 1:])
    for _ in range(_ROW_STEPS):
        prior[:, 1:, 1:] = np.linalg.inv(np.linalg.inv(common) + floor[1:, 1:])
        spread = noise_std**2 + gram.variance * (np.trace(prior, axis1=1, axis2=2) + (start**2).sum(axis=1))
        total = (
            matrices @ prior @ matrices
            + spread[:, None, None] * identity
            + (residual_variance * weight)[:, None, None] * matrices
        )
        total += 1e-9 * np.trace(total, axis1=1, axis2=2)[:, None, None] / width * identity
        total += 1e-12 * identity
        gain = np.linalg.solve(total, matrices @ prior).transpose(0, 2, 1)  # prior A total^-1
        change = (gain @ off[:, :, None])[:, :, 0]
        covariance = prior - gain @ matrices @ prior
        moved = change[:, 1:]
        common = (moved.T @ moved + covariance[:, 1:, 1:].sum(axis=0)) / len(targets) + 1e-9 * identity[1:, 1:]
    return Rows(mean=start + change, variance=np.diagonal(covariance, axis1=1, axis2=2).copy())
