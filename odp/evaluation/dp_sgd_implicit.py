"""DP-SGD for implicit feedback: a private optimiser of iALS's objective on the item table.

As for ratings (``dp_sgd.py``), the items' masses are released once; then, in every step, each user solves its own row
on the device (no cost) and sends its gradient. The gradient of the objective has two parts:

- at the user's own items, (1 - <u, v_j>) u: a table of items by rank that is 0 elsewhere;
- at all items alike, through u u^T: the pull of unobserved pairs toward 0 is ``unobserved_weight`` v_j^T u u^T.

So a step is two releases: the sums of the first parts, and the users' Gramian, from which the server forms the second
part for all items. A user's loss gets the weight that keeps both within their bounds.

One column of the item table is fixed: popularity, as the masses tell it. Where the noise drowns the gradients, the
damping holds all other columns near 0, and the ranking is that of popularity.

Guarantee: user level (``zero_out_user``). The masses of a user are a vector of length 1, the first parts are at most
``clip`` long, the Gramian's at most ``clip sqrt(rank) / 4`` in Frobenius norm, all truncated toward zero onto a grid.
Every user takes part in every step: no amplification is claimed, and all 1 + 2 T releases are charged.

Source: as ``dp_sgd.py`` and ``als.py``; the two releases of the gradient: Chien et al. 2021 (arXiv 2107.09802).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from odp import _validate
from odp.algorithms.factorization.preconditioned import ImplicitPreconditioner, StepSizes, chances, cleaned, positive
from odp.datasets.ratings import Ratings, Split
from odp.evaluation.als import pairs, solve_rows
from odp.evaluation.ceilings import Tuned, tuned_ranking
from odp.evaluation.dp_sgd import masses
from odp.evaluation.noise import RoundedNormals, noised
from odp.evaluation.ranking import Scores, factor_scores
from odp.evaluation.trials import Settings
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import IntegerNoise

_GRID = 2.0**-16
_ROW_GRID = 2.0**-12
_MASS_SHARE, _GRAMIAN_SHARE = 0.25, 0.1  # of mu^2; the second of what the first leaves
_START_STD = 0.1
_LEAST = 1e-9

#: Settings that are tried: few columns and steps, or more.
GRID: tuple[Settings, ...] = (
    {"rank": 4, "steps": 2, "unobserved_weight": 0.02},
    {"rank": 8, "steps": 3, "unobserved_weight": 0.02},
    {"rank": 8, "steps": 4, "unobserved_weight": 0.2},
    {"rank": 16, "steps": 4, "unobserved_weight": 0.005},
    {"rank": 16, "steps": 4, "unobserved_weight": 0.05},
    {"rank": 24, "steps": 6, "unobserved_weight": 0.02},
)


@dataclass(frozen=True)
class ImplicitDpSgd:
    """Settings.

    Attributes:
      rank: columns that are learned, beside popularity.
      steps: gradient steps; the budget that masses leave is split equally.
      unobserved_weight: of all pairs, against 1 for observed ones.
      ridge: on a user's row; rows have variance 1.
      rate: as of ``DpSgd``.
      clip: L2 bound of the first part of a user's gradient; a matter of units.
    """

    rank: int = 16
    steps: int = 4
    unobserved_weight: float = 0.02
    ridge: float = 1.0
    rate: float = 2.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        """Raises ConfigurationError for a number out of range."""
        _validate.integer(rank=self.rank, low=1, high=256)
        _validate.integer(steps=self.steps, low=1, high=10_000)
        _validate.positive(unobserved_weight=self.unobserved_weight, ridge=self.ridge, clip=self.clip)
        _validate.within(rate=self.rate, low=1.0, high=1e6)

    @property
    def gramian_clip(self) -> float:
        """Bound of the Frobenius norm of a user's part of the Gramian; users of fewer than 16 items meet it."""
        return self.clip * math.sqrt(self.rank) / 4.0


@dataclass(frozen=True)
class ImplicitDpSgdModel:
    """A trained item table and what it cost.

    Attributes:
      items: rows float64 [items, 1 + rank]: popularity, then learned columns.
      scores: of all items for users with a history, who are solved on it.
      charges: empty where epsilon is infinite.
    """

    items: Float64Array
    scores: Callable[[Ratings], Scores]
    charges: tuple[GaussianRelease, ...]


def tuned_dp_sgd_implicit(
    split: Split, *, epsilon: float, delta: float, seed: int, cutoffs: tuple[int, ...] = (20,)
) -> Tuned:
    """Test ranking of the best of six settings, each of which spends the whole budget.

    Raises:
      DataError: there are no targets.
    """

    def made(rank: float, steps: float, unobserved_weight: float) -> Callable[[Ratings], Scores]:
        settings = ImplicitDpSgd(
            rank=min(int(rank), split.train.n_items), steps=int(steps), unobserved_weight=unobserved_weight
        )
        return dp_sgd_implicit(split.train, epsilon=epsilon, delta=delta, seed=seed, settings=settings).scores

    return tuned_ranking(split, GRID, made, cutoffs)


def dp_sgd_implicit(
    train: Ratings, *, epsilon: float, delta: float, seed: int, settings: ImplicitDpSgd
) -> ImplicitDpSgdModel:
    """An item table from ``train``.

    Raises:
      ConfigurationError: the budget is out of range.
      PrivacyError: too many numbers get noise: the sampler alone uses up delta.
    """
    masses_event, event, gramian_event = _events(train.n_items, settings, epsilon=epsilon, delta=delta)
    noise = RoundedNormals(seed, 0)
    mass = noised(masses_event, masses(train, grid=_GRID), step=_GRID, noise=noise)
    mass_std = 0.0 if masses_event is None else masses_event.noise_std
    mass = cleaned(mass, noise_std=mass_std)
    rank, observed = settings.rank, pairs(train)
    items = np.empty((train.n_items, 1 + rank))
    chance = chances(mass, train.n_users)
    # Mean score of an item under the objective: observed pairs say 1, all others 0 with a small weight.
    items[:, 0] = chance / (chance + settings.unobserved_weight)
    start = np.random.default_rng(seed).normal(0.0, _START_STD, (train.n_items, rank))
    items[:, 1:] = start * items[:, :1]
    step_std = 0.0 if event is None else event.noise_std
    averaged = StepSizes(settings.steps, settings.rate)
    server = ImplicitPreconditioner.of(
        mass,
        items[:, 0],
        users=train.n_users,
        rank=rank,
        clip=settings.clip,
        noise=step_std**2 * averaged.averaged,
        unobserved_weight=settings.unobserved_weight,
    )
    for rate in averaged.rates:
        users = solve_rows(observed, items, unobserved_weight=settings.unobserved_weight, ridge=settings.ridge)
        gradient, gramian = _contributions(observed, users, items, settings)
        total = noised(event, gradient, step=_GRID, noise=noise).reshape(train.n_items, rank)
        second = _noisy_gramian(gramian, gramian_event, noise)
        items[:, 1:] = server.step(items, total, second, rate=rate)

    def scores(history: Ratings) -> Scores:
        rows = solve_rows(pairs(history), items, unobserved_weight=settings.unobserved_weight, ridge=settings.ridge)
        return factor_scores(rows, items)

    if masses_event is None or event is None or gramian_event is None:
        return ImplicitDpSgdModel(items, scores, ())
    return ImplicitDpSgdModel(items, scores, (masses_event, *[event, gramian_event] * settings.steps))


def _events(
    n_items: int, settings: ImplicitDpSgd, *, epsilon: float, delta: float
) -> tuple[GaussianRelease, GaussianRelease, GaussianRelease] | tuple[None, None, None]:
    """Masses once, first parts and Gramians in every step; nothing where there is no noise."""
    if epsilon == math.inf:
        return None, None, None
    rank = settings.rank
    triangle = (1 + rank) * (2 + rank) // 2
    draws = n_items + settings.steps * (n_items * rank + triangle)
    mu = mu_for(epsilon=epsilon, delta=delta, coordinates=draws)
    per_step = (1.0 - _MASS_SHARE) / settings.steps
    gradient = mu * math.sqrt(per_step * (1.0 - _GRAMIAN_SHARE))
    gramian = mu * math.sqrt(per_step * _GRAMIAN_SHARE)
    return (
        GaussianRelease("masses", 1.0, 1.0 / (math.sqrt(_MASS_SHARE) * mu), n_items),
        GaussianRelease("gradients", settings.clip, settings.clip / gradient, n_items * rank),
        GaussianRelease("gramian", settings.gramian_clip, settings.gramian_clip / gramian, triangle),
    )


def _contributions(
    observed: sparse.csr_array, users: Float64Array, items: Float64Array, settings: ImplicitDpSgd
) -> tuple[Int64Array, Int64Array]:
    """Exact sums of what users send: first parts int64 [items * rank], Gramian int64 [1 + rank, 1 + rank].

    In steps of ``_GRID`` and of ``_ROW_GRID`` squared.
    """
    size = np.diff(observed.indptr)
    user = np.repeat(np.arange(len(size)), size)
    error = 1.0 - np.einsum("nd,nd->n", users[user], items[observed.indices])
    factors = users[:, 1:]
    first = np.sqrt(np.bincount(user, weights=error**2, minlength=len(size)) * (factors**2).sum(axis=1))
    # No weight is beyond clip / _LEAST: a row of nearly 0 stays within the bounds, and finite.
    weight = settings.clip / np.maximum(first, _LEAST)
    weight = np.minimum(weight, settings.gramian_clip / np.maximum((users**2).sum(axis=1), _LEAST))
    # Truncation, not rounding: it can only shorten. Sums of whole numbers below 2^53 are exact.
    scaled = error * weight[user] / _GRID
    total = np.empty((len(items), settings.rank), dtype=np.int64)
    for column in range(settings.rank):
        entries = np.trunc(scaled * factors[user, column])
        total[:, column] = np.bincount(observed.indices, weights=entries, minlength=len(items)).astype(np.int64)
    whole = np.trunc(users * (np.sqrt(weight) / _ROW_GRID)[:, None])
    return total.ravel(), (whole.T @ whole).astype(np.int64)


def _noisy_gramian(exact: Int64Array, event: GaussianRelease | None, noise: IntegerNoise) -> Float64Array:
    """Symmetric and positive definite; off the diagonal the noise has std / sqrt(2), as its norm counts these twice."""
    released = exact.astype(np.float64)
    if event is not None:
        width, ratio = len(exact), event.noise_std / _ROW_GRID**2
        first, second = np.triu_indices(width, 1)
        off_diagonal = noise.sample(ratio / math.sqrt(2.0), len(first))
        released[first, second] += off_diagonal
        released[second, first] += off_diagonal
        released[range(width), range(width)] += noise.sample(ratio, width)
    return positive(released * _ROW_GRID**2)
