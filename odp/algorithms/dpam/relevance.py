"""How much each group of public features tells, from what the releases of the biases say.

Each group's coefficients have a prior variance of their own, in units of the usual one: its relevance. All values of a
grid are as likely beforehand, and the noisy sums of the biases say which fit, coefficients and biases integrated out
(evidence, automatic relevance determination). A group's relevance is the mean over the grid by these weights: columns
of chance get next to 0 where there are data, and where noise drowns everything a group keeps about the usual variance.
It is post-processing of a release that has been charged, hence free.

Sources: MacKay 1992 (evidence); Neal 1996 (automatic relevance determination).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odp.algorithms.dpam.estimation import FEATURE_PRIOR, TREND_SPREAD, Estimate, trend
from odp.numerics.arrays import Float64Array

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
