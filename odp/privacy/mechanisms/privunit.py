"""PrivUnit2: a unit vector, private by itself, as a random vector with that expectation.

With probability ``p`` the answer's direction is uniform on the cap of directions whose inner product with the input is
at least ``gamma``, otherwise uniform on the rest of the sphere. Divided by m, it has the input as its expectation.

Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, section 4.1, with the exact probability of the cap.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array
from odp.privacy.mechanisms.random_source import WHOLE, RandomSource

_GRID_BITS = 16


@dataclass(frozen=True)
class PrivUnit:
    """The mechanism in ``dimension`` dimensions."""

    dimension: int
    gamma: float
    p: float

    def __post_init__(self) -> None:
        _validate.integer(low=2, high=10**7, dimension=self.dimension)
        _validate.within(low=0.5, high=1.0, p=self.p)
        if not 0.0 <= self.gamma < 1.0:
            raise ConfigurationError(f"Expected gamma={self.gamma!r} to be at least 0 and below 1")

    @classmethod
    def calibrated(cls, dimension: int, epsilon: float) -> PrivUnit:
        """The mechanism with the least error at ``epsilon``."""
        _validate.integer(low=2, high=10**7, dimension=dimension)
        _validate.within(low=0.1, high=5000.0, epsilon=epsilon)

        def at(gamma: float) -> PrivUnit:
            log_q = _log_cap(dimension, gamma)
            odds = epsilon + log_q - math.log1p(-math.exp(log_q))
            return (
                cls(dimension, gamma, max(0.5, float(special.expit(odds)))) if odds >= 0 else cls(dimension, 0.0, 0.5)
            )

        def loss(log_gamma: float) -> float:
            return min(1e6, -at(math.exp(log_gamma)).log_m)

        grid = np.linspace(math.log(1e-4 / math.sqrt(dimension)), math.log(0.9999), 160)
        values = [loss(one) for one in grid]
        best = int(np.argmin(values))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 159)]
        found = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
        return max((at(math.exp(found.x)), at(math.exp(grid[best])), at(0.0)), key=lambda one: one.log_m)

    @functools.cached_property
    def log_q(self) -> float:
        """Logarithm of the cap's probability under a uniform direction."""
        return _log_cap(self.dimension, self.gamma)

    @property
    def epsilon(self) -> float:
        """Exact."""
        if self.p == 1.0:
            return math.inf
        return math.log(self.p) - math.log1p(-self.p) + math.log1p(-math.exp(self.log_q)) - self.log_q

    @functools.cached_property
    def log_m(self) -> float:
        a = (self.dimension - 1) / 2
        log_c = special.gammaln(self.dimension / 2) - 0.5 * math.log(math.pi) - special.gammaln(a)
        leading = log_c + a * math.log1p(-(self.gamma**2)) - math.log(self.dimension - 1) - self.log_q
        q = math.exp(self.log_q)
        inner = self.p - (1 - self.p) * q / (1 - q)
        return float(leading) + math.log(inner) if inner > 0 else -math.inf

    @property
    def scale(self) -> float:
        """1 / m: the norm of each answer."""
        return math.exp(-self.log_m)

    @property
    def second_moment(self) -> float:
        """E |Z|²."""
        return self.scale**2

    def randomize(self, units: Float64Array, *, source: RandomSource) -> Float64Array:
        """Answers [n, d] for unit vectors [n, d]; one that is no unit vector counts as a uniform direction."""
        count, size = units.shape
        a = (size - 1) / 2
        units = np.array(units, dtype=np.float64)
        norms = np.sqrt(np.einsum("nd,nd->n", units, units))
        wrong = np.flatnonzero(~(np.abs(norms - 1) < 1e-3))
        if len(wrong):
            drawn = source.normals(len(wrong) * size).reshape(len(wrong), size)
            units[wrong] = drawn / np.sqrt(np.einsum("nd,nd->n", drawn, drawn))[:, None]
            norms[wrong] = 1.0
        units /= norms[:, None]
        inside = source.coins(min(WHOLE, int(self.p * 2**64)), count)
        uniform = source.uniforms(count)
        q = math.exp(self.log_q)
        cosine = np.empty(count)
        top = special.betainc(a, 0.5, 1 - self.gamma**2)
        cosine[inside] = np.sqrt(1 - special.betaincinv(a, 0.5, uniform[inside] * top))
        cosine[~inside] = 2 * special.betaincinv(a, a, uniform[~inside] * (1 - q)) - 1
        around = source.normals(count * size).reshape(count, size)
        around -= np.einsum("nd,nd->n", around, units)[:, None] * units
        around *= (np.sqrt(1 - cosine**2) / np.sqrt(np.einsum("nd,nd->n", around, around)))[:, None]
        around += cosine[:, None] * units
        return np.rint(around * 2.0**_GRID_BITS) * (self.scale * 2.0**-_GRID_BITS)


def _log_cap(dimension: int, gamma: float) -> float:
    a, x = (dimension - 1) / 2, 1 - gamma**2
    value = float(special.betainc(a, 0.5, x))
    if value > 1e-290:
        return math.log(0.5 * value)
    terms, term, n = 1.0, 1.0, 0
    while term > 1e-17 * terms:
        term *= (a + 0.5 + n) / (a + 1 + n) * x
        terms, n = terms + term, n + 1
    log_beta = float(special.betaln(a, 0.5))
    return math.log(0.5) + a * math.log(x) + 0.5 * math.log1p(-x) - math.log(a) - log_beta + math.log(terms)
