"""Alternating least squares with biases, all data in one place and no privacy: the ceiling, and its two halves.

A user's row is (1, user bias, factors), an item's is (item bias, 1, factors): one ridge solve fits either side, and
leaves the constant column of that side alone.

Source: Koren, Bell, Volinsky 2009 for biases; Zhou et al. 2008 for a ridge that grows with the number of ratings.

Implicit alternating least squares on all data in one place: the reference that is not private.

Minimises the sum over observed pairs of (1 - <u, v>)^2 + unobserved_weight * sum over all pairs of <u, v>^2
+ ridge * (|U|^2 + |V|^2), one side at a time, exactly.

Source: Hu, Koren, Volinsky 2008; Rendle et al. 2022 (arXiv 2110.14037) for the additive weight of unobserved pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse

from odp.datasets.ratings import Ratings
from odp.evaluation.trials import Predictor
from odp.numerics.arrays import Float64Array

if TYPE_CHECKING:
    from scipy import sparse

_SWEEPS = 12
# A ridge on factors has the unit of a value, since the product of two factors has: so it is given for a range of 4.
# A ridge on biases has none.
_RANGE = 4.0


def als(train: Ratings, *, rank: int, ridge: float, seed: int) -> Predictor:
    """Item rows from ``train``; for a prediction, users are solved on their history.

    Args:
      train: at least one rating.
      rank: of the factors; at most the number of items counts.
      ridge: of biases and factors, per rating; of factors for values in a range of 4.
      seed: of the random start.
    """
    mean = float(train.values.mean())
    scale = (train.high - train.low) / _RANGE
    items = start_rows(train.n_items, rank=min(rank, train.n_items), seed=seed)
    matrix = residuals(train, mean)
    by_item = matrix.T.tocsr()
    for _ in range(_SWEEPS):
        users = solve(matrix, items, fixed=0, strength=_strengths(matrix, items, ridge=ridge, scale=scale))
        items = solve(by_item, users, fixed=1, strength=_strengths(by_item, users, ridge=ridge, scale=scale))

    def predict(history: Ratings, targets: Ratings) -> Float64Array:
        residual_matrix = residuals(history, mean)
        rows = solve(
            residual_matrix, items, fixed=0, strength=_strengths(residual_matrix, items, ridge=ridge, scale=scale)
        )
        return np.asarray(mean + products(rows, items, targets))

    return predict


def start_rows(count: int, *, rank: int, seed: int, std: float = 0.1) -> Float64Array:
    """Random item rows float64 [count, 2 + rank]: bias 0, the constant 1, factors of standard deviation ``std``."""
    rows = np.zeros((count, rank + 2))
    rows[:, 1] = 1.0
    rows[:, 2:] = np.random.default_rng(seed).normal(0.0, std, (count, rank))
    return rows


def residuals(ratings: Ratings, centre: Float64Array | float) -> scipy.sparse.csr_matrix:
    """Values minus ``centre`` (one number, or one per rating) as a sparse matrix [users, items]; zeros stay entries."""
    return scipy.sparse.csr_matrix(
        (ratings.values.astype(np.float64) - centre, ratings.items, ratings.offsets),
        shape=(ratings.n_users, ratings.n_items),
    )


def solve(
    matrix: scipy.sparse.csr_matrix, features: Float64Array, *, fixed: int, strength: Float64Array
) -> Float64Array:
    """One side's rows float64 [rows, width]: ridge regression of each row's entries on ``features`` [columns, width].

    Their column ``fixed`` is the constant 1, the others are fitted with ridges ``strength`` > 0, [width - 1] or
    [rows, width - 1].
    """
    count, width = matrix.shape[0], features.shape[1]
    fitted = [column for column in range(width) if column != fixed]
    design = features[:, fitted]
    pattern = scipy.sparse.csr_matrix((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
    upper = np.triu_indices(width - 1)
    packed = pattern @ (design[:, upper[0]] * design[:, upper[1]])
    right = matrix @ design - pattern @ (design * features[:, [fixed]])
    grams = np.zeros((count, width - 1, width - 1))
    grams[:, upper[0], upper[1]] = packed
    grams[:, upper[1], upper[0]] = packed
    grams[:, range(width - 1), range(width - 1)] += strength
    solved = np.ones((count, width))
    solved[:, fitted] = np.linalg.solve(grams, right[:, :, None])[:, :, 0]
    return solved


def products(users: Float64Array, items: Float64Array, targets: Ratings) -> Float64Array:
    """Inner products of the rows of every pair in ``targets``, float64 [n_ratings]."""
    return np.asarray(np.einsum("nd,nd->n", users[targets.users()], items[targets.items]))


def _strengths(matrix: scipy.sparse.csr_matrix, features: Float64Array, *, ridge: float, scale: float) -> Float64Array:
    """[rows, width - 1]: of the bias, which comes first, and of the factors; both grow with the number of entries."""
    units = np.append(1.0, np.full(features.shape[1] - 2, scale))
    return np.asarray(ridge * (np.diff(matrix.indptr)[:, None] + 1.0) * units)


_BLOCK = 4096


def ials(train: Ratings, *, rank: int, unobserved_weight: float, ridge: float, steps: int, seed: int) -> Float64Array:
    """Item rows float64 [n_items, rank] after ``steps`` sweeps from a random start. Values are not read."""
    start = np.random.default_rng(seed).normal(size=(train.n_items, rank)) * 0.1
    return sweeps(train, start, unobserved_weight=unobserved_weight, ridge=ridge, steps=steps)


def sweeps(train: Ratings, start: Float64Array, *, unobserved_weight: float, ridge: float, steps: int) -> Float64Array:
    """Item rows after ``steps`` sweeps (users, then items) from the item rows ``start`` [n_items, rank]."""
    observed = pairs(train)
    by_item = observed.T.tocsr()
    items = start
    for _ in range(steps):
        users = solve_rows(observed, items, unobserved_weight=unobserved_weight, ridge=ridge)
        items = solve_rows(by_item, users, unobserved_weight=unobserved_weight, ridge=ridge)
    return items


def pairs(ratings: Ratings) -> sparse.csr_array:
    """The observed pairs as a sparse matrix of ones [n_users, n_items]."""
    from scipy import sparse

    ones = np.ones(ratings.n_ratings)
    return sparse.csr_array((ones, ratings.items, ratings.offsets), shape=(ratings.n_users, ratings.n_items))


def solve_rows(
    observed: sparse.csr_array, others: Float64Array, *, unobserved_weight: float, ridge: float
) -> Float64Array:
    """The best rows of one side [observed.shape[0], rank] given the rows of the other."""
    rank = others.shape[1]
    first, second = np.triu_indices(rank)
    outer = others[:, first] * others[:, second]
    rest = unobserved_weight * (others.T @ others) + ridge * np.eye(rank)
    right = observed @ others
    rows = np.empty((observed.shape[0], rank))
    for begin in range(0, observed.shape[0], _BLOCK):
        packed = observed[begin : begin + _BLOCK] @ outer
        normal = np.empty((len(packed), rank, rank))
        normal[:, first, second] = packed
        normal[:, second, first] = packed
        rows[begin : begin + _BLOCK] = np.linalg.solve(normal + rest, right[begin : begin + _BLOCK, :, None])[:, :, 0]
    return rows
