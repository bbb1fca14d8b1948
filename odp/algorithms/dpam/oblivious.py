"""Exact sums of DPAM's contributions at addresses that do not depend on them; see ``factorization/oblivious.py``."""

from __future__ import annotations

import functools

import numpy as np

from odp.algorithms.dpam import codec
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.terms import COUNTS_ROUND, FIRST_FACTOR_ROUND, Terms
from odp.algorithms.factorization.oblivious import FactorSums, SortedSums
from odp.algorithms.factorization.query import count_units
from odp.algorithms.factorization.sums import ContributionSum
from odp.numerics.arrays import Int64Array


class ObliviousAccumulator(ContributionSum[Contributions]):
    """``accumulate.Accumulator`` without its access pattern: the same totals."""

    def __init__(self, terms: Terms, round: int) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        self._terms = terms
        self._round = round
        width = 1 + terms.rank_of(round)
        self._first, self._second = np.triu_indices(width)
        self._sums: SortedSums | FactorSums
        if round < FIRST_FACTOR_ROUND:
            self._sums = SortedSums(terms.items)
        else:
            self._sums = FactorSums(terms.items, terms.max_items, (len(self._first), width))

    def add_decoded(self, contributions: Contributions) -> None:
        if isinstance(self._sums, SortedSums):
            self._sums.add(contributions.items, contributions.weights, contributions.targets)
        else:
            constant = np.full((len(contributions.rows), 1), codec.constant_units(self._terms), dtype=np.float64)
            rows = np.concatenate([constant, contributions.rows.astype(np.float64)], axis=1)
            outer = rows[:, self._first] * rows[:, self._second]
            self._sums.add(
                contributions.items,
                [contributions.weights, contributions.weights * contributions.targets],
                [outer, rows],
            )
        self.count += len(contributions.items)

    def totals(self) -> dict[str, Int64Array]:
        if isinstance(self._sums, FactorSums):
            gram, targets = self._sums.totals()
            return {"gram": gram, "targets": targets}
        self._sums.fold()
        if self._round == COUNTS_ROUND:
            return {"counts": self._sums.weights * count_units(self._terms)}
        return {"mass": self._sums.weights.copy(), "sums": self._sums.products.copy()}
