"""How much of all users' attention every item has: one private release, cleaned of its noise.

A user spreads a vector of length 1 over its items. The sums are released once, with noise, and what they tell is
estimated under a common prior of all items: post-processing.

Source: Kiefer and Wolfowitz 1956 (maximum likelihood over mixing distributions).
"""

from __future__ import annotations

import numpy as np

from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Float64Array, Int64Array

#: Of the largest mass: what an item without raters seems to have at least.
_LEAST = 1e-4
_POINTS = 60
_STEPS = 60


def masses(train: Ratings, *, grid: float) -> Int64Array:
    """Sum of the users' vectors, equal on their items and at most 1 long: int64 [items] in steps of ``grid``."""
    counts = train.counts()
    each = np.trunc(1.0 / (np.sqrt(np.maximum(counts, 1)) * grid))
    return np.bincount(train.items, weights=np.repeat(each, counts), minlength=train.n_items).astype(np.int64)


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
    for _ in range(_STEPS):
        weight = weight * ((1.0 / (likelihood @ weight)) @ likelihood) / len(noisy)
    posterior = likelihood * weight
    posterior /= posterior.sum(axis=1, keepdims=True)
    gain = (cell / spread) ** 2  # how far a mass is known within the cell that it is in
    means = posterior @ (points * (1.0 - gain)) + noisy * (posterior @ gain)
    return np.asarray(np.maximum(means, points[0]))
