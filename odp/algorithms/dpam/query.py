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

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odp.algorithms.alternating import CommonTerms
from odp.algorithms.dpam import codec
from odp.algorithms.dpam.accumulate import Accumulator
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.oblivious import ObliviousAccumulator, distinct
from odp.algorithms.dpam.terms import BIASES_ROUND, COUNTS_ROUND, Terms
from odp.algorithms.seam import DeclaredRelease
from odp.errors import ContributionRefused, Refusal
from odp.v1 import common_pb2

# Rule P16: the grid is at most a 64th of the noise. Only counts need care; the other grids are far finer.
_COUNT_RATIO = 64.0


class DpamQuery:
    """``odp.algorithms.seam.Query`` of one round: a function of the task definition and the round alone.

    Raises:
      ConfigurationError: the definition is no valid DPAM task, or has no such round.
    """

    # Products of three numbers of one user stay within 2^32, so sums of so many stay within 2^61.
    maximum = 2**29

    def __init__(self, terms: Terms, round: int) -> None:
        self.releases = declared_releases(terms, round)
        self._terms = terms
        self._round = round
        self._row_limit = codec.row_limit(terms)
        self._vector_limit = codec.vector_limit(terms, round)
        self._layout = codec.layout(terms, round)
        self.payload_bytes = int(self._layout.itemsize)
        self.empty_payload = codec.empty_payload(terms, round)

    def check(self, payload: bytes) -> None:
        """Accepts a payload that keeps the declared sensitivities, in integer arithmetic.

        Raises:
          ContributionRefused: MALFORMED for a wrong length, OUT_OF_BOUNDS for everything else.
        """
        (refusal,) = self.refusals([payload])
        if refusal is not None:
            raise ContributionRefused(refusal)

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of each.

        Which memory they make it touch depends on their number and lengths, and on the task, alone.
        """
        whole = [len(payload) == self.payload_bytes for payload in payloads]
        answers = [None if right else Refusal.MALFORMED for right in whole]
        if any(whole):
            given = codec.decode(self._terms, self._round, list(itertools.compress(payloads, whole)))
            accepted = iter(self._within_bounds(given).tolist())
            for number in itertools.compress(range(len(payloads)), whole):
                answers[number] = None if next(accepted) else Refusal.OUT_OF_BOUNDS
        return answers

    def _within_bounds(self, given: Contributions) -> npt.NDArray[np.bool_]:
        """bool [n]."""
        rows, items, weights, targets = given.rows, given.items, given.weights, given.targets
        used = weights > 0
        kept: npt.NDArray[np.bool_] = ~(used & (items >= self._terms.items)).any(axis=1) & distinct(items, used)
        if self._round != COUNTS_ROUND:
            kept &= np.einsum("nk,nk->n", weights, weights) <= codec.WEIGHT_UNITS**2
        kept &= ~(np.abs(targets) > codec.TARGET_UNITS).any(axis=1)
        kept &= np.einsum("nk,nk->n", rows, rows) <= self._row_limit
        # Whoever is beyond a bound by now counts as zero, so that the products of all others stay below 2^39.
        products = weights * targets * kept[:, None]
        kept &= np.einsum("nk,nk->n", products, products) <= self._vector_limit
        return kept

    def new_sum(self, *, oblivious: bool = False) -> Accumulator | ObliviousAccumulator:
        """An empty exact sum; the oblivious one has the same totals."""
        kind = ObliviousAccumulator if oblivious else Accumulator
        return kind(self._terms, self._round, count_units=count_units(self._terms))


def query_for(definition: common_pb2.TaskDefinition, round: int) -> DpamQuery:
    """The declared query of ``round``, from 0.

    Raises:
      ConfigurationError: the definition is no valid DPAM task, or has no such round.
    """
    return DpamQuery(Terms.of(definition), round)


def planned_releases(definition: common_pb2.TaskDefinition) -> list[tuple[DeclaredRelease, ...]]:
    """The releases of every round of the task, in order: what the ledger will be charged if all rounds run.

    Raises:
      ConfigurationError: the definition is no valid DPAM task.
    """
    terms = Terms.of(definition)
    return [declared_releases(terms, round) for round in range(terms.rounds)]


def declared_releases(terms: Terms, round: int) -> tuple[DeclaredRelease, ...]:
    """The releases of one round; see the table of this module."""
    rank, items = terms.rank_of(round), terms.items
    weight_step = math.sqrt(terms.max_items) / codec.WEIGHT_UNITS
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
    row_step, square = terms.full_row_bound / codec.ROW_UNITS, terms.full_row_bound**2
    step, noise_std = weight_step * row_step * row_step, terms.gram_noise * square
    gram = packed_release("gram", (items, terms.pairs), step, bound * square, noise_std)
    reach = terms.full_row_bound * clip
    step = weight_step * row_step * target_step
    return gram, plain_release("targets", (items, 1 + rank), step, bound * reach, terms.target_noise * reach)


def count_units(terms: CommonTerms) -> int:
    """Grid steps per counted item: the smallest power of two that puts the noise at 64 steps or more."""
    if not 0 < terms.count_noise_std < _COUNT_RATIO:
        return 1
    return int(2 ** math.ceil(math.log2(_COUNT_RATIO / terms.count_noise_std)))


def plain_release(
    name: str, shape: tuple[int, ...], step: float, sensitivity: float, noise_std: float
) -> DeclaredRelease:
    """A release whose entries all count once, so that all have the same noise."""
    return DeclaredRelease(name, shape, step, sensitivity, noise_std, np.full(shape[-1], noise_std))


def packed_release(
    name: str, shape: tuple[int, ...], step: float, sensitivity: float, noise_std: float
) -> DeclaredRelease:
    """A release of packed upper triangles of symmetric matrices; its norms are Frobenius norms."""
    diagonal_std = np.full(shape[-1], noise_std)
    release = DeclaredRelease(name, shape, step, sensitivity, noise_std, diagonal_std, packed=True)
    return dataclasses.replace(release, column_std=release.charged_std)
