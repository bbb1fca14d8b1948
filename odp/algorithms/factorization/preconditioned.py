"""What a server makes of noisy masses and gradients of an item table; all of it is post-processing.

How much of all users' attention every item has: a user spreads a vector of length 1 over its items. The sums are
released once, with noise, and what they tell is estimated under a common prior of all items.

An item's step is divided by what its noisy mass says of the curvature, plus a damping: the ridge at which the noise of
all steps and the spread of the items balance. Steps grow shorter, so that the noise of all of them averages out. An
item that the noise drowns stays at what all items of its popularity have in common, and no step can diverge.

Sources: Kiefer and Wolfowitz 1956 (maximum likelihood over mixing distributions); Li et al. 2022 (arXiv 2206.02313) for
steps preconditioned by noisy statistics; damping derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp.numerics.arrays import Float64Array

#: Public guess of the standard deviation of the factors' random start, in standard deviations of a value.
START_STD = 0.11

#: Of the largest mass: what an item without raters seems to have at least.
_LEAST = 1e-4
_POINTS = 60
_EM_STEPS = 60
# Public guesses, in standard deviations of a rating around its prediction: that of items' biases, of their factors.
_BIAS_STD, _FACTOR_STD = 0.6, 0.2
# Public guess of how far an item's columns are from 0, in units of its mean score, for implicit feedback.
_SPREAD = 4.0
_TREND_VARIANCE = np.array([0.1, 0.1, 0.03])  # of its coefficients, in variances of a rating


def cleaned(noisy: Float64Array, *, noise_std: float) -> Float64Array:
    """Posterior means float64 [items] > 0 of masses, given noisy ones.

    The prior is a mixture of points, spaced geometrically, whose weights EM finds; each point stands for the masses up
    to the next ones.
    """
    points = np.geomspace(max(float(noisy.max()), 1e-9) * _LEAST, max(float(noisy.max()), 1e-9), _POINTS)
    cell = 0.5 * np.gradient(points)
    spread = np.hypot(noise_std, cell)
    exponent = -0.5 * ((noisy[:, None] - points) / spread) ** 2 - np.log(spread)
    likelihood = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    weight = np.full(_POINTS, 1.0 / _POINTS)
    for _ in range(_EM_STEPS):
        weight = weight * ((1.0 / (likelihood @ weight)) @ likelihood) / len(noisy)
    posterior = likelihood * weight
    posterior /= posterior.sum(axis=1, keepdims=True)
    gain = (cell / spread) ** 2  # how far a mass is known within the cell that it is in
    means = posterior @ (points * (1.0 - gain)) + noisy * (posterior @ gain)
    return np.asarray(np.maximum(means, points[0]))


@dataclass(frozen=True)
class StepSizes:
    """Of ``steps`` steps: step t = 0, 1, .. goes ``rate / (rate + t)`` of the way. See ``ItemGradientTraining``."""

    steps: int
    rate: float

    @property
    def rates(self) -> Float64Array:
        """Of every step, float64 [steps]; the first is 1."""
        return np.asarray(self.rate / (self.rate + np.arange(self.steps)))

    @property
    def averaged(self) -> float:
        """Variance of the noise in the result, in units of that of one step: from 1 / steps to 1."""
        remaining = np.append(np.cumprod(1.0 - self.rates[:0:-1])[::-1], 1.0)
        return float(((self.rates * remaining) ** 2).sum())


def typical_root(mass: Float64Array, users: float) -> float:
    """Mean square root of the number of a user's items, which adds 1 / root to each of them."""
    return max(float(mass.sum()) / max(users, 1), 1.0)


@dataclass(frozen=True)
class Preconditioner:
    """What divides noisy gradients.

    Attributes:
      curvature: of an item's loss [items, 1]: what its gradient is per unit of error.
      damping: [items, 1 + rank].
      trend: design of the biases' trend [items, 3], and the map from noisy biases to its coefficients [3, items].
    """

    curvature: Float64Array
    damping: Float64Array
    trend: tuple[Float64Array, Float64Array]

    @classmethod
    def of(
        cls, mass: Float64Array, *, users: float, rank: int, clip: float, row_clip: float, unit: float, noise: float
    ) -> Preconditioner:
        """From the items' masses [items] and how many users they are of.

        Args:
          mass, users: of the users that count.
          clip, row_clip: as of ``ItemGradientTraining``.
          unit: standard deviation of a value.
          noise: variance of that of all steps together, in a gradient's units.
        """
        # A rater moves the sum by clip / |gradient| per unit of error, its gradient being sqrt(its ratings) errors of
        # one unit times its row (1, u). The mean of those square roots follows from the masses.
        row = math.hypot(1.0, min(row_clip, math.sqrt(rank)))
        curvature = clip / row * mass[:, None]
        scatter = unit**2 * curvature * clip / (row * typical_root(mass, users))
        variance = noise + scatter
        spread = unit * np.array([_BIAS_STD, *[_FACTOR_STD] * rank])
        logarithm = np.log(mass)
        logarithm = (logarithm - logarithm.mean()) / (logarithm.std() + 1e-9)
        design = np.stack((np.ones_like(mass), logarithm, logarithm**2), axis=1)
        weight = curvature**2 / (variance + curvature**2 * spread[0] ** 2)
        normal = (design * weight).T @ design + np.diag(1.0 / (unit**2 * _TREND_VARIANCE))
        return cls(
            curvature, variance / (curvature * spread**2), (design, np.linalg.solve(normal, (design * weight).T))
        )

    def step(self, values: Float64Array, gradient: Float64Array, *, rate: float) -> Float64Array:
        """Item biases and factors [items, 1 + rank] after a step; biases are damped toward their trend by mass."""
        design, coefficients = self.trend
        toward = np.zeros_like(values)
        toward[:, 0] = design @ (coefficients @ (gradient[:, 0] / self.curvature[:, 0] + values[:, 0]))
        moved = (gradient - self.damping * (values - toward)) / (self.curvature + self.damping)
        return np.asarray(values + rate * moved)


def chances(mass: Float64Array, users: float) -> Float64Array:
    """About which share of users has each item, float64 [items], from its mass: at most 1."""
    return np.asarray(np.minimum(mass * typical_root(mass, users) / max(users, 1), 1.0))


def positive(gramian: Float64Array) -> Float64Array:
    """A symmetric matrix with its eigenvalues lifted above 0."""
    values, vectors = np.linalg.eigh(gramian)
    return np.asarray((vectors * np.maximum(values, 1e-6 * max(float(values[-1]), 1e-12))) @ vectors.T)


@dataclass(frozen=True)
class ImplicitPreconditioner:
    """What divides noisy gradients of an item table from implicit feedback, whose first column is popularity.

    Attributes:
      raters: weight of the users who have an item [items].
      damping: [items].
      unobserved_weight: of all pairs, against 1 more for observed ones.
    """

    raters: Float64Array
    damping: Float64Array
    unobserved_weight: float

    @classmethod
    def of(
        cls,
        mass: Float64Array,
        scores: Float64Array,
        *,
        users: float,
        rank: int,
        clip: float,
        noise: float,
        unobserved_weight: float,
    ) -> ImplicitPreconditioner:
        """From the items' masses and popularity ``scores`` [items]; other arguments as of ``Preconditioner``."""
        # A rater's weight in the sums is clip / (its gradient's norm): sqrt(its items) errors of 1 times its row.
        rater = clip / math.sqrt(rank)
        variance = noise + rater**2 * mass / typical_root(mass, users)
        return cls(rater * mass, variance / (_SPREAD * scores) ** 2, unobserved_weight)

    def step(self, items: Float64Array, gradient: Float64Array, gramian: Float64Array, *, rate: float) -> Float64Array:
        """Learned columns [items, rank] after a step along the gradient, over its curvature and damping.

        The curvature of an item is the weight of its raters, and of all users times ``unobserved_weight``, times what
        users' rows have in common: the Gramian. In its eigenvectors every item's system is diagonal. Then they are
        scaled for users' rows of variance 1, so that the same ridge and clips fit every step: products stay.
        """
        factors, common = items[:, 1:], gramian[1:, 1:]
        direction = gradient - self.unobserved_weight * (items @ gramian[:, 1:]) - self.damping[:, None] * factors
        values, vectors = np.linalg.eigh(common)
        everybody = max(float(values.mean()), 1e-12)  # the sum of the users' weights, as rows have variance 1
        share = self.raters / everybody + self.unobserved_weight
        moved = ((direction @ vectors) / (share[:, None] * values + self.damping[:, None])) @ vectors.T
        size = max(float(np.trace(common)) / len(common), 1e-12)
        return np.asarray((factors + rate * moved) @ np.linalg.cholesky(common / size))
