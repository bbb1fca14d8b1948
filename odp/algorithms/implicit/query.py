"""The declared queries of DPAM on implicit feedback: what the enclave checks, sums, noises and charges in each round.

Guarantee: whatever a device sends, a contribution that ``ImplicitQuery.check`` accepts moves the stacked sums of a
round by at most the declared L2 sensitivities, because its items are pairwise distinct (its blocks are orthogonal) and

========  =======  =================  ===========  ===============
release   shape    sum over users of  sensitivity  noise std
========  =======  =================  ===========  ===============
counts    [m]      1                  sqrt(K)      count_noise_std
targets   [m, d]   w u                sqrt(K) G    target_noise G
========  =======  =================  ===========  ===============

with K items per user, d the rank, sum of w^2 <= K, and u the user's row, of norm at most G = row_clip.

Source: Krichene et al. 2023 (arXiv 2302.07975) for weights; exact constants derived here.

Exact sums of implicit contributions at addresses that do not depend on them; see ``factorization/query.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from odp.algorithms.declared import GaussianSum
from odp.algorithms.factorization.codec import ROW_UNITS, WEIGHT_UNITS, Contributions
from odp.algorithms.factorization.query import (
    BLOCK,
    ContributionSum,
    FactorizationQuery,
    FactorSums,
    SortedSums,
    count_units,
    plain_release,
)
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


class ImplicitQuery(FactorizationQuery[Contributions]):
    """``odp.algorithms.seam.Query`` of one round: a function of the task definition and the round alone.

    Raises:
      ConfigurationError: the task has no such round.
    """

    def __init__(self, terms: Terms, round: int) -> None:
        super().__init__(
            terms,
            round,
            releases=declared_releases(terms, round),
            empty_payload=codec.empty_payload(terms, round),
            row_limit=ROW_UNITS**2,
        )
        self._terms = terms

    def new_sum(self, *, oblivious: bool = False) -> ImplicitSum | ObliviousImplicitSum:
        return ObliviousImplicitSum(self._terms, self._round) if oblivious else ImplicitSum(self._terms, self._round)

    def _decode(self, payloads: Sequence[bytes]) -> Contributions:
        return codec.decode(self._terms, self._round, payloads)


class ImplicitSum(ContributionSum[Contributions]):
    """The running sums of one round, by release name, int64; ``add`` trusts that its input was checked.

    Products of one entry stay below 2^32, so float64 sums over a block of users are exact whatever their order.
    """

    def __init__(self, terms: Terms, round: int) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        self._terms = terms
        self._round = round
        self._totals = {
            release.name: np.zeros(release.shape, dtype=np.int64) for release in declared_releases(terms, round)
        }

    def add_decoded(self, contributions: Contributions) -> None:
        for start in range(0, len(contributions.items), BLOCK):
            block = slice(start, start + BLOCK)
            self._add_block(contributions.rows[block], contributions.items[block], contributions.weights[block])
        self.count += len(contributions.items)

    def totals(self) -> dict[str, Int64Array]:
        return {name: total.copy() for name, total in self._totals.items()}

    def _add_block(self, rows: Int64Array, items: Int64Array, weights: Int64Array) -> None:
        user, place = np.nonzero(weights)
        item, weight = items[user, place], weights[user, place]
        if self._round == COUNTS_ROUND:
            self._totals["counts"] += np.bincount(item, minlength=self._terms.items) * count_units(self._terms)
            return
        from scipy import sparse  # only enclaves and simulations sum

        shape = (self._terms.items, len(rows))
        weighting = sparse.csr_array((weight.astype(np.float64), (item, user)), shape=shape)
        self._totals["targets"] += (weighting @ rows.astype(np.float64)).astype(np.int64)


def declared_releases(terms: Terms, round: int) -> tuple[GaussianSum, ...]:
    """The releases of one round; see the table of this module.

    Raises:
      ConfigurationError: the task has no such round.
    """
    terms.check_round(round)
    items, rank, clip = terms.items, terms.rank, terms.row_clip
    bound = math.sqrt(terms.max_items)
    if round == COUNTS_ROUND:
        return (plain_release("counts", (items,), 1.0 / count_units(terms), bound, terms.count_noise_std),)
    step = bound / WEIGHT_UNITS * clip / ROW_UNITS
    return (plain_release("targets", (items, rank), step, bound * clip, terms.target_noise * clip),)
