"""From noisy sums to item parameters: empirical Bayes with the known noise level, all of it post-processing.

Every estimate is a compromise between an item's own noisy statistics and what all items have in common, weighted by
their variances; where the noise drowns an item, the item gets the common value, so noise costs accuracy gently.
Sources: Kiefer and Wolfowitz 1956 (mixtures); Efron and Morris 1973 (empirical Bayes shrinkage).

How much each group of public features tells, from what the releases of the biases say.

Each group's coefficients have a prior variance of their own, in units of the usual one: its relevance. All values of a
grid are as likely beforehand, and the noisy sums of the biases say which fit, coefficients and biases integrated out
(evidence, automatic relevance determination). A group's relevance is the mean over the grid by these weights: columns
of chance get next to 0 where there are data, and where noise drowns everything a group keeps about the usual variance.
It is post-processing of a release that has been charged, hence free.

Sources: MacKay 1992 (evidence); Neal 1996 (automatic relevance determination).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypeVar

import numpy as np

from odp.algorithms.factorization.popularity import Popularity, normal_likelihood
from odp.numerics import parallel
from odp.numerics.arrays import Float64Array

_Out = TypeVar("_Out")

_SCATTER = 0.2
_BLOCK = 256  # items per piece of work
_WORTHWHILE = 3e7  # flops; less takes no longer than to load the machine code

# Prior variances of coefficients of the biases' trend, in units of the residual variance: of a feature, and of 1, the
# log count and its square.
FEATURE_PRIOR = 0.1
TREND_SPREAD = np.array([1.0, 0.2, 0.03])


@dataclass(frozen=True)
class Estimate:
    """Per-item posterior: mean and variance, float64 [m]."""

    mean: Float64Array
    variance: Float64Array


def masses(
    noisy: Float64Array, popularity: Popularity, used: Float64Array, exponent: float, *, noise_std: float
) -> tuple[Estimate, Popularity]:
    """(weight mass of each item, its count) from the noisy mass and from what is known of the count before.

    A rating of item j has the weight c * used_j ** -exponent, where c varies little between users: so the mass is close
    to c * count * used ** -exponent, with a relative scatter of ``_SCATTER``.

    Args:
      noisy: noisy masses [m].
      popularity: of the counts.
      used: the counts that the devices weighted by [m].
      exponent: of the weights; 0 where they are uniform.
      noise_std: of ``noisy``.
    """
    unit = used**-exponent
    expected = popularity.mean * unit
    scale = max(float((expected * noisy).sum() / (expected**2).sum()), 1e-9)
    centre = scale * unit[:, None] * popularity.grid
    prior_variance = (_SCATTER * centre) ** 2
    gain = prior_variance / (prior_variance + noise_std**2)
    chance = popularity.posterior * normal_likelihood(noisy[:, None], centre, np.sqrt(prior_variance + noise_std**2))
    chance /= chance.sum(axis=1, keepdims=True)
    local = centre + gain * (noisy[:, None] - centre)
    mean = (chance * local).sum(axis=1)
    variance = (chance * (gain * noise_std**2 + (local - mean[:, None]) ** 2)).sum(axis=1)
    return Estimate(np.maximum(mean, 0.05 * expected * scale), variance), replace(popularity, posterior=chance)


def trend(counts: Float64Array) -> Float64Array:
    """What biases follow without features [m, 3]: 1, log count (mean 0, variance 1) and its square."""
    logarithm = np.log(counts)
    logarithm = (logarithm - logarithm.mean()) / (logarithm.std() + 1e-9)
    return np.column_stack((np.ones_like(logarithm), logarithm, logarithm**2))


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
      features: public ones [m, q], each group's total variance its relevance; None for none.
      noise_std: of ``sums``.
      residual_variance: of one rating.
    """
    size = mass.mean
    sampling = residual_variance * size**2 / np.maximum(counts, 1.0)
    public = np.empty((len(size), 0)) if features is None else features
    design = np.column_stack((trend(counts), public))
    spread = np.concatenate((TREND_SPREAD, np.full(public.shape[1], FEATURE_PRIOR)))
    tightness = np.diag(1.0 / (residual_variance * spread))
    guess = 0.15 * residual_variance
    best = (-np.inf, np.zeros_like(size), np.zeros_like(size))
    for between in guess * np.geomspace(0.05, 5.0, 25):
        variance = noise_std**2 + sampling + (guess + between) * mass.variance
        total = variance + between * size**2
        weighted = design * (size / total)[:, None]
        normal = weighted.T @ (design * size[:, None]) + tightness
        coefficients = np.linalg.solve(normal, weighted.T @ sums)
        expected = design @ coefficients
        off = sums - size * expected
        evidence = -0.5 * float((off**2 / total + np.log(total)).sum() + coefficients @ tightness @ coefficients)
        evidence -= 0.5 * math.log(between / guess) ** 2 + 0.5 * float(np.linalg.slogdet(normal)[1])
        if evidence > best[0]:
            gain = between * size / total
            best = (evidence, expected + gain * off, between * variance / total)
    return Estimate(mean=best[1], variance=best[2])


def unclipped(clip: float, variance: float) -> float:
    """Factor by which clipping to +-``clip`` shrinks the mean of a normal of ``variance`` near zero, inverted."""
    return 1.0 / math.erf(clip / math.sqrt(2.0 * variance))


def packed(matrices: Float64Array) -> Float64Array:
    """Upper triangles [m, d (d + 1) / 2] of symmetric matrices [m, d, d], row by row."""
    first, second = np.triu_indices(matrices.shape[-1])
    return np.ascontiguousarray(matrices[:, first, second])


def unpacked(packed: Float64Array, width: int) -> Float64Array:
    """Symmetric matrices [m, d, d] from packed upper triangles [m, d (d + 1) / 2]."""
    first, second = np.triu_indices(width)
    full = np.empty((len(packed), width, width))
    full[:, first, second] = packed
    full[:, second, first] = packed
    return full


def nearest_psd(matrices: Float64Array) -> Float64Array:
    """Each symmetric matrix [m, d, d] with its negative eigenvalues set to zero; positive definite ones as they are."""
    projected = np.array(matrices)
    code = machine_code(projected.size * projected.shape[1])
    each_block(lambda block: _take_negative_away(projected[block], code), len(projected))
    return projected


def _take_negative_away(matrices: Float64Array, code: ModuleType | None) -> None:
    """Sets negative eigenvalues to zero, in place."""
    sure = np.zeros(len(matrices), dtype=np.bool_)
    if code is not None:
        code.positive(matrices, sure)
    if not sure.all():
        matrices[~sure] = _without_negative(matrices[~sure])


def _without_negative(matrices: Float64Array) -> Float64Array:
    with parallel.one_blas_thread():
        values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1))


def machine_code(work: float) -> ModuleType | None:
    """``item_kernels`` where numba is installed and the work (in flops) is worth its loading time, else None."""
    if work < _WORTHWHILE:
        return None
    try:
        from odp.algorithms.dpam import item_kernels
    except ImportError:
        return None
    return item_kernels


def each_block(
    work: Callable[[slice], _Out], size: int, *, block: int = _BLOCK, pool: ThreadPoolExecutor | None = None
) -> list[_Out]:
    """Results of ``work`` for blocks of items that do not depend on the number of threads."""
    blocks = [slice(start, min(start + block, size)) for start in range(0, size, block)]
    return parallel.each(work, blocks, threads=parallel.processors(), pool=pool)


@dataclass(frozen=True)
class Grams:
    """Gram matrices [m, w, w], positive semidefinite, as packed upper triangles [m, w (w + 1) / 2].

    ``common`` [w, w] is their common shape per mass, ``variance`` [m] that of the entries.
    """

    packed: Float64Array
    common: Float64Array
    variance: Float64Array

    @property
    def matrices(self) -> Float64Array:
        """Unpacked, a copy."""
        return unpacked(self.packed, len(self.common))


def grams(
    packed: Float64Array, mass: Float64Array, *, width: int, noise_std: float, scale: Float64Array | None = None
) -> Grams:
    """Gram matrices from noisy sums: each shrunk toward mass times the Gram matrix that all items have in common.

    ``scale`` multiplies the columns of ``packed`` first; ``noise_std`` is of the result.
    """
    size, pairs = packed.shape
    scale = np.ones(pairs) if scale is None else scale
    total = float(mass.sum())
    sums = np.sum(each_block(lambda block: packed[block].sum(axis=0), size), axis=0) * scale
    common = nearest_psd(unpacked(sums[None], width))[0] / total
    common += (1e-6 * float(np.trace(common)) / width + 1e-12) * np.eye(width)
    first, second = np.triu_indices(width)
    shape = common[first, second]
    noise = float(np.where(first == second, noise_std**2, noise_std**2 / 2).mean())
    code = machine_code(float(size) * width**3)
    distance = np.empty(size)

    def measure(block: slice) -> None:
        distance[block] = ((packed[block] * scale - mass[block, None] * shape) ** 2).sum(axis=1)

    each_block(measure, size)
    # Spread around the common shape: mass times a constant (users are random) plus mass^2 times one (audiences differ).
    design = np.stack((mass, mass**2), axis=1)
    weight = 1.0 / (noise + mass * float(np.trace(common)) ** 2) ** 2
    excess = distance / pairs - noise
    spread = np.maximum(_nonnegative(design * np.sqrt(weight)[:, None], excess * np.sqrt(weight)), 0.0)
    between = design @ spread
    gain = between / (between + noise + 1e-300)
    shrunk = np.empty(packed.shape)

    def shrink(block: slice) -> None:
        expected = (1.0 - gain[block, None]) * mass[block, None]
        full = unpacked(expected * shape + gain[block, None] * (packed[block] * scale), width)
        _take_negative_away(full, code)
        shrunk[block] = full[:, first, second]

    each_block(shrink, size)
    return Grams(packed=shrunk, common=common, variance=gain * noise)


def _nonnegative(design: Float64Array, values: Float64Array) -> Float64Array:
    """Nonnegative least squares with two columns."""
    both = np.linalg.lstsq(design, values, rcond=None)[0]
    if (both >= 0).all():
        return np.asarray(both)
    single = np.maximum((design * values[:, None]).sum(axis=0) / (design**2).sum(axis=0), 0.0)
    losses = [float(((values - design[:, column] * single[column]) ** 2).sum()) for column in range(2)]
    return np.where(np.arange(2) == int(np.argmin(losses)), single, 0.0)


_GRID = np.concatenate(([0.0], 2.0 ** np.arange(-6, 3)))
# What is less is left out.
_LEAST = 2.0**-6
_MOST_SWEEPS = 6
_SETTLED = 0.01
_BETWEEN = 9  # trial values of the variance that no feature explains


def relevances(
    sums: Float64Array,
    mass: Estimate,
    counts: Float64Array,
    groups: Sequence[Float64Array],
    *,
    noise_std: float,
    residual_variance: float,
) -> Float64Array:
    """Prior variances of the groups' coefficients, float64 [g], from 0 to 4, in units of the usual one.

    Args:
      groups: components [m, q] of each, of total variance 1 (or without columns).
      sums, mass, counts, noise_std, residual_variance: as of ``estimation.biases``, whose model this is.
    """
    evidence = _Evidence(sums, mass, counts, groups, noise_std=noise_std, residual_variance=residual_variance)
    prior_variances = np.array([float(part.shape[1] > 0) for part in groups])
    for _ in range(_MOST_SWEEPS):
        before = prior_variances.copy()
        for group, part in enumerate(groups):
            if part.shape[1]:
                trials = np.repeat(prior_variances[None], len(_GRID), axis=0)
                trials[:, group] = _GRID
                fit = np.array([evidence.of(trial) for trial in trials])
                weight = np.exp(fit - fit.max())
                prior_variances[group] = float(weight @ _GRID / weight.sum())
        if (np.abs(prior_variances - before) <= _SETTLED * before).all():
            break
    return np.where(prior_variances < _LEAST, 0.0, prior_variances)


class _Evidence:
    """The marginal likelihood of noisy sums, whose normal equations do not depend on the groups' variances."""

    def __init__(
        self,
        sums: Float64Array,
        mass: Estimate,
        counts: Float64Array,
        groups: Sequence[Float64Array],
        *,
        noise_std: float,
        residual_variance: float,
    ) -> None:
        size = mass.mean
        design = np.column_stack((trend(counts), *groups))
        columns = [group for group, part in enumerate(groups) for _ in range(part.shape[1])]
        self._group = np.array(columns, dtype=np.int64)
        spread = np.concatenate((TREND_SPREAD, np.full(len(columns), FEATURE_PRIOR)))
        self._root = np.sqrt(residual_variance * spread)
        sampling = residual_variance * size**2 / np.maximum(counts, 1.0)
        guess = 0.15 * residual_variance
        self._normals, self._rights, self._constants = [], [], []
        for between in guess * np.geomspace(0.05, 5.0, _BETWEEN):
            total = noise_std**2 + sampling + (guess + between) * mass.variance + between * size**2
            weighted = design * (size / total)[:, None]
            self._normals.append(weighted.T @ (design * size[:, None]))
            self._rights.append(weighted.T @ sums)
            fit = -0.5 * float((sums**2 / total + np.log(total)).sum())
            self._constants.append(fit - 0.5 * float(np.log(between / guess)) ** 2)

    def of(self, variances: Float64Array) -> float:
        """Its logarithm, the best over the trial values of what no feature explains."""
        scale = np.concatenate((np.ones(len(TREND_SPREAD)), variances[self._group]))
        used = np.flatnonzero(scale > 0)
        root = self._root[used] * np.sqrt(scale[used])
        best = -np.inf
        for normal, right, constant in zip(self._normals, self._rights, self._constants, strict=True):
            # With y = D c + e, c ~ N(0, R R): log N(y) = log N(e = y) + (r'M^-1 r - log |M|) / 2, M = I + R D'T^-1 D R.
            lower = np.linalg.cholesky(normal[np.ix_(used, used)] * root * root[:, None] + np.eye(len(used)))
            half = np.linalg.solve(lower, right[used] * root)
            best = max(best, constant + 0.5 * float(half @ half) - float(np.log(np.diagonal(lower)).sum()))
        return best
