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
        self._sums: SortedSums | FactorSums
        if round == COUNTS_ROUND:
            self._sums = SortedSums(terms.items)
        else:
            self._sums = FactorSums(terms.items, terms.max_items, (terms.rank,))

    def add_decoded(self, contributions: Contributions) -> None:
        if isinstance(self._sums, SortedSums):
            self._sums.add(contributions.items, contributions.weights, np.zeros_like(contributions.weights))
        else:
            self._sums.add(contributions.items, [contributions.weights], [contributions.rows.astype(np.float64)])
        self.count += len(contributions.items)

    def totals(self) -> dict[str, Int64Array]:
        if isinstance(self._sums, SortedSums):
            self._sums.fold()
            return {"counts": self._sums.weights * count_units(self._terms)}
        (targets,) = self._sums.totals()
        return {"targets": targets}
