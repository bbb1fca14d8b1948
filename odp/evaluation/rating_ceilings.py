"""Ratings without privacy, all data in one place: what a private method is measured against.

Each method has six settings, and takes those of least validation RMSE (``trials.py``).

===========  ===========================================================================================
ALS          rank 8, 16; ridge of a factor per rating .05, .08, .13 for values in a range of 4
item kNN     15, 40, 120 neighbours; shrinkage 3, 30
EASE         ridges 30, 100, 300, 1000, 3000, 10000
===========  ===========================================================================================

kNN and EASE predict what is left of the ratings after biases of items and users, which they do not know as 0.

Sources: ``als.py``; Koren 2010 (Factor in the neighbors) for item kNN on residuals with shrunk similarities;
Steck 2019 (arXiv 1905.03375) for EASE, here of residuals instead of views.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import scipy.sparse

from odp.datasets.ratings import Ratings, Split
from odp.errors import DataError
from odp.evaluation.als import als, products, residuals, solve, start_rows
from odp.evaluation.ceilings import ease_weights
from odp.evaluation.trials import Outcome, Predictor, Settings, tuned_rmse
from odp.numerics.arrays import Float32Array, Float64Array, Int32Array

#: EASE inverts a matrix of items by items for each of its settings; item kNN keeps one in memory.
MOST_ITEMS_EASE, MOST_ITEMS_KNN = 4_000, 12_000

ALS_GRID: tuple[Settings, ...] = tuple(
    {"rank": rank, "ridge": ridge} for rank, ridge in itertools.product((8, 16), (0.05, 0.08, 0.13))
)
KNN_GRID: tuple[Settings, ...] = tuple(
    {"neighbours": neighbours, "shrinkage": shrinkage}
    for neighbours, shrinkage in itertools.product((15, 40, 120), (3.0, 30.0))
)
EASE_GRID: tuple[Settings, ...] = tuple({"ridge": ridge} for ridge in (30.0, 100.0, 300.0, 1e3, 3e3, 1e4))

_BIAS_RIDGE = np.array([5.0])
_BIAS_SWEEPS = 3
_USERS = 2048  # per piece of work
# Similarity of an unknown neighbour: a sum of few or unlike neighbours counts less.
_FLOOR = 0.3


def tuned_als(split: Split, *, seed: int) -> Outcome:
    """Alternating least squares with biases."""

    def made(rank: float, ridge: float) -> Predictor:
        return als(split.train, rank=int(rank), ridge=ridge, seed=seed)

    return tuned_rmse(split, ALS_GRID, made)


def tuned_rating_knn(split: Split) -> Outcome:
    """Means of a user's residuals on the items most like the one asked for, weighted by their cosines.

    Raises:
      DataError: there are more than ``MOST_ITEMS_KNN`` items.
    """
    _require_items(split, "item kNN keeps", MOST_ITEMS_KNN)
    rest = _Residuals(split.train)
    gram = (rest.of(split.train).T @ rest.of(split.train)).toarray().astype(np.float32)
    norms = np.sqrt(np.diag(gram))
    variance = float(gram.trace()) / max(split.train.n_ratings, 1)

    def made(neighbours: float, shrinkage: float) -> Predictor:
        floor = np.float32(shrinkage * variance + 1e-12)

        def similar(wanted: Int32Array, rated: Int32Array) -> Float32Array:
            cosines = gram[np.ix_(wanted, rated)] / (norms[wanted, None] * norms[rated] + floor)
            return np.asarray(np.maximum(cosines, 0.0, out=cosines))

        return rest.predictor(lambda history, targets: _neighbours(rest, similar, int(neighbours), history, targets))

    return tuned_rmse(split, KNN_GRID, made)


def tuned_rating_ease(split: Split) -> Outcome:
    """Every item's residuals predicted from a user's residuals on all other items by ridge regression.

    Raises:
      DataError: there are more than ``MOST_ITEMS_EASE`` items.
    """
    _require_items(split, "EASE inverts", MOST_ITEMS_EASE)
    rest = _Residuals(split.train)
    gram = (rest.of(split.train).T @ rest.of(split.train)).toarray()
    variance = float(gram.trace()) / max(split.train.n_ratings, 1)

    def made(ridge: float) -> Predictor:
        weights = ease_weights(gram, ridge * max(variance, 1e-12)).astype(np.float32)
        return rest.predictor(lambda history, targets: _linear(rest, weights, history, targets))

    return tuned_rmse(split, EASE_GRID, made)


class _Residuals:
    """Ratings less the mean and the biases of items and users, which least squares find in turn."""

    def __init__(self, train: Ratings) -> None:
        self._mean = float(train.values.mean())
        self._items = start_rows(train.n_items, rank=0, seed=0)
        matrix = residuals(train, self._mean)
        by_item = matrix.T.tocsr()
        for _ in range(_BIAS_SWEEPS):
            users = solve(matrix, self._items, fixed=0, strength=_BIAS_RIDGE)
            self._items = solve(by_item, users, fixed=1, strength=_BIAS_RIDGE)

    def biases(self, history: Ratings, targets: Ratings) -> Float64Array:
        """What biases alone predict, float64 [n_ratings], each user's from its history."""
        users = solve(residuals(history, self._mean), self._items, fixed=0, strength=_BIAS_RIDGE)
        return self._mean + products(users, self._items, targets)

    def of(self, history: Ratings) -> scipy.sparse.csr_matrix:
        """What is left of a history, [users, items]."""
        return residuals(history, self.biases(history, history))

    def predictor(self, rest: Callable[[Ratings, Ratings], Float64Array]) -> Predictor:
        """Biases, and what ``rest`` predicts of the residuals."""
        return lambda history, targets: self.biases(history, targets) + rest(history, targets)


def _neighbours(
    rest: _Residuals,
    similar: Callable[[Int32Array, Int32Array], Float32Array],
    neighbours: int,
    history: Ratings,
    targets: Ratings,
) -> Float64Array:
    predictions = np.zeros(targets.n_ratings)
    values = rest.of(history).data.astype(np.float32)
    for user in np.flatnonzero(targets.counts()):
        history_rows = slice(history.offsets[user], history.offsets[user + 1])
        target_rows = slice(targets.offsets[user], targets.offsets[user + 1])
        weights = similar(targets.items[target_rows], history.items[history_rows])
        if weights.shape[1] > neighbours:
            least = np.partition(weights, -neighbours, axis=1)[:, -neighbours, None]
            weights = np.where(weights >= least, weights, 0.0)
        predictions[target_rows] = (weights @ values[history_rows]) / (weights.sum(axis=1) + _FLOOR)
    return predictions


def _linear(rest: _Residuals, weights: Float32Array, history: Ratings, targets: Ratings) -> Float64Array:
    residual, predictions = rest.of(history).astype(np.float32), np.empty(targets.n_ratings)
    for begin in range(0, history.n_users, _USERS):
        block = slice(begin, min(begin + _USERS, history.n_users))
        scores = residual[block] @ weights
        target_rows = slice(targets.offsets[block.start], targets.offsets[block.stop])
        users = np.repeat(np.arange(len(scores)), targets.counts()[block])
        predictions[target_rows] = scores[users, targets.items[target_rows]]
    return predictions


def _require_items(split: Split, what: str, most: int) -> None:
    if split.train.n_items > most:
        raise DataError(f"{what} a matrix of items by items: {split.train.n_items} items are more than {most}")
