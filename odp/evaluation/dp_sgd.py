"""DP-SGD on the item table: what a general-purpose private optimiser makes of the same data and budget.

First the items' masses are released once: a user spreads a vector of length 1 over its items. Then, in every step, each
user solves its own bias and row on the device (no cost), forms the gradient of its squared error with respect to the
whole item table, scales it down to L2 norm ``clip`` and sends it; the sum gets Gaussian noise.

The server's steps are those of ``odp.DPSGD`` (``factorization/preconditioned.py``). All units are those of the declared
range, so the same settings serve every scale. Devices run the same method as a task; this one holds all users in one
place, and lets every item of a user count.

Guarantee: user level (``zero_out_user``), whatever a user's data are: a vector of masses or a clipped gradient,
truncated toward zero onto the grid, never exceeds 1 or ``clip``. Every user takes part in every step, so no
amplification by sampling is claimed and the accounting is exact: one release of sensitivity 1 and T of ``clip``.

Source: Abadi et al. 2016 (arXiv 1607.00133) for the mechanism; user-level clipping: McMahan et al. 2018
(arXiv 1710.06963); local rows, solved anew each step: Singhal et al. 2021 (arXiv 2102.03448); steps preconditioned by
noisy statistics: Li et al. 2022 (arXiv 2206.02313).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from odp import _validate
from odp.algorithms.factorization.preconditioned import START_STD, Preconditioner, StepSizes, cleaned
from odp.datasets.ratings import Ratings, Split
from odp.evaluation.als import products, residuals, solve, start_rows
from odp.evaluation.noise import RoundedNormals, noised
from odp.evaluation.trials import Outcome, Predictor, Settings, tuned_rmse
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease


def masses(train: Ratings, *, grid: float) -> Int64Array:
    """Sum of the users' vectors, equal on their items and at most 1 long: int64 [items] in steps of ``grid``."""
    counts = train.counts()
    each = np.trunc(1.0 / (np.sqrt(np.maximum(counts, 1)) * grid))
    return np.bincount(train.items, weights=np.repeat(each, counts), minlength=train.n_items).astype(np.int64)


_GRID = 2.0**-16
_PUBLIC_CENTRE = 0.625  # of the declared range: as DPAM's default
_MASS_SHARE = 0.1  # of mu^2
_USER_BIAS_RIDGE = 5.0

#: Settings that are tried: no factors, few or more of them, few steps or many.
GRID: tuple[Settings, ...] = (
    {"rank": 0, "steps": 4, "rate": 2.0},
    {"rank": 0, "steps": 10, "rate": 2.0},
    {"rank": 2, "steps": 8, "rate": 2.0},
    {"rank": 2, "steps": 16, "rate": 4.0},
    {"rank": 4, "steps": 16, "rate": 4.0},
    {"rank": 8, "steps": 32, "rate": 6.0},
)


@dataclass(frozen=True)
class DpSgd:
    """Settings.

    Attributes:
      rank: width of the factors; 0 fits item biases only.
      steps: gradient steps; the budget that masses leave is split equally.
      rate: step t = 0, 1, .. goes ``rate / (rate + t)`` of the way to what its gradient says are an item's best values.
        1 is their plain mean; a larger rate forgets early steps.
      clip: L2 bound of a user's gradient, in standard deviations of a rating. Most gradients are longer, so it is a
        matter of units.
      row_clip: L2 bound of a user's row in its gradient; rows have variance 1.
      row_ridge: on a user's row, in units of the variance of a rating: 1 by Bayes.
    """

    rank: int = 0
    steps: int = 10
    rate: float = 2.0
    clip: float = 0.5
    row_clip: float = 1.8
    row_ridge: float = 1.0

    def __post_init__(self) -> None:
        """Raises ConfigurationError for a number out of range."""
        _validate.integer(rank=self.rank, low=0, high=64)
        _validate.integer(steps=self.steps, low=1, high=10_000)
        _validate.within(rate=self.rate, low=1.0, high=1e6)
        _validate.positive(clip=self.clip, row_clip=self.row_clip, row_ridge=self.row_ridge)

    @property
    def rates(self) -> Float64Array:
        """Of every step, float64 [steps]; the first is 1."""
        return StepSizes(self.steps, self.rate).rates

    @property
    def averaged(self) -> float:
        """Variance of the noise in the result, in units of that of one step: from 1 / steps to 1."""
        return StepSizes(self.steps, self.rate).averaged


@dataclass(frozen=True)
class DpSgdModel:
    """A trained item table and what it cost.

    Attributes:
      items: rows float64 [items, 2 + rank]: bias, the constant 1, factors.
      predict: users are solved on their history.
      charges: empty where epsilon is infinite.
    """

    items: Float64Array
    predict: Predictor
    charges: tuple[GaussianRelease, ...]


def tuned_dp_sgd(split: Split, *, epsilon: float, delta: float, seed: int) -> Outcome:
    """Test RMSE of the best of six settings, each of which spends the whole budget."""

    def made(rank: float, steps: float, rate: float) -> Predictor:
        settings = DpSgd(rank=min(int(rank), split.train.n_items), steps=int(steps), rate=rate)
        return dp_sgd(split.train, epsilon=epsilon, delta=delta, seed=seed, settings=settings).predict

    return tuned_rmse(split, GRID, made)


def dp_sgd(train: Ratings, *, epsilon: float, delta: float, seed: int, settings: DpSgd) -> DpSgdModel:
    """An item table from ``train``.

    Raises:
      ConfigurationError: the budget is out of range.
      PrivacyError: too many numbers get noise: the sampler alone uses up delta.
    """
    width, unit = 1 + settings.rank, (train.high - train.low) / 4.5
    masses_event, event = _events(train.n_items, settings, unit=unit, epsilon=epsilon, delta=delta)
    noise = RoundedNormals(seed, 0)
    mass = noised(masses_event, masses(train, grid=_GRID), step=_GRID, noise=noise)
    mass_std = 0.0 if masses_event is None else masses_event.noise_std
    mass = cleaned(mass, noise_std=mass_std)
    step_std = 0.0 if event is None else event.noise_std
    server = Preconditioner.of(
        mass,
        users=train.n_users,
        rank=settings.rank,
        clip=settings.clip,
        row_clip=settings.row_clip,
        unit=unit,
        noise=step_std**2 * settings.averaged,
    )

    centre = train.low + _PUBLIC_CENTRE * (train.high - train.low)
    items = start_rows(train.n_items, rank=settings.rank, seed=seed, std=START_STD * unit)
    matrix = residuals(train, centre)
    moved = [column for column in range(2 + settings.rank) if column != 1]
    for rate in settings.rates:
        exact = _clipped_gradients(matrix, items, settings, unit=unit)
        total = noised(event, exact, step=_GRID * unit, noise=noise).reshape(train.n_items, width)
        items[:, moved] = server.step(items[:, moved], total, rate=rate)

    def predict(history: Ratings, targets: Ratings) -> Float64Array:
        users = _users(residuals(history, centre), items, settings, unit=unit)
        return np.asarray(centre + products(users, items, targets))

    charges = () if event is None or masses_event is None else (masses_event, *[event] * settings.steps)
    return DpSgdModel(items, predict, charges)


def _events(
    n_items: int, settings: DpSgd, *, unit: float, epsilon: float, delta: float
) -> tuple[GaussianRelease, GaussianRelease] | tuple[None, None]:
    """Masses once and gradients in every step, which together spend the budget; nothing where there is no noise."""
    if epsilon == math.inf:
        return None, None
    width = 1 + settings.rank
    mu = mu_for(epsilon=epsilon, delta=delta, coordinates=n_items * (1 + width * settings.steps))
    clip = settings.clip * unit
    return (
        GaussianRelease("masses", sensitivity=1.0, noise_std=1.0 / (math.sqrt(_MASS_SHARE) * mu), coordinates=n_items),
        GaussianRelease(
            "gradients",
            sensitivity=clip,
            noise_std=clip * math.sqrt(settings.steps / (1.0 - _MASS_SHARE)) / mu,
            coordinates=n_items * width,
        ),
    )


def _users(matrix: scipy.sparse.csr_matrix, items: Float64Array, settings: DpSgd, *, unit: float) -> Float64Array:
    """Each device's own row (1, bias, factors), float64 [users, 2 + rank]."""
    strength = np.array([_USER_BIAS_RIDGE, *[settings.row_ridge * unit**2] * settings.rank])
    return solve(matrix, items, fixed=0, strength=strength)


def _clipped_gradients(
    matrix: scipy.sparse.csr_matrix, items: Float64Array, settings: DpSgd, *, unit: float
) -> Int64Array:
    """Sum of the users' clipped gradients in grid units, int64 [items * (1 + rank)]; descent direction."""
    users = _users(matrix, items, settings, unit=unit)
    size = np.diff(matrix.indptr)
    user = np.repeat(np.arange(len(size)), size)
    error = (matrix.data - np.einsum("nd,nd->n", users[user], items[matrix.indices])) / unit
    factors = users[:, 2:]
    factors = factors * np.minimum(
        1.0, settings.row_clip / np.maximum(np.linalg.norm(factors, axis=1, keepdims=True), 1e-300)
    )
    rows = np.concatenate((users[:, :1], factors), axis=1)  # the item's bias sees 1, its factors see the user's
    squares = np.bincount(user, weights=error**2, minlength=len(size)) * (rows**2).sum(axis=1)
    scale = np.minimum(1.0, settings.clip / np.sqrt(np.maximum(squares, 1e-300))) / _GRID
    scaled = error * scale[user]
    total = np.empty((len(items), rows.shape[1]), dtype=np.int64)
    for column in range(rows.shape[1]):
        # Truncation, not rounding: it can only shorten a gradient. Sums of whole numbers below 2^53 are exact.
        entries = np.trunc(scaled * rows[user, column])
        total[:, column] = np.bincount(matrix.indices, weights=entries, minlength=len(items)).astype(np.int64)
    return total.ravel()
