"""How well the server knows an item's learned numbers: a covariance that follows from the item's count alone.

    N_j = A / c_j^2 + B / c_j            the noise of the item's estimate: of the mechanism, and of sampling
    P_j = S - S (S + N_j)^-1 S           what is left of the prior covariance S

S, A and B are the same for all items, so a model has them once, as Cholesky factors: whatever numbers a server sends,
the three are covariances. A device counts an item that is not known well for less, and does not take its errors for
its own tastes (errors in variables).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.algorithms.dpam.terms import GLOBALS_TABLE, RIDGES, Terms
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array

_LARGEST_DEVIATION, _LARGEST = 2.0**8, 2.0**40
_LEAST_VARIANCE, _LARGEST_VARIANCE = 1e-3, 1e3
_JITTER = 1e-9


@dataclass(frozen=True)
class Uncertainty:
    """Common covariances [w, w] of the learned numbers, in units of the public residual variance.

    Attributes:
      residual: released variance of residuals, in the same units.
      prior: S.
      noise, sampling: A and B.
    """

    residual: float
    prior: Float64Array
    noise: Float64Array
    sampling: Float64Array

    def of(self, counts: Float64Array) -> Float64Array:
        """P_j float64 [.., w, w] of items with ``counts`` [..] >= 1."""
        share = 1.0 / counts[..., None, None]
        total = self.prior + share * (self.sampling + share * self.noise)
        total = total + (_JITTER * (1.0 + np.trace(total, axis1=-2, axis2=-1)))[..., None, None] * np.eye(
            len(self.prior)
        )
        half = np.linalg.solve(np.linalg.cholesky(total), np.broadcast_to(self.prior, total.shape))
        return np.asarray(self.prior - half.swapaxes(-1, -2) @ half)

    def numbers(self) -> Float64Array:
        """As ``read`` takes them: float64 [1 + 3 pairs]."""
        lower = np.tril_indices(len(self.prior))
        factors = [_cholesky(matrix)[lower] for matrix in (self.prior, self.noise, self.sampling)]
        return np.concatenate(([self.residual], *factors))


def read(terms: Terms, dense: Mapping[str, Float32Array]) -> Uncertainty:
    """What a model says of its items.

    Raises:
      ConfigurationError: a number is not finite, huge, or no variance of residuals.
    """
    numbers = np.asarray(dense[GLOBALS_TABLE][0, RIDGES:], dtype=np.float64)
    try:
        _validate.within(residual_variance=float(numbers[0]), low=_LEAST_VARIANCE, high=_LARGEST_VARIANCE)
        parts = numbers[1:].reshape(3, terms.learned_pairs)
        most = np.abs(parts).max(axis=1)
        _validate.within(prior_deviation=float(most[0]), low=0.0, high=_LARGEST_DEVIATION)
        _validate.within(noise_deviation=float(most[1:].max()), low=0.0, high=_LARGEST)
    except ConfigurationError as error:
        raise ConfigurationError(f"the model cannot be trained on: {error}") from None
    covariances = []
    for part in parts:
        factor = np.zeros((terms.learned, terms.learned))
        factor[np.tril_indices(terms.learned)] = part
        covariances.append(factor @ factor.T)
    return Uncertainty(float(numbers[0]), *covariances)


def _cholesky(matrix: Float64Array) -> Float64Array:
    """The lower factor of a covariance, which may be singular."""
    values, vectors = np.linalg.eigh(matrix)
    _, upper = np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T)
    return np.asarray((upper * np.where(np.diagonal(upper) < 0, -1.0, 1.0)[:, None]).T)
