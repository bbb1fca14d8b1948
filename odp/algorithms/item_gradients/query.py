"""The declared queries of gradients of an item table: what the enclave checks, sums, noises and charges in each round.

Guarantee: whatever a device sends, a contribution that ``ItemGradientQuery.check`` accepts moves the stacked sums of a
round by at most the declared L2 sensitivities, because its items are pairwise distinct (its blocks are orthogonal) and

=========  ============  =================  ==============  ==================  ==================
release    shape         sum over users of  in tasks on     sensitivity         noise std
=========  ============  =================  ==============  ==================  ==================
masses     [m]           y                  both            1                   mass_noise
gradients  [m, d]        y x                both            C                   gradient_noise C
gramian    [p]           z z', packed       implicit data   G (Frobenius)       gramian_noise G
=========  ============  =================  ==============  ==================  ==================

with x the user's row [d], of norm at most 1; the sum of y^2 at most 1, or C^2 in a round of gradients, C the clip; and
z a second row, of squared norm at most G: the norm of an outer product is the product of the norms. None of them
depends on how many items a user has. Two releases of one round reach their bounds together, so both are charged.

Source: Abadi et al. 2016 (arXiv 1607.00133); a user's gradient as one: McMahan et al. 2018 (arXiv 1710.06963); the
two parts of the gradient over all pairs: Chien et al. 2021 (arXiv 2107.09802).

Exact sums: a product is below 2^28, so float64 sums over a block of users are exact whatever their order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.factorization.query import (
    BLOCK,
    ContributionSum,
    FactorizationQuery,
    FactorSums,
    packed_release,
    plain_release,
)
from odp.algorithms.factorization.terms import CommonTerms
from odp.algorithms.item_gradients import codec
from odp.algorithms.item_gradients.codec import Contributions
from odp.algorithms.item_gradients.terms import MASSES_ROUND, Terms
from odp.numerics.arrays import Float64Array, Int64Array


class ItemGradientSum(ContributionSum[Contributions]):
    """The running sums of one round, int64; ``add`` trusts that its input was checked.

    Args:
      oblivious: adds at addresses that do not depend on the contributions; see ``factorization/query.py``.
    """

    def __init__(self, terms: Terms[CommonTerms], round: int, *, oblivious: bool = False) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        self._releases = declared_releases(terms, round)
        width, whole = terms.widths_of(round)
        items, places = terms.model.items, terms.model.max_items
        self._total = np.zeros((items, max(width, 1)), dtype=np.int64)
        self._gramian = np.zeros((whole, whole), dtype=np.int64)
        self._oblivious = FactorSums(items, places, (max(width, 1),)) if oblivious else None

    def add_decoded(self, contributions: Contributions) -> None:
        for start in range(0, len(contributions.items), BLOCK):
            block = slice(start, start + BLOCK)
            rows, items = contributions.rows[block].astype(np.float64), contributions.items[block]
            targets = contributions.targets[block] * contributions.weights[block]
            whole = contributions.whole[block].astype(np.float64)
            rows = rows if rows.shape[1] else np.ones((len(rows), 1))
            if self._oblivious is not None:
                self._oblivious.add(items, [targets], [rows])
            else:
                self._add_block(rows, items, targets)
            self._gramian += (whole.T @ whole).astype(np.int64)
        self.count += len(contributions.items)

    def totals(self) -> dict[str, Int64Array]:
        total = self._total if self._oblivious is None else self._oblivious.totals()[0]
        packed = self._gramian[np.triu_indices(len(self._gramian))]
        sums = zip(self._releases, (total, packed), strict=False)
        return {release.name: np.array(values).reshape(release.shape) for release, values in sums}

    def _add_block(self, rows: Float64Array, items: Int64Array, targets: Int64Array) -> None:
        from scipy import sparse  # only enclaves and simulations sum

        user, place = np.nonzero(targets)
        entries = targets[user, place].astype(np.float64), (items[user, place], user)
        weighting = sparse.csr_array(entries, shape=(len(self._total), len(rows)))
        self._total += (weighting @ rows).astype(np.int64)


class ItemGradientQuery(FactorizationQuery[Contributions]):
    """``odp.algorithms.seam.Query`` of one round: a function of the task definition and the round alone.

    Raises:
      ConfigurationError: the task has no such round.
    """

    def __init__(self, terms: Terms[CommonTerms], round: int) -> None:
        super().__init__(
            terms.model,
            round,
            releases=declared_releases(terms, round),
            empty_payload=codec.empty_payload(terms, round),
            row_limit=codec.LIMIT,
        )
        self._terms = terms

    def new_sum(self, *, oblivious: bool = False) -> ItemGradientSum:
        return ItemGradientSum(self._terms, self._round, oblivious=oblivious)

    def _decode(self, payloads: Sequence[bytes]) -> Contributions:
        return codec.decode(self._terms, self._round, payloads)

    def _within_bounds(self, contributions: Contributions) -> npt.NDArray[np.bool_]:
        within = super()._within_bounds(contributions)
        for numbers in (contributions.targets, contributions.whole):
            within &= np.einsum("nk,nk->n", numbers, numbers) <= codec.LIMIT
        return within


def declared_releases(terms: Terms[CommonTerms], round: int) -> tuple[GaussianSum, ...]:
    """The releases of one round; see the table of this module."""
    (width, whole), items = terms.widths_of(round), terms.model.items
    if round == MASSES_ROUND:
        return (plain_release("masses", (items,), 1.0 / codec.UNITS, 1.0, terms.mass_noise),)
    clip, bound = terms.clip * terms.unit, terms.gramian_clip
    step, noise_std = clip / codec.LIMIT, terms.gradient_noise * clip
    gradients = plain_release("gradients", (items, width), step, clip, noise_std)
    if not whole:
        return (gradients,)
    size, noise_std = whole * (whole + 1) // 2, terms.gramian_noise * bound
    return gradients, packed_release("gramian", (size,), bound / codec.LIMIT, bound, noise_std)
