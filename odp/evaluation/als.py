"""Alternating least squares with biases, all data in one place and no privacy: the ceiling, and its two halves.

A user's row is (1, user bias, factors), an item's is (item bias, 1, factors): one ridge solve fits either side, and
leaves the constant column of that side alone.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Float64Array

_SWEEPS = 12
_RIDGE = 0.08


def als(train: Ratings, history: Ratings, targets: Ratings, *, rank: int, seed: int) -> Float64Array:
    """Predictions float64 [targets.n_ratings]; item rows from ``train``, users solved on ``history`` at the end.

    Raises:
      DataError: from the ratings; none of its own.
    """
    mean = float(train.values.mean()) if train.n_ratings else (train.low + train.high) / 2
    rank = min(rank, train.n_items)
    items = start_rows(train.n_items, rank=rank, seed=seed)
    matrix = residuals(train, mean)
    for _ in range(_SWEEPS):
        users = solve(matrix, items, known=0, ridge=_RIDGE)
        items = solve(matrix.T.tocsr(), users, known=1, ridge=_RIDGE)
    users = solve(residuals(history, mean), items, known=0, ridge=_RIDGE)
    predictions: Float64Array = mean + np.einsum("nd,nd->n", users[targets.users()], items[targets.items])
    return predictions


def start_rows(count: int, *, rank: int, seed: int) -> Float64Array:
    """Random item rows float64 [count, 2 + rank]: bias 0, the constant 1, factors of standard deviation .1."""
    rows = np.zeros((count, rank + 2))
    rows[:, 1] = 1.0
    rows[:, 2:] = np.random.default_rng(seed).normal(0.0, 0.1, (count, rank))
    return rows


def residuals(ratings: Ratings, centre: float) -> scipy.sparse.csr_matrix:
    """Values minus ``centre``, as a sparse matrix [users, items]; explicit zeros stay entries."""
    return scipy.sparse.csr_matrix(
        (ratings.values.astype(np.float64) - centre, ratings.items, ratings.offsets),
        shape=(ratings.n_users, ratings.n_items),
    )


def solve(matrix: scipy.sparse.csr_matrix, features: Float64Array, *, known: int, ridge: float) -> Float64Array:
    """One side's rows float64 [rows, width]: ridge regression of each row's entries on ``features`` [columns, width].

    Their column ``known`` is the constant 1, the others are fitted; the ridge is ``ridge`` per entry plus one.
    """
    count, width = matrix.shape[0], features.shape[1]
    fitted = [column for column in range(width) if column != known]
    design = features[:, fitted]
    pattern = scipy.sparse.csr_matrix((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
    upper = np.triu_indices(width - 1)
    packed = pattern @ (design[:, upper[0]] * design[:, upper[1]])
    right = matrix @ design - pattern @ (design * features[:, [known]])
    grams = np.zeros((count, width - 1, width - 1))
    grams[:, upper[0], upper[1]] = packed
    grams[:, upper[1], upper[0]] = packed
    strength = ridge * (np.diff(matrix.indptr) + 1.0)
    grams[:, range(width - 1), range(width - 1)] += strength[:, None]
    solved = np.ones((count, width))
    solved[:, fitted] = np.linalg.solve(grams, right[:, :, None])[:, :, 0]
    return solved
