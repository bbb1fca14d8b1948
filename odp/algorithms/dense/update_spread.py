"""How large the clients' updates are and how far they differ, from noisy releases: update scale and between-client
variance.

With updates d_i of p numbers, i = 1 .. K, and their mean m:

    update scale                U = |m|^2 / p
    between-client variance     V = (1/p) (mean of |d_i|^2 - |m|^2)

Both say which schedule helps: large U and small V early (few clients and much noise do), small U and large V late.
Exact values read raw updates, and are for simulations alone. From a release R, noise std s on each number of the sum,
cohort c (``SpreadTerms.estimates``):

- U costs nothing more: |R/c|^2 / p is too large by (s/c)^2 on average, which is subtracted.
- V takes one more number in each contribution, ``weight |d_i|^2 / clip``, at most weight * clip. Contribution and
  number together have norm at most ``clip sqrt(1 + weight^2)``: one joint query of that sensitivity (rule P8). A weight
  of .1 costs .5 % of noise.

Both describe *clipped* updates, and clients that count in the release as zero (empty contributions, fewer than the
cohort) lower both. Estimates can be negative: only pictures cut them at 0.

Source: Geyer, Klein, Nabi 2017, section 3, as means over parameters; the estimates are derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.errors import DataError
from odp.numerics.arrays import Float64Array


@dataclass(frozen=True)
class Spread:
    """Update scale and between-client variance per number, with the standard deviation of the noise on each.

    The standard deviations are 0 where exact; ``variance`` is None where it was not released.
    """

    scale: float
    scale_std: float
    variance: float | None
    variance_std: float


@dataclass(frozen=True, kw_only=True)
class SpreadTerms:
    """What is added to contributions of ``size`` numbers and norm ``clip`` so that their spread can be estimated.

    Attributes:
      size: numbers of an update.
      clip: L2 bound of an update, data units.
      weight: of the one more number; 0 for none, and then there is no variance.

    Raises:
      ConfigurationError: a number is out of range.
    """

    size: int
    clip: float
    weight: float = 0.1

    def __post_init__(self) -> None:
        _validate.integer(size=self.size, low=1, high=2**26)
        _validate.positive(clip=self.clip)
        _validate.within(low=0.0, high=1.0, weight=self.weight)

    @property
    def width(self) -> int:
        """Numbers of a contribution: one more than of an update, with a weight."""
        return self.size + (self.weight > 0.0)

    @property
    def sensitivity(self) -> float:
        """L2 bound of a contribution, data units; rounded upwards."""
        return self.clip * math.sqrt(1.0 + self.weight**2) * (1.0 + 2.0**-50)

    def contributions(self, updates: Float64Array) -> Float64Array:
        """Updates float64 [users, size] of norm at most ``clip`` with their one more number, [users, width].

        Raises:
          DataError: another size, or an update that is longer than the bound by more than float rounding.
        """
        if updates.ndim != 2 or updates.shape[1] != self.size:
            raise DataError(f"Expected updates of {self.size} numbers (got shape {list(updates.shape)})")
        squares = np.square(updates).sum(axis=1)
        if not (squares <= self.clip**2 * (1.0 + 1e-9)).all():
            raise DataError(f"Expected updates of norm at most clip={self.clip!r}: clip them first")
        if not self.weight:
            return updates
        return np.column_stack((updates, self.weight / self.clip * squares))

    def estimates(self, released: Float64Array, *, cohort: float, noise_std: float) -> Spread:
        """The spread by a released sum of contributions, float64 [width], data units.

        Args:
          released: sum with noise.
          cohort: what the sum is divided by: the public, expected number.
          noise_std: of every number of the sum, data units; 0 in a simulation without noise.

        Raises:
          DataError: another number of numbers.
        """
        if released.shape != (self.width,):
            raise DataError(f"Expected {self.width} released numbers (got shape {list(released.shape)})")
        _validate.positive(cohort=cohort)
        _validate.within(low=0.0, high=1e100, noise_std=noise_std)
        noise = noise_std / cohort  # on each number of the mean
        mean = released[: self.size] / cohort
        squared = float(mean @ mean) - self.size * noise**2
        # Variance of |m + noise|^2, of which |m|^2 is known by its estimate.
        squared_std = math.sqrt(4.0 * noise**2 * max(squared, 0.0) + 2.0 * self.size * noise**4)
        if not self.weight:
            return Spread(squared / self.size, squared_std / self.size, None, 0.0)
        per_square = self.clip / self.weight / cohort
        of_squares = float(released[-1]) * per_square
        return Spread(
            scale=squared / self.size,
            scale_std=squared_std / self.size,
            variance=(of_squares - squared) / self.size,
            variance_std=math.hypot(noise_std * per_square, squared_std) / self.size,
        )
