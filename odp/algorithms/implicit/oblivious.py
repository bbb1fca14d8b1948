"""Exact sums of implicit contributions at addresses that do not depend on them; see ``factorization/oblivious.py``."""

from __future__ import annotations

import functools

import numpy as np

from odp.algorithms.factorization.codec import Contributions
from odp.algorithms.factorization.oblivious import FactorSums, SortedSums
from odp.algorithms.factorization.query import count_units
from odp.algorithms.factorization.sums import ContributionSum
from odp.algorithms.implicit import codec
from odp.algorithms.implicit.terms import COUNTS_ROUND, Terms
from odp.numerics.arrays import Int64Array


class ObliviousImplicitSum(ContributionSum[Contributions]):
    """``query.ImplicitSum`` without its access pattern: the same totals."""

    def __init__(self, terms: Terms, round: int) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        self._terms = terms
        self._round = round
        self._first, self._second = np.triu_indices(terms.rank)
        self._gramian = np.zeros(terms.pairs, dtype=np.int64)
        self._sums: SortedSums | FactorSums
        if round == COUNTS_ROUND:
            self._sums = SortedSums(terms.items)
        else:
            width = terms.rank + (terms.pairs if terms.item_grams else 0)
            self._sums = FactorSums(terms.items, terms.max_items, (width,))

    def add_decoded(self, contributions: Contributions) -> None:
        given = contributions
        if isinstance(self._sums, SortedSums):
            self._sums.add(given.items, given.weights, np.zeros_like(given.weights))
        else:
            rows = given.rows.astype(np.float64)
            self._gramian += np.matmul(rows.T, rows)[self._first, self._second].astype(np.int64)
            if self._terms.item_grams:
                rows = np.concatenate([rows, rows[:, self._first] * rows[:, self._second]], axis=1)
            self._sums.add(given.items, [given.weights], [rows])
        self.count += len(given.items)

    def totals(self) -> dict[str, Int64Array]:
        if isinstance(self._sums, SortedSums):
            self._sums.fold()
            return {"counts": self._sums.weights * count_units(self._terms)}
        (both,) = self._sums.totals()
        rank = self._terms.rank
        found = {"targets": both[:, :rank].copy(), "gramian": self._gramian.copy()}
        if self._terms.item_grams:
            found["gram"] = both[:, rank:].copy()
        return found
