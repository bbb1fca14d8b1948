"""From noisy gradients to item values: a discounted information filter under a prior that the releases teach.

Near the values theta that devices had, the sum of an item's gradients is about m_j C (theta*_j - theta_j) + noise, with
m_j the item's mass, C the curvature that all items have in common, and theta*_j the item's best values. So each step
measures theta*_j, and a filter that forgets early steps, whose best values were of other rows, adds them up. What it
knows is shrunk toward what items of such counts and features have, by a covariance S that empirical Bayes estimates:
directions in which items do not differ beyond the noise vanish, so the rank hardly matters. All of it is
post-processing of releases that have been charged.

In units of the public standard deviation of a rating. Sources: Kalman 1960 (filter); Efron and Morris 1973 (empirical
Bayes); the rest is derived here, see docs/dpam.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odp.algorithms.dpam.estimation import trend as count_trend
from odp.algorithms.dpam.terms import DERIVED_FACTORS
from odp.numerics.arrays import Float64Array

# Prior deviations of an item's bias and of its factors, and how much of their squares an estimate of them weighs.
_BIAS_STD, _FACTOR_STD, _PSEUDO_SHARE = 0.6, 0.2, 0.03
_PSEUDO_ITEMS = 10.0
_ESTIMATED_FROM = 4  # step; before it, the prior is the public one
# Steps that the filter weighs alike before it forgets, as a share of all: of few steps it forgets next to nothing.
_REMEMBERED = 5.0 / 32.0
_ROUNDING = 1e-9
_LEAST_EIGENVALUE = 1e-5
# The prior's deviation in every direction of factors is at least this much at first, and nothing after so much of the
# steps: else a direction that noise hides at the start stays hidden.
_FLOOR, _FLOOR_UNTIL = 0.2, 0.75
# Prior variances of coefficients, of the bias and of factors: of (1, log count, its square), and of a feature.
_TREND_VARIANCE = np.array([0.1, 0.1, 0.03])
_FACTOR_TREND_VARIANCE = 4.0 * _FACTOR_STD**2 * np.array([0.03, 0.03, 0.01])
_FEATURE_VARIANCE, _FACTOR_FEATURE_VARIANCE = 0.1, 0.01

# Of the curvature's entries on and off the diagonal, in units of its public guess; and what a step adds to variances.
_CURVATURE_STD, _CURVATURE_OFF_STD, _CURVATURE_DRIFT = 0.5, 0.2, 0.1
_LEAST_CURVATURE = 0.2
_RESIDUAL_VARIANCE, _RESIDUAL_DRIFT, _RESIDUAL_RANGE = 0.25, 0.02, (0.02, 2.0)
_DERIVED_STD, _DERIVED_VARIANCE, _DERIVED_DRIFT = 0.15, 0.25, 0.01
_DERIVED_RANGE, _DERIVED_FACTOR = (0.005, 0.4), (0.3, 2.0)


@dataclass(frozen=True)
class Moments:
    """What steps have told of users' rows.

    Attributes:
      curvature, curvature_variance: packed upper triangles [w (w + 1) / 2] of C, and the variances of its entries.
      residual_mean, residual_variance: of residuals' squares.
      derived: standard deviations of the derived columns [2], in those of a residual.
      derived_variance: of a step's word on them.
    """

    curvature: Float64Array
    curvature_variance: Float64Array
    residual_mean: float
    residual_variance: float
    derived: Float64Array
    derived_variance: float

    @classmethod
    def before(cls, width: int) -> Moments:
        """Before any step; the first one sets the curvature."""
        pairs = np.zeros(width * (width + 1) // 2)
        derived = np.full(DERIVED_FACTORS, _DERIVED_STD)
        return cls(pairs, pairs, 1.0, _RESIDUAL_VARIANCE, derived, _DERIVED_VARIANCE)

    @staticmethod
    def size(width: int) -> int:
        """How many numbers these are."""
        return width * (width + 1) + 3 + DERIVED_FACTORS

    @classmethod
    def of(cls, numbers: Float64Array, width: int) -> Moments:
        """The inverse of :meth:`numbers`."""
        pairs = width * (width + 1) // 2
        curvature, variance, others = np.split(numbers, [pairs, 2 * pairs])
        residual, spread, derived_variance = others[:3].tolist()
        return cls(curvature, variance, residual, spread, others[3:], derived_variance)

    def numbers(self) -> Float64Array:
        """All of them, float64 [``size``]."""
        others = (self.residual_mean, self.residual_variance, self.derived_variance)
        return np.concatenate((self.curvature, self.curvature_variance, others, self.derived))

    @property
    def residual(self) -> float:
        """The variance of residuals, within a public range."""
        least, most = _RESIDUAL_RANGE
        return min(max(self.residual_mean, least), most)

    def after(
        self,
        sums: Float64Array,
        *,
        users: Float64Array,
        noise_std: float,
        curvature_unit: float,
        prior: float,
        step: int,
        derived: bool,
    ) -> Moments:
        """After the noisy sums of users' moments [p].

        Args:
          sums: as ``userside.contributions`` lays them out.
          users: over how many each is summed [p].
          noise_std: of each sum.
          curvature_unit: of the second moments among them.
          prior: public guess of C's diagonal.
          step: from 0 on.
          derived: whether devices had derived columns.
        """
        pairs, means, noises = len(self.curvature), sums / users, (noise_std / users) ** 2
        noise = float(noises[-1])
        width = (int(np.sqrt(8 * pairs + 1)) - 1) // 2
        first, second = np.triu_indices(width)
        spread = np.where(first == second, _CURVATURE_STD, _CURVATURE_OFF_STD) ** 2 * prior**2
        if step:
            guess, variance = self.curvature, self.curvature_variance + _CURVATURE_DRIFT * spread
        else:
            guess, variance = np.where(first == second, prior, 0.0), spread
        gain = variance / (variance + noises[:pairs] * curvature_unit**2)
        curvature = guess + gain * (curvature_unit * means[:pairs] - guess)
        residual_variance = self.residual_variance + _RESIDUAL_DRIFT
        residual_gain = residual_variance / (residual_variance + noise)
        scales, derived_variance = self.derived, self.derived_variance
        if derived:
            derived_variance += _DERIVED_DRIFT
            derived_gain = derived_variance / (derived_variance + 4.0 * noise)
            factor = 1.0 + derived_gain * (2.0 * means[pairs + 1 :] - 1.0)
            scales = np.clip(scales * np.clip(factor, *_DERIVED_FACTOR), *_DERIVED_RANGE)
        return Moments(
            curvature=curvature,
            curvature_variance=variance * (1.0 - gain),
            residual_mean=self.residual_mean + residual_gain * (float(means[pairs]) - self.residual_mean),
            residual_variance=residual_variance * (1.0 - residual_gain),
            derived=scales,
            derived_variance=derived_variance,
        )

    def matrix(self, least: float) -> Float64Array:
        """C [w, w], with eigenvalues of at least ``least``."""
        pairs = len(self.curvature)
        width = (int(np.sqrt(8 * pairs + 1)) - 1) // 2
        matrix = np.zeros((width, width))
        matrix[np.triu_indices(width)] = self.curvature
        return at_least(matrix + np.triu(matrix, 1).T, least)


@dataclass(frozen=True)
class Trend:
    """What items' values follow, [m, q], and the prior variances of its coefficients for biases and factors, [q]."""

    design: Float64Array
    bias: Float64Array
    factor: Float64Array

    def fitted(self, values: Float64Array, variances: Float64Array) -> Float64Array:
        """What the trend says of values [m, w] of such variances."""
        fitted = np.empty_like(values)
        for column in range(values.shape[1]):
            prior = self.factor if column else self.bias
            weighted = (self.design / variances[:, column, None]).T
            coefficients = np.linalg.solve(weighted @ self.design + np.diag(1.0 / prior), weighted @ values[:, column])
            fitted[:, column] = self.design @ coefficients
        return fitted


def trend(counts: Float64Array, components: Float64Array) -> Trend:
    """Of popularity, quadratic in the logarithm of counts [m], and linear in components [m, q] of public features."""
    more = np.ones(components.shape[1])
    return Trend(
        np.column_stack((count_trend(counts), components)),
        np.concatenate((_TREND_VARIANCE, _FEATURE_VARIANCE * more)),
        np.concatenate((_FACTOR_TREND_VARIANCE, _FACTOR_FEATURE_VARIANCE * more)),
    )


@dataclass(frozen=True)
class Items:
    """What is known of m items of w numbers each.

    Attributes:
      values: posterior means [m, w].
      sums, information, spread: of the filter: H [m, w], J and M [w, w].
      prior: S [w, w] as estimated.
      shrinking: S as used.
      noise, sampling: A and B of ``uncertainty.py``.
    """

    values: Float64Array
    sums: Float64Array
    information: Float64Array
    spread: Float64Array
    prior: Float64Array
    shrinking: Float64Array
    noise: Float64Array
    sampling: Float64Array

    @classmethod
    def before(cls, values: Float64Array) -> Items:
        """Before any step, around public ``values``."""
        nothing = np.zeros((values.shape[1],) * 2)
        return cls(values, np.zeros_like(values), nothing, nothing, _public_prior(values.shape[1]), *[nothing] * 3)

    def after(
        self, gradients: Float64Array, moments: Moments, *,
        masses: Float64Array, scale: float, noise_std: float, prior: float, trend: Trend, progress: tuple[int, int],
    ) -> Items:  # fmt: skip
        """After a step's noisy gradients [m, w].

        Args:
          gradients: at ``values``.
          moments: after the same step.
          masses: of the items [m]; ``scale`` times them are their counts.
          noise_std: of each gradient.
          prior: public guess of the curvature's diagonal.
          trend: what values follow.
          progress: (step, steps), the former from 0 on.
        """
        step, steps = progress
        curvature = moments.matrix(_LEAST_CURVATURE * prior)
        retained = step / (max(_REMEMBERED * steps, 1.0) + step - 1.0) if step else 0.0
        square = curvature @ curvature
        information = retained * self.information + square
        spread = retained**2 * self.spread + square
        sums = retained * self.sums + gradients @ curvature / masses[:, None] + self.values @ square
        inverse = np.linalg.inv(information + _ROUNDING * np.eye(len(information)))
        measured = sums @ inverse
        noise = (scale * noise_std) ** 2 * inverse @ spread @ inverse
        sampling = curvature[0, 0] * moments.residual * np.linalg.inv(curvature)
        counts = scale * masses
        errors = noise / counts[:, None, None] ** 2 + sampling / counts[:, None, None]
        estimated = self.prior
        for _ in range(2 if step >= _ESTIMATED_FROM else 1):
            variances = np.diagonal(errors, axis1=1, axis2=2) + np.diagonal(estimated)
            expected = trend.fitted(measured, variances)
            off = measured - expected
            if step >= _ESTIMATED_FROM:
                estimated = _estimated(off, errors, estimated)
        shrinking = _with_floor(estimated, _FLOOR * max(0.0, 1.0 - step / (_FLOOR_UNTIL * steps)) ** 0.5)
        gain = np.linalg.solve(shrinking + errors, np.broadcast_to(shrinking, errors.shape)).swapaxes(1, 2)
        values = expected + np.einsum("mij,mj->mi", gain, off)
        return Items(values, sums, information, spread, estimated, shrinking, noise, sampling)


def at_least(matrix: Float64Array, least: float) -> Float64Array:
    """A symmetric matrix with its eigenvalues lifted to ``least``."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def _public_prior(width: int) -> Float64Array:
    return np.diag(np.concatenate(([_BIAS_STD**2], np.full(width - 1, _FACTOR_STD**2))))


def _estimated(off: Float64Array, errors: Float64Array, before: Float64Array) -> Float64Array:
    """The covariance of items' deviations [m, w], whose estimates have the covariances ``errors`` [m, w, w]."""
    width = len(before)
    weight = (width / (np.trace(errors, axis1=1, axis2=2) + np.trace(before))) ** 2
    total = (off * weight[:, None]).T @ off - np.einsum("m,mij->ij", weight, errors)
    # As much as ten items of the best tenth say that it is the public one, much reduced.
    public = _PSEUDO_ITEMS * float(np.sort(weight)[-max(len(weight) // 10, 1)])
    mean = (total + public * _PSEUDO_SHARE * _public_prior(width)) / (float(weight.sum()) + public)
    return at_least(mean, _LEAST_EIGENVALUE)


def _with_floor(prior: Float64Array, deviation: float) -> Float64Array:
    """The prior with a deviation of at least so much in every direction of the factors."""
    lifted = prior.copy()
    if deviation > 0.0:
        lifted[1:, 1:] = at_least(prior[1:, 1:], deviation**2)
    return lifted
