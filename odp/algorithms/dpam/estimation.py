"""From noisy sums to item parameters: empirical Bayes with the known noise level, all of it post-processing.

Every estimate is a compromise between an item's own noisy statistics and what all items have in common, weighted by
their variances; where the noise drowns an item, the item gets the common value, so noise costs accuracy gently.
Sources: Kiefer and Wolfowitz 1956 (mixtures); Efron and Morris 1973 (empirical Bayes shrinkage).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import parallel

Float64Array = npt.NDArray[np.float64]
_Out = TypeVar("_Out")

_STEPS = 60
_ROW_STEPS = 25
_GRID = 80
_SCATTER = 0.2
_BLOCK = 256  # items per piece of work
# Items that the common covariance is estimated from: in the last steps, and before them.
_MOST_FOR_COMMON = 4096
_MOST_AT_FIRST = 512
_LAST_STEPS = 3
_PER_COLUMN = 16  # at first at least so many per column
_WORTHWHILE = 3e7  # flops; less takes no longer than to load the machine code

# Prior variance of a feature's coefficient in the biases' trend, in units of the residual variance.
FEATURE_PRIOR = 0.1


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
    for _ in range(_STEPS - 1):  # the mean of the posteriors, without forming them
        prior = prior * ((1.0 / (likelihood @ prior)) @ likelihood) / len(counts)
    posterior = likelihood * prior
    posterior /= posterior.sum(axis=1, keepdims=True)
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
    sums: Float64Array,
    mass: Estimate,
    counts: Float64Array,
    features: Float64Array | None = None,
    *,
    noise_std: float,
    residual_variance: float,
) -> Estimate:
    """Item biases from noisy weighted target sums, shrunk toward a trend: a quadratic in log count, linear in features.

    Model: sums = mass * bias + noise, bias ~ N(trend, between); ``between`` maximises the marginal likelihood under a
    broad prior, which decides where the noise leaves too little evidence.

    Args:
      sums: noisy [m].
      mass: weight masses.
      counts: posterior means [m] >= 1.
      features: public ones [m, q], of total variance about 1; None for none.
      noise_std: of ``sums``.
      residual_variance: of one rating.
    """
    size = mass.mean
    sampling = residual_variance * size**2 / np.maximum(counts, 1.0)
    logarithm = np.log(counts)
    logarithm = (logarithm - logarithm.mean()) / (logarithm.std() + 1e-9)
    public = np.empty((len(size), 0)) if features is None else features
    design = np.column_stack((np.ones_like(size), logarithm, logarithm**2, public))
    spread = np.concatenate(([1.0, 0.2, 0.03], np.full(public.shape[1], FEATURE_PRIOR)))
    tightness = np.diag(1.0 / (residual_variance * spread))
    guess = 0.15 * residual_variance
    best = (-np.inf, np.zeros_like(size), np.zeros_like(size))
    for between in guess * np.geomspace(0.05, 5.0, 25):
        variance = noise_std**2 + sampling + (guess + between) * mass.variance
        total = variance + between * size**2
        weighted = design * (size / total)[:, None]
        normal = weighted.T @ (design * size[:, None]) + tightness
        coefficients = np.linalg.solve(normal, weighted.T @ sums)
        trend = design @ coefficients
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
    projected = np.array(matrices)
    _project(projected)
    return projected


def _project(matrices: Float64Array) -> None:
    """Puts the nearest positive semidefinite matrices in place; those that are positive definite stay as they are."""
    code = _machine_code(matrices.size * matrices.shape[1])

    def project(block: slice) -> None:
        some = matrices[block]
        doubtful = np.ones(len(some), dtype=np.bool_)
        if code is not None:
            code.positive(some, doubtful)
            doubtful = ~doubtful
        if doubtful.any():
            values, vectors = np.linalg.eigh(some[doubtful])
            some[doubtful] = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1)

    _each_block(project, len(matrices))


def _machine_code(work: float) -> ModuleType | None:
    """``item_kernels`` where numba is installed and the work (in flops) is worth its loading time, else None."""
    if work < _WORTHWHILE:
        return None
    try:
        from odp.algorithms.dpam import item_kernels
    except ImportError:
        return None
    return item_kernels


def _each_block(work: Callable[[slice], _Out], size: int) -> list[_Out]:
    """Results of ``work`` for blocks of items that do not depend on the number of threads."""
    blocks = [slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK)]
    return parallel.each(work, blocks, threads=parallel.processors())


@dataclass(frozen=True)
class Grams:
    """Gram matrices [m, w, w], positive semidefinite; their common shape [w, w] per mass; variance of entries [m]."""

    matrices: Float64Array
    common: Float64Array
    variance: Float64Array


def grams(packed: Float64Array, mass: Float64Array, *, width: int, noise_std: float) -> Grams:
    """Gram matrices from noisy sums: each shrunk toward mass times the Gram matrix that all items have in common."""
    total = float(mass.sum())
    common = nearest_psd(unpacked(packed.sum(axis=0)[None], width))[0] / total
    common += (1e-6 * float(np.trace(common)) / width + 1e-12) * np.eye(width)
    first, second = np.triu_indices(width)
    shape = common[first, second]
    noise = np.where(first == second, noise_std**2, noise_std**2 / 2)

    def excess_of(block: slice) -> Float64Array:
        return np.asarray(((packed[block] - mass[block, None] * shape) ** 2 - noise).mean(axis=1))

    excess = np.concatenate(_each_block(excess_of, len(packed)))
    # Spread around the common shape: mass times a constant (users are random) plus mass^2 times one (audiences differ).
    design = np.stack((mass, mass**2), axis=1)
    weight = 1.0 / (noise.mean() + mass * float(np.trace(common)) ** 2) ** 2
    spread = np.maximum(_nonnegative(design * np.sqrt(weight)[:, None], excess * np.sqrt(weight)), 0.0)
    between = design @ spread
    gain = between / (between + noise.mean() + 1e-300)
    matrices = np.empty((len(packed), width, width))

    def shrink(block: slice) -> None:
        expected = mass[block, None] * shape
        shrunk = expected + gain[block, None] * (packed[block] - expected)
        matrices[block, first, second] = shrunk
        matrices[block, second, first] = shrunk

    _each_block(shrink, len(packed))
    _project(matrices)
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
    """Full item rows (bias, factors): posterior means and variances [m, 1 + d]; prior covariance of factors [d, d]."""

    mean: Float64Array
    variance: Float64Array
    prior: Float64Array


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
    off = targets - np.concatenate(
        _each_block(lambda block: (gram.matrices[block] @ start[block, :, None])[:, :, 0], len(targets))
    )
    problem = _Problem(
        matrices=gram.matrices,
        off=off,
        noise=noise_std**2 + gram.variance * (start**2).sum(axis=1),
        noise_slope=gram.variance,
        sampling=residual_variance * weight,
        bias_variance=bias_variance,
    )
    identity = np.eye(width - 1)
    common = 0.1 * residual_variance * np.linalg.inv(gram.common[1:, 1:] + 1e-3 * identity)
    # Some items of every size tell the common covariance roughly, and a few thousand tell it well.
    at_first = max(_MOST_AT_FIRST, _PER_COLUMN * width)
    few, many = (problem.every(-(-len(targets) // most)) for most in (at_first, _MOST_FOR_COMMON))
    with parallel.one_blas_thread():  # several would only wait for each other on small matrices
        for left in reversed(range(_ROW_STEPS)):
            precision = np.linalg.inv(common) + ridge / residual_variance * identity
            found = _posterior(problem if not left else many if left < _LAST_STEPS else few, precision)
            moved = found.mean[:, 1:]
            common = (moved.T @ moved + found.covariance[1:, 1:]) / len(moved) + 1e-9 * identity
    return Rows(
        mean=start + found.mean, variance=found.variance, prior=np.asarray(np.linalg.inv(precision), dtype=np.float64)
    )


@dataclass(frozen=True)
class _Problem:
    """b = A r + error per item: A [m, w, w], b = ``off`` [m, w]; error ~ N(0, (noise + slope trace(prior)) I + c A)."""

    matrices: Float64Array
    off: Float64Array
    noise: Float64Array
    noise_slope: Float64Array
    sampling: Float64Array
    bias_variance: Float64Array

    def every(self, stride: int) -> _Problem:
        """Every so-manieth item by the size of its matrix, or the problem itself for a stride of 1."""
        if stride == 1:
            return self
        chosen = np.sort(np.argsort(self.matrices[:, 0, 0], kind="stable")[stride // 2 :: stride])
        return _Problem(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


@dataclass(frozen=True)
class _Posterior:
    """Means and variances [m, w], and the sum of the posterior covariances [w, w]."""

    mean: Float64Array
    variance: Float64Array
    covariance: Float64Array


def _posterior(problem: _Problem, precision: Float64Array) -> _Posterior:
    """Of r ~ N(0, prior) with the prior variance of the bias per item and the common ``precision`` of the factors."""
    size, width = problem.off.shape
    prior = np.linalg.inv(precision)
    noise = problem.noise + problem.noise_slope * (problem.bias_variance + np.trace(prior))
    noise += 1e-12 + 1e-9 * problem.sampling * np.trace(problem.matrices, axis1=1, axis2=2) / width
    bias_precision = 1.0 / np.maximum(problem.bias_variance, 1e-12)
    mean, variance = np.empty((size, width)), np.empty((size, width))
    code = _machine_code(10.0 * size * width**3)

    def compiled(block: slice, code: ModuleType) -> Float64Array:
        sums = np.zeros((width, width))
        given = problem.matrices[block], problem.off[block], noise[block], problem.sampling[block]
        code.posterior(*given, bias_precision[block], precision, mean[block], variance[block], sums)
        return np.triu(sums) + np.triu(sums, 1).T

    def plain(block: slice) -> Float64Array:
        matrices = problem.matrices[block]
        both = np.concatenate((matrices, problem.off[block, :, None]), axis=2)
        error = problem.sampling[block, None, None] * matrices + noise[block, None, None] * np.eye(width)
        told = matrices @ np.linalg.solve(error, both)
        told[:, 0, 0] += bias_precision[block]
        told[:, 1:, 1:-1] += precision
        covariance = np.linalg.inv(told[:, :, :-1])
        mean[block] = (covariance @ told[:, :, -1:])[:, :, 0]
        variance[block] = np.diagonal(covariance, axis1=1, axis2=2)
        return np.asarray(covariance.sum(axis=0))

    sums = _each_block(plain if code is None else lambda block: compiled(block, code), size)
    return _Posterior(mean, variance, np.sum(sums, axis=0))
