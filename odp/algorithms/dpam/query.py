"""The declared queries of DPAM: what the enclave checks, sums, noises and charges in each round.

Guarantee: whatever a device sends, a contribution that ``DpamQuery.check`` accepts moves the stacked sums of a round by
at most the declared L2 sensitivities, because its items are pairwise distinct (its blocks are orthogonal) and

========  ===============  ==============================  ==========================  =================
release   shape            sum over users of               sensitivity                 noise std
========  ===============  ==============================  ==========================  =================
counts    [m]              1                               sqrt(K)                     count_noise_std
mass      [m]              w                               sqrt(K)                     bias_mass_noise
sums      [m]              w y                             sqrt(K) C                   bias_sum_noise C
gram      [m, p]           w x x', packed upper triangle   sqrt(K) F^2 (Frobenius)     gram_noise F^2
targets   [m, d + 1]       w y x                           sqrt(K) F C                 target_noise F C
========  ===============  ==============================  ==========================  =================

with K items per user, d the rank, p = (d + 1)(d + 2) / 2, sum of w^2 <= K, x = (1, u) the full row, of norm at most
F = sqrt(1 + row_clip^2), and C the vector clip of the round: sum of w^2 y^2 <= K C^2. The enclave itself puts the
constant 1 (rounded to the grid) in front of u. The Frobenius norm counts off-diagonals twice, so their noise in the
packed triangle has std / sqrt(2): the same mechanism as independent noise on all entries, symmetrised. Two releases of
one round reach their bounds together, so both are charged.

Source: Chien et al. 2021 (arXiv 2107.09802), Krichene et al. 2023 (arXiv 2302.07975); exact constants derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.dpam import codec
from odp.algorithms.dpam.accumulate import Accumulator
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.oblivious import ObliviousAccumulator
from odp.algorithms.dpam.terms import BIASES_ROUND, COUNTS_ROUND, Terms
from odp.algorithms.factorization.codec import ROW_UNITS, WEIGHT_UNITS
from odp.algorithms.factorization.query import FactorizationQuery, count_units, packed_release, plain_release


class DpamQuery(FactorizationQuery[Contributions]):
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
            row_limit=codec.row_limit(terms),
        )
        self._terms = terms
        self._vector_limit = codec.vector_limit(terms, round)

    def new_sum(self, *, oblivious: bool = False) -> Accumulator | ObliviousAccumulator:
        return ObliviousAccumulator(self._terms, self._round) if oblivious else Accumulator(self._terms, self._round)

    def _decode(self, payloads: Sequence[bytes]) -> Contributions:
        return codec.decode(self._terms, self._round, payloads)

    def _within_bounds(self, contributions: Contributions) -> npt.NDArray[np.bool_]:
        within = super()._within_bounds(contributions) & ~(np.abs(contributions.targets) > codec.TARGET_UNITS).any(
            axis=1
        )
        # Whoever is beyond a bound by now counts as zero, so that the products of all others stay below 2^39.
        products = contributions.weights * contributions.targets * within[:, None]
        within &= np.einsum("nk,nk->n", products, products) <= self._vector_limit
        return within


def declared_releases(terms: Terms, round: int) -> tuple[GaussianSum, ...]:
    """The releases of one round; see the table of this module."""
    rank, items = terms.rank_of(round), terms.items
    weight_step = math.sqrt(terms.max_items) / WEIGHT_UNITS
    bound = math.sqrt(terms.max_items)
    if round == COUNTS_ROUND:
        return (plain_release("counts", (items,), 1.0 / count_units(terms), bound, terms.count_noise_std),)
    clip = terms.vector_clip(round)
    target_step = terms.target_clip(round) / codec.TARGET_UNITS
    if round == BIASES_ROUND:
        return (
            plain_release("mass", (items,), weight_step, bound, terms.bias_mass_noise),
            plain_release("sums", (items,), weight_step * target_step, bound * clip, terms.bias_sum_noise * clip),
        )
    row_step, square = terms.full_row_bound / ROW_UNITS, terms.full_row_bound**2
    step, noise_std = weight_step * row_step * row_step, terms.gram_noise * square
    gram = packed_release("gram", (items, terms.pairs), step, bound * square, noise_std)
    reach = terms.full_row_bound * clip
    step = weight_step * row_step * target_step
    return gram, plain_release("targets", (items, 1 + rank), step, bound * reach, terms.target_noise * reach)
