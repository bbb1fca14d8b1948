"""Public item features in the server's estimates: prior means that a linear map predicts, and columns of the model.

Private data come in through noisy sums alone, so whatever is computed here costs no privacy, however many steps it
takes. Features help in two ways, and both reach items without ratings:

- as prior: an item's bias and row are shrunk toward what a linear map of its features predicts, instead of toward what
  all items have in common;
- as columns: the principal components of the features are factors of the model from the start. A device learns its
  user's taste for them from its own ratings, so even a model without any factor round is personal.

Sources: Krichene et al. 2024 (arXiv 2310.15454) for the principle; Henderson 1975 (mixed models) for the weighting of
the items by the precision of their own statistics; formulas derived here.

Item rows from noisy right-hand sides: posterior means under a common prior covariance, which EM estimates.

All of it is post-processing. What an item's statistics tell is summed up once as an information matrix H and vector h
(:func:`_evidence`), so that a step of EM inverts no more than H plus the prior's precision. H depends on the prior
through one number, the noise that the errors of the Gram matrix add, so it is renewed now and then.
Source: Dempster, Laird, Rubin 1977 (EM); Efron and Morris 1973 (empirical Bayes shrinkage).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import estimation
from odp.algorithms.dpam.estimation import Grams, each_block, machine_code, packed, unpacked
from odp.numerics import parallel
from odp.numerics.arrays import Float64Array

_STEPS = 16
_RENEWALS = (0, 1, 3, 6, 10)  # steps of EM before which the evidence is renewed
_LAST_STEPS = 2
# Items that the common covariance is estimated from: in the last steps, and before them.
_MOST_FOR_COMMON = 1024
_MOST_AT_FIRST = 512
_PER_COLUMN = 16  # before the last steps, at least this many items per column
_EVIDENCE_BLOCK = 64  # items per piece of work
_BLOCK_ALONE = 128  # the same where nothing is summed up over them
_FLOPS = 10.0  # per item and cube of the width


@dataclass(frozen=True)
class Rows:
    """Full item rows (bias, factors): posterior means and variances [m, 1 + d]."""

    mean: Float64Array
    variance: Float64Array


def posterior_rows(
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
    problem = _Problem.of(
        targets, gram, weight, start, bias_variance, noise_std=noise_std, residual_variance=residual_variance
    )
    return problem.rows(start, _precision(problem, gram.common, residual_variance=residual_variance, ridge=ridge))


def _precision(problem: _Problem, shape: Float64Array, *, residual_variance: float, ridge: float) -> Float64Array:
    """Prior precision [d, d] of the factors; ``shape`` [1 + d, 1 + d] is what the Gram matrices have in common."""
    size, width = problem.off.shape
    identity = np.eye(width - 1)
    common = 0.1 * residual_variance * np.linalg.inv(shape[1:, 1:] + 1e-3 * identity)
    # Some items of every size estimate the common covariance roughly, and a thousand estimate it well.
    at_first = max(_MOST_AT_FIRST, _PER_COLUMN * width)
    few, many = (problem.every(-(-size // most)) for most in (at_first, _MOST_FOR_COMMON))

    def precision() -> Float64Array:
        return np.asarray(np.linalg.inv(common) + ridge / residual_variance * identity)

    def moved(estimate: _Posterior) -> Float64Array:
        off = estimate.mean[:, 1:]
        return np.asarray((off.T @ off + estimate.covariance[1:, 1:]) / len(off) + 1e-9 * identity)

    # BLAS on several threads would only wait for itself on small matrices.
    with parallel.one_blas_thread(), ThreadPoolExecutor(parallel.processors()) as pool:
        for step in range(_STEPS):
            if step in _RENEWALS:
                evidence = few.evidence(_trace_of_inverse(precision()), pool)
            common = moved(_Posterior.of(evidence.part, evidence.right.shape, precision(), pool, summed=True))
        for _ in range(_LAST_STEPS):
            common = moved(many.posterior(precision(), pool))
    return precision()


def products(triangles: Float64Array, vectors: Float64Array) -> Float64Array:
    """Each packed symmetric matrix [m, w (w + 1) / 2] times its vector, [m, w]."""
    size, width = vectors.shape
    out = np.zeros((size, width))

    def multiply(block: slice) -> None:
        some, here, block_vectors = triangles[block], out[block], vectors[block]
        place = 0
        for row in range(width):
            run = some[:, place : place + width - row]
            here[:, row] += np.einsum("kc,kc->k", run, block_vectors[:, row:])
            here[:, row + 1 :] += run[:, 1:] * block_vectors[:, row, None]
            place += width - row

    each_block(multiply, size)
    return out


@dataclass(frozen=True)
class _Evidence:
    """The likelihood of items' rows: H packed [m, p], h [m, w], and the prior precision of their biases [m]."""

    packed: Float64Array
    right: Float64Array
    bias_precision: Float64Array

    def part(self, block: slice) -> _Evidence:
        """That of some items."""
        return _Evidence(self.packed[block], self.right[block], self.bias_precision[block])


@dataclass(frozen=True)
class _Problem:
    """b = A r + error per item: A packed [m, p], b = ``off`` [m, w].

    The errors are N(0, (noise + slope trace(prior)) I + sampling A).
    """

    packed: Float64Array
    off: Float64Array
    noise: Float64Array
    noise_slope: Float64Array
    sampling: Float64Array
    bias_variance: Float64Array

    @classmethod
    def of(
        cls, targets: Float64Array, gram: Grams, weight: Float64Array, start: Float64Array, bias_variance: Float64Array,
        *, noise_std: float, residual_variance: float,
    ) -> _Problem:  # fmt: skip
        """That of :func:`posterior_rows`."""
        return cls(
            packed=np.ascontiguousarray(gram.packed),
            off=targets - products(gram.packed, start),
            noise=noise_std**2 + gram.variance * (start**2).sum(axis=1),
            noise_slope=gram.variance,
            sampling=residual_variance * weight,
            bias_variance=bias_variance,
        )

    def rows(self, start: Float64Array, precision: Float64Array) -> Rows:
        """The items' rows around their prior means ``start``."""
        with parallel.one_blas_thread(), ThreadPoolExecutor(parallel.processors()) as pool:
            posterior = self.posterior(precision, pool, summed=False)
        return Rows(mean=start + posterior.mean, variance=posterior.variance)

    def posterior(self, precision: Float64Array, pool: ThreadPoolExecutor, *, summed: bool = True) -> _Posterior:
        """As :meth:`_Posterior.of`, with evidence that is not kept."""
        trace = _trace_of_inverse(precision)
        return _Posterior.of(lambda block: self.part(block, trace), self.off.shape, precision, pool, summed=summed)

    def every(self, stride: int) -> _Problem:
        """Every ``stride``-th item by the size of its matrix, or the problem itself for a stride of 1."""
        if stride == 1:
            return self
        chosen = np.sort(np.argsort(self.packed[:, 0], kind="stable")[stride // 2 :: stride])
        return _Problem(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def evidence(self, trace: float, pool: ThreadPoolExecutor) -> _Evidence:
        """H = A T^-1 A and h = A T^-1 b, T the errors' covariance under a prior of the factors of that trace."""
        evidence = _Evidence(np.empty_like(self.packed), np.empty_like(self.off), self.bias_precision)
        each_block(
            lambda block: self.fill(evidence.part(block), block, trace), len(self.off), block=_EVIDENCE_BLOCK, pool=pool
        )
        return evidence

    @property
    def bias_precision(self) -> Float64Array:
        """Prior precisions of the biases [m]."""
        return 1.0 / np.maximum(self.bias_variance, 1e-12)

    def part(self, block: slice, trace: float) -> _Evidence:
        """The evidence of some items."""
        evidence = _Evidence(
            np.empty_like(self.packed[block]), np.empty_like(self.off[block]), self.bias_precision[block]
        )
        self.fill(evidence, block, trace)
        return evidence

    def fill(self, evidence: _Evidence, block: slice, trace: float) -> None:
        """Writes the evidence of some items."""
        matrices, off, sampling = self.packed[block], self.off[block], self.sampling[block]
        width = off.shape[1]
        diagonal = np.cumsum(np.concatenate(([0], np.arange(width, 1, -1))))
        noise = self.noise[block] + self.noise_slope[block] * (self.bias_variance[block] + trace)
        noise += 1e-12 + 1e-9 * sampling * matrices[:, diagonal].sum(axis=1) / width
        if (code := machine_code(_FLOPS * len(self.off) * width**3)) is not None:
            code.evidence(matrices, off, noise, sampling, evidence.packed, evidence.right)
            return
        full = unpacked(matrices, width)
        error = sampling[:, None, None] * full + noise[:, None, None] * np.eye(width)
        both = full @ np.linalg.solve(error, np.concatenate((full, off[:, :, None]), axis=2))
        evidence.packed[:], evidence.right[:] = packed(both[:, :, :-1]), both[:, :, -1]


@dataclass(frozen=True)
class _Posterior:
    """Means and variances [m, w], and the sum of the posterior covariances [w, w]."""

    mean: Float64Array
    variance: Float64Array
    covariance: Float64Array

    @classmethod
    def of(
        cls, evidence: Callable[[slice], _Evidence], shape: tuple[int, int], precision: Float64Array,
        pool: ThreadPoolExecutor, *, summed: bool,
    ) -> _Posterior:  # fmt: skip
        """Of r ~ N(0, prior) with the prior precision of the bias per item and the common one of the factors.

        Without ``summed``, the sum of the covariances stays zero.
        """
        size, width = shape
        mean, variance = np.empty(shape), np.empty(shape)

        def solve(block: slice) -> Float64Array:
            sums = np.zeros((width, width))
            _solve(evidence(block), precision, size, mean[block], variance[block], sums, summed=summed)
            return sums

        # The sum does not depend on threads: it is over blocks in their order.
        sums = each_block(solve, size, block=_EVIDENCE_BLOCK if summed else _BLOCK_ALONE, pool=pool)
        return cls(mean, variance, np.sum(sums, axis=0) if summed else np.zeros((width, width)))


def _solve(
    evidence: _Evidence,
    precision: Float64Array,
    size: int,
    mean: Float64Array,
    variance: Float64Array,
    sums: Float64Array,
    *,
    summed: bool,
) -> None:
    """Fills means, variances and, where asked for, sums of covariances of a block of ``size`` items in all."""
    width = evidence.right.shape[1]
    if (code := machine_code(_FLOPS * size * width**3)) is not None:
        code.posterior(
            evidence.packed, evidence.right, evidence.bias_precision, precision, mean, variance, sums, summed
        )
        return
    full = unpacked(evidence.packed, width)
    full[:, 0, 0] += evidence.bias_precision
    full[:, 1:, 1:] += precision
    covariance = np.linalg.inv(full)
    mean[:] = (covariance @ evidence.right[:, :, None])[:, :, 0]
    variance[:] = np.diagonal(covariance, axis1=1, axis2=2)
    if summed:
        sums += covariance.sum(axis=0)


def _trace_of_inverse(precision: Float64Array) -> float:
    return float(np.trace(np.linalg.inv(precision)))


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
    """Full item rows as :func:`posterior_rows`, around ``start + W f_j`` instead of ``start``.

    W maximises the likelihood of the noisy right-hand sides with the rows' residuals integrated out, so every item
    counts by the precision of its own statistics; it alternates with the estimate of the residuals' covariance.

    Args:
      features: components [m, q] of :func:`components`; the others as of :func:`posterior_rows`.
    """
    alternations = _ALTERNATIONS if features.shape[1] else 1
    width = targets.shape[1]
    prior_variance = residual_variance * np.concatenate(([estimation.FEATURE_PRIOR], np.full(width - 1, _FACTOR_PRIOR)))
    centre = start
    for alternation in range(alternations):
        problem = _Problem.of(
            targets, gram, weight, centre, bias_variance, noise_std=noise_std, residual_variance=residual_variance
        )
        factors = _precision(problem, gram.common, residual_variance=residual_variance, ridge=ridge)
        if alternation + 1 < alternations:
            common: Float64Array = np.asarray(np.linalg.inv(factors))
            noise = noise_std**2 + gram.variance * (bias_variance + np.trace(common) + (centre**2).sum(axis=1))
            if alternation == 0:
                matrices = gram.matrices
                off = targets - (matrices @ start[:, :, None])[:, :, 0]
            precision, evidence = _projected(matrices, common, bias_variance, noise, residual_variance * weight, off)
            centre = start + features @ linear_map(precision, evidence, features, ridge=1.0 / prior_variance).T
    return problem.rows(centre, factors)


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
