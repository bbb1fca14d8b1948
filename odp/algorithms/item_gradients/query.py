"""The declared queries of gradients of an item table: what the enclave checks, sums, noises and charges in each round.

Guarantee: whatever a device sends, a contribution that ``ItemGradientQuery.check`` accepts moves the sums of a round by
at most the declared L2 sensitivities, because its items are pairwise distinct (its blocks are orthogonal) and

=========  ============  =================  ===========  ==================
release    shape         sum over users of  sensitivity  noise std
=========  ============  =================  ===========  ==================
masses     [m]           y                  1            mass_noise
gradients  [m, d + 1]    y x                C            gradient_noise C
=========  ============  =================  ===========  ==================

with d the rank, C the clip, x the user's row, of norm at most 1, and the sum of y^2 at most 1 or C^2: the norm of an
outer product is the product of the norms. Neither depends on how many items a user has.

Source: Abadi et al. 2016 (arXiv 1607.00133); a user's gradient as one: McMahan et al. 2018 (arXiv 1710.06963).

Exact sums: an entry is below 2^28, so float64 sums over a block of users are exact whatever their order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.factorization.query import BLOCK, ContributionSum, FactorizationQuery, FactorSums, plain_release
from odp.algorithms.item_gradients import codec
from odp.algorithms.item_gradients.terms import MASSES_ROUND, Terms
from odp.numerics.arrays import Float64Array, Int64Array


class ItemGradientSum(ContributionSum[Contributions]):
    """The running sum of one round, int64; ``add`` trusts that its input was checked.

    Args:
      oblivious: adds at addresses that do not depend on the contributions; see ``factorization/query.py``.
    """

    def __init__(self, terms: Terms, round: int, *, oblivious: bool = False) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        (self._release,) = declared_releases(terms, round)
        width = max(terms.width_of(round), 1)
        items, places = terms.model.items, terms.model.max_items
        self._total = np.zeros((items, width), dtype=np.int64)
        self._oblivious = FactorSums(items, places, (width,)) if oblivious else None

    def add_decoded(self, contributions: Contributions) -> None:
        for start in range(0, len(contributions.items), BLOCK):
            block = slice(start, start + BLOCK)
            rows, items = contributions.rows[block].astype(np.float64), contributions.items[block]
            targets = contributions.targets[block] * contributions.weights[block]
            rows = rows if rows.shape[1] else np.ones((len(rows), 1))
            if self._oblivious is not None:
                self._oblivious.add(items, [targets], [rows])
            else:
                self._add_block(rows, items, targets)
        self.count += len(contributions.items)

    def totals(self) -> dict[str, Int64Array]:
        total = self._total.copy() if self._oblivious is None else self._oblivious.totals()[0]
        return {self._release.name: total.reshape(self._release.shape)}

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

    def __init__(self, terms: Terms, round: int) -> None:
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
        targets = contributions.targets
        return super()._within_bounds(contributions) & (np.einsum("nk,nk->n", targets, targets) <= codec.LIMIT)


def declared_releases(terms: Terms, round: int) -> tuple[GaussianSum, ...]:
    """The release of one round; see the table of this module."""
    width = terms.width_of(round)
    if round == MASSES_ROUND:
        return (plain_release("masses", (terms.model.items,), 1.0 / codec.UNITS, 1.0, terms.mass_noise),)
    clip = terms.clip * terms.unit
    step, noise_std = clip / codec.LIMIT, terms.gradient_noise * clip
    return (plain_release("gradients", (terms.model.items, width), step, clip, noise_std),)
