"""DP-SGD on the item table: what a general-purpose private optimiser makes of the same data and budget.

Every step, each user solves its own bias and row on the device (no cost), forms the gradient of its squared error with
respect to the whole item table, scales it down to L2 norm ``clip`` and sends it; the sum gets Gaussian noise.

Guarantee: user level (``zero_out_user``), whatever a user's data are: a clipped gradient, truncated toward zero onto
the grid, never exceeds ``clip``. Every user takes part in every step, so no amplification by sampling is claimed and
the accounting is exact: T releases of sensitivity ``clip``.

Source: Abadi et al. 2016 (arXiv 1607.00133) for the mechanism; user-level clipping: McMahan et al. 2018
(arXiv 1710.06963); local rows, solved anew each step: Singhal et al. 2021 (arXiv 2102.03448).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from odp import _validate
from odp.datasets.ratings import Ratings, Split, merge
from odp.evaluation.als import residuals, solve, start_rows
from odp.evaluation.noise import SeededNoise, noised
from odp.numerics.arrays import Float64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise

_GRID = 2.0**-16
_LARGEST_ROW = 30.0


@dataclass(frozen=True)
class DpSgd:
    """Settings. Those of ``recommended`` were chosen on a validation part of MovieLens-1M, uncharged (as DPAM's were).

    Attributes:
      rank: width of the factors; 0 fits item biases only.
      steps: gradient steps; the budget is split equally.
      clip: L2 bound of a user's gradient, in units of the values.
      rate: learning rate, in units of 1 / (average number of users per item).
      momentum: of the server; post-processing, so it costs nothing.
      ridge: on the users' local parameters, per rating.
    """

    rank: int = 0
    steps: int = 12
    clip: float = 1.0
    rate: float = 0.01
    momentum: float = 0.5
    ridge: float = 0.1

    def __post_init__(self) -> None:
        """Raises ConfigurationError for a number out of range."""
        _validate.integer(rank=self.rank, low=0, high=64)
        _validate.integer(steps=self.steps, low=1, high=10_000)
        _validate.positive(clip=self.clip, rate=self.rate, ridge=self.ridge)
        _validate.within(momentum=self.momentum, low=0.0, high=0.999)

    @classmethod
    def recommended(cls, epsilon: float) -> DpSgd:
        """Settings by ε: more steps and factors where there is less noise.

        The small clip cuts every user's gradient to the same length, so it is a matter of units: noise, rate and clip
        act through their products alone.
        """
        if epsilon < 1.5:
            return cls(rank=0, steps=12, rate=0.006, momentum=0.5)
        if epsilon < 3.0:
            return cls(rank=0, steps=12, rate=0.01, momentum=0.5)
        if epsilon < 6.0:
            return cls(rank=2, steps=30, rate=0.01, momentum=0.0)
        if epsilon < 14.0:
            return cls(rank=4, steps=30, rate=0.01, momentum=0.5)
        return cls(rank=4, steps=80, rate=0.005, momentum=0.8)


@dataclass(frozen=True)
class DpSgdResult:
    """Predictions float64 [targets] and what they cost; ``charges`` is empty where epsilon is infinite."""

    predictions: Float64Array
    charges: tuple[GaussianRelease, ...]


def dp_sgd(
    split: Split, targets: Ratings, *, epsilon: float, delta: float, seed: int, settings: DpSgd | None = None
) -> DpSgdResult:
    """Trains on ``split.train``; predicts ``targets``, each user solved on train and validation ratings.

    Where ``targets`` is the validation part, users are solved on the training part alone.

    Raises:
      ConfigurationError: a setting or the budget is out of range.
      PrivacyError: too many numbers get noise: the sampler alone uses up delta.
    """
    chosen = DpSgd.recommended(epsilon) if settings is None else settings
    train = split.train
    width = 1 + chosen.rank
    draws = train.n_items * width * chosen.steps
    event = None
    if epsilon != math.inf:
        std = chosen.clip * math.sqrt(chosen.steps) / mu_for(epsilon=epsilon, delta=delta, coordinates=draws)
        event = GaussianRelease("gradients", sensitivity=chosen.clip, noise_std=std, coordinates=train.n_items * width)
    noise = GaussianNoise(SeededNoise(seed))
    centre = train.low + 0.625 * (train.high - train.low)  # public: as DPAM's default
    items = start_rows(train.n_items, rank=chosen.rank, seed=seed)
    matrix = residuals(train, centre)
    rate = chosen.rate * train.n_items / max(train.n_users, 1)
    velocity = np.zeros((train.n_items, width))
    moved = [column for column in range(2 + chosen.rank) if column != 1]
    for _ in range(chosen.steps):
        total = noised(event, _clipped_gradients(matrix, items, chosen), step=_GRID, noise=noise)
        velocity = chosen.momentum * velocity + rate * total.reshape(train.n_items, width)
        items[:, moved] += velocity
    history = train if targets is split.validation else merge(train, split.validation)
    users = solve(residuals(history, centre), items, known=0, ridge=chosen.ridge)
    predictions: Float64Array = centre + np.einsum("nd,nd->n", users[targets.users()], items[targets.items])
    return DpSgdResult(predictions, () if event is None else (event,) * chosen.steps)


def _clipped_gradients(matrix: scipy.sparse.csr_matrix, items: Float64Array, settings: DpSgd) -> np.ndarray:
    """Sum of the users' clipped gradients in grid units, int64 [items * (1 + rank)]; descent direction."""
    users = solve(matrix, items, known=0, ridge=settings.ridge)
    size = np.diff(matrix.indptr)
    user = np.repeat(np.arange(len(size)), size)
    error = matrix.data - np.einsum("nd,nd->n", users[user], items[matrix.indices])
    width = 1 + settings.rank
    rows = np.concatenate((users[:, :1], users[:, 2:]), axis=1)  # the item's bias sees 1, its factors see the user's
    rows *= np.minimum(1.0, _LARGEST_ROW / np.linalg.norm(rows, axis=1, keepdims=True))
    squares = np.bincount(user, weights=error**2, minlength=len(size)) * (rows**2).sum(axis=1)
    scale = np.minimum(1.0, settings.clip / np.sqrt(np.maximum(squares, 1e-300))) / _GRID
    scaled = error * scale[user]
    total = np.empty((len(items), width), dtype=np.int64)
    for column in range(width):
        # Truncation, not rounding: it can only shorten a gradient. Sums of whole numbers below 2^53 are exact.
        entries = np.trunc(scaled * rows[user, column])
        total[:, column] = np.bincount(matrix.indices, weights=entries, minlength=len(items)).astype(np.int64)
    return total.ravel()
