"""The declared queries of gradient steps: what the enclave checks, sums, noises and charges in each round.

Guarantee: whatever a device sends, a contribution that ``GradientQuery.check`` accepts moves the sums of a round by at
most the declared L2 sensitivities, because its items are pairwise distinct and

=========  =============  =====================================================  ===========  =================
release    shape          sum over users of                                      sensitivity  noise std
=========  =============  =====================================================  ===========  =================
masses     [m]            w, with sum of w^2 <= K                                sqrt(K)      count_noise_std
devices    [1]            1 where any weight is positive                         1            bias_mass_noise
gradients  [m, learned]   its vectors, whose squares sum to C^2 at most          C            target_noise C
moments    [p]            its moments, whose squares sum to M^2 at most          M            gram_noise M
=========  =============  =====================================================  ===========  =================

with K items per user, C the clip of a user's gradient, M = 2.5. The enclave checks the exact norm of the whole gradient
of a user. Two releases of one round reach their bounds together, so both are charged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.dpam import gradient_codec as codec
from odp.algorithms.dpam.gradient_codec import MOMENTS_CLIP, UNITS, Contributions
from odp.algorithms.dpam.terms import COUNTS_ROUND, Terms
from odp.algorithms.factorization.codec import WEIGHT_UNITS
from odp.algorithms.factorization.query import ContributionSum, FactorizationQuery, SortedSums, plain_release
from odp.numerics.arrays import Int64Array


class GradientSum(ContributionSum[Contributions]):
    """The running sums of one round, by release name, int64; ``add`` trusts that its input was checked.

    With ``oblivious``, the same totals at addresses that do not depend on the contributions: two columns per sort.
    """

    def __init__(self, terms: Terms, round: int, *, oblivious: bool) -> None:
        super().__init__(functools.partial(codec.decode, terms, round))
        self._round, self._items = round, terms.items
        width = 1 if round == COUNTS_ROUND else terms.learned
        self.columns = np.zeros((terms.items, width), dtype=np.int64)
        self.vector = np.zeros(1 if round == COUNTS_ROUND else codec.moments_of(terms), dtype=np.int64)
        pairs = range(0, width, 2) if oblivious else ()
        self._sorted = [SortedSums(terms.items, product=False) for _ in pairs]

    def add_decoded(self, contributions: Contributions) -> None:
        used = contributions.weights > 0
        values: npt.NDArray[np.integer]
        if self._round == COUNTS_ROUND:
            values = contributions.weights[:, :, None]
            self.vector += codec.DEVICE_UNITS * np.count_nonzero(used.any(axis=1))
        else:
            values = contributions.gradients
            self.vector += contributions.moments.sum(axis=0, dtype=np.int64)
        self.count += len(values)
        for number, sums in enumerate(self._sorted):
            first = values[:, :, 2 * number].astype(np.int64)
            last = 2 * number + 1 == values.shape[2]
            second = np.zeros_like(first) if last else values[:, :, 2 * number + 1].astype(np.int64)
            sums.add(contributions.items, first, second, used=used)
        if not self._sorted:
            items = contributions.items[used]
            for column, numbers in enumerate(values[used].T):
                total = np.bincount(items, weights=numbers, minlength=self._items)
                self.columns[:, column] += total.astype(np.int64)

    def totals(self) -> dict[str, Int64Array]:
        for number, sums in enumerate(self._sorted):
            sums.fold()
            pair = self.columns[:, 2 * number : 2 * number + 2]
            pair[:] = np.stack((sums.weights, sums.products), axis=1)[:, : pair.shape[1]]
        if self._round == COUNTS_ROUND:
            return {"masses": self.columns[:, 0].copy(), "devices": self.vector.copy()}
        return {"gradients": self.columns.copy(), "moments": self.vector.copy()}


class GradientQuery(FactorizationQuery[Contributions]):
    """``odp.algorithms.seam.Query`` of one round: a function of the task definition and the round alone.

    Raises:
      ConfigurationError: the task has no such round.
    """

    def __init__(self, terms: Terms, round: int) -> None:
        terms.check_round(round)
        super().__init__(
            terms,
            round,
            releases=declared_releases(terms, round),
            empty_payload=codec.empty_payload(terms, round),
            row_limit=0,
        )
        self._terms = terms

    def new_sum(self, *, oblivious: bool = False) -> GradientSum:
        return GradientSum(self._terms, self._round, oblivious=oblivious)

    def _decode(self, payloads: Sequence[bytes]) -> Contributions:
        return codec.decode(self._terms, self._round, payloads)

    def _within_bounds(self, contributions: Contributions) -> npt.NDArray[np.bool_]:
        within = super()._within_bounds(contributions)
        if self._round != COUNTS_ROUND:
            unused = contributions.weights == 0
            within &= ~(contributions.gradients.any(axis=2) & unused).any(axis=1)
            within &= codec.lengths(contributions.gradients) <= UNITS**2
            within &= codec.lengths(contributions.moments) <= UNITS**2
        return within


def declared_releases(terms: Terms, round: int) -> tuple[GaussianSum, ...]:
    """The releases of one round; see the table of this module."""
    if round == COUNTS_ROUND:
        bound = math.sqrt(terms.max_items)
        return (
            plain_release("masses", (terms.items,), bound / WEIGHT_UNITS, bound, terms.count_noise_std),
            plain_release("devices", (1,), 1.0 / codec.DEVICE_UNITS, 1.0, terms.bias_mass_noise),
        )
    clip = terms.factor_vector_clip
    return (
        plain_release("gradients", (terms.items, terms.learned), clip / UNITS, clip, terms.target_noise * clip),
        plain_release(
            "moments", (codec.moments_of(terms),), MOMENTS_CLIP / UNITS, MOMENTS_CLIP, terms.gram_noise * MOMENTS_CLIP
        ),
    )
