"""Rankings without privacy, all data in one place: what a private method is measured against.

Each method has six settings, and takes the one of largest Recall@20 on the validation part: the same number of trials
for all (``trials.py``). Settings are trained on the training part; for the test, users show their validation items as
well.

===========  ===========================================================================================
iALS         weights of unobserved pairs .005, .05; ridges 1, 3, 10; rank 32
EASE         ridges 30, 100, 300, 1000, 3000, 10000
item kNN     10, 30, 100 neighbours; shrinkage 3, 30
===========  ===========================================================================================

Sources: ``als.py``; Steck 2019 (arXiv 1905.03375) for EASE; Ferrari Dacrema, Cremonesi, Jannach 2019 for item kNN by
shrunk cosine, and for why references have to be tuned as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odp.datasets.ratings import Ratings, Split, merge
from odp.errors import DataError
from odp.evaluation.als import ials, pairs, solve_rows
from odp.evaluation.ranking import Ranking, Scores, evaluate, factor_scores
from odp.evaluation.trials import Settings, best
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array

if TYPE_CHECKING:
    from scipy import sparse

#: EASE inverts a matrix of items by items: 8 bytes each, three times.
MOST_ITEMS = 12_000
IALS_GRID: tuple[Settings, ...] = tuple(
    {"unobserved_weight": weight, "ridge": ridge}
    for weight, ridge in itertools.product((0.005, 0.05), (1.0, 3.0, 10.0))
)
EASE_GRID: tuple[Settings, ...] = tuple({"ridge": ridge} for ridge in (30.0, 100.0, 300.0, 1e3, 3e3, 1e4))
KNN_GRID: tuple[Settings, ...] = tuple(
    {"neighbours": neighbours, "shrinkage": shrinkage}
    for neighbours, shrinkage in itertools.product((10, 30, 100), (3.0, 30.0))
)

_RANK, _STEPS = 32, 10
_USERS = 4096


@dataclass(frozen=True)
class Tuned:
    """The best of six settings.

    Attributes:
      ranking: on the test part.
      settings: of the best, by name.
    """

    ranking: Ranking
    settings: Settings


def tuned_ials(split: Split, *, seed: int, cutoffs: tuple[int, ...] = (20,)) -> Tuned:
    """Implicit alternating least squares.

    Raises:
      DataError: there are no targets.
    """
    rank = min(_RANK, split.train.n_items)

    def made(unobserved_weight: float, ridge: float) -> Callable[[Ratings], Scores]:
        rows = ials(split.train, rank=rank, unobserved_weight=unobserved_weight, ridge=ridge, steps=_STEPS, seed=seed)
        return lambda history: factor_scores(
            solve_rows(pairs(history), rows, unobserved_weight=unobserved_weight, ridge=ridge), rows
        )

    return tuned_ranking(split, IALS_GRID, made, cutoffs)


def tuned_ease(split: Split, *, seed: int = 0, cutoffs: tuple[int, ...] = (20,)) -> Tuned:
    """EASE: every item's column predicted from all other items by ridge regression, in closed form.

    Raises:
      DataError: there are more than ``MOST_ITEMS`` items, or no targets.
    """
    if split.train.n_items > MOST_ITEMS:
        raise DataError(
            f"EASE inverts a matrix of items by items: {split.train.n_items} items are more than {MOST_ITEMS}"
        )
    gram = _gram(split.train).toarray()

    def made(ridge: float) -> Callable[[Ratings], Scores]:
        weights = ease_weights(gram, ridge).astype(np.float32)
        return lambda history: _linear_scores(history, weights)

    return tuned_ranking(split, EASE_GRID, made, cutoffs)


def tuned_item_knn(split: Split, *, seed: int = 0, cutoffs: tuple[int, ...] = (20,)) -> Tuned:
    """Sums of similarities to the items that a user has: the nearest neighbours of each item by shrunk cosine.

    Raises:
      DataError: there are no targets.
    """
    gram = _gram(split.train)

    def made(neighbours: float, shrinkage: float) -> Callable[[Ratings], Scores]:
        weights = knn_weights(gram, neighbours=int(neighbours), shrinkage=shrinkage)
        return lambda history: _linear_scores(history, weights)

    return tuned_ranking(split, KNN_GRID, made, cutoffs)


def ease_weights(gram: Float64Array, ridge: float) -> Float64Array:
    """Weights [items, items] with a diagonal of 0 that minimise |X - X B|^2 + ridge |B|^2; ``gram`` is X^T X."""
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights)


def knn_weights(gram: sparse.csr_array, *, neighbours: int, shrinkage: float) -> sparse.csr_array:
    """Weights [items, items]: column j has the cosines of item j to its ``neighbours`` nearest items, and 0 elsewhere.

    A cosine is c_ij / (sqrt(c_i c_j) + shrinkage), of numbers of users c.
    """
    from scipy import sparse

    counts = gram.diagonal()
    coordinates = sparse.coo_array(gram)
    first, second = coordinates.coords
    apart = first != second
    first, second = first[apart], second[apart]
    cosine = coordinates.data[apart] / (np.sqrt(counts[first] * counts[second]) + shrinkage)
    order = np.lexsort((first, -cosine, second))
    column = second[order]
    starts = np.searchsorted(column, np.arange(gram.shape[0]))
    near = order[np.arange(len(order)) - starts[column] < neighbours]
    return sparse.csr_array((cosine[near], (first[near], second[near])), shape=gram.shape)


def _gram(train: Ratings) -> sparse.csr_array:
    observed = pairs(train)
    return (observed.T @ observed).tocsr()


def _linear_scores(history: Ratings, weights: Float32Array | sparse.csr_array) -> Scores:
    observed = pairs(history)

    def scores(users: Int64Array) -> Float32Array:
        result = observed[users] @ weights
        return np.asarray(result if isinstance(result, np.ndarray) else result.toarray(), dtype=np.float32)

    return scores


def tuned_ranking(
    split: Split, grid: Sequence[Settings], made: Callable[..., Callable[[Ratings], Scores]], cutoffs: tuple[int, ...]
) -> Tuned:
    """The settings of largest Recall@20 on the validation items of at most 4,096 users.

    Args:
      split: trained on by ``made``.
      grid: settings, passed to ``made`` by name.
      made: from settings to a function that scores all items for users with a history.
      cutoffs: of the ranking of the test part.

    Raises:
      DataError: there are no targets.
    """
    users = np.unique(np.linspace(0, split.train.n_users - 1, min(_USERS, split.train.n_users)).astype(np.int64))
    history, targets = split.train.select_users(users), split.validation.select_users(users)
    cutoff = min(20, targets.n_items)

    def loss(scores_of: Callable[[Ratings], Scores]) -> float:
        (recall,) = evaluate(scores_of(history), history, targets, cutoffs=(cutoff,)).recall.values()
        return -recall

    make_scores, chosen = best(grid, made, loss if targets.n_ratings else None)
    joined = merge(split.train, split.validation)
    return Tuned(evaluate(make_scores(joined), joined, split.test, cutoffs=cutoffs), chosen)
