"""How often items are used, estimated from noisy counts: empirical Bayes, all of it post-processing.

Source: Kiefer and Wolfowitz 1956 (maximum likelihood over mixing distributions).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odp.numerics.arrays import Float64Array

_STEPS = 60
_GRID = 80


@dataclass(frozen=True)
class Popularity:
    """Estimates: a grid of counts [g], and each item's posterior over it [m, g].

    ``noisy`` [m] are the counts that they come from, and ``gain`` [g] says how far a count is known within the cell
    of the grid that it is in: 1 is exactly.
    """

    grid: Float64Array
    posterior: Float64Array
    noisy: Float64Array
    gain: Float64Array

    @property
    def mean(self) -> Float64Array:
        """Posterior means [m] >= 1."""
        means = self.posterior @ (self.grid * (1.0 - self.gain)) + self.noisy * (self.posterior @ self.gain)
        return np.asarray(np.maximum(means, 1.0))


def popularity(counts: Float64Array, *, noise_std: float) -> Popularity:
    """Posterior of the true counts under a common prior, which is estimated from all noisy counts by EM."""
    grid = np.geomspace(1.0, max(float(counts.max()), 2.0), _GRID)
    cell = np.maximum(0.5 * np.gradient(grid), 0.5)  # spread of the true counts that one grid point stands for
    spread = np.hypot(noise_std, cell)
    likelihood = normal_likelihood(counts[:, None], grid, spread)
    prior = np.full(_GRID, 1.0 / _GRID)
    for _ in range(_STEPS - 1):  # the mean of the posteriors, without forming them
        prior = prior * ((1.0 / (likelihood @ prior)) @ likelihood) / len(counts)
    posterior = likelihood * prior
    posterior /= posterior.sum(axis=1, keepdims=True)
    return Popularity(grid, posterior, counts, (cell / spread) ** 2)


def normal_likelihood(value: Float64Array, centre: Float64Array, std: Float64Array) -> Float64Array:
    """Normal densities along the last axis, up to a factor per item; never all zero."""
    exponent = -0.5 * ((value - centre) / std) ** 2 - np.log(std)
    return np.asarray(np.exp(exponent - exponent.max(axis=1, keepdims=True)) + 1e-300)
