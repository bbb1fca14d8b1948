"""Implicit alternating least squares on all data in one place: the reference that is not private.

Minimises the sum over observed pairs of (1 - <u, v>)^2 + unobserved_weight * sum over all pairs of <u, v>^2
+ ridge * (|U|^2 + |V|^2), one side at a time, exactly.

Source: Hu, Koren, Volinsky 2008; Rendle et al. 2022 (arXiv 2110.14037) for the additive weight of unobserved pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Float64Array

if TYPE_CHECKING:
    from scipy import sparse

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
